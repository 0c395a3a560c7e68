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

# expect_same_rows FILE OPTION...: FILE gives the same shard as rows.csv.
expect_same_rows() {
    local file=$1
    shift
    prepare 0 --objective classify --input "$file" "$@"
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail "$file gives other rows"
}

# Columns with other names and other delimiters.
test_columns() {
    printf '%s\n' text,text_pair,label 'the work,"of a ""user"", a",1' \
        'a license,the form,0' >rows.csv
    prepare 0 --objective classify --input rows.csv
    cp rows/train-00000-of-00001.h5 expected.h5
    printf '%s\n' 'id;question1;question2;is_duplicate' '7;the work;"of a ""user"", a";1' \
        '8;a license;the form;0' >semicolon.csv
    local map=text=question1,text_pair=question2,label=is_duplicate
    expect_same_rows semicolon.csv --columns $map
    tr ';' '\t' <semicolon.csv >tabs.tsv
    expect_same_rows tabs.tsv --columns $map
    cp tabs.tsv tabs.csv
    expect_same_rows tabs.csv --columns $map
    tr ';' '|' <semicolon.csv >pipe.csv
    expect_same_rows pipe.csv --columns $map --delimiter pipe
    printf '%s\t%s\t%s\n' text_pair text label 'the work' 'of a "user", a' 1 \
        'a license' 'the form' 0 >swapped.tsv
    expect_same_rows swapped.tsv --columns text=text_pair,text_pair=text
    printf '%s\n' '{"q": "the work", "text_pair": "of a \"user\", a", "label": 1}' \
        '{"q": "a license", "text_pair": "the form", "label": 0}' >rows.jsonl
    expect_same_rows rows.jsonl --columns text=q
    # The message lists the columns; only after a good row it names --skip-bad-rows.
    prepare 65 --objective classify --input semicolon.csv --columns text=question1
    expect_error 'semicolon.csv:2: no field "label" (the row has "id", "question1", '
    expect_error '--columns FIELD=NAME selects another'
    ! grep -q skip-bad-rows stderr || fail 'the message suggests to skip all rows'
    prepare 65 --objective classify --input semicolon.csv --columns text=question,label=id
    expect_error 'no field "question" (the row has "id"'
    echo '{"q": "the work"}' >>rows.jsonl
    prepare 65 --objective classify --input rows.jsonl --columns text=q
    expect_error 'rows.jsonl:3: .* use --skip-bad-rows'
    prepare 65 --objective sft --input rows.jsonl
    expect_error 'rows.jsonl:1: no field "prompt" with "completion", .* (the row has "q",'
    prepare 64 --objective classify --input rows.csv --columns txt=question1
    expect_error 'did you mean "text"'
    prepare 64 --objective classify --input rows.csv --columns text
    expect_error "'text' is not FIELD=COLUMN"
    prepare 64 --objective classify --input rows.csv --columns text=a,text=b
    expect_error 'is given twice'
    # Text objectives read the column of a table.
    echo '{"text": "a license"}' >text.jsonl
    prepare 0 --objective clm --input text.jsonl
    cp rows/train-00000-of-00001.h5 expected.h5
    printf '%s\n' 'stars;review' '5;a license' >reviews.csv
    prepare 0 --objective clm --input reviews.csv --columns text=review
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'clm reads other text'
    cp reviews.csv reviews.txt
    prepare 64 --objective clm --input reviews.txt --columns text=review
    expect_error 'reviews.txt is read as plain text, which has no columns'
    prepare 64 --objective clm --input reviews.csv --delimiter semicolon
    expect_error 'reviews.csv is read as plain text, which has no columns'
}

# run_stdin CODE FILE ARGUMENT...: run the program with this file as standard input, from a pipe.
run_stdin() {
    local expected=$1 file=$2
    shift 2
    cat "$file" | timeout 50 "${one_core[@]}" "$program" "$@" >out 2>stderr
    local code=${PIPESTATUS[1]}
    [ "$code" = "$expected" ] || fail "bireme $* ended with $code instead of $expected"
}

# Compressed files and standard input, in every command that reads text or rows.
test_compressed() {
    local rows=(--objective classify --validation-fraction 0.2) tool suffix
    make_sorted
    prepare 0 "${rows[@]}" --input sorted.csv
    cp rows/train-00000-of-00001.h5 expected.h5
    run_bireme 0 tokenizer train --type char --input sorted.csv --output letters
    for tool in gzip:gz zstd:zst xz:xz bzip2:bz2; do
        suffix=${tool#*:} tool=${tool%:*}
        command -v "$tool" >/dev/null || continue
        "$tool" -c sorted.csv >"sorted.csv.$suffix"
        prepare 0 "${rows[@]}" --input "sorted.csv.$suffix"
        cmp rows/train-00000-of-00001.h5 expected.h5 || fail "$suffix: other rows"
        run_bireme 0 tokenizer train --type char --input "sorted.csv.$suffix" --output other
        cmp other/tokenizer.json letters/tokenizer.json || fail "$suffix: another tokenizer"
        # A truncated file is an error, not the end of the data.
        head -c $(($(stat -c %s "sorted.csv.$suffix") - 9)) "sorted.csv.$suffix" >"cut.csv.$suffix"
        prepare 65 "${rows[@]}" --input "cut.csv.$suffix"
        expect_error "cut.csv.$suffix: the $tool data is damaged or truncated"
        prepare 65 "${rows[@]}" --skip-bad-rows --input "cut.csv.$suffix"
        run_bireme 65 tokenizer train --type char --input "cut.csv.$suffix" --output other
        expect_error "cut.csv.$suffix: the $tool data is damaged or truncated"
    done
    [ -e sorted.csv.gz ] || fail 'gzip is missing'
    # Standard input and pipes, which are read in two passes.
    run_stdin 0 sorted.csv prepare "${rows[@]}" --tokenizer tokenizer --output rows --input -
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'standard input: other rows'
    run_stdin 0 sorted.csv.gz prepare "${rows[@]}" --tokenizer tokenizer --output rows --input -
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'gzip on standard input: other rows'
    prepare 0 "${rows[@]}" --input - <sorted.csv
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'redirected input: other rows'
    prepare 0 "${rows[@]}" --input <(cat sorted.csv)
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'pipe: other rows'
    [ "$(find rows -name '.*' ! -name . -type f)" = '' ] || fail 'a temporary file was left'
    awk -F, 'NR > 1 { printf "{\"text\": \"%s\", \"label\": \"%s\"}\n", $1, $2 }' sorted.csv \
        >rows.jsonl
    run_stdin 0 rows.jsonl prepare "${rows[@]}" --tokenizer tokenizer --output rows --input -
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'JSON Lines on standard input: other rows'
    echo '{"text": 3}' >bad
    run_stdin 65 bad prepare --objective sft --tokenizer tokenizer --output rows --input -
    expect_error 'standard input:1: the field "text" is not a string'
    prepare 64 --objective sft --input - -
    expect_error 'standard input (-) is given twice'
    prepare 64 --objective sft --input - --validation-input -
    expect_error 'standard input (-) is given twice'
    # Text objectives.
    prepare 0 --objective clm --input "$source/LICENSE"
    cp rows/train-00000-of-00001.h5 expected.h5
    gzip -c "$source/LICENSE" >LICENSE.gz
    prepare 0 --objective clm --input LICENSE.gz
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'clm: other text in a compressed file'
    run_stdin 0 LICENSE.gz prepare --tokenizer tokenizer --output rows --input -
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'clm: other text on standard input'
    prepare 0 --objective clm --input rows.jsonl
    cp rows/train-00000-of-00001.h5 expected.h5
    run_stdin 0 rows.jsonl prepare --tokenizer tokenizer --output rows --input -
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'clm: other rows on standard input'
    run_bireme 0 tokenizer train --type char --input rows.jsonl --output letters
    gzip -c rows.jsonl >rows.jsonl.gz
    run_stdin 0 rows.jsonl.gz tokenizer train --type char --input - --output other
    cmp other/tokenizer.json letters/tokenizer.json || fail 'standard input: another tokenizer'
    cp rows.jsonl.gz tokens.bin.gz
    prepare 69 --objective clm --input tokens.bin.gz
    expect_error 'token files cannot be compressed'
    # Commands that query a model.
    run_bireme 0 train recipe.yaml model.hidden_size=16 train.max_steps=6
    printf 'the license\nthe user\n' >lines
    run_bireme 0 embed --checkpoint run lines
    cp out expected
    gzip lines
    run_bireme 0 embed --checkpoint run lines.gz
    cmp out expected || fail 'embed: other vectors for a compressed file'
    run_stdin 0 lines.gz embed --checkpoint run
    cmp out expected || fail 'embed: other vectors for compressed standard input'
    head -c 20 lines.gz >cut.gz
    run_bireme 65 embed --checkpoint run cut.gz
    expect_error 'cut.gz: the gzip data is damaged or truncated'
}

case ${1:-} in
split | columns | compressed) "test_$1" ;;
*)
    echo "no such part: ${1:-}" >&2
    exit 64
    ;;
esac
echo "$1: passed"
