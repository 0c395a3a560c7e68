#!/bin/bash
# `bireme evaluate --task` and evaluate.tasks: results in the output, in metrics.jsonl and in the
# report; damaged task files end with one message. test_tasks.c compares the values with
# lm-evaluation-harness.
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

printf '{"q": "the Lic", "c": ["ense", "zzzz"], "a": 0}\n{"q": "a", "c": ["b", "c"], "a": 1}\n' \
    >rows.jsonl
cat >choice.yaml <<'EOF'
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: q
doc_to_choice: c
doc_to_target: a
target_delimiter: ""
EOF
sed -e 's/^task: .*/task: copy/' -e 's/multiple_choice/generate_until/' -e '/doc_to_choice/d' \
    -e 's/target: a/target: "{{ a }}"/' \
    choice.yaml >copy.yaml
printf 'generation_kwargs: {until: ["\\n"], max_gen_toks: 4}\n' >>copy.yaml

run_bireme 0 train recipe.yaml run_dir=run "evaluate.tasks=[choice.yaml, copy.yaml]" \
    evaluate.task_limit=1 evaluate.metric=choice/acc checkpoint.keep_best=true \
    evaluate.every=5 data.validation='data/train-*.h5'
grep -q '"choice/acc":[01].0,' run/metrics.jsonl || fail "no metric: $(cat run/metrics.jsonl)"
grep -q '"copy/documents":1,' run/metrics.jsonl || fail 'the limit has no effect'
grep -q 'choice/acc' run/report.html || fail 'the report does not contain the task'
grep -q 'choice/acc [01]' stderr || fail 'no line about the task'

run_bireme 0 evaluate --checkpoint run --task choice.yaml copy.yaml --shots 1 \
    --log-samples samples --json
grep -q '"choice/acc_norm_stderr":' out && grep -q '"copy/exact_match":' out ||
    fail "results: $(cat out)"
[ "$(grep -c '"task":"choice"' samples)" = 2 ] || fail "samples: $(cat samples)"

# The plan has the memory of the tasks: eight sequences for generate_until, little for likelihoods.
# get_samples SETTING...: print the planned bytes of samples and tasks.
get_samples() {
    run_bireme 0 plan recipe.yaml data.validation='data/train-*.h5' --json "$@"
    sed -nE 's/.*"samples": *([0-9]+).*/\1/p' out
}
none=$(get_samples) sample=$(get_samples generate.prompt=a) copy=$(get_samples \
    evaluate.tasks=copy.yaml) choice=$(get_samples evaluate.tasks=choice.yaml)
[ "$none" = 0 ] && [ "$copy" = $((8 * sample)) ] && [ "$choice" -gt 0 ] &&
    [ "$choice" -lt "$copy" ] || fail "plan: $none, $sample, $copy, $choice bytes"
[ "$(get_samples evaluate.tasks='[choice.yaml, copy.yaml]')" = "$copy" ] || fail 'two tasks'

# Outputs that leave no room for a context are refused before the training starts.
sed 's/max_gen_toks: 4/max_gen_toks: 32/' copy.yaml >long.yaml
for command in train plan; do
    run_bireme 78 $command recipe.yaml run_dir=other evaluate.tasks=long.yaml \
        data.validation='data/train-*.h5'
    expect_error 'evaluate.tasks: long.yaml generates 32 tokens (max_gen_toks), which'
done
[ ! -e other ] || fail 'the refused run has a folder'

# A NUL character does not end a text. The tokenizer does not have this character.
printf '{"q": "the Lic", "c": ["e\\u0000n", "e\\u0000nse"], "a": 0}\n' >nul.jsonl
sed 's/rows.jsonl/nul.jsonl/' choice.yaml >nul.yaml
run_bireme 65 evaluate --checkpoint run --task nul.yaml
expect_error 'nul.jsonl:1: the character U+0000 at byte 8 of the text'
for rows in '{"context": "a", "choices": ["b\u0000c", "b"], "label": 0}' \
    '{"context": "a\u0000", "choices": ["b", "c"], "label": 0}' \
    '{"context": "a", "choices": ["b", "c"], "label": 0}\x00'; do
    printf '%b\n' "${rows//\\u/\\\\u}" >nul.jsonl
    run_bireme 65 evaluate --checkpoint run --task nul.jsonl
    expect_error 'nul.jsonl:1: .*NUL'
done

# A target that is the index of a choice is the text of this choice. The lines of both files are
# equal up to the name.
for type in loglikelihood generate_until; do
    sed -e "s/multiple_choice/$type/" choice.yaml >index.yaml
    [ $type != generate_until ] ||
        printf 'generation_kwargs: {until: ["\\n"], max_gen_toks: 4}\n' >>index.yaml
    sed -e '/doc_to_choice/d' -e 's/target: a/target: "{{ c[a] }}"/' index.yaml >text.yaml
    run_bireme 0 evaluate --checkpoint run --task index.yaml --log-samples index-samples
    run_bireme 0 evaluate --checkpoint run --task text.yaml --log-samples text-samples
    grep -q '"target":\["ense"\]' index-samples || fail "$type: $(cat index-samples)"
    cmp index-samples text-samples || fail "$type: the target of a choice differs"
done

# Only ~ itself and an empty value are null.
sed -e 's/^task: .*/task: ~x/' choice.yaml >tilde.yaml
printf 'description:\nfewshot_split: ~\n' >>tilde.yaml
run_bireme 0 evaluate --checkpoint run --task tilde.yaml --json
grep -q '"~x/acc":' out || fail "results: $(cat out)"

# The error of a full disk has its reason.
if [ -c /dev/full ]; then
    run_bireme 74 evaluate --checkpoint run --task choice.yaml --log-samples /dev/full
    expect_error 'cannot write /dev/full: No space left on device'
fi

# expect_refused CODE TEXT SED: a task file that this change damages.
expect_refused() {
    sed -e "$3" choice.yaml >bad.yaml
    run_bireme "$1" evaluate --checkpoint run --task bad.yaml
    expect_error "$2"
}
expect_refused 78 'bad.yaml:1:1: a task: must be a mapping' '1s/.*/5/; 1q'
expect_refused 78 'bad.yaml:2:15: dataset_path: must be json' 's/: json$/: allenai\/arc/'
expect_refused 78 'bad.yaml:5:14: output_type: must be multiple_choice, ' 's/multiple_/multi_/'
expect_refused 78 "doc_to_txt: unknown key of a task; did you mean 'doc_to_text'" 's/_text/_txt/'
expect_refused 78 'bad.yaml:6:14: doc_to_text: character 5 of the template: expected }}' \
    's/doc_to_text: q/doc_to_text: "{{ q"/'
expect_refused 78 'bad.yaml:10:57: regexes_to_ignore: the pattern ( is not a valid regular' \
    's/mult/generate_until #/; $ametric_list: [{metric: exact_match, regexes_to_ignore: ["("]}]'
expect_refused 65 "rows.jsonl:1: the document has no value 'x'" 's/: q$/: "{{ x }}"/'
expect_refused 66 'missing.jsonl' 's/rows.jsonl/missing.jsonl/'
expect_refused 65 'rows.jsonl:1: doc_to_target is none of the choices' 's/target: a/target: 7/'
expect_refused 69 'process_docs: is not supported' '$aprocess_docs: f'
expect_refused 78 'num_fewshot: 3 examples need at least 3 documents' '$anum_fewshot: 3'
expect_refused 78 'metric: the metrics of output_type multiple_choice are acc, ' \
    '$ametric_list: [{metric: bleu}]'
run_bireme 64 evaluate --checkpoint run --task choice.yaml rows.jsonl
expect_error 'several tasks must be task files'
run_bireme 64 evaluate --checkpoint run --data 'data/train-*.h5' --shots 1
expect_error 'can only be used with --task'
run_bireme 78 train recipe.yaml run_dir=other evaluate.tasks=choice.yaml \
    data.validation='data/train-*.h5' evaluate.metric=choice/f1
expect_error "evaluate.metric: 'choice/f1' is not a metric of evaluate.tasks"
run_bireme 78 train recipe.yaml run_dir=other evaluate.tasks=choice.yaml data.validation=null \
    evaluate.every=0
expect_error 'choice.yaml requires data.validation'
