#!/bin/bash
# Lets every file call of a save fail once, in every layout, and checks that no checkpoint is lost.
#
#   scripts/fault_sweep.sh [--sample N | --functions] [--seed S] [--seconds T] [--only TEXT]
#                          [FOLDER]
#   scripts/fault_sweep.sh --direct [--only TEXT] [FOLDER]
#
#   --direct     all faults of a case in one start (tests/trainer/train/save_faults.c): no rank is
#                killed, but the folder is copied before each call, and each copy is opened as at
#                the next start of a job. Exit codes and messages are not checked
#   --sample N   try one of N faults, chosen by the seed (default: 1, all)
#   --functions  try each fault at one call of each function (mkdir, write, rename, ...), chosen by
#                the seed among the calls of both ranks
#   --seed S     seed of the sample (default: from the commit)
#   --seconds T  omit the faults that are not tried after about T seconds, and print their number
#   --only TEXT  only the cases with this text in their name, for example "zero_1 async"
#   FOLDER       build folder (default: build)
#
# The layouts are ZeRO stages 0, 1 and 2, tensor parallelism and LoRA, each on two ranks with
# synchronous and asynchronous saves. The faults are tried at each file call that changes a
# checkpoint folder, from the creation of the temporary folder to the removal of the older
# checkpoint: the rank is killed (SIGKILL), or the call fails (ENOSPC, EIO) or writes half of its
# bytes. After the fault:
#   - the exit code and the error are the right ones
#   - a step that was reported as saved exists; the files of every published step have the same bits
#     as the files of a run without a fault
#   - the next start, which has the next fault, resumes from that step
# Prints a line per case. The exit code is 0 only if every fault was handled.
#
# Environment: BIREME_SWEEP_JOBS is the number of cases at the same time (default: cores).
# BIREME_SWEEP_TIMEOUT is the limit of one run in seconds (default: 120); a run that takes longer
# counts as a hang, so a busy machine needs a larger value. With --direct, a case is one run, and
# the limit is ten times as long.
set -u
cd "$(dirname "$0")/.." || exit 1
source_folder=$PWD
sample=1 functions='' seconds='' only='' direct='' build=build timeout=${BIREME_SWEEP_TIMEOUT:-120}
# The first digits of the commit; a fixed number outside a repository.
seed=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 5eed)))
while [ $# -gt 0 ]; do
    case $1 in
    --sample) sample=$2 && shift 2 ;;
    --functions) functions=1 && shift ;;
    --seed) seed=$2 && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --direct) direct=1 && shift ;;
    -*) sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2 && exit 64 ;;
    *) build=$1 && shift ;;
    esac
done
build=$(realpath "$build")
export BIREME_PROGRAM=$build/trainer/bireme BIREME_SOURCE_DIR=$source_folder BIREME_PLANS=off \
    OMP_WAIT_POLICY=passive OMPI_MCA_hwloc_base_binding_policy=none \
    PRTE_MCA_hwloc_default_binding_policy=none OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
shim=$build/tests/trainer/libtest_fault_shim.so
[ -x "$BIREME_PROGRAM" ] && [ -f "$shim" ] || {
    echo "fault_sweep: $build contains no tests; run: cmake --build $build" >&2
    exit 66
}
source tests/trainer/tiny_training.sh # makes the temporary folder with data and changes to it
need_mpirun
sed -i 's/num_layers: 2/num_layers: 1/; s/hidden_size: 32/hidden_size: 16/
    s/max_steps: 20/max_steps: 2/; s/warmup_steps: 5/warmup_steps: 1/
    s/evaluate: .*/evaluate: {every: 0}/; s/every: 10, keep: 3/every: 1, keep: 5/
    s/validation: [^,]*,//' recipe.yaml
adapters=(model.init_from="$folder/base" adapter.type=lora adapter.rank=4
    'adapter.targets=[c_attn, c_fc, c_proj]')

# train RUN [VARIABLE=VALUE...]: train the recipe of the case on two ranks; the variables are those
# of the shim. Sets `code`.
train() {
    local run=$1
    shift
    [ $# = 0 ] || set -- "LD_PRELOAD=$shim" FAULT_DIR=checkpoints FAULT_START=checkpoints/tmp- "$@"
    {
        timeout "$timeout" mpirun --oversubscribe --mca mpi_yield_when_idle 1 \
            --mca odls_base_sigkill_timeout 0 -np 2 \
            env "$@" "$program" train "$folder/recipe.yaml" run_dir="$run" \
            data.tokenizer="$folder/tokenizer" "data.train=$folder/data/train-*.h5" \
            "${settings[@]}" </dev/null >out 2>stderr
    } 2>/dev/null
    code=$?
}

# check_steps: the folders step-* have the same bits as the folders of the run without a fault, and
# the newest is not older than the newest step that was reported as saved.
check_steps() {
    local step file newest=0
    for step in run/checkpoints/step-*; do
        [ -d "$step" ] || fail 'no checkpoint is left'
        for file in "whole/checkpoints/$(basename "$step")"/{model,optimizer}-*.h5; do
            cmp "$file" "$step/$(basename "$file")" >&2 || fail "$step differs"
        done
        newest=$((10#${step##*-}))
    done
    "$program" checkpoint verify run >out 2>>stderr || fail 'a published checkpoint is damaged'
    [ "$newest" -ge "$(saved_step)" ] || fail "step $(saved_step) was reported as saved and is gone"
}

# saved_step: print the newest step that the log reports as saved.
saved_step() {
    local step
    step=$(sed -n 's/^saved step \([0-9]*\) .*/\1/p' stderr | tail -n 1)
    echo "${step:-1}"
}

# check_end FAULT: the run with this fault ended with the right code and error.
check_end() {
    case $1:$code in
    *:124) fail "the run did not end within $timeout s (BIREME_SWEEP_TIMEOUT)" ;;
    kill:137 | *:0) ;; # 0: the call was part of a clean-up, was repeated, or was not reached
    kill:*) fail "ended with $code" ;;
    *:74)
        expect_error 'E-WRITE]'
        grep -qE 'No space left|Input/output error|short|incomplete' stderr ||
            fail 'the error gives no reason'
        [ -z "$(find run/checkpoints -name 'tmp-*')" ] || fail 'a temporary folder is left'
        ;;
    *) fail "ended with $code" ;;
    esac
    [ "$code" != 0 ] || cmp whole/final/model-00000-of-00002.h5 \
        run/final/model-00000-of-00002.h5 >&2 || fail 'the final weights differ'
}

# try_fault FAULT AT RANK: train with a fault from a run folder with step 1.
try_fault() {
    what="$layout $mode: $1 at call $2 of rank $3"
    if [ ! -d run ] || [ -d run/checkpoints/step-00000002 ]; then
        rm -rf run
        cp -r start run
    fi
    train run FAULT_DO="$1" FAULT_AT="$2" FAULT_RANK="$3"
    check_end "$1"
    [ $code = 0 ] || effective=$((effective + 1))
    grep -q '^resuming .*: step 1,' stderr || fail 'step 1 is not resumed'
    ! grep -q '\[W-CKPT-SKIP\]$' stderr || fail 'a published checkpoint is damaged'
    check_steps
}

# is_chosen: whether the next fault belongs to the sample.
number=0
is_chosen() {
    number=$((number + 1))
    [ $(((seed + number * 7919) % sample)) = 0 ]
}

# list_calls FAULT: print the calls for this fault as lines "RANK CALL FUNCTION". With --functions
# it prints one call of each function.
list_calls() {
    local seed_of_fault
    seed_of_fault=$(cksum <<<"$seed $layout $mode $1" | cut -d' ' -f1)
    sed 's/^/0 /' calls-0 | cat - <(sed 's/^/1 /' calls-1) |
        awk -v short="$([ "$1" != short ] || echo 1)" -v functions="$functions" \
            -v seed="$seed_of_fault" '
            short && $3 !~ /write$/ { next }
            !functions { print $1, $2, $3 }
            { calls[$3, count[$3]++] = $1 " " $2 " " $3 }
            END {
                for (name in count) {
                    if (functions) print calls[name, seed % count[name]]
                }
            }'
}

# direct_case LAYOUT MODE SETTING...: all faults of a case in one start, in a separate folder.
direct_case() {
    local begin=$SECONDS layout=$1 mode=$2 code=0 words
    shift 2
    mkdir "$folder/$layout-$mode"
    cd "$folder/$layout-$mode" || exit 1
    timeout $((10 * timeout)) mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 \
        env FAULT_DIR=checkpoints "$build/tests/trainer/save_faults" "$folder/recipe.yaml" \
        run_dir=run data.tokenizer="$folder/tokenizer" "data.train=$folder/data/train-*.h5" "$@" \
        checkpoint.async="$([ "$mode" = async ] && echo true || echo false)" checkpoint.keep=1 \
        </dev/null >out 2>stderr || code=$?
    # calls of both ranks, "kill", copies, and the other kinds with their numbers
    read -r -a words < <(sed -n 's/^calls //p' out)
    if [ $code != 0 ] || [ ${#words[@]} != 12 ]; then
        echo "fault_sweep: $layout $mode: ended with $code; the end of stderr:" >&2
        tail -n 30 stderr >&2
        exit 1
    fi
    cd "$folder" && rm -rf "$layout-$mode"
    echo "$layout $mode ${words[0]} ${words[1]} ${words[3]} ${words[5]} ${words[7]} ${words[9]} 0" \
        "$((SECONDS - begin))" | tee "result-$layout-$mode"
}

# sweep_case LAYOUT MODE SETTING...: all faults of a case, in a separate folder.
sweep_case() {
    local begin=$SECONDS rank at fault counts='' tried omitted=0 effective=0
    layout=$1 mode=$2
    shift 2
    settings=("$@" checkpoint.async="$([ "$mode" = async ] && echo true || echo false)")
    what="$layout $mode"
    fail() {
        echo "fault_sweep: $what: $1; stderr:" >&2
        cat stderr >&2
        exit 1
    }
    mkdir "$folder/$layout-$mode"
    cd "$folder/$layout-$mode" || exit 1
    # Each case begins at another number, so that the samples of the cases differ.
    number=$(cksum <<<"$what" | cut -d' ' -f1)
    train whole
    [ $code = 0 ] || fail "the run without a fault ended with $code"
    cp -r whole start
    rm -rf start/final start/checkpoints/step-00000002
    settings+=(checkpoint.keep=1)
    for rank in 0 1; do
        rm -rf run && cp -r start run
        train run FAULT_AT=0 FAULT_RANK=$rank FAULT_LOG=calls-$rank
        [ $code = 0 ] || fail "the run without a fault ended with $code"
        rm -rf run
        [ -e calls-$rank ] || fail 'the shim does not count the file calls'
        counts+="$(wc -l <calls-$rank) "
    done
    local first=$SECONDS
    for fault in kill enospc eio short; do
        tried=0
        while read -r rank at _; do
            [ -n "$functions" ] || is_chosen || continue
            if [ -n "$seconds" ] && [ $((SECONDS - first)) -ge "$case_seconds" ]; then
                omitted=$((omitted + 1))
                continue
            fi
            try_fault $fault "$at" "$rank"
            tried=$((tried + 1))
        done < <(list_calls $fault)
        counts+="$tried "
        # A SIGKILL at a call that is reached ends the job. Some calls are not reached in each run.
        [ $fault != kill ] || [ $tried -lt 3 ] || [ $effective -gt 0 ] ||
            fail "none of $tried faults had an effect"
    done
    cd "$folder" && rm -rf "$layout-$mode"
    # layout, mode, calls of both ranks, faults of each kind, omitted faults, seconds
    echo "$layout $mode $counts$omitted $((SECONDS - begin))" | tee "result-$layout-$mode"
}

run_bireme 0 train recipe.yaml run_dir="$folder/base" checkpoint.every=0
part="one of $sample faults"
[ -z "$functions" ] || part='one call of each function'
echo "fault_sweep: $part, seed $seed, commit $(git -C "$source_folder" rev-parse \
    --short HEAD 2>/dev/null || echo unknown)"
echo 'layout mode calls_0 calls_1 kill enospc eio short omitted seconds'
method=sweep started=0
[ -z "$direct" ] || method=direct
# The ten cases share the time.
cases=10
[ -z "$only" ] || cases=1
case_seconds=$((${seconds:-0} * ${BIREME_SWEEP_JOBS:-$(nproc)} / cases))
for case in 'zero_0 parallel.zero_stage=0' 'zero_1 parallel.zero_stage=1' \
    'zero_2 parallel.zero_stage=2' 'tensor_2 parallel.tensor=2' 'lora parallel.zero_stage=1'; do
    for mode in sync async; do
        read -r layout setting <<<"$case"
        [[ "$layout $mode" == *"$only"* ]] || continue
        more=()
        [ "$layout" != lora ] || more=("${adapters[@]}")
        [ "$(jobs -rp | wc -l)" -lt "${BIREME_SWEEP_JOBS:-$(nproc)}" ] || wait -n
        (trap - EXIT && "${method}_case" "$layout" $mode "$setting" \
            "${more[@]}") &
        started=$((started + 1))
    done
done
while [ -n "$(jobs -rp)" ]; do
    wait -n
done
finished=$(cat result-* 2>/dev/null | wc -l)
cat result-* 2>/dev/null | awk -v seconds=$SECONDS '
    { for (i = 5; i <= 8; i++) sum += $i; omitted += $9 }
    END { print "fault_sweep: " sum + 0 " faults in " seconds " s, " omitted + 0 " omitted" }'
[ "$finished" = "$started" ] || {
    echo "fault_sweep: $((started - finished)) of $started cases failed" >&2
    exit 1
}
