#!/bin/bash
# parallel.check_every: a bit that changes in the weights of one replica ends the run with exit code
# 81 on all ranks, and the changed weights are not saved. The comparison changes no weights.
# usage: test_replica_check.sh PART TRAINER; TRAINER is tests/trainer/train/flipping_trainer.c.
# Parts:
#
#   replicas     2 and 4 replicas, ZeRO 0 to 2, bf16
#   tensor       2 replicas of a model on 2 ranks each
#   unchanged    weights with and without the comparison
# ctest: parts replicas tensor unchanged
# ctest: targets test_program_flipping_trainer
# ctest: timeout 240
trainer=$(realpath "${2:?}")
. "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

# train_flipped RANKS CODE RANK STEP BEFORE TENSOR SETTING...: train while a bit changes.
train_flipped() {
    local ranks=$1 expected=$2
    export FLIP_RANK=$3 FLIP_STEP=$4 FLIP_BEFORE=$5 FLIP_TENSOR=$6
    shift 6
    rm -rf run
    timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np "$ranks" \
        "$trainer" recipe.yaml "$@" >out 2>stderr
    local code=$?
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE FLIP_TENSOR
    [ "$code" = "$expected" ] || fail "$* ended with $code instead of $expected"
    [ "$expected" = 0 ] || grep -q '^flipped a bit' stderr || fail 'no bit was changed'
}

# expect_difference STEP TENSOR RANKS OTHERS: one error line names them; no newer step is saved.
expect_difference() {
    local text="$2 differs between rank$3 and rank$4\."
    expect_error "\(host [^ ]*\|step $1\): $text"
    ! [ -e run/final ] || fail 'final weights were written'
    local newest
    newest=$(find run/checkpoints -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1)
    newest=${newest##*step-}
    [ "$((10#${newest:-0}))" -lt "$1" ] || fail "the state of step $newest was saved"
}

test_replicas() {
    local stage
    # In the memory of a rank before step 4; the next comparison is after step 6.
    train_flipped 2 81 1 3 step 2 parallel.check_every=6 checkpoint.every=2
    expect_difference 4 'transformer.h.0.ln_1.weight' ' 1' ' 0'
    train_flipped 2 81 1 3 step 2 parallel.check_every=6 checkpoint.every=0
    expect_difference 6 'transformer.h.0.ln_1.weight' ' 1' ' 0'
    # With ZeRO, after the weights were gathered and before they are saved.
    for stage in 0 1 2; do
        train_flipped 4 81 2 3 check 3 parallel.check_every=2 checkpoint.every=2 \
            parallel.zero_stage="$stage"
        expect_difference 4 'transformer.h.0.ln_1.bias' ' 2' 's 0, 1, 3'
        [ -e run/checkpoints/step-00000002 ] || fail 'the equal weights of step 2 were not saved'
        # The last tensor, before the final weights are written.
        train_flipped 2 81 0 5 check -1 parallel.check_every=100 checkpoint.every=0 \
            parallel.zero_stage="$stage" train.max_steps=6
        expect_difference 6 'transformer.ln_f.bias' ' 1' ' 0'
    done
    run_ranks 2 0 train recipe.yaml run_dir=run train.max_steps=8 parallel.check_every=2 # resumes
    has_bf16 recipe.yaml || return 0
    for stage in 0 1; do
        train_flipped 4 81 3 3 check 0 parallel.check_every=2 train.precision=bf16 \
            parallel.zero_stage="$stage"
        expect_difference 4 'transformer.wte.weight' ' 3' 's 0, 1, 2'
    done
}

test_tensor() {
    local stage
    for stage in 0 2; do
        train_flipped 4 81 3 3 check 4 parallel.check_every=4 parallel.tensor=2 \
            parallel.zero_stage="$stage"
        expect_difference 4 'transformer.h.0.attn.c_attn.weight' ' 3' ' 1'
    done
}

test_unchanged() {
    local layout ranks
    for layout in '2 parallel.zero_stage=0' '2 parallel.zero_stage=2' '4 parallel.tensor=2'; do
        read -r ranks layout <<<"$layout"
        rm -rf run checked
        run_ranks "$ranks" 0 train recipe.yaml "$layout"
        run_ranks "$ranks" 0 train recipe.yaml "$layout" run_dir=checked parallel.check_every=3
        compare_weights run checked 00000020
        compare_losses run checked 0
    done
    run_bireme 0 train recipe.yaml run_dir=one parallel.check_every=3 # one replica
}

run_part "$@"
