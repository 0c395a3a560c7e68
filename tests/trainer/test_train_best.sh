#!/bin/bash
# The best evaluation's checkpoint and weights, and the end of a run that gets no better.
#
#   test_train_best.sh keep | patience
#
#   keep       a run whose loss rises again keeps its best checkpoint and ends with its weights, at any layout and after a
#              resume; wrong recipes
#   patience   a run ends early, stays ended, and goes on with more patience; the count survives a resume
. "$(dirname "$0")/tiny_training.sh"
# A learning rate that ruins what it has learnt after a few steps.
sed -i 's/learning_rate: 1.0e-2/learning_rate: 0.6/; s/max_grad_norm: 1.0/max_grad_norm: 0/; s/name: cosine, warmup_steps: 5/name: constant, warmup_steps: 12/
    s/dropout: 0.1/dropout: 0.0/; s/max_steps: 20/max_steps: 12/; s/evaluate: {every: 10, batches: 1}/evaluate: {every: 1, batches: 1}/
    s/checkpoint: {every: 10, keep: 3}/checkpoint: {every: 1, keep: 1}/' recipe.yaml

best_of() { # RUN: step of the smallest loss after step 0
    losses "$1" evaluate | awk '$1 > 0 && (!n++ || $2 < m) { m = $2; s = $1 } END { print s }'
}

checkpoints_of() { # RUN: steps
    find "$1/checkpoints" -maxdepth 1 -name 'step-*' | sed 's/.*step-0*//' | sort -n | tr '\n' ' '
}

final_is() { # RUN STEP: evaluated again, the final weights have that step's loss
    run 0 evaluate --checkpoint "$1/final" --data 'data/validation-*.h5' --batches 4
    losses "$1" evaluate | awk -v step="$2" -v said="$(awk '$1 == "loss" { print $2 }' out)" '
        $1 == step { d = $2 - said; if (!(d * d <= 1e-10)) bad = 1 } $1 != step { d = $2 - said; if (!(d * d > 1e-8)) bad = 1 }
        END { exit bad }' || fail "the final weights of $1 are not those of step $2"
}

keep() {
    run 0 train recipe.yaml checkpoint.keep_best=true
    local best
    best=$(best_of run)
    [ "$best" -lt 12 ] || fail 'the last evaluation is the best one: nothing is tested'
    [ "$(checkpoints_of run)" = "$best 12 " ] || fail "kept $(checkpoints_of run), the best is $best"
    final_is run "$best"
    grep -q "\"event\":\"end\".*\"best_step\":$best," run/metrics.jsonl || fail 'the end does not tell the best step'
    run 0 train recipe.yaml checkpoint.keep_best=true && grep -q 'run is finished' told || fail 'it is not known as finished'

    # cut off behind the best one, which no later evaluation is: the resumed run, at another layout, knows it
    run 0 train recipe.yaml run_dir=cut checkpoint.keep=12
    rm -r cut/final cut/checkpoints/step-0000001* "cut/checkpoints/step-$(printf %08d 9)"
    local ranks=1
    "$program" --version | grep -q '^MPI  *MPI' && command -v mpirun >/dev/null && ranks=2
    run_ranks $ranks 0 train recipe.yaml run_dir=cut checkpoint.keep_best=true parallel.zero_stage=$((ranks - 1))
    [ "$(checkpoints_of cut)" = "$best 12 " ] || fail "after a resume kept $(checkpoints_of cut), the best is $best"
    final_is cut "$best"

    # saves only where they are the best, and the last
    run 0 train recipe.yaml run_dir=few checkpoint.keep_best=true checkpoint.every=0 checkpoint.async=false
    [ "$(checkpoints_of few)" = "$best 12 " ] || fail "without saves of its own kept $(checkpoints_of few)"
    # the other direction: the greatest loss is the best
    run 0 train recipe.yaml run_dir=up checkpoint.keep_best=true evaluate.greater_is_better=true
    best=$(losses up evaluate | awk '$1 > 0 && (!n++ || $2 > m) { m = $2; s = $1 } END { print s }')
    grep -q "\"best_step\":$best," up/metrics.jsonl || fail "the greatest loss is at step $best"

    run 78 train recipe.yaml run_dir=bad evaluate.metric=f1
    one_line 78 "evaluate.metric: 'f1' is not a metric of objective clm; its metrics are: loss, perplexity"
    run 78 plan recipe.yaml run_dir=bad evaluate.metric=f1
    run 78 train recipe.yaml run_dir=bad evaluate.patience=2 evaluate.every=0
    one_line 78 'evaluate.patience: [0-9]* conflicts with evaluate.every (0)'
    run 78 train recipe.yaml run_dir=bad checkpoint.load_best_model_at_end=true
    one_line 78 "did you mean 'checkpoint.keep_best'"
}

patience() {
    run 0 train recipe.yaml evaluate.patience=2 checkpoint.keep=9
    local best ended
    best=$(best_of run)
    ended=$(losses run evaluate | tail -n 1 | cut -d' ' -f1)
    [ "$ended" = $((best + 2)) ] && [ "$ended" -lt 12 ] || fail "the best step is $best, the run ended with $ended"
    grep -q '"event":"end".*"reason":"patience"' run/metrics.jsonl || fail 'the end does not say why'
    grep -q "no better loss than .* of step $best in 2 evaluations" told || fail 'nobody tells of the end'
    final_is run "$ended" # the last weights: the best ones were not asked for
    run 0 train recipe.yaml evaluate.patience=2 && grep -q 'run is finished' told || fail 'it is not known as finished'

    cp -r run cut
    rm -r cut/final "cut/checkpoints/step-$(printf %08d "$ended")"
    run 0 train recipe.yaml run_dir=cut evaluate.patience=2
    [ "$(losses cut evaluate | tail -n 1)" = "$(losses run evaluate | tail -n 1)" ] || fail 'a resumed run has another patience'

    run 0 train recipe.yaml evaluate.patience=20
    [ "$(losses run evaluate | tail -n 1 | cut -d' ' -f1)" = 12 ] || fail 'more patience does not go on'
}

case ${1:-} in
keep | patience) "$1" ;;
*) echo "usage: test_train_best.sh keep | patience" >&2 && exit 64 ;;
esac
