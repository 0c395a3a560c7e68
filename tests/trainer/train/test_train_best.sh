#!/bin/bash
# The checkpoint of the best evaluation, and early stopping.
# Parts:
#
#   checkpoint   a run with a rising loss keeps its best checkpoint and ends with these weights, at
#                any layout and after a resume; recipes with errors
#   patience     a run ends early, stays ended, and continues with more patience; a resume restores
#                the count of evaluations
#   label        the score of a label as evaluate.metric
# ctest: parts checkpoint patience label
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
# With this learning rate the loss rises after a few steps.
sed -i 's/learning_rate: 1.0e-2/learning_rate: 0.6/; s/max_grad_norm: 1.0/max_grad_norm: 0/
    s/name: cosine, warmup_steps: 5/name: constant, warmup_steps: 12/
    s/dropout: 0.1/dropout: 0.0/; s/max_steps: 20/max_steps: 12/
    s/evaluate: {every: 10, batches: 1}/evaluate: {every: 1, batches: 1}/
    s/checkpoint: {every: 10, keep: 3}/checkpoint: {every: 1, keep: 1}/' recipe.yaml

# print_best RUN: print the step of the smallest validation loss after step 0.
print_best() {
    print_losses "$1" evaluate | awk '$1 > 0 && (!n++ || $2 < m) { m = $2; s = $1 } END { print s }'
}

# print_checkpoints RUN: print the steps of the checkpoints.
print_checkpoints() {
    find "$1/checkpoints" -maxdepth 1 -name 'step-*' | sed 's/.*step-0*//' | sort -n | tr '\n' ' '
}

# check_final RUN STEP: the final weights have the validation loss of this step, and of no other.
check_final() {
    run_bireme 0 evaluate --checkpoint "$1/final" --data 'data/validation-*.h5' --batches 4
    local loss
    loss=$(awk '$1 == "loss" { print $2 }' out)
    print_losses "$1" evaluate | awk -v step="$2" -v loss="$loss" '
        { d = $2 - loss }
        $1 == step && !(d * d <= 1e-10) { bad = 1 }
        $1 != step && !(d * d > 1e-8) { bad = 1 }
        END { exit bad }' || fail "the final weights of $1 are not those of step $2"
}

test_checkpoint() {
    run_bireme 0 train recipe.yaml checkpoint.keep_best=true
    local best same
    best=$(print_best run)
    [ "$best" -lt 12 ] || fail 'the last evaluation is the best one: nothing is tested'
    [ "$(print_checkpoints run)" = "$best 12 " ] ||
        fail "kept $(print_checkpoints run), the best is $best"
    check_final run "$best"
    grep -q "\"event\":\"end\".*\"best_step\":$best," run/metrics.jsonl ||
        fail 'the end event has no best step'
    run_bireme 0 train recipe.yaml checkpoint.keep_best=true
    grep -q 'run is finished' stderr || fail 'the run is not reported as finished'

    # Equal values: the summary has the step of the final weights. A note of the recipe is printed
    # once, although train reads the recipe twice.
    run_bireme 0 train recipe.yaml run_dir=same checkpoint.keep_best=true \
        optimizer.learning_rate=1e-30 schedule.warmup_ratio=0
    same=$(sed -nE 's/^final weights: step ([0-9]+),.*/\1/p' stderr)
    grep -qE "^  step +0 +$same +12$" stderr ||
        fail "the best step is not $same: $(grep '^  step ' stderr)"
    [ "$(grep -c '^schedule.warmup_ratio=.*replaces schedule.warmup_steps' stderr)" = 1 ] ||
        fail 'the replaced setting is not reported once'

    # Resume, at another layout, after the best evaluation: the run still ends with its weights.
    run_bireme 0 train recipe.yaml run_dir=cut checkpoint.keep=12
    rm -r cut/final cut/checkpoints/step-0000001* "cut/checkpoints/step-$(printf %08d 9)"
    local ranks=1
    "$program" --version | grep -q '^MPI  *MPI' && command -v mpirun >/dev/null && ranks=2
    run_ranks $ranks 0 train recipe.yaml run_dir=cut checkpoint.keep_best=true \
        parallel.zero_stage=$((ranks - 1))
    [ "$(print_checkpoints cut)" = "$best 12 " ] ||
        fail "after a resume kept $(print_checkpoints cut), the best is $best"
    check_final cut "$best"

    # Without periodic saves, only the best and the last step are saved.
    run_bireme 0 train recipe.yaml run_dir=few checkpoint.keep_best=true checkpoint.every=0 \
        checkpoint.async=false
    [ "$(print_checkpoints few)" = "$best 12 " ] ||
        fail "without periodic saves kept $(print_checkpoints few)"
    # In the other direction the greatest loss is the best.
    run_bireme 0 train recipe.yaml run_dir=up checkpoint.keep_best=true \
        evaluate.greater_is_better=true
    best=$(print_losses up evaluate |
        awk '$1 > 0 && (!n++ || $2 > m) { m = $2; s = $1 } END { print s }')
    grep -q "\"best_step\":$best," up/metrics.jsonl || fail "the greatest loss is at step $best"

    run_bireme 78 train recipe.yaml run_dir=bad evaluate.metric=f1
    expect_error "evaluate.metric: 'f1' is not a metric of objective clm; "\
'its metrics are: loss, perplexity'
    run_bireme 78 plan recipe.yaml run_dir=bad evaluate.metric=f1
    run_bireme 78 train recipe.yaml run_dir=bad evaluate.patience=2 evaluate.every=0
    expect_error 'evaluate.patience: [0-9]* conflicts with evaluate.every (0)'
    run_bireme 78 train recipe.yaml run_dir=bad checkpoint.load_best_model_at_end=true
    expect_error "did you mean 'checkpoint.keep_best'"
}

test_patience() {
    run_bireme 0 train recipe.yaml evaluate.patience=2 checkpoint.keep=9
    local best ended
    best=$(print_best run)
    ended=$(print_losses run evaluate | tail -n 1 | cut -d' ' -f1)
    [ "$ended" = $((best + 2)) ] && [ "$ended" -lt 12 ] ||
        fail "the best step is $best, the run ended with $ended"
    grep -q '"event":"end".*"reason":"patience"' run/metrics.jsonl ||
        fail 'the end event has no reason'
    grep -q "no better loss than .* of step $best in 2 evaluations" stderr ||
        fail 'the early stop is not reported'
    check_final run "$ended" # the last weights, because checkpoint.keep_best is false
    run_bireme 0 train recipe.yaml evaluate.patience=2
    grep -q '^run ended in an earlier session' stderr || fail 'the end is not reported'
    grep -q "^evaluate.patience=2 ended the run at step $ended of 12; " stderr ||
        fail 'the cause of the end is not reported'

    cp -r run cut
    rm -r cut/final "cut/checkpoints/step-$(printf %08d "$ended")"
    run_bireme 0 train recipe.yaml run_dir=cut evaluate.patience=2
    [ "$(print_losses cut evaluate | tail -n 1)" = "$(print_losses run evaluate | tail -n 1)" ] ||
        fail 'a resumed run ends at another step'

    run_bireme 0 train recipe.yaml evaluate.patience=20
    [ "$(print_losses run evaluate | tail -n 1 | cut -d' ' -f1)" = 12 ] ||
        fail 'with more patience the run does not continue'
}

# A score of one label selects the best checkpoint.
test_label() {
    for ((i = 0; i < 60; i++)); do
        echo "{\"text\": \"the license $i\", \"label\": \"$((i % 3)).a\"}"
    done >rows.jsonl
    run_bireme 0 prepare --objective classify --tokenizer tokenizer --input rows.jsonl \
        --output rows --validation-fraction 0.2 --sequence-length 32
    local rows=(recipe.yaml objective=classify 'data.train=rows/train-*.h5'
        'data.validation=rows/validation-*.h5' train.max_steps=6 evaluate.every=2
        schedule.warmup_steps=2)
    run_bireme 0 train "${rows[@]}" evaluate.metric=recall.1_a checkpoint.keep_best=true
    grep -q 'with the best recall.1_a' stderr || fail 'another metric was used'
    best=$(grep '"event":"evaluate"' run/metrics.jsonl |
        sed -E 's/.*"step":([0-9]+).*"recall":\{[^}]*"1_a":([-0-9.e]+).*/\1 \2/' |
        awk '$1 > 0 && (!n++ || $2 > m) { m = $2; s = $1 } END { print s }')
    grep -q "\"best_step\":$best," run/metrics.jsonl || fail "the best recall is at step $best"
    for command in train plan; do
        run_bireme 78 $command "${rows[@]}" run_dir=bad evaluate.metric=f1.positive
        expect_error "evaluate.metric: 'f1.positive': the data has no such label; its labels are: \
0.a, 1.a, 2.a"
    done
    run_bireme 78 train "${rows[@]}" run_dir=bad evaluate.metric=f1
    expect_error 'recall_micro, f1.LABEL, precision.LABEL, recall.LABEL'
    run_bireme 78 train recipe.yaml run_dir=bad evaluate.metric=f1.a
    expect_error "'f1.a' is not a metric of objective clm"
}

run_part "$@"
