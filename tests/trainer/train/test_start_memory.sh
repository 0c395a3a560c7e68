#!/bin/bash
# Tests an allocation that fails on rank 1 at the start of a job, between two collectives. All ranks
# agree on the error, so that rank 0 removes the run folder that it has made.
# usage: test_start_memory.sh SHIM; SHIM is the library of tests/shim/allocation_shim.c.
# ctest: name train_start_memory
# ctest: targets test_allocation_shim
# ctest: timeout 90
shim=$(realpath "${1:?}")
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_shim
need_mpirun

run_bireme 0 train recipe.yaml run_dir=base train.max_steps=1 schedule.warmup_steps=0
make_word_pairs

# train VARIABLE=VALUE...: train on two ranks; the variables configure the shim on rank 1.
train() {
    timeout 60 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 env LD_PRELOAD="$shim" \
        ALLOCATION_RANK=1 "$@" "$program" train recipe.yaml run_dir=run objective=dpo \
        model.init_from=base/final 'data.train=pairs/train-*.h5' data.validation=null \
        evaluate.every=0 train.max_steps=1 schedule.warmup_steps=0 >out 2>stderr
}

train || fail 'a run without a fault fails' # computes the reference; the later runs read it
rm -rf run
train ALLOCATION_PLACES="$PWD/places" || fail 'a second run without a fault fails'
name_places >named
for caller in 'start_job|job_start|require_same_job_on_all_ranks' job_compute_reference; do
    at=$(sed -nE "s/^([0-9]+) .*hash_memory ($caller) .*/\1/p" named | sort -n | head -1)
    [ -n "$at" ] || fail "$caller: no allocation of a hash was found"
    rm -rf run
    code=0
    train ALLOCATION_AT="$at" || code=$?
    [ $code = 70 ] || fail "$caller: exit code $code instead of 70"
    expect_error 'rank 1 .*out of memory for a hash'
    [ ! -e run ] || fail "$caller: a failed start leaves its run folder"
done
