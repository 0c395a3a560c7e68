#!/bin/bash
# Trains a small model for a while under random faults and checks that nothing is lost.
set -u
source=$(realpath "$(dirname "$0")/..")
program=${BIREME_PROGRAM:-$source/build/trainer/bireme}
launch=$source/scripts/launch_mpirun.sh

print_usage() {
    cat <<'TEXT'
usage: scripts/soak.sh [--minutes] MINUTES [SEED] [REPORT.md]
       scripts/soak.sh --seconds N [SEED] [REPORT.md]

Trains a small model on 2 and 3 ranks, in several layouts in turn: ZeRO stages 0 to 2, tensor
parallelism, and two simulated hosts. Each layout is trained once without faults and then under
faults in random order:

  kill-rank     SIGKILL of a rank             stop-rank    SIGSTOP of a rank, for ever
  kill-mpirun   SIGKILL of mpirun             pause-rank   SIGSTOP of a rank for 1 s
  sigterm       SIGTERM to the launcher       sigusr1      SIGUSR1 to the launcher
  full-disk     the run folder's disk is full full-shm     /dev/shm is full at a start
  bit-flip      one bit of the newest         cut          the network between the hosts fails
                checkpoint changes            short-cut    the same for 3 s

launch_mpirun.sh --restarts starts the job again. After a stop on request or a full disk, this
script does it, in the place of a person. At the end of each run:

  - the final weights, the last checkpoint and all losses are bit-equal to the run without faults;
  - no process, temporary file or shared memory of the run is left;
  - later sessions of the run do not use more memory than earlier ones.

BIREME_SOAK_TIMEOUT is parallel.timeout_seconds on one host (default: 5); on two hosts it is four
times as much. A start may take four times parallel.timeout_seconds. A busy machine needs more.

The program is BIREME_PROGRAM (default: build/trainer/bireme). The report is written to
REPORT.md (default: soak_SEED.md). The same SEED (default: the time) repeats the order of the
faults, but not their exact moments. Full disks need a mount namespace, cuts need root; without them
these faults are left out, and the report contains the reason. Exit code 1: a check failed.
TEXT
}

case ${1:-} in
'' | -h | --help) print_usage && exit 0 ;;
--minutes) shift ;;
--seconds)
    [[ ${2:-} =~ ^[0-9]+$ ]] || { print_usage >&2 && exit 64; }
    shift
    set -- "$(awk -v seconds="$1" 'BEGIN { print seconds / 60 }')" "${@:2}"
    ;;
esac
if ! [[ ${1:-} =~ ^[0-9]+(\.[0-9]+)?$ && ${2:-1} =~ ^[0-9]{1,18}$ ]]; then
    print_usage >&2
    exit 64
fi
minutes=$1
seed=${2:-$(date +%s)}
report=$(realpath -m "${3:-soak_$seed.md}")
seconds=$(awk -v minutes="$1" 'BEGIN { print int(60 * minutes + 0.5) }')
if [ ! -x "$program" ]; then
    echo "error: soak.sh: $program: no such program; build it, or set BIREME_PROGRAM" \
        "[E-NO-INPUT]" >&2
    exit 66
fi

# A mount namespace for a small disk and a small /dev/shm.
if [ -z "${SOAK_NAMESPACE:-}" ]; then
    for option in --propagation=private --user\ --map-root-user; do
        # shellcheck disable=SC2086
        if unshare --mount $option mount -t tmpfs none /mnt 2>/dev/null; then
            SOAK_NAMESPACE=${option%%[= ]*} exec unshare --mount $option "$0" "$1" "$seed" "$report"
        fi
    done
    SOAK_NAMESPACE=none
fi

work=$(mktemp -d)
disk=$work/disk
mkdir "$disk" "$work/temporary"
export TMPDIR=$work/temporary OMP_NUM_THREADS=1 BIREME_PLANS=off
if [ "$SOAK_NAMESPACE" != none ]; then
    mount -t tmpfs -o size=48m none "$disk" && mount -t tmpfs -o size=96m,mode=1777 none /dev/shm
fi
# shellcheck source=tests/comm/host/two_hosts.sh
source "$source/tests/comm/host/two_hosts.sh"
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    hosts_remove
    # shellcheck disable=SC2046
    kill -KILL $(list_processes) 2>/dev/null
    cd / && umount -l "$disk" 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
cd "$disk" || exit 1

RANDOM=$((seed % 32768))
# draw N: set `drawn` to a random number below N. A subshell would repeat the numbers.
draw() {
    drawn=$(((RANDOM * 32768 + RANDOM) % $1))
}

failures=0
# fail TEXT: report a failed check; the soak continues.
fail() {
    failures=$((failures + 1))
    echo "FAILED: $1" | tee -a "$work/failures" >&2
    tail -n 30 "$work/output" >&2
}

now() {
    date +%s.%N
}

# subtract A B: print A - B with one decimal.
subtract() {
    awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", a - b }'
}

# ---- the training ----

"$program" tokenizer train --type char --input "$source/LICENSE" --output tokenizer 2>/dev/null &&
    "$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" \
        --output data --validation-fraction 0.2 >/dev/null 2>&1 || exit 1
cat >recipe.yaml <<END
objective: clm
seed: $((seed % 1000))
model: {architecture: gpt2, num_layers: 3, hidden_size: 48, num_heads: 4,
  max_position_embeddings: 64, dropout: 0.1}
data: {tokenizer: tokenizer, train: data/train-*.h5, validation: data/validation-*.h5,
  sequence_length: 64}
batch: {global_size: 12, micro_size: 2}
optimizer: {learning_rate: 3.0e-3}
schedule: {name: cosine, warmup_steps: 5}
evaluate: {every: 100, batches: 1}
checkpoint: {keep: 4}
parallel: {threads: 1}
log: {every: 1}
END

# Each layout: name, ranks, hosts, settings. Sums of two ranks have one order. With three ranks,
# reproducible sums are equal with and without shared memory.
layouts=(
    'zero0 2 1 parallel.zero_stage=0'
    'hosts2 2 2 parallel.zero_stage=1'
    'zero1 3 1 parallel.zero_stage=1 parallel.reproducible=true checkpoint.async=false'
    'tensor2 2 1 parallel.tensor=2'
    'zero2 2 1 parallel.zero_stage=2 parallel.bucket_mib=1'
)

# list_processes [EXECUTABLE]: print the processes of the soak, or those that run this program.
list_processes() {
    local process
    for process in $(pgrep -f "run_dir=$disk/"); do
        [ $# = 0 ] || [ "$(readlink "/proc/$process/exe")" = "$1" ] || continue
        [ "$process" = $$ ] || echo "$process"
    done
}

# start_job RUN: start or continue a run of the current layout.
start_job() {
    local command=("$launch" -n "$ranks" --no-bind --threads 1 --restarts 1000 --grace 20)
    timeout=${BIREME_SOAK_TIMEOUT:-5}
    [ "$hosts" = 1 ] || timeout=$((4 * timeout))
    command+=(--mpirun --oversubscribe)
    if [ "$hosts" = 2 ]; then
        command=(hosts_run "${command[@]}" --host "near:1,$hosts_address:1" "${hosts_options[@]}")
    fi
    # shellcheck disable=SC2086
    "${command[@]}" "$program" train recipe.yaml run_dir="$disk/$1" train.max_steps=$steps \
        checkpoint.every=$((steps / 25)) parallel.timeout_seconds=$timeout \
        parallel.start_seconds=$((4 * timeout)) $settings >>"$work/output" 2>&1 &
    launcher=$!
}

# print_step RUN: print the last step in the metrics of the run.
print_step() {
    local line
    line=$(tail -c 4096 "$1/metrics.jsonl" 2>/dev/null | grep '"event":"train"' | tail -n 1)
    line=${line#*\"step\":}
    line=${line%%,*}
    echo "${line:-0}"
}

# print_sessions RUN: print the peak memory of each session of the run that made a step.
print_sessions() {
    awk '/"event":"start"/ { if (peak > 0) print peak; peak = 0 }
        /"event":"train"/ && match($0, /"memory_bytes":[0-9]+/) {
            peak = substr($0, RSTART + 15, RLENGTH - 15) }
        END { if (peak > 0) print peak }' "$1/metrics.jsonl"
}

# poll_job RUN: restart the job where a person would do it; set `finished` at its end.
poll_job() {
    kill -0 "$launcher" 2>/dev/null && return
    wait "$launcher"
    local code=$?
    case $code in
    0) finished=yes && return ;;
    74 | 75) rm -f "$disk/fill" ;;
    *)
        fail "$layout: the launcher gave up with exit code $code"
        aborted=yes finished=yes
        # shellcheck disable=SC2046
        kill -KILL $(list_processes) 2>/dev/null
        return
        ;;
    esac
    start_job "$1"
}

# wait_for SECONDS COMMAND...: poll the job until the command succeeds; return 1 after SECONDS.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        poll_job "$run"
        [ $finished = no ] && [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}

# ---- faults ----

# kill_rank SIGNAL: send a signal to a random rank and set `victim`.
kill_rank() {
    local processes
    mapfile -t processes < <(list_processes "$(realpath "$program")")
    [ ${#processes[@]} -gt 0 ] || return 1
    draw ${#processes[@]}
    victim=${processes[drawn]}
    kill -"$1" "$victim" 2>/dev/null
}

kill_mpirun() {
    local process
    for process in $(list_processes); do
        case $(cat "/proc/$process/comm" 2>/dev/null) in
        mpirun | prterun) kill -KILL "$process" && return ;;
        esac
    done
    return 1
}

# kill_launcher SIGNAL: send a signal to the launcher, which may be a child of $launcher.
kill_launcher() {
    kill -"$1" "$(pgrep -of "launch_mpirun\.sh .*run_dir=$disk/")" 2>/dev/null
}

# flip_bit: change one bit of the newest checkpoint, if the one before it is not damaged. After the
# last step no run reads the checkpoints again, so the bit would stay changed.
damaged=0
flip_bit() {
    local folders files file offset byte
    mapfile -t folders < <(ls -d "$run"/checkpoints/step-????????/manifest.json 2>/dev/null)
    [ ${#folders[@]} -ge 2 ] || return 1
    local newest=${folders[-1]%/*} previous=${folders[-2]%/*}
    [ $((10#${previous##*-})) -gt "$damaged" ] && [ $((10#${newest##*-})) -lt "$steps" ] || return 1
    damaged=$((10#${newest##*-}))
    files=("$newest"/*.h5 "$newest"/manifest.json)
    draw ${#files[@]}
    file=${files[drawn]}
    draw "$(stat -c %s "$file")"
    offset=$drawn
    byte=$(od -An -tu1 -j "$offset" -N 1 "$file")
    draw 8
    # shellcheck disable=SC2059
    printf "\\x$(printf %x $((byte ^ 1 << drawn)))" |
        dd of="$file" bs=1 seek="$offset" conv=notrunc status=none
}

# print_session RUN: print the line that the last session of the run wrote at its start.
print_session() {
    grep '"event":"start"' "$1/metrics.jsonl" 2>/dev/null | tail -n 1
}

# has_recovered RESTARTED: the run has passed the step at the fault, in a new session if RESTARTED.
has_recovered() {
    [ "$1" = no ] || has_session || return 1
    [ "$(print_step "$run")" -gt "$step" ]
}

has_session() { [ "$(print_session "$run")" != "$session" ]; }
has_failed_write() { tail -n +"$output_line" "$work/output" | grep -q '\[E-WRITE\]$'; }
has_lost_host() { tail -n +"$output_line" "$work/output" | grep -q 'E-RANK-LOST]\|exit code 71'; }
has_warned() { tail -n +"$output_line" "$work/output" | grep -q 'W-SHARED-MEMORY'; }

# inject KIND: cause a fault; return 1 if it is not possible at this moment.
inject() {
    output_line=$(($(wc -l <"$work/output") + 1))
    case $1 in
    kill-rank) kill_rank KILL ;;
    kill-mpirun) kill_mpirun ;;
    stop-rank) kill_rank STOP ;;
    pause-rank) kill_rank STOP && sleep 1 && kill -CONT "$victim" 2>/dev/null ;;
    sigterm) kill_launcher TERM ;;
    sigusr1) kill_launcher USR1 ;;
    bit-flip) flip_bit && kill_rank KILL ;;
    full-disk)
        head -c 1G /dev/zero >"$disk/fill" 2>/dev/null
        wait_for 15 has_failed_write || restarted=no
        rm -f "$disk/fill"
        return 0
        ;;
    full-shm)
        head -c 1G /dev/zero >/dev/shm/fill 2>/dev/null
        kill_rank KILL && sleep 1
        head -c 1G /dev/zero >/dev/shm/fill-2 2>/dev/null
        wait_for 40 has_warned && wait_for 40 has_recovered yes
        rm -f /dev/shm/fill /dev/shm/fill-2
        return 0
        ;;
    short-cut) hosts_forward 0 && sleep 3 && hosts_forward 1 ;;
    cut)
        hosts_forward 0
        wait_for 60 has_lost_host
        hosts_forward 1
        ;;
    esac
}

local_faults=(kill-rank kill-mpirun stop-rank pause-rank sigterm sigusr1 bit-flip)
host_faults=(kill-rank kill-mpirun short-cut cut sigterm bit-flip)
left_out=()
if [ "$SOAK_NAMESPACE" != none ]; then
    local_faults+=(full-disk full-shm)
else
    left_out+=('full-disk and full-shm: a mount namespace is not permitted')
fi
if reason=$(BIREME_LONG=1 hosts_make "$work" 2>&1); then
    hosts_remove
    BIREME_LONG=1 hosts_make "$work"
else
    layouts=("${layouts[@]/#hosts2*/}")
    hosts_remove
    left_out+=("cut, short-cut and the layout hosts2: ${reason#skipped: }")
fi

# next_kind: set `kind` to the next fault: all faults of the layout in random order, then again. Its
# random numbers are separate, so that the order depends on the seed only.
declare -A bag=() state=([local]=$seed [hosts]=$seed)
next_kind() {
    local kinds group=local index
    [ "$hosts" = 1 ] || group=hosts
    if [ -z "${bag[$group]:-}" ]; then
        bag[$group]="${local_faults[*]}"
        [ "$hosts" = 1 ] || bag[$group]="${host_faults[*]}"
    fi
    read -ra kinds <<<"${bag[$group]}"
    state[$group]=$(((state[$group] * 1103515245 + 12345) % 2147483648))
    index=$((state[$group] / 65536 % ${#kinds[@]}))
    kind=${kinds[index]}
    unset "kinds[$index]"
    bag[$group]="${kinds[*]}"
}

# ---- a run ----

# run_whole: train the current layout without faults, once.
declare -A whole_seconds=()
run_whole() {
    local begin code
    [ -z "${whole_seconds[$layout]:-}" ] || return 0
    begin=$(now)
    start_job "whole-$layout"
    wait "$launcher"
    code=$?
    whole_seconds[$layout]=$(subtract "$(now)" "$begin")
    [ $code = 0 ] || fail "$layout: the run without faults ended with $code"
    return $code
}

# disturb: inject one fault, wait until the run has passed the step that it had reached, and record
# the time.
disturb() {
    local begin restarted=yes
    draw $((1 + 10 * ${whole_seconds[$layout]%.*} / 5))
    wait_for 60 false_after $((2 + drawn)) || [ $finished = no ] || return
    next_kind
    session=$(print_session "$run")
    step=$(print_step "$run")
    begin=$(now)
    [ "$step" -gt 0 ] && inject "$kind" || return
    [[ $kind != pause-rank && $kind != short-cut ]] || restarted=no
    wait_for 120 has_recovered $restarted || [ $finished = yes ] ||
        fail "$layout: no step within 120 s after $kind"
    [ $finished = no ] || return
    disturbed=yes
    printf '%s %s %s %s\n' "$layout" "$kind" "$(subtract "$(now)" "$begin")" "$step" |
        tee -a "$work/faults" >&2
}

# false_after TENTHS: for wait_for: wait for this time while the job is polled.
false_after() {
    [ $((tick += 2)) -ge "$1" ] && tick=0
}
tick=0

# check_run: check the end of a disturbed run.
check_run() {
    local whole=whole-$layout file family
    for family in final "checkpoints/step-$(printf %08d "$steps")"; do
        for file in "$whole/$family/"[mo]*.h5; do # model and optimizer; state contains the time
            cmp "$file" "$run/$family/$(basename "$file")" >>"$work/output" 2>&1 ||
                fail "$layout: $run/$family/$(basename "$file") differs from the run without faults"
        done
    done
    for file in $whole $run; do
        grep -hE '"event":"(train|evaluate)"' "$file/metrics.jsonl" |
            sed -E 's/.*"event":"([a-z]+)".*"step":([0-9]+).*"loss":([^,}]+).*/\1 \2 \3/' \
                >"$work/losses-$(basename "$file")"
    done
    cmp "$work/losses-$whole" "$work/losses-$run" >>"$work/output" 2>&1 ||
        fail "$layout: the losses of $run differ from the run without faults"
    check_left
    check_memory
}

# check_memory: the later half of the sessions does not use more memory than the earlier half and
# the run without faults. A session that ends early uses up to a tenth less than others.
check_memory() {
    print_sessions "$run" | awk -v whole="$(print_sessions "whole-$layout" | tail -n 1)" '
        { peak[NR] = $1 }
        END {
            for (i = 1; i <= NR; i++) {
                if (2 * i <= NR + 1) { if (peak[i] > first) first = peak[i] }
                else if (peak[i] > last) last = peak[i]
            }
            printf "%d: %.1f MB in the first half, %.1f MB in the second\n", NR, first / 1e6,
                (NR > 1 ? last : first) / 1e6
            exit last > 1.1 * (first > whole ? first : whole)
        }' >"$work/memory" || fail "$layout: memory grows: $(cat "$work/memory")"
}

# check_left: no process, temporary file or shared memory is left.
check_left() {
    local left
    left=$(list_processes)
    [ -z "$left" ] || fail "$layout: processes are left: $(echo "$left" | tr '\n' ' ')"
    # After a cut of the network, the daemon of the other host ends after 11 s.
    for _ in $(seq 150); do
        left=$(find "$TMPDIR" -mindepth 1 | head -n 5)
        [ -n "$left" ] && [ "$hosts" = 2 ] || break
        sleep 0.2
    done
    [ -z "$left" ] || fail "$layout: temporary files are left: $left"
    find "$TMPDIR" -mindepth 1 -delete # otherwise the next run would report them
    if [ "$SOAK_NAMESPACE" != none ]; then
        left=$(find /dev/shm -mindepth 1 | head -n 5)
        [ -z "$left" ] || fail "$layout: shared memory is left: $left"
    fi
    left=$(find "$run" \( -name '*.tmp*' -o -name '.*' -o -name '*partial*' \) | head -n 5)
    [ -z "$left" ] || fail "$layout: files are left in the run folder: $left"
}

# run_layout NAME RANKS HOSTS SETTING...: one run under faults, and its checks.
runs=0
run_layout() {
    local begin seconds
    layout=$1 ranks=$2 hosts=$3
    shift 3
    settings=$*
    steps=$((all_steps / (hosts * hosts))) # messages between hosts are slower than shared memory
    : >"$work/output"
    run_whole || return
    runs=$((runs + 1)) run=soaked-$runs finished=no aborted=no damaged=0 disturbed=no
    begin=$(now)
    start_job "$run"
    while [ $finished = no ]; do
        if [ $SECONDS -lt $end ] || [ $disturbed = no ]; then
            disturb
        else
            wait_for 60 false
        fi
    done
    [ $aborted = no ] || return
    seconds=$(subtract "$(now)" "$begin")
    check_run
    printf '%s %s %s %s\n' "$layout" "$seconds" "${whole_seconds[$layout]}" \
        "$(cat "$work/memory")" | tee -a "$work/runs" >&2
    rm -rf "$run"
}

# measure_steps: set `all_steps` so that a run without faults takes 20 s, in a short soak less.
measure_steps() {
    local begin
    layout=probe ranks=2 hosts=1 settings='' steps=100
    begin=$(now)
    start_job probe
    wait "$launcher" || { cat "$work/output" >&2 && exit 1; }
    all_steps=$(awk -v s="$(subtract "$(now)" "$begin")" -v limit="$seconds" \
        'BEGIN { s = s > 1 ? s : 1; t = limit / 10 < 20 ? limit / 10 : 20
                 n = 25 * int(100 * t / s / 25); print n < 100 ? 100 : n }')
    rm -rf probe
}

# ---- the report ----

write_report() {
    local processor wall
    processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    wall=$(awk '{ sum += $2 } END { print sum + 0 }' "$work/runs")
    {
        echo '# Training under random faults'
        echo
        echo "- **Main result:** $(wc -l <"$work/faults") faults in $runs runs;" \
            "$([ $failures = 0 ] && echo 'nothing was lost' || echo "$failures checks FAILED")"
        awk -v wall="$wall" '{ lost += $3 } END {
            printf "- **Effective training time:** %.0f %% of %.0f s; the rest is the time lost\n",
                wall ? 100 * (wall - lost) / wall : 0, wall }' "$work/faults"
        echo '- **Measured:** the time lost by each fault: from the fault until the run has passed'
        echo '  the step that it had reached'
        echo "- **Hardware:** $processor, $(getconf _NPROCESSORS_ONLN) cores, $(uname -m)"
        echo "- **Software:** $(. /etc/os-release && echo "$PRETTY_NAME")," \
            "$(mpirun --version | head -n 1)"
        echo "- **Date:** $(date +%F)"
        echo "- **Commit:** $("$program" --version | sed -n 's/^commit *//p')"
        echo "- **Command:** \`scripts/soak.sh $minutes $seed\`, $all_steps steps in a run," \
            'a quarter of them on two hosts'
        echo
        echo '| fault | number | median time lost, s | largest, s |'
        echo '|---|---|---|---|'
        awk '{ print $2 }' "$work/faults" | sort -u | while read -r kind; do
            awk -v kind="$kind" '$2 == kind { print $3 }' "$work/faults" | sort -n |
                awk -v kind="$kind" '{ v[NR] = $1 } END {
                    printf "| %s | %d | %s | %s |\n", kind, NR, v[int((NR + 1) / 2)], v[NR] }'
        done
        echo
        echo '| layout | seconds | without faults | sessions, peak memory of rank 0 |'
        echo '|---|---|---|---|'
        while read -r layout seconds whole memory; do
            echo "| $layout | $seconds | $whole | $memory |"
        done <"$work/runs"
        echo
        for reason in "${left_out[@]}"; do
            echo "- Left out: $reason"
        done
        [ ! -s "$work/failures" ] || sed 's/^/- /' "$work/failures"
    } >"$report"
}

: >"$work/output"
touch "$work/faults" "$work/runs"
measure_steps
end=$((SECONDS + seconds))
for ((round = 0; SECONDS < end; round++)); do
    read -ra arguments <<<"${layouts[round % ${#layouts[@]}]}"
    [ ${#arguments[@]} = 0 ] || run_layout "${arguments[@]}"
done
write_report
cat "$report"
[ $failures = 0 ]
