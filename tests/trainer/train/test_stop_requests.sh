#!/bin/bash
# A request to stop ends a long step between two micro-batches; a second one ends the run at once.
# The output of a command can be a closed pipe.
# usage: test_stop_requests.sh SHIM; SHIM is the library of tests/shim/fault_shim.c
# ctest: targets test_fault_shim
# ctest: timeout 120
shim=$(realpath "${1:?}")
. "$(dirname "$0")/../tiny_training.sh"

# wait_for FILE PATTERN JOB: wait until a line of the file matches, while the job runs.
wait_for() {
    while kill -0 "$3" 2>/dev/null && ! grep -qs "$2" "$1"; do
        sleep 0.02
    done
}

# check_long_step RUN COMMAND...: the command trains with steps of $sequences / 3 micro-batches.
# SIGUSR1 ends it in its first step.
check_long_step() {
    local run=$1 code
    shift
    "$@" "$program" train recipe.yaml run_dir="$run" batch.global_size=$sequences evaluate.every=0 \
        parallel.threads=1 "${settings[@]}" >out 2>stderr &
    local job=$!
    wait_for "$run/metrics.jsonl" '"event":"start"' $job
    sleep 0.5
    kill -USR1 $job
    wait $job
    code=$?
    [ $code = 75 ] || fail "$run: a long step ended with $code"
    grep -q '^stopped after step 0 ' stderr || fail "$run: the stop is not reported"
    [ "$(grep -cx 'stop requested: the run saves and ends' stderr)" = 1 ] ||
        fail "$run: not one line about the request"
    [ -d "$run/checkpoints/step-00000000" ] || fail "$run: nothing was saved"
}

settings=() sequences=600000
check_long_step single env
if command -v mpirun >/dev/null && "$program" --version | grep -q '^MPI  *MPI'; then
    mpirun=(mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2)
    # A rank that stops still takes part in the reductions of the step's other micro-batches.
    sequences=120000
    settings=(parallel.zero_stage=2)
    check_long_step data "${mpirun[@]}"
    settings=(parallel.tensor=2)
    check_long_step tensor "${mpirun[@]}"
    settings=(parallel.reproducible=true)
    check_long_step reproducible "${mpirun[@]}"
    # mpirun ends the other rank by SIGTERM after one rank has ended. That rank is not said to save.
    "${mpirun[@]}" "$program" train recipe.yaml run_dir=lost train.max_steps=1000000 \
        evaluate.every=0 >out 2>stderr &
    job=$!
    wait_for lost/metrics.jsonl '"event":"train"' $job
    kill -KILL "$(pgrep -f "run_dir=lost" | tail -n 1)"
    wait $job && fail 'a killed rank ended the job with 0'
    ! grep -q '^stop requested' stderr || fail 'a lost rank is reported as a stop request'
fi

# A second signal during a save that takes long ends the run as the signal does by default.
[ -n "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ] || for signal in TERM INT; do
    env --default-signal=INT LD_PRELOAD="$shim" FAULT_DIR="$signal/checkpoints/tmp-" FAULT_DO=slow \
        FAULT_AT=1 FAULT_STICKY=1 FAULT_SLOW_MS=20000 \
        "$program" train recipe.yaml run_dir=$signal train.max_steps=1000000 \
        checkpoint.every=1000000 >out 2>stderr &
    job=$!
    wait_for $signal/metrics.jsonl '"event":"train"' $job
    kill -$signal $job
    kill -$signal $job # a launcher repeats a signal at once; this has no effect
    wait_for stderr '^  a second Ctrl-C or SIGTERM' $job
    sleep 1.5
    kill -0 $job 2>/dev/null || fail "two signals SIG$signal within a second end the run"
    begin=$SECONDS
    kill -$signal $job
    wait $job
    code=$?
    [ $code = $((128 + $(kill -l $signal))) ] ||
        fail "the second SIG$signal ended the run with $code"
    [ $((SECONDS - begin)) -lt 15 ] || fail "the second SIG$signal did not end the run at once"
    run_bireme 0 train recipe.yaml run_dir=$signal train.max_steps=8 --resume never
done

# The first SIGTERM after another request does not end the run.
[ -n "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ] || for signal in USR1 HUP; do
    env --default-signal=HUP LD_PRELOAD="$shim" FAULT_DIR="$signal/checkpoints/tmp-" \
        FAULT_DO=slow FAULT_AT=1 FAULT_STICKY=1 FAULT_SLOW_MS=20000 \
        "$program" train recipe.yaml run_dir=$signal train.max_steps=1000000 \
        checkpoint.every=1000000 >out 2>stderr &
    job=$!
    wait_for $signal/metrics.jsonl '"event":"train"' $job
    kill -$signal $job
    sleep 1.5
    kill -TERM $job
    sleep 0.1
    kill -0 $job 2>/dev/null || fail "the first SIGTERM after SIG$signal ended the run"
    kill -TERM $job # within a second of the first SIGTERM
    sleep 0.2
    kill -0 $job 2>/dev/null || fail "two SIGTERM within a second after SIG$signal ended the run"
    kill -KILL $job
    wait $job
done

# check_closed_output COMMAND...: the reader of standard output has ended. There is no message.
check_closed_output() {
    (
        sleep 0.5
        exec "$program" "$@" 2>stderr <"$source/LICENSE"
    ) | true
    code=${PIPESTATUS[0]}
    [ "$code" = 141 ] || fail "bireme $1 with a closed output ended with $code"
    [ ! -s stderr ] || fail "bireme $1 with a closed output prints a message"
}

check_closed_output inspect single
check_closed_output plan recipe.yaml
check_closed_output tokenizer encode --tokenizer tokenizer
check_closed_output --help

# Another file cannot be written: the closed output does not hide this error.
if [ -n "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ]; then
    echo 'not checked: a full disk; a sanitizer cannot preload the shim'
    exit 0
fi
(
    sleep 0.5
    LD_PRELOAD="$shim" FAULT_DIR=full/checkpoints FAULT_DO=enospc FAULT_AT=1 FAULT_STICKY=1 \
        exec "$program" train recipe.yaml run_dir=full 2>stderr
) | true
code=${PIPESTATUS[0]}
[ "$code" = 74 ] || fail "a full disk and a closed output end train with $code"
expect_error 'E-WRITE'
