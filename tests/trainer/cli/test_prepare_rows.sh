#!/bin/bash
# `prepare` on the rows that people have: the split and its report.
. "$(dirname "$0")/../tiny_training.sh"

# expect_output TEXT: standard output of the last command has this line.
expect_output() {
    grep -qxF -- "$1" out || fail "no line '$1' in: $(cat out)"
}

# expect_log TEXT: standard error of the last command contains this text.
expect_log() {
    grep -qF -- "$1" stderr || fail "the log does not contain '$1'"
}

# make_sorted: write a CSV file that is sorted by label, as IMDb and Yelp are.
make_sorted() {
    {
        echo text,label
        for ((i = 0; i < 150; i++)); do echo "the license $i,neg"; done
        for ((i = 0; i < 150; i++)); do echo "the user $i of the work is free,pos"; done
    } >sorted.csv
}

prepare() { # CODE OPTION...
    local code=$1
    shift
    run_bireme "$code" prepare --tokenizer tokenizer --output rows "$@"
}

# Held-out rows are drawn from each label by default; --split last takes the last rows.
test_split() {
    make_sorted
    local rows=(--objective classify --input sorted.csv --validation-fraction 0.2)
    prepare 0 "${rows[@]}"
    expect_output 'train       240 examples: neg 120, pos 120'
    expect_output 'validation  60 examples: neg 30, pos 30'
    ! grep -q W-MISSING stderr || fail 'a warning without a reason'
    cp rows/validation-00000-of-00001.h5 default.h5
    prepare 0 "${rows[@]}" --shuffle-split 1337 --workers 3
    cmp rows/validation-00000-of-00001.h5 default.h5 || fail 'the default seed is not 1337'
    prepare 0 "${rows[@]}" --shuffle-split 5
    ! cmp -s rows/validation-00000-of-00001.h5 default.h5 || fail 'the seed changes nothing'
    prepare 0 "${rows[@]}" --split last
    expect_output 'train       240 examples: neg 150, pos 90'
    expect_output 'validation  60 examples: neg 0, pos 60'
    expect_log 'W-MISSING-LABEL: the validation set has no example of 1 of the 2 labels: neg'
    prepare 0 "${rows[@]}" --json
    grep -q '"validation_labels"' out && grep -q '"neg": 30' out || fail "JSON: $(cat out)"
    grep -q '"train_examples": 240' out || fail "JSON: $(cat out)"
    prepare 64 "${rows[@]}" --split last --shuffle-split 5
    expect_error 'is the seed of --split random'
    head -n 151 sorted.csv >one.csv
    prepare 0 --objective classify --input sorted.csv --validation-input one.csv
    expect_log 'W-MISSING-LABEL: the validation set has no example of 1 of the 2 labels: pos'
    prepare 0 --objective classify --input sorted.csv --sequence-length 20
    expect_log '150 of 300 examples were cut at 20 tokens (--sequence-length): 1690 tokens removed'
    expect_log 'at most 12 from one example'
    prepare 0 --objective clm --input "$source/LICENSE" --validation-fraction 0.2
    expect_log '1 document from '
}

case ${1:-} in
split) "test_$1" ;;
*)
    echo "no such part: ${1:-}" >&2
    exit 64
    ;;
esac
echo "$1: passed"
