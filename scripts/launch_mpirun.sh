#!/bin/bash
# Starts a program on several ranks through mpirun. It works with Open MPI 4 and 5. The differences
# from mpirun alone:
#   - SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 make the run save and stop (code 75). mpirun alone kills
#     its ranks within two seconds after SIGTERM or SIGINT. A second SIGTERM or SIGINT, at least two
#     seconds after the first one, ends the job without saving (code 143 or 130).
#   - A lost host ends the job after about 11 seconds instead of 8 minutes. The recipe's
#     parallel.timeout_seconds (300 by default) must be longer, or mpirun hangs.
#   - If a signal ends a rank, the last line of the output is an error, and the exit code is 71. All
#     exit codes of Bireme (docs/reference/exit_codes.md) are passed on.
#   - The messages in which mpirun repeats an exit code are removed: the error line of Bireme gives
#     the reason.
#   - A job on this machine cannot be reached from the network. No process, temporary file or shared
#     memory of the job remains, also if mpirun is killed.
#   - --restarts starts a job again after a failure that a restart can cure.
set -u

# A signal before the start of mpirun also ends this script with code 75.
stop_requested=no
trap 'stop_requested=yes' TERM INT USR1

print_usage() {
    cat <<'TEXT'
usage: scripts/launch_mpirun.sh [options] [--] PROGRAM [ARGUMENT...]

  -n, -np, --ranks N     number of ranks (default: one per core, or one per slot of the hosts)
  -t, --threads N        threads and cores per rank (default: cores of this machine / ranks)
      --host LIST        hosts and their slots, for example node1:2,node2:2
      --hostfile FILE    a file with one host per line, for example "node1 slots=2"
      --network LIST     interfaces (eth1) or networks (10.1.0.0/16) for the traffic between hosts,
                         separated by commas
      --no-bind          do not bind ranks to cores
      --time-limit S     save and stop after S seconds, as after SIGUSR1 (code 75)
      --grace S          kill ranks that still run S seconds after the time limit, and kill mpirun
                         if it still runs S seconds after all ranks of a job on this machine have
                         ended (default: 120)
      --restarts N       after exit code 71 or 76 (a lost or hanging rank), start the job again, up
                         to N times, but at most 3 times without a new checkpoint. Not after other
                         codes: they need a person (docs/guide/multi_node.md)
      --no-private-network
                         let a job on this machine use all network interfaces
      --mpirun ARGUMENT  pass one more argument to mpirun; may be repeated
      --dry-run          print the command and do not run it
  -h, --help             print this help

example: scripts/launch_mpirun.sh -n 2 build/trainer/bireme train recipes/quickstart.yaml
TEXT
}

# fail_usage TEXT: end with a usage error.
fail_usage() {
    printf 'error: launch_mpirun.sh: %s; see --help [E-USAGE]\n' "$1" >&2
    exit 64
}

# check_number NAME VALUE: refuse the option unless its value is a positive whole number.
check_number() {
    [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || fail_usage "$1 $2: must be a whole number of at least 1"
}

ranks='' threads='' host='' hostfile='' network='' bind=yes
time_limit='' grace=120 restarts=0 private_network=yes dry_run=no more=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) print_usage && exit 0 ;;
    -n | -np | --ranks | -t | --threads | --host | --hostfile | --network | --time-limit | \
        --grace | --restarts | --mpirun)
        [ $# -ge 2 ] || fail_usage "$1 needs a value"
        case $1 in
        -n | -np | --ranks) check_number "$1" "$2" && ranks=$2 ;;
        -t | --threads) check_number "$1" "$2" && threads=$2 ;;
        --host) host=$2 ;;
        --hostfile) hostfile=$2 ;;
        --network) network=$2 ;;
        --time-limit) check_number "$1" "$2" && time_limit=$2 ;;
        --grace) check_number "$1" "$2" && grace=$2 ;;
        --restarts) [ "$2" = 0 ] || check_number "$1" "$2" && restarts=$2 ;;
        --mpirun) more+=("$2") ;;
        esac
        shift 2
        ;;
    --no-bind) bind=no && shift ;;
    --no-private-network) private_network=no && shift ;;
    --dry-run) dry_run=yes && shift ;;
    --) shift && break ;;
    -*) fail_usage "unknown option $1" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || fail_usage "no program to start"
[ -z "$host" ] || [ -z "$hostfile" ] || fail_usage "--host and --hostfile exclude each other"
[ -z "$hostfile" ] || [ -r "$hostfile" ] || fail_usage "cannot read the host file $hostfile"
version=$(mpirun --version 2>/dev/null | sed -n '1s/.*(Open MPI) \([0-9]*\).*/\1/p')
if [ -z "$version" ]; then
    echo 'error: launch_mpirun.sh: mpirun of Open MPI not found: install openmpi-bin' \
        '[E-UNAVAILABLE]' >&2
    exit 69
fi

command=(mpirun)
[ -z "$ranks" ] || command+=(-np "$ranks")
[ -z "$host" ] || command+=(--host "$host")
[ -z "$hostfile" ] || command+=(--hostfile "$hostfile")

# Open MPI detects a dead connection between hosts after 5 + 3 * 2 seconds.
keepalive=(oob_tcp_keepalive_time 5 oob_tcp_keepalive_intvl 2 oob_tcp_keepalive_probes 3)
flag=--mca
[ "$version" -lt 5 ] || flag=--prtemca
for ((i = 0; i < ${#keepalive[@]}; i += 2)); do
    command+=("$flag" "${keepalive[i]}" "${keepalive[i + 1]}")
done

[ -z "$network" ] ||
    command+=("$flag" oob_tcp_if_include "$network" --mca btl_tcp_if_include "$network")

# For a job on this machine, divide the cores by the ranks. For other hosts, --threads sets the
# number of cores per rank.
cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
allowed=$(nproc)
[ "$cores" -ge 1 ] && [ "$cores" -le "$allowed" ] || cores=$allowed
here=no
[ -n "$host$hostfile${SLURM_JOB_ID:-}" ] || here=yes
if [ $here = yes ]; then
    if ! command -v "$1" >/dev/null; then
        printf 'error: launch_mpirun.sh: %s: no such program, or not executable [E-NO-INPUT]\n' \
            "$1" >&2
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
if [ "$(id -u)" = 0 ]; then # root is the usual user in a container; mpirun needs both variables
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# ---- the network and the temporary files of a job on this machine ----

# has_network_options: whether the user has selected the networks of Open MPI.
has_network_options() {
    local names='(btl|oob|pml|mtl|plm|prte_if|pmix|ptl)'
    [ -n "$network" ] || [[ " ${more[*]}" =~ \ $names ]] || env | grep -qE "^(OMPI|PRTE)_MCA_$names"
}

# make_private_network: set `isolate` to a command that runs its arguments in a network namespace,
# where only the loopback interface exists. Open MPI has no option for this: its sockets accept
# connections on all interfaces, for any oob_tcp_if_include and btl_tcp_if_include.
isolate=()
make_private_network() {
    local own_connections=("$flag" oob_tcp_if_include lo)
    # shellcheck disable=SC2016
    if unshare --net ip link set lo up 2>/dev/null; then
        isolate=(unshare --net bash -c 'ip link set lo up && exec "$@"' _)
    elif [ "$(id -u)" != 0 ] &&
        unshare --user --map-current-user --keep-caps --net ip link set lo up 2>/dev/null; then
        isolate=(unshare --user --map-current-user --keep-caps --net bash -c
            'ip link set lo up && exec setpriv --inh-caps=-all --ambient-caps=-all -- "$@"' _)
    else
        # mpirun of Open MPI 5 does not start with this option if the host has other interfaces
        # (PRRTE 3.0; https://github.com/openpmix/prrte/pull/2788).
        [ "$version" -lt 5 ] || own_connections=()
        echo 'launch_mpirun.sh: network namespaces are not permitted here (or unshare or ip is' \
            'missing): Open MPI listens on all interfaces' >&2
    fi
    command+=("${own_connections[@]}" --mca btl_tcp_if_include lo)
}

# Folders for the temporary files and the shared memory of Open MPI, which a killed mpirun leaves.
scratch=()
remove_scratch() {
    [ ${#scratch[@]} = 0 ] || rm -rf -- "${scratch[@]}"
}
trap remove_scratch EXIT

# make_folder PARENT: create a folder, add it to `scratch` and set `folder` to its path.
make_folder() {
    folder=$1/launch_mpirun.XXXXXX
    [ $dry_run = no ] || return 0
    folder=$(mktemp -d "$folder" 2>/dev/null) && scratch+=("$folder")
}

make_scratch() {
    local folder name names=(btl_vader osc_sm osc_rdma) base=orte_tmpdir_base
    [ "$version" -lt 5 ] || names=(btl_sm osc_sm osc_rdma) base=prte_tmpdir_base
    [[ " ${more[*]}" =~ tmpdir ]] || ! make_folder "${TMPDIR:-/tmp}" ||
        command+=("$flag" "$base" "$folder")
    [[ " ${more[*]}" =~ backing_directory ]] || ! make_folder /dev/shm ||
        for name in "${names[@]}"; do
            command+=(--mca "${name}_backing_directory" "$folder")
        done
}

if [ $here = yes ]; then
    make_scratch
    [ $private_network = no ] || has_network_options || make_private_network
fi
command=("${isolate[@]}" "${command[@]}" "${more[@]}" "$@")

# limit_time SECONDS: set `limited` to the command with a time limit, if there is one.
limit_time() {
    limited=("${command[@]}")
    [ -z "$1" ] || limited=(timeout --signal=USR1 --kill-after="$grace" --preserve-status "$1"
        "${command[@]}")
}
limit_time "$time_limit"
if [ $dry_run = yes ]; then
    printf '%q ' "${limited[@]}"
    echo
    exit 0
fi

# ---- one start of the job ----

# The ranks do not receive a signal that mpirun gets while it starts them. Therefore the signal is
# sent several times.
job='' repeater='' interrupted=no pause=''
# shellcheck disable=SC2317 # called by save_and_stop
repeat_signal() {
    for seconds in 2 3 5 10; do
        sleep $seconds
        kill -USR1 "$job" 2>/dev/null || break
    done
}
# save_and_stop [SIGNAL]: make the ranks save and stop. After a second SIGNAL, end the job at once.
end_code='' first_end=''
# shellcheck disable=SC2317 # called by the trap
save_and_stop() {
    interrupted=yes stop_requested=yes
    if [ -n "${1:-}" ] && [ -n "$job" ]; then
        if [ -z "$first_end" ]; then
            first_end=$SECONDS
            echo 'launch_mpirun.sh: a second Ctrl-C or SIGTERM, at least two seconds later, ends' \
                'the job at once without saving' >&2
        elif [ $((SECONDS - first_end)) -gt 2 ]; then
            end_code=$((128 + $(kill -l "$1")))
            kill -TERM "$job" 2>/dev/null
            return
        fi
    fi
    [ -z "$pause" ] || kill "$pause" 2>/dev/null
    [ -n "$job" ] && kill -USR1 "$job" 2>/dev/null || return
    [ -n "$repeater" ] || { repeat_signal & repeater=$! && disown "$repeater"; }
}
trap save_and_stop USR1
trap 'save_and_stop TERM' TERM
trap 'save_and_stop INT' INT

# mpirun of Open MPI 4.1.4 can hang after MPI_Abort when all of its ranks have ended. In this case
# watch_mpirun kills it.
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

# end_left_ranks: end the processes of the job that still exist on this machine. A stopped rank
# remains if mpirun is killed, and holds the lock of the run folder.
export BIREME_LAUNCH=$$-$RANDOM$RANDOM
end_left_ranks() {
    local environments=(/proc/[0-9]*/environ)
    grep -lzxsF "BIREME_LAUNCH=$BIREME_LAUNCH" "${environments[@]}" |
        while IFS=/ read -r _ _ process _; do
            kill -KILL "$process" 2>/dev/null
        done
}

# filter_messages: copy the messages of mpirun, without those about an exit code. A message is
# between two lines of dashes.
filter_messages() {
    trap '' INT TERM USR1 USR2
    unset BIREME_LAUNCH # it is not a process of the job
    # shellcheck disable=SC2016 # $ is an address of sed
    LC_ALL=C exec sed -u '/^-\{60,\}$/{
        $!N
        /\n\(MPI_ABORT was invoked\|Primary job  *terminated normally\)/b end
        /\n[a-z]* detected that one or more processes exited with non-zero/b end
        /\n[a-z]* has exited due to process rank .* calling$/b end
        P; D
        :end
        N
        /\n-\{60,\}$/!b end
        d
    }'
}

# open_messages: set `messages` to a pipe to the filter, and `filter` to its process. The filter is
# not a child of this shell: if a signal arrives while mpirun ends, `wait` waits for other children.
open_messages() {
    exec {messages}<> <(:)
    filter=$(filter_messages <"/dev/fd/$messages" {messages}>&- >&2 & echo $!)
}

# close_messages: end the filter after its last line, and wait for it, at most 2 s.
close_messages() {
    local i
    exec {messages}>&-
    for ((i = 0; i < 40; i++)); do
        [ -e "/proc/$filter/fd/0" ] || return
        sleep 0.05
    done
}

# find_mpirun: set `process` to the process of mpirun. With a time limit it is a child of `timeout`.
find_mpirun() {
    local i
    process=$job
    [ -n "$time_limit" ] || return 0
    for ((i = 0; i < 40; i++)); do
        ! process=$(pgrep -P "$job" '^(mpirun|prterun|prte)$') || return 0
        sleep 0.05
    done
}

# remove_session PROCESS: remove the temporary files of this mpirun, and the shared memory of its
# ranks on this machine, which a killed mpirun leaves. It is called only for a job on several hosts.
# A job on this machine alone has these files in `scratch`. The name of the memory contains the
# upper half of the job's id. In Open MPI 4, contact.txt begins with this id.
remove_session() {
    local folder id user host temporary=${TMPDIR:-/tmp}
    user=$(id -u)
    host=$(uname -n)
    for folder in "$temporary/ompi.${host%%.*}"*".$user/pid.$1"; do
        [ -O "$folder" ] || continue
        id=$(sed -n '1s/^\([0-9]\{1,10\}\)\..*/\1/p' "$folder/contact.txt" 2>/dev/null)
        [ -z "$id" ] || printf -v id %x $((id >> 16))
        [ -z "$id" ] || rm -f -- /dev/shm/vader_segment.*."$user"."$id"????.*
        rm -rf -- "$folder" && rmdir -- "${folder%/*}" 2>/dev/null
    done
    for folder in "$temporary"/{mpirun,prte,prterun}."${host%%.*}"*".$1.$user"; do # Open MPI 5
        [ ! -O "$folder" ] || rm -rf -- "$folder"
    done
}

# run_mpirun: run the job and set `code`.
run_mpirun() {
    local watch='' helper messages filter process=''
    hung=no repeater=''
    open_messages
    "${limited[@]}" </dev/null 2>&"$messages" {messages}>&- &
    job=$!
    [ $stop_requested = no ] || save_and_stop
    if [ $here = yes ]; then # ranks on other hosts are not children of this mpirun
        watch_mpirun $$ &
        watch=$! && disown "$watch"
    else
        find_mpirun
    fi
    while :; do
        interrupted=no
        wait "$job" 2>/dev/null
        code=$?
        [ $interrupted = yes ] || break
    done
    job=''
    for helper in $watch $repeater; do
        kill -- "-$helper" 2>/dev/null
    done
    [ "$code" = 0 ] || [ "$code" = 75 ] || [ $here = no ] || end_left_ranks
    [ -z "$process" ] || remove_session "$process"
    close_messages
}

# report_lost_rank REASON: print the error of a lost rank and set `code`.
report_lost_rank() {
    printf 'error: %s (exit code of mpirun: %d): %s [E-RANK-LOST]\n' "$1" "$code" \
        'the last published checkpoint is complete; start the job again' >&2
    code=71
}

# report_end: print how the job ended, set `code` to a code of Bireme, and set `curable`.
# tests/comm/host/launch_codes.tsv lists the codes for this script and for launch_slurm.sbatch.
report_end() {
    curable=no
    if [ -n "$end_code" ]; then
        echo 'launch_mpirun.sh: ended by the second signal without saving; published checkpoints' \
            'are complete' >&2
        code=$end_code
        return
    fi
    # Code 138: SIGUSR1 killed mpirun or a rank that did not handle the signal yet, or no longer.
    # The signal may have another sender, such as scancel. Code -1: bash lost the code, because the
    # signal arrived while mpirun ended. At the time limit, `timeout` sends the signal.
    [ -z "$time_limit" ] || [ $SECONDS -lt "$time_limit" ] || stop_requested=yes
    if [ "$code" = 138 ] || { [ $stop_requested = yes ] && [ "$code" = -1 ]; }; then
        echo 'launch_mpirun.sh: stopped while mpirun started or ended; checkpoints are complete' >&2
        code=75
        return
    fi
    # 126, 127: the program or mpirun cannot be started, and the shell has printed the reason.
    case $code in
    0 | 126 | 127) return ;;
    110) report_lost_rank 'the job reached its time limit and did not stop' && return ;;
    255)
        echo 'error: mpirun did not reach a host (exit code 255); the lines above give the' \
            'reason: correct the host names, or make ssh work without a password' \
            '[E-UNAVAILABLE]' >&2
        code=69
        return
        ;;
    esac
    if [ $hung = yes ]; then
        report_lost_rank "its ranks are gone, and mpirun did not end for $grace s"
    else
        case $code in
        134) report_lost_rank 'a rank aborted (signal 6)' ;;
        137) report_lost_rank 'a rank was killed (signal 9, for example because the machine ran'\
' out of memory)' ;;
        139) report_lost_rank 'a rank crashed (signal 11)' ;;
        205) report_lost_rank 'the connection to a host is lost' ;;
        213) report_lost_rank 'mpirun failed, and may have printed the reason above' ;;
        esac
        [ "$code" -lt 128 ] || report_lost_rank 'a rank ended abnormally'
    fi
    [ "$code" != 71 ] && [ "$code" != 76 ] || curable=yes
}

# ---- restarts ----

# print_newest_step RECIPE SETTING...: print the step of the newest complete checkpoint of the run;
# nothing if there is none or the run folder is unknown.
print_newest_step() {
    local argument run='' folder newest=''
    for argument in "$@"; do
        case $argument in
        run_dir=*) run=${argument#run_dir=} && break ;;
        *.yaml | *.yml)
            run=$(sed -nE "s/^run_dir: *['\"]?([^'\" #]*).*/\1/p" "$argument" 2>/dev/null)
            ;;
        esac
    done
    for folder in "$run"/checkpoints/step-*; do
        [ -z "$run" ] || [ ! -e "$folder/manifest.json" ] || newest=${folder##*-}
    done
    echo "$newest"
}

# stop_before_start: end if a stop was requested while no job runs.
stop_before_start() {
    [ $stop_requested = no ] || {
        echo 'launch_mpirun.sh: stopped before mpirun was started' >&2
        exit 75
    }
}

# may_restart: whether the job is started again; wait before it.
starts=1 unproductive=0 newest=$(print_newest_step "$@")
may_restart() {
    local step seconds
    [ $curable = yes ] && [ $stop_requested = no ] && [ $starts -le "$restarts" ] || return
    step=$(print_newest_step "$@")
    unproductive=$((unproductive + 1))
    [ "$step" = "$newest" ] || unproductive=1
    newest=$step
    if [ $unproductive -gt 3 ]; then
        echo 'launch_mpirun.sh: no restart: three restarts made no new checkpoint' >&2
        return 1
    fi
    seconds=$((1 << (2 * unproductive - 2)))
    printf 'launch_mpirun.sh: restart %d of %d in %d s, from %s\n' $starts "$restarts" $seconds \
        "${step:+the checkpoint of step }${step:-the start}" >&2
    starts=$((starts + 1))
    sleep $seconds &
    pause=$!
    wait $pause 2>/dev/null
    pause=''
    stop_before_start
}

# mpirun gets a separate process group, because Ctrl-C in the terminal would otherwise kill the
# ranks.
set -m
stop_before_start
while :; do
    [ -z "$time_limit" ] || limit_time $((time_limit > SECONDS ? time_limit - SECONDS : 1))
    run_mpirun
    report_end
    may_restart "$@" || exit "$code"
done
