#!/bin/bash
# `bireme evaluate --predictions` prints metrics of texts against references, and refuses files that
# do not fit together. test_text_scores.c compares the values with sacreBLEU and rouge-score.
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

printf 'the cat sat on the mat\na dog barks loudly today\n' >predictions
printf 'the cat sat on the mat\r\na dog barked loudly today\r\n' >references
run_bireme 0 evaluate --predictions predictions --references references \
    --metrics bleu,rouge1,rougeLsum,exact_match
grep -q '^rows  *2$' out || fail "no rows: $(cat out)"
grep -q '^bleu .*nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:bireme-' out ||
    fail "no signature: $(cat out)"
grep -q '^rouge1  *0.9$' out && grep -q '^exact_match  *0.5$' out || fail "scores: $(cat out)"

# JSON Lines can have texts of several lines.
printf '{"text": "a b\\nc d"}\n' >a.jsonl
printf '{"text": "c d\\na b"}\n' >b.jsonl
run_bireme 0 evaluate --predictions a.jsonl --references b.jsonl --metrics rougeL,rougeLsum \
    --bleu-tokenizer intl --json
grep -q '"rougeL":0.5,"rougeLsum":1.0' out || fail "lines: $(cat out)"

echo 'one line' >short
run_bireme 65 evaluate --predictions short --references references
expect_error 'short has 1 text and references has 2'
: >empty
run_bireme 65 evaluate --predictions empty --references empty
expect_error 'empty has no text'
printf 'good\n\xff\n' >latin
run_bireme 65 evaluate --predictions latin --references references
expect_error 'latin:2: not valid UTF-8'
run_bireme 66 evaluate --predictions missing --references references
expect_error 'missing'
run_bireme 64 evaluate --predictions predictions --references references --metrics bleu,meteor
expect_error "no metric 'meteor'"
run_bireme 64 evaluate --predictions predictions
expect_error 'both --predictions FILE and --references FILE'
run_bireme 64 evaluate --predictions predictions --references references --checkpoint run
expect_error 'uses no model'
run_bireme 64 evaluate --data 'x.h5'
expect_error '--checkpoint DIR is missing'
