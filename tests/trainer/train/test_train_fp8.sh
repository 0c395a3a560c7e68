#!/bin/bash
# Tests training with train.precision fp8: two runs have the same bits, all layouts have the same
# scales, a resume is exact, and a run can change between bf16 and fp8.
# Row-wise scales have no state: their runs repeat, resume and change to delayed scales.
# usage: test_train_fp8.sh; BIREME_PROGRAM and BIREME_SOURCE_DIR are set by ctest
# ctest: timeout 300
# shellcheck disable=SC2086,SC2154 # settings are words; tiny_training.sh shares variables
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
has_bf16 recipe.yaml || exit 77

deep='model.num_layers=4 fp8.amax_history=8 optimizer.learning_rate=2e-3'

# compare_history RUN RUN STEP: the files with the amax history have equal bytes.
compare_history() {
    local files=("$1"/checkpoints/step-"$3"/fp8-*.h5)
    cmp "${files[0]}" "$2/checkpoints/step-$3/$(basename "${files[0]}")" ||
        fail "the amax histories of $1 and $2 differ"
}

# differ RUN RUN: the losses are not equal.
differ() {
    if (compare_losses "$1" "$2" 0) >/dev/null 2>&1; then
        fail "the losses of $1 and $2 are equal"
    fi
}

# Two runs have the same bits, and so does the second half of a resumed run.
run_bireme 0 train recipe.yaml run_dir=fp8 train.precision=fp8 $deep
run_bireme 0 train recipe.yaml run_dir=again train.precision=fp8 $deep
compare_losses fp8 again 0
compare_weights fp8 again 00000020
compare_history fp8 again 00000020
rm -rf again/checkpoints/step-00000020 again/final
run_bireme 0 train recipe.yaml run_dir=again train.precision=fp8 $deep
grep -q 'resuming .*step-00000010' stderr || fail 'step 10 is not resumed'
compare_losses fp8 again 0
compare_weights fp8 again 00000020
compare_history fp8 again 00000020

# Recomputed activations are rounded with the same scales.
for mode in selective full; do
    run_bireme 0 train recipe.yaml run_dir=$mode train.precision=fp8 $deep \
        train.activation_checkpointing=$mode
    compare_losses fp8 $mode 0
    compare_weights fp8 $mode 00000020
done

# The first step is not rounded, later ones are. The losses are near the losses of bf16.
run_bireme 0 train recipe.yaml run_dir=bf16 train.precision=bf16 $deep
print_losses fp8 train | head -1 >a
print_losses bf16 train | head -1 >b
cmp a b || fail 'the first step is rounded'
differ fp8 bf16
compare_losses bf16 fp8 1e-2
run_bireme 0 train recipe.yaml run_dir=all train.precision=fp8 $deep \
    fp8.first_last_layers_bf16=false
differ fp8 all
compare_losses bf16 all 1e-2

# A run changes between bf16 and fp8 at a checkpoint.
for change in 'bf16 fp8' 'fp8 bf16'; do
    read -r before after <<<"$change"
    cp -r $before "$before-$after"
    rm -rf "$before-$after"/checkpoints/step-00000020 "$before-$after"/final
    run_bireme 0 train recipe.yaml run_dir="$before-$after" train.precision=$after $deep
    compare_losses bf16 "$before-$after" 1e-2
    differ $before "$before-$after"
done

# Row-wise scales: all steps are rounded, a resume is exact, and checkpoints contain no scales.
rows="train.precision=fp8 fp8.recipe=rowwise $deep"
run_bireme 0 train recipe.yaml run_dir=rows $rows
compare_losses bf16 rows 1e-2
print_losses rows train | head -1 >a
! cmp -s a b || fail 'the first step is not rounded'
[ -z "$(find rows -name 'fp8-*')" ] || fail 'a checkpoint contains scales'
cp -r rows rows-resumed
rm -rf rows-resumed/checkpoints/step-00000020 rows-resumed/final
cp -r rows-resumed rows-delayed
run_bireme 0 train recipe.yaml run_dir=rows-resumed $rows train.activation_checkpointing=full
compare_losses rows rows-resumed 0
compare_weights rows rows-resumed 00000020
for change in 'rows delayed' 'fp8 rowwise'; do
    read -r before after <<<"$change"
    [ $after = delayed ] || cp -r $before "$before-$after"
    rm -rf "$before-$after"/checkpoints/step-00000020 "$before-$after"/final
    run_bireme 0 train recipe.yaml run_dir="$before-$after" $rows fp8.recipe=$after
    compare_losses bf16 "$before-$after" 1e-2
    differ $before "$before-$after"
done

# Inference reads the run in bf16.
run_bireme 0 evaluate --checkpoint fp8/final --data 'data/validation-*.h5' --batches 1

# Sizes at which no matrix can be in FP8 are refused.
run_bireme 78 train recipe.yaml run_dir=none train.precision=fp8
expect_error 'train.precision: fp8: a model of one or two layers'
run_bireme 78 train recipe.yaml run_dir=none train.precision=fp8 $deep model.hidden_size=40
expect_error 'train.precision.*multiple of 16'
run_bireme 78 plan recipe.yaml train.precision=fp8 $deep model.hidden_size=40
expect_error 'train.precision.*multiple of 16'

# Every layout has the same scales: the maxima of the ranks are combined.
command -v mpirun >/dev/null && "$program" --version | grep -q '^MPI  *MPI' || exit 0
# `checkpoint diff` also compares the histories.
check_reproducible recipe.yaml same train.precision=fp8 $deep
run_ranks 2 0 train recipe.yaml run_dir=tensor train.precision=fp8 $deep parallel.tensor=2
compare_losses fp8 tensor 1e-2
run_ranks 4 0 train recipe.yaml run_dir=four train.precision=fp8 $deep parallel.zero_stage=1
compare_losses fp8 four 1e-2
check_reproducible recipe.yaml same-rows $rows
run_ranks 2 0 train recipe.yaml run_dir=tensor-rows $rows parallel.tensor=2
compare_losses rows tensor-rows 1e-2

# Inference needs no multiple of 16: a rank has 24 of 48 rows.
run_bireme 0 train recipe.yaml run_dir=narrow train.precision=fp8 $deep train.max_steps=2 \
    model.intermediate_size=48 schedule.warmup_steps=0
run_ranks 2 78 train recipe.yaml run_dir=none train.precision=fp8 $deep \
    model.intermediate_size=48 parallel.tensor=2
expect_error 'train.precision.*multiple of 16'
run_ranks 2 0 evaluate --checkpoint narrow --data 'data/validation-*.h5' --batches 1 \
    --set parallel.tensor=2
