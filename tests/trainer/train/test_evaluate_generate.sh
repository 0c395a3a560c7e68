#!/bin/bash
# evaluate.generate: evaluations of seq2seq training generate targets. The scores equal the scores
# of `bireme translate` and `bireme evaluate --predictions`, at any layout. Also tested: stops, the
# plan, and settings that are refused.
# ctest: timeout 240
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

awk 'BEGIN {
    split("the list of files and user system answer", w, " ")
    x = 7
    for (i = 0; i < 200; i++) {
        source = target = ""
        for (j = 0; j < 1 + i % 7; j++) {
            x = (x * 1103 + 12345) % 65536
            source = source (j > 0 ? " " : "") w[x % 8 + 1]
            target = target (j > 0 ? " " : "") toupper(w[x % 8 + 1])
        }
        print source > "train.a"
        print target > "train.b"
    } }'
head -n 25 train.a >validation.a
head -n 25 train.b | sed '3s/$/ FILES/; 4s/^/USER, /' >validation.b # targets that are not learned
run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input train.a train.b --output words
for part in train validation; do
    run_bireme 0 prepare --objective seq2seq --tokenizer words --source $part.a --target $part.b \
        --output $part
done
model=(recipe.yaml objective=seq2seq data.tokenizer=words 'data.train=train/train-*.h5'
    'data.validation=validation/train-*.h5' data.sequence_length=32 model.architecture=marian
    model.num_layers=1 model.hidden_size=64 model.dropout=0 model.activation=relu
    optimizer.learning_rate=4e-3 parallel.threads=1)
names='bleu|chrf|rouge1|rouge2|rougeL|rougeLsum|exact_match'

# print_scores FILE: print the names and the values of the scores in the last line of a file.
print_scores() {
    tail -n 1 "$1" | grep -oE "\"($names)\": *[0-9.e-]+" | tr -d ' '
}

# The lines of an evaluation, TensorBoard and the report have the scores.
run_bireme 0 train "${model[@]}" run_dir=run train.max_steps=60 evaluate.every=60 \
    evaluate.batches=null evaluate.generate=true evaluate.metric=bleu log.tensorboard=true
grep '"event":"evaluate"' run/metrics.jsonl >lines
[ "$(wc -l <lines)" = 2 ] || fail "$(wc -l <lines) evaluations"
print_scores lines >scores
[ "$(wc -l <scores)" = 7 ] || fail "scores: $(cat lines)"
grep -q '"token_accuracy":0\.[0-9]' lines || fail "token accuracy: $(cat lines)"
grep -q '"event":"train".*token_accuracy' run/metrics.jsonl && fail 'a step has the accuracy'
grep -qE 'step 60: validation loss .* bleu [0-9]' stderr || fail 'the line of the evaluation'
for name in ${names//|/ } token_accuracy; do
    grep -q "$name" run/report.html || fail "the report has no $name"
    grep -aq "evaluate/$name" run/tensorboard/* || fail "TensorBoard has no $name"
done

# compare_translation FILE OPTION...: the scores of a file equal the scores of translate and
# --predictions, and differ from 0 and 1.
compare_translation() {
    local scores=$1
    shift
    run_bireme 0 translate --checkpoint run "$@" validation.a
    mv out translated
    run_bireme 0 evaluate --predictions translated --references validation.b --json \
        --metrics "${names//|/,}"
    print_scores out | sort >expected
    sort "$scores" | paste -d: - expected | awk -F: 'NF != 4 || $1 != $3 { bad = 1 }
        { d = $2 - $4; if (!(d < 1e-8 && d > -1e-8)) bad = 1 }
        !($2 > 0.05 && $2 != 1 && $2 < 99.9) { bad = 1 } END { exit bad || NR != 7 }' ||
        fail "scores: $(cat "$scores"); expected: $(cat expected)"
}
compare_translation scores

# `bireme evaluate` gives the same scores; they do not depend on the layout and the batches.
evaluate() {
    local ranks=$1
    shift
    run_ranks "$ranks" 0 evaluate --checkpoint run --data 'validation/train-*.h5' --json \
        --set parallel.threads=1 "$@"
    tr -d '\n' <out >one-line
    print_scores one-line
}
# print_accuracy: print the token accuracy in the file one-line.
print_accuracy() {
    sed -nE 's/.*"token_accuracy": *([0-9.e-]+).*/\1/p' one-line
}
evaluate 1 >all
cmp all scores || fail "evaluate: $(cat out)"
accuracy=$(print_accuracy)
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.1 && a < 1) }' || fail "token accuracy: $(cat one-line)"
for layout in 1,batch.micro_size=12 2 4 2,parallel.tensor=2,parallel.sequence=true \
    4,parallel.tensor=2; do
    # shellcheck disable=SC2046 # the settings of a layout
    evaluate $(tr ',' ' ' <<<"$layout") >other
    cmp all other || fail "the scores depend on the layout $layout: $(cat out)"
    [ "$(print_accuracy)" = "$accuracy" ] || fail "the accuracy depends on the layout $layout"
done
run_ranks 2 0 train "${model[@]}" run_dir=two model.init_from=run train.max_steps=1 \
    schedule.warmup_steps=0 evaluate.batches=null evaluate.generate=true
grep -m 1 '"event":"evaluate"' two/metrics.jsonl >lines
print_scores lines | cmp - all || fail "a run on two ranks: $(cat lines)"

# Beams and the length; generation_config.json of the tokenizer, as in translate.
evaluate 2 evaluate.generation_num_beams=3 >beams
compare_translation beams --num-beams 3
evaluate 1 evaluate.generation_max_length=6 >short
compare_translation short --max-new-tokens 5
! cmp -s all short || fail 'the length has no effect'
cp -r run/final limited
printf '{"max_length": 6, "num_beams": 2}' >limited/tokenizer/generation_config.json
run_bireme 0 evaluate --checkpoint limited --data 'validation/train-*.h5' --json
tr -d '\n' <out >one-line
print_scores one-line >limited-scores
compare_translation limited-scores --max-new-tokens 5 --num-beams 2

# The plan has the memory of the caches.
get_samples() {
    run_bireme 0 plan "${model[@]}" --json "$@"
    sed -nE 's/.*"samples": *([0-9]+).*/\1/p' out
}
none=$(get_samples) one=$(get_samples evaluate.generate=true batch.micro_size=1)
[ "$none" = 0 ] && [ "$one" -gt 0 ] &&
    [ "$(get_samples evaluate.generate=true batch.micro_size=4)" = $((4 * one)) ] &&
    [ "$(get_samples evaluate.generate=true evaluate.generation_num_beams=5)" = $((10 * one)) ] ||
    fail "plan: $none and $one bytes"
# 16 tokens have 64 keys and 64 values in the self-attention and the cross-attention of a decoder.
half=$(get_samples evaluate.generate=true batch.micro_size=1 data.sequence_length=16)
[ $((one - half)) = $((16 * 64 * 2 * 2 * 4)) ] || fail "plan: $one and $half bytes"

# A stop ends the generation; the next session repeats the evaluation.
yes "$(cat validation.a)" | head -n 50000 >many.a
yes "$(cat validation.b)" | head -n 50000 >many.b
run_bireme 0 prepare --objective seq2seq --tokenizer words --source many.a --target many.b \
    --output many
many=(train "${model[@]}" run_dir=stopped 'data.validation=many/train-*.h5' train.max_steps=2
    schedule.warmup_steps=0 evaluate.generate=true)
"$program" "${many[@]}" evaluate.batches=null >out 2>stderr &
stop_first_evaluation $! stopped 2
run_bireme 0 "${many[@]}" evaluate.batches=1
[ "$(grep -c '"event":"evaluate".*"rougeLsum"' stopped/metrics.jsonl)" = 2 ] ||
    fail 'the evaluation was not repeated'

# Settings that are refused.
run_bireme 78 plan recipe.yaml evaluate.generate=true
expect_error 'evaluate.generate.* conflicts with objective'
run_bireme 78 plan "${model[@]}" evaluate.generate=true data.validation=null evaluate.every=0
expect_error 'evaluate.generate.* requires data.validation'
run_bireme 78 plan "${model[@]}" evaluate.generate=true evaluate.generation_max_length=1
expect_error 'evaluate.generation_max_length'
run_bireme 78 train "${model[@]}" evaluate.metric=bleu
expect_error "evaluate.metric: 'bleu' is not a metric of objective seq2seq"
run_bireme 78 train "${model[@]}" evaluate.generate=true evaluate.metric=blue
expect_error 'its metrics are: .*rougeLsum, exact_match'
for command in plan train; do
    printf '{"num_beams": "two"}' >words/generation_config.json
    run_bireme 65 $command "${model[@]}" evaluate.generate=true run_dir=bad
    expect_error 'generation_config.json: num_beams is not an integer'
    printf '{"decoder_start_token_id": 5000}' >words/generation_config.json
    run_bireme 65 $command "${model[@]}" evaluate.generate=true run_dir=bad
    expect_error 'decoder_start_token_id is 5000; the token ids of the model are 0 to'
    printf '{"early_stopping": "never"}' >words/generation_config.json
    run_bireme 69 $command "${model[@]}" evaluate.generate=true run_dir=bad
    expect_error 'generation_config.json: early_stopping must be true or false'
    rm words/generation_config.json
    [ ! -e bad ] || fail 'the refused run has a folder'
done

# Each beam needs a token, and the end token continues no beam.
for ((i = 0; i < 60; i++)); do echo $((i * 7919 % 1000)); done >digits
run_bireme 0 tokenizer train --type char --input digits --output few-tokens \
    --special-tokens "<|endoftext|>"
run_bireme 0 prepare --objective seq2seq --tokenizer few-tokens --source digits --target digits \
    --output digit-pairs
few=("${model[@]}" data.tokenizer=few-tokens 'data.train=digit-pairs/train-*.h5'
    'data.validation=digit-pairs/train-*.h5' evaluate.generate=true train.max_steps=1
    schedule.warmup_steps=0)
run_bireme 78 plan "${few[@]}" evaluate.generation_num_beams=256
most=$(sed -nE 's/.*at most ([0-9]+) are possible.*/\1/p' stderr)
[ "$most" -ge 2 ] || fail "at most '$most' beams"
run_bireme 0 train "${few[@]}" run_dir=most evaluate.generation_num_beams="$most"
for command in plan train; do
    run_bireme 78 $command "${few[@]}" run_dir=bad evaluate.generation_num_beams=$((most + 1))
    expect_error "evaluate.generation_num_beams: $((most + 1)) beams are too many for a vocabulary"
    printf '{"num_beams": %d}' $((most + 1)) >few-tokens/generation_config.json
    run_bireme 65 $command "${few[@]}" run_dir=bad
    expect_error "generation_config.json: num_beams is $((most + 1)), too many"
    rm few-tokens/generation_config.json
    [ ! -e bad ] || fail 'a run with too many beams has a folder'
done
printf '{"decoder_start_token_id": 5000}' >words/generation_config.json
run_ranks 2 65 train "${model[@]}" evaluate.generate=true run_dir=bad
expect_error 'decoder_start_token_id is 5000; the token ids of the model are 0 to'
printf '{"num_beam_groups": 2}' >words/generation_config.json
run_ranks 2 0 train "${model[@]}" evaluate.generate=true run_dir=groups train.max_steps=1 \
    schedule.warmup_steps=0 evaluate.batches=1
[ "$(grep -c 'no effect: num_beam_groups \[W-GENERATION\]$' stderr)" = 1 ] ||
    fail 'not one warning about generation_config.json'
rm words/generation_config.json
