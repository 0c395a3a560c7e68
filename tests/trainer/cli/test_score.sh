#!/bin/bash
# `bireme score` with the post-processors of Qwen2, Llama 2, Mistral and Gemma: the start token, and
# the tokens that are scored. `evaluate --task` gives the same log-probabilities with other code.
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
reference=$source/tests/reference/tokenizer
line='two banks pull in 12 strokes'
echo "$line" >line

# make_model NAME: train on the license with the tokenizer in the folder NAME.
make_model() {
    run_bireme 0 prepare --objective clm --tokenizer "$1" --input "$source/LICENSE" \
        --output "data-$1"
    run_bireme 0 train recipe.yaml data.tokenizer="$1" "data.train=data-$1/train-*.h5" \
        data.validation=null evaluate.every=0 checkpoint.every=0 train.max_steps=1 \
        schedule.warmup_steps=0 run_dir="run-$1"
    run_bireme 0 tokenizer encode --tokenizer "$1" line
    ids=$(<out)
}

# check_score NAME IDS CONTEXT OPTION...: these ids are scored. Their log-probability is that of the
# line after its first characters CONTEXT in a task of lm-evaluation-harness.
check_score() {
    local name=$1 expected=$2 context=$3 found
    shift 3
    run_bireme 0 score --checkpoint "run-$name" --json --tokens "$@" line
    found=$(grep -o '"id": *[0-9]*' out | grep -o '[0-9]*' | paste -sd' ')
    [ "$found" = "$expected" ] || fail "$name: the ids $found are scored, not $expected"
    sed -nE 's/^\{"log_probability": *([-+.0-9e]+).*/\1/p' out >score
    printf '{"q": "%s", "a": "%s"}\n' "$context" "${line:${#context}}" >rows.jsonl
    run_bireme 0 evaluate --checkpoint "run-$name" --task task.yaml --json
    sed -nE 's/.*"line\/perplexity": *([.0-9e+]+).*/\1/p' out | paste score - |
        awk '{ d = $1 + log($2); exit !(NF == 2 && $1 < -10 && d * d <= 1e-10 * $1 * $1) }' ||
        fail "$name: score printed $(<score), the task has $(grep perplexity out)"
}

# check_bos NAME: the tokenizer adds a token before each text, which is the only start token.
check_bos() {
    make_model "$1"
    check_score "$1" "$ids" ''
    check_score "$1" "$ids" '' --start-token bos
}

# check_eos NAME: the tokenizer adds nothing. By default the end token is before the line.
check_eos() {
    local context
    make_model "$1"
    check_score "$1" "$ids" ''
    mv score default
    context=$(echo "${ids%% *}" | "$program" tokenizer decode --tokenizer "$1" 2>stderr)
    check_score "$1" "${ids#* }" "$context" --start-token bos
    ! cmp -s score default || fail "$1: --start-token has no effect"
    printf '\n%s\n' "$context" >short # nothing, and one token that is not scored
    run_bireme 0 score --checkpoint "run-$1" --start-token bos short
    [ "$(<out)" = $'0.000000\t0\n0.000000\t0' ] || fail "$1: the scores of no token: $(<out)"
}

cat >task.yaml <<'EOF'
task: line
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: q
doc_to_target: a
target_delimiter: ""
EOF
for name in qwen2 llama2 mistral gemma; do
    ln -s "$reference/family_$name" "$name"
done
check_eos qwen2
check_bos llama2
check_bos mistral
check_bos gemma
# tokenizer.model: tokenizer_config.json determines whether a token is added.
for name in model bare; do
    mkdir $name
    cp "$reference/sentencepiece/bpe_gemma/tokenizer.model" $name
done
echo '{"tokenizer_class": "GemmaTokenizer"}' >model/tokenizer_config.json
check_bos model
check_eos bare
run_bireme 64 score --checkpoint run-qwen2 --start-token eos line
expect_error "--start-token .*bos_or_eos"
