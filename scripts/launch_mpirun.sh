#!/bin/bash
# Starts a program on several ranks through mpirun, so that
#   - SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 to this script let the run save and stop (code 75): mpirun
#     itself answers the first two by killing its ranks within two seconds;
#   - a lost host ends the job after about eleven seconds instead of eight minutes. Bireme's own limit for
#     a rank that does not answer must stay above that (its default of 300 s does), or mpirun hangs;
#   - a job that a signal ended says so in one last line and with code 71, and every code of Bireme's
#     own (docs/exit-codes.md) is passed on.
# Works with Open MPI 4 and 5.
set -u

usage() {
    cat <<'TEXT'
usage: scripts/launch_mpirun.sh [options] [--] PROGRAM [ARGUMENT...]

  -n, --ranks N          ranks to start (default: one for each core, or each slot of the hosts)
  -t, --threads N        threads, and so cores, of each rank (default: this machine's cores / ranks)
      --host LIST        hosts and their slots: node1:2,node2:2
      --hostfile FILE    the same, a host a line: "node1 slots=2"
      --network LIST     what hosts talk over: interfaces (eth1) or networks (10.1.0.0/16), with commas
      --no-bind          do not tie ranks to cores
      --time-limit S     after S seconds save and stop, as SIGUSR1 does (code 75)
      --grace S          what then still runs after S more seconds is killed, and so is an mpirun that runs
                         on for so long when its ranks, all on this machine, are gone (default 120)
      --mpirun ARGUMENT  one more argument for mpirun; may be repeated
      --dry-run          print the command instead of running it
  -h, --help             this text

example: scripts/launch_mpirun.sh -n 2 build/trainer/bireme train recipes/quickstart.yaml
TEXT
}

refuse() {
    printf 'E-USAGE launch_mpirun.sh: %s; see --help\n' "$1" >&2
    exit 64
}

whole_number() { # NAME VALUE
    [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || refuse "$1 $2: must be a whole number of at least 1"
}

ranks='' threads='' host='' hostfile='' network='' bind=yes time_limit='' grace=120 dry_run=no more=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage && exit 0 ;;
    -n | --ranks | -t | --threads | --host | --hostfile | --network | --time-limit | --grace | --mpirun)
        [ $# -ge 2 ] || refuse "$1 needs a value"
        case $1 in
        -n | --ranks) whole_number "$1" "$2" && ranks=$2 ;;
        -t | --threads) whole_number "$1" "$2" && threads=$2 ;;
        --host) host=$2 ;;
        --hostfile) hostfile=$2 ;;
        --network) network=$2 ;;
        --time-limit) whole_number "$1" "$2" && time_limit=$2 ;;
        --grace) whole_number "$1" "$2" && grace=$2 ;;
        --mpirun) more+=("$2") ;;
        esac
        shift 2
        ;;
    --no-bind) bind=no && shift ;;
    --dry-run) dry_run=yes && shift ;;
    --) shift && break ;;
    -*) refuse "unknown option $1" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || refuse "no program to start"
[ -z "$host" ] || [ -z "$hostfile" ] || refuse "--host and --hostfile exclude each other"
[ -z "$hostfile" ] || [ -r "$hostfile" ] || refuse "cannot read the host file $hostfile"
version=$(mpirun --version 2>/dev/null | sed -n '1s/.*(Open MPI) \([0-9]*\).*/\1/p')
if [ -z "$version" ]; then
    echo 'E-UNAVAILABLE launch_mpirun.sh: no Open MPI mpirun found: install the package openmpi-bin' >&2
    exit 69
fi

command=(mpirun)
[ -z "$ranks" ] || command+=(-np "$ranks")
[ -z "$host" ] || command+=(--host "$host")
[ -z "$hostfile" ] || command+=(--hostfile "$hostfile")

# Dead connections between hosts are noticed after 5 + 3 * 2 seconds.
keepalive=(oob_tcp_keepalive_time 5 oob_tcp_keepalive_intvl 2 oob_tcp_keepalive_probes 3)
flag=--mca
[ "$version" -lt 5 ] || flag=--prtemca
for ((i = 0; i < ${#keepalive[@]}; i += 2)); do
    command+=("$flag" "${keepalive[i]}" "${keepalive[i + 1]}")
done

[ -z "$network" ] ||
    command+=("$flag" oob_tcp_if_include "$network" --mca btl_tcp_if_include "$network")

# On this machine alone, its cores are shared out; elsewhere the user says how many each rank gets.
cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
allowed=$(nproc)
[ "$cores" -ge 1 ] && [ "$cores" -le "$allowed" ] || cores=$allowed
here=no
[ -n "$host$hostfile${SLURM_JOB_ID:-}" ] || here=yes
if [ $here = yes ]; then
    if ! command -v "$1" >/dev/null; then
        printf 'E-NO-INPUT launch_mpirun.sh: %s: no such program, or not executable\n' "$1" >&2
        exit 66
    fi
    : "${ranks:=$cores}"
    if [ -z "$threads" ]; then
        threads=$((cores / ranks))
        [ "$threads" -ge 1 ] || threads=1
    fi
    if [ $((ranks * threads)) -gt "$cores" ]; then
        bind=no
        command+=(--oversubscribe)
    fi
fi
if [ $bind = no ] || [ -z "$threads" ]; then
    command+=(--bind-to none)
else
    command+=(--map-by "slot:PE=$threads" --bind-to core)
fi
if [ -n "$threads" ]; then
    export OMP_NUM_THREADS=$threads
    [ $here = yes ] || command+=(-x OMP_NUM_THREADS)
fi
if [ "$(id -u)" = 0 ]; then # the user who starts this as root, in a container mostly, means it
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
command+=("${more[@]}" "$@")
[ -z "$time_limit" ] ||
    command=(timeout --signal=USR1 --kill-after="$grace" --preserve-status "$time_limit" "${command[@]}")
if [ $dry_run = yes ]; then
    printf '%q ' "${command[@]}"
    echo
    exit 0
fi

# A signal that meets mpirun while it starts its ranks reaches none of them: it is sent again.
job='' again='' interrupted=no asked=no
# shellcheck disable=SC2317 # called by save_and_stop
ask_again() {
    for pause in 2 3 5 10; do
        sleep $pause
        kill -USR1 "$job" 2>/dev/null || break
    done
}
# shellcheck disable=SC2317 # called by the trap
save_and_stop() {
    interrupted=yes asked=yes
    [ -n "$job" ] && kill -USR1 "$job" 2>/dev/null || return
    [ -n "$again" ] || { ask_again & again=$! && disown "$again"; }
}
trap save_and_stop TERM INT USR1

# In a process group of its own, out of reach of the terminal's Ctrl-C, which would kill the ranks.
set -m
"${command[@]}" </dev/null &
job=$!
[ $asked = no ] || save_and_stop

# Open MPI 4.1.4 was seen to stay for ever after MPI_Abort, with no process below it.
hung=no
trap 'interrupted=yes hung=yes' USR2
watch_mpirun() {
    local shell=$1 pid=$job seen=no alone=0
    while kill -0 "$job" 2>/dev/null; do
        [ -z "$time_limit" ] || pid=$(pgrep -P "$job" mpirun) || pid=$job
        if pgrep -P "$pid" >/dev/null; then
            seen=yes alone=0
        elif [ $seen = yes ] && [ $((alone += 1)) -gt "$grace" ]; then
            kill -USR2 "$shell"
            kill -KILL "$pid"
        fi
        sleep 1
    done
}
watch=''
if [ $here = yes ]; then # elsewhere ranks are not its children
    watch_mpirun $$ &
    watch=$! && disown "$watch"
fi
while :; do
    interrupted=no
    wait "$job" 2>/dev/null
    code=$?
    [ $interrupted = yes ] || break
done
for helper in $watch $again; do
    kill -- "-$helper" 2>/dev/null
done

lost() {
    printf 'E-RANK-LOST %s (mpirun ended with %d): the last published checkpoint is whole, start again\n' \
        "$1" "$code" >&2
    exit 71
}
[ $hung = no ] || lost "its ranks are gone, and mpirun did not end for $grace s"
if [ $asked = yes ] && [ "$code" = 138 ]; then # mpirun, or a rank, that did not watch for the signal yet or any more
    echo 'launch_mpirun.sh: stopped while mpirun began or ended: what was saved is whole, start again' >&2
    exit 75
fi
case $code in
110) lost 'the job ran into its time limit without an answer' ;;
134) lost 'a rank aborted (signal 6)' ;;
137) lost 'a rank was killed (signal 9: by hand, or the machine ran out of memory)' ;;
139) lost 'a rank crashed (signal 11)' ;;
205) lost 'a host or the network to it is lost' ;;
esac
if [ "$code" -ge 126 ] && [ "$code" -le 127 ]; then
    exit "$code" # the program or mpirun cannot be started: the shell has said why
fi
[ "$code" -lt 128 ] || lost "a rank was ended from outside"
exit "$code"
