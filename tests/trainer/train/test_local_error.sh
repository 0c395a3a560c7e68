#!/bin/bash
# Tests an error outside of the micro-batches on one rank: the disk is full at a line of
# metrics.jsonl. The rank still takes part in the agreement of its tensor-parallel group. All ranks
# end at the next step, and no rank waits until a deadline.
# usage: test_local_error.sh SHIM; SHIM is the library of tests/shim/fault_shim.c.
# ctest: name train_local_error
# ctest: targets test_fault_shim
# ctest: timeout 60
shim=$(realpath "${1:?}")
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_shim
need_mpirun

# train_without_disk NAME SETTING...: train on a full disk. On rank 0, the fifth call that changes
# metrics.jsonl fails, and so do all later ones. The fifth call writes the line of a step.
train_without_disk() {
    local name=$1 code=0
    shift
    timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 env LD_PRELOAD="$shim" \
        FAULT_DIR="$name/metrics.jsonl" FAULT_DO=enospc FAULT_AT=5 FAULT_STICKY=1 FAULT_RANK=0 \
        "$program" train recipe.yaml run_dir="$name" log.every=1 train.max_steps=6 \
        schedule.warmup_steps=0 parallel.tensor=2 parallel.timeout_seconds=20 "$@" \
        >out 2>stderr || code=$?
    [ $code = 74 ] || fail "$name: exit code $code instead of 74"
    expect_error "$name/metrics.jsonl.*No space left"
}

train_without_disk clm

# a loss over the whole global batch, with its collect pass
run_bireme 0 train recipe.yaml run_dir=base train.max_steps=1 schedule.warmup_steps=0
make_word_pairs
train_without_disk dpo objective=dpo dpo.loss_type=aot \
    model.init_from=base/final 'data.train=pairs/train-*.h5' data.validation=null \
    evaluate.every=0
