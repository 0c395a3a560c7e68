#!/bin/bash
# parallel.start_seconds limits the whole start: a rank that stops at any point between the start of
# its process and the first step ends the job with code 76, and the error names the phase.
# usage: test_train_start.sh SHIM; SHIM is the library of tests/shim/fault_shim.c
# ctest: targets test_fault_shim
# ctest: timeout 120
shim=$(realpath "${1:?}")
. "$(dirname "$0")/../tiny_training.sh"
need_mpirun
need_shim
limit=5

# run_stopped PHASE SETTING...: a job in which one rank stops. It must end with 76 soon after the
# limit of the start.
run_stopped() {
    local phase=$1 begin=$SECONDS code
    shift
    timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 "$@" \
        train recipe.yaml parallel.start_seconds=$limit run_dir="run-${phase// /-}" \
        >out 2>stderr
    code=$?
    [ $code = 76 ] || fail "a rank that stops in phase '$phase': code $code"
    expect_error "start of the job took longer than $limit s (parallel.start_seconds).*\[E-HANG\]$"
    expect_error "in phase '$phase' for"
    [ $((SECONDS - begin)) -ge $((limit - 1)) ] || fail 'the job ended before the limit'
    ! pgrep -f "^$program train recipe.yaml parallel.start_seconds" >/dev/null ||
        fail "phase '$phase': a rank still runs"
}

# shellcheck disable=SC2016
run_stopped MPI_Init -np 1 "$program" train recipe.yaml parallel.start_seconds=$limit \
    : -np 1 bash -c 'kill -STOP $$; exec "$@"' _ "$program"

# stop_at PHASE FILE: rank 0 stops when it creates this file of the run.
stop_at() {
    run_stopped "$1" -x LD_PRELOAD="$shim" -x FAULT_DIR="$2" -x FAULT_DO=stop -x FAULT_AT=1 \
        -x FAULT_RANK=0 -np 2 "$program"
    expect_error "rank 0 host [^ ]* in phase '$1' for [0-9.]* s (process is stopped)"
}
stop_at start run-start
stop_at resume /LOCK
stop_at 'opening data' metrics.jsonl

# BIREME_INIT_SECONDS extends the limit, also after MPI_Init.
export BIREME_INIT_SECONDS=$((2 * limit))
timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -x BIREME_INIT_SECONDS \
    -x LD_PRELOAD="$shim" -x FAULT_DIR=/LOCK -x FAULT_DO=stop -x FAULT_AT=1 -x FAULT_RANK=0 \
    -np 2 "$program" train recipe.yaml parallel.start_seconds=$limit run_dir=run-extended \
    >out 2>stderr
code=$?
[ $code = 76 ] || fail "a rank that stops with BIREME_INIT_SECONDS: code $code"
expect_error "start of the job took longer than $BIREME_INIT_SECONDS s.*\[E-HANG\]$"
unset BIREME_INIT_SECONDS

# The limit ends with the start.
run_bireme 0 train recipe.yaml parallel.start_seconds=$limit train.max_minutes=0.1 \
    train.max_steps=1000000 schedule.warmup_steps=1
grep -q '"event":"end".*"reason":"max_minutes"' run/metrics.jsonl || fail 'no end after 6 s'
