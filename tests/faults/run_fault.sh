#!/bin/bash
# Runs one case of the fault matrix (matrix.tsv): a fault is injected into a small training run.
# usage: run_fault.sh NAME SHIM ALLOCATION_SHIM; the libraries of tests/shim/.
#
# A case is the function check_NAME of one of the files cases_*.sh of this folder. Random moments
# come from a seed, which is printed; BIREME_FAULT_SEED sets it. BIREME_FULL_SWEEP=1 makes more
# attempts.
name=${1:?} shim=$(realpath "${2:?}") allocation_shim=$(realpath "${3:?}")
here=$(cd "$(dirname "$0")" && pwd)
case $name in # these cases mount file systems
read_only | power_cut_mutants)
    source "${BIREME_SOURCE_DIR:=$PWD}/tests/mount_namespace.sh"
    enter_mount_namespace "$0" "$@"
    ;;
esac
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
seed=${BIREME_FAULT_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$seed
echo "seed $seed (BIREME_FAULT_SEED)"

steps=200
settings=(train.max_steps=$steps checkpoint.every=20 evaluate.every=100)
launch=("$source/scripts/launch_mpirun.sh" --no-bind --threads 1 --grace 20)
mpirun=(mpirun --oversubscribe --mca mpi_yield_when_idle 1)
: >stderr

# choose_number SHORT FULL: print the first number, or the second one in a full sweep.
choose_number() {
    [ -z "${BIREME_FULL_SWEEP:-}" ] && echo "$1" || echo "$2"
}

# need_root REASON: skip the test unless this is root.
need_root() {
    [ "$(id -u)" = 0 ] || {
        echo "skipped: needs root, $1"
        exit 77
    }
}

# wait_until SECONDS TEXT COMMAND...: wait until the command succeeds; after SECONDS fail with TEXT.
wait_until() {
    local end=$((SECONDS + $1)) text=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt "$end" ] || fail "$text"
        sleep 0.01
    done
}

# start_job RUN COMMAND...: start the command in the background and set `job`. Each run folder is
# given with its full path, so that its processes can be found.
start_job() {
    local run=$1
    shift
    : >stderr
    timeout 100 "$@" >out 2>stderr &
    job=$!
}

# start_ranks RUN RANKS SETTING...: train on this number of ranks in the background.
start_ranks() {
    local run=$1 ranks=$2 launcher=()
    shift 2
    [ "$ranks" = 1 ] || launcher=("${mpirun[@]}" -np "$ranks")
    start_job "$run" "${launcher[@]}" "$program" train recipe.yaml run_dir="$folder/$run" \
        "${settings[@]}" "$@"
}

# end_job: wait for the job and set `code`.
end_job() {
    code=0
    wait "$job" 2>/dev/null || code=$?
}

# find_ranks RUN: print the processes of the ranks of this run, the first rank first.
find_ranks() {
    local pid
    for pid in $(pgrep -f "run_dir=$folder/$1( |\$)"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$(basename "$program")" ] || echo "$pid"
    done
}

# find_mpirun RUN: print the process of mpirun.
find_mpirun() {
    local pid
    for pid in $(pgrep -f "run_dir=$folder/$1( |\$)"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != mpirun ] || echo "$pid"
    done
}

has_no_ranks() { [ -z "$(find_ranks "$1")" ]; }
has_ended() { ! kill -0 "$job" 2>/dev/null; }
has_step() { grep -qs "\"event\":\"train\",\"step\":$2," "$folder/$1/metrics.jsonl"; }
has_saved() { grep -qs "^saved step $1 " stderr; }

# wait_for_step RUN STEP: wait until the run has logged this step.
wait_for_step() {
    wait_until 60 "step $2 is not reached" has_step "$1" "$2"
}

# train_whole RANKS: train the run `whole`, without a fault, once.
train_whole() {
    [ -d whole/final ] ||
        run_ranks "$1" 0 train recipe.yaml run_dir="$folder/whole" "${settings[@]}"
}

# newest_saved: print the newest step that the last job reported as saved, or 0.
newest_saved() {
    local step
    step=$(sed -n 's/.*saved step \([0-9]*\) .*/\1/p' stderr | tail -n 1)
    echo "${step:-0}"
}

# resume RUN RANKS SAVED: start the run again. It resumes from step SAVED or later and ends with the
# same bits as the run `whole`.
resume() {
    local from
    run_ranks "$2" 0 train recipe.yaml run_dir="$folder/$1" "${settings[@]}"
    from=$(sed -n 's/^resuming .*: step \([0-9]*\),.*/\1/p' stderr)
    grep -q 'is finished' stderr || [ "${from:-0}" -ge "$3" ] ||
        fail "step $3 was reported as saved, but step ${from:-0} is resumed"
    ! grep -q '\[W-CKPT-SKIP\]$' stderr || fail 'a published checkpoint is damaged'
    train_whole "$2"
    compare_weights whole "$1" "$(printf '%08d' $steps)"
    compare_losses whole "$1" 0
}

for file in "$here"/cases_*.sh; do
    source "$file"
done
[ "$(type -t "check_$name")" = function ] || {
    echo "no such case: $name" >&2
    exit 64
}
{ # one group: an error of the shell in the case ends the group, and the test fails
    "check_$name"
    echo "$name: passed"
    exit 0
}
exit 1
