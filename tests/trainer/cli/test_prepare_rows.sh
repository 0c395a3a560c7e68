#!/bin/bash
# `prepare` on the rows that people have: the split and its report.
# ctest: parts split single_labels columns plain end_token squad tokenizer labels template encoding
# ctest: parts lock compressed
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

# With exchanged columns, each "label" occurs once, so no row can be held out.
test_single_labels() {
    make_sorted
    prepare 65 --objective classify --input sorted.csv --columns text=label,label=text \
        --validation-fraction 0.2
    expect_error 'no two of the 300 rows have the same label.*; check the columns (--columns'
    prepare 64 --objective reward --input sorted.csv
    expect_error 'this objective is trained on the shards of --objective dpo'
    prepare 64 --objective denoise --input sorted.csv
    expect_error 'this objective is trained on the shards of --objective clm'
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
    expect_log 'warning: the validation set has no example of 1 of the 2 labels: neg'
    expect_log '[W-MISSING-LABEL]'
    prepare 0 "${rows[@]}" --json
    grep -q '"validation_labels"' out && grep -q '"neg": 30' out || fail "JSON: $(cat out)"
    grep -q '"train_examples": 240' out || fail "JSON: $(cat out)"
    prepare 64 "${rows[@]}" --split last --shuffle-split 5
    expect_error 'is the seed of --split random'
    ! grep -q W-SAME-DATA stderr || fail 'a warning about different rows'
    prepare 0 --objective classify --input sorted.csv --validation-input sorted.csv
    grep -q W-SAME-DATA stderr || fail 'no warning about the same file'
    expect_log '300 of 300 validation examples are also in the training set'
    { head -n 21 sorted.csv && echo 'another text,pos'; } >some.csv
    prepare 0 --objective classify --input sorted.csv --validation-input some.csv \
        --shard-tokens 1000
    expect_log '20 of 21 validation examples are also in the training set'
    head -n 151 sorted.csv >one.csv
    prepare 0 --objective classify --input sorted.csv --validation-input one.csv
    expect_log 'warning: the validation set has no example of 1 of the 2 labels: pos'
    expect_log '[W-MISSING-LABEL]'
    prepare 0 --objective classify --input sorted.csv --sequence-length 20
    expect_log '150 of 300 examples were cut at 20 tokens (--sequence-length): 1690 tokens'
    expect_log 'removed, at most 12 from one example'
    prepare 0 --objective clm --input "$source/LICENSE" --validation-fraction 0.2
    expect_log '1 document from '
    ! grep -q W-UNUSED-SETTING stderr || fail 'a warning about an option that was not given'
    prepare 0 --objective clm --input "$source/LICENSE" --sequence-length 64
    expect_log '--sequence-length has no effect with --objective clm'
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
    # Between tabs, quotes are ordinary characters: a single one does not join lines.
    printf '%s\t%s\t%s\t%s\n' id question1 question2 is_duplicate \
        7 'the work' 'of a "user", a' 1 8 'a license' 'the form' 0 >tabs.tsv
    expect_same_rows tabs.tsv --columns $map
    printf '%s\t%s\n' text label '"a license' 1 'the "work' 0 '"the user"' 1 >glue.tsv
    prepare 0 --objective classify --input glue.tsv
    expect_output 'train       3 examples: 0 1, 1 2'
    run_bireme 0 inspect rows --sample 2 --tokenizer tokenizer
    grep -qF '"the user"' out || fail "quotes are removed: $(cat out)"
    ! grep -q W-QUOTES stderr || fail 'a warning about quotes of a text'
    printf '%s\t%s\n' text label '"a ""license"""' 1 '"the ""work"""' 0 >quoted.tsv
    prepare 0 --objective classify --input quoted.tsv
    [ "$(grep -c W-QUOTES stderr)" = 1 ] || fail 'not one warning about quoted fields'
    expect_log 'quoted.tsv:2: a field in double quotes'
    printf '"%s"\t"%s"\n' text label 'a license' 1 >names.tsv
    prepare 65 --objective classify --input names.tsv
    expect_log 'names.tsv:1: a name in double quotes'
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
    expect_error "semicolon.csv:2: no field 'label' (the row has 'id', 'question1', "
    expect_error '--columns FIELD=NAME selects another'
    ! grep -q skip-bad-rows stderr || fail 'the message suggests to skip all rows'
    prepare 65 --objective classify --input semicolon.csv --columns text=question,label=id
    expect_error "no field 'question' (the row has 'id'"
    echo '{"q": "the work"}' >>rows.jsonl
    prepare 65 --objective classify --input rows.jsonl --columns text=q
    expect_error 'rows.jsonl:3: .* use --skip-bad-rows'
    prepare 65 --objective sft --input rows.jsonl
    expect_error "rows.jsonl:1: no field 'prompt' with 'completion', .* (the row has 'q',"
    # Each choice can have a column.
    printf '%s\n' start,end0,end1,answer 'the work,is,of a user,1' \
        'a license,the,form,0' >choose.csv
    printf '%s\n' '{"text": "the work", "choices": ["is", "of a user"], "label": 1}' \
        '{"text": "a license", "choices": ["the", "form"], "label": 0}' >choose.jsonl
    prepare 0 --objective choose --input choose.jsonl
    cp rows/train-00000-of-00001.h5 list.h5
    prepare 0 --objective choose --input choose.csv \
        --columns text=start,choices=end0,choices=end1,label=answer
    cmp rows/train-00000-of-00001.h5 list.h5 || fail 'other choices of a table'
    prepare 65 --objective choose --input choose.csv
    expect_error "choose.csv:2: no field 'text' (the row has 'start'"
    prepare 65 --objective choose --input choose.csv --columns text=start,choices=end0
    expect_error 'write --columns choices=A,choices=B'
    prepare 65 --objective choose --input choose.csv \
        --columns text=start,choices=end0,choices=end1,label=start
    expect_error 'the label of a choice is its index, from 0'
    prepare 64 --objective choose --input choose.csv --columns text=start,text=end0
    expect_error "the field 'text' is given twice"
    prepare 64 --objective clasify --input choose.csv
    expect_error "must be one of clm.*; did you mean 'classify'?"
    prepare 64 --objective classify --input rows.csv --columns txt=question1
    expect_error "did you mean 'text'"
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

# Rows that are read as plain text give a warning.
test_plain() {
    printf '%s\n' '{"text": "the license"}' '{"text": "the user"}' >rows.jsonl
    cp rows.jsonl rows.json
    printf '%s\n' '[{"text": "the license"}]' >list.txt
    printf '%s\n' text,label 'the license,Pos' >rows.csv
    tr , '\t' <rows.csv >rows.tsv
    run_bireme 0 tokenizer train --type char --input rows.json rows.csv rows.tsv list.txt \
        --output letters
    [ "$(grep -c W-PLAIN-TEXT stderr)" = 4 ] || fail 'not 4 warnings of the tokenizer'
    for file in rows.json rows.csv rows.tsv list.txt; do
        run_bireme 0 prepare --objective clm --tokenizer letters --output plain --input $file
        grep -q W-PLAIN-TEXT stderr || fail "no warning about $file"
    done
    expect_log "name JSON Lines *.jsonl to read the field 'text'"
    run_bireme 0 prepare --objective clm --tokenizer letters --output plain --input rows.csv
    expect_log 'use --columns text=COLUMN'
    expect_log 'or `bireme prepare --objective classify` for rows with labels'
    run_bireme 0 prepare --objective clm --tokenizer letters --output plain --input rows.jsonl
    ! grep -q W-PLAIN-TEXT stderr || fail 'a warning about rows.jsonl'
    run_bireme 0 prepare --objective clm --tokenizer letters --output plain --input rows.csv \
        --columns text=text
    ! grep -q W-PLAIN-TEXT stderr || fail 'a warning about a column'
    prepare 0 --objective clm --input "$source/LICENSE"
    ! grep -q W-PLAIN-TEXT stderr || fail 'a warning about text'
}

# Documents without an end token between them; the end token is added on request.
test_end_token() {
    local zeros='\0\0\0'
    # Two documents of two tokens of one byte.
    printf '\1\2\3\4' >wiki.bin
    {
        printf 'MMIDIDX\0\0%b%b' "\01$zeros$zeros\0" '\01'
        printf '%b%b' "\02$zeros$zeros\0" "\03$zeros$zeros\0"
        printf '%b%b%b' "\02$zeros\02$zeros" "\0$zeros$zeros\0" "\02$zeros$zeros\0"
        printf '%b%b%b' "\0$zeros$zeros\0" "\01$zeros$zeros\0" "\02$zeros$zeros\0"
    } >wiki.idx
    run_bireme 0 tokenizer train --type bpe --vocab-size 270 --input "$source/LICENSE" --output bpe
    local tokens=(prepare --objective clm --tokenizer bpe --output tokens --input wiki)
    run_bireme 0 "${tokens[@]}"
    expect_output 'train       4 tokens'
    grep -q W-END-TOKEN stderr || fail 'no warning about joined documents'
    expect_log '1 of 2 documents follow another one without an end token'
    expect_log 'use --append-eod'
    run_bireme 0 "${tokens[@]}" --json
    grep -q '"joined_documents": 1,' out && grep -q '"validation_tokens": 0,' out &&
        grep -q '"validation_shards": 0,' out && grep -q '"train_shards": 1,' out ||
        fail "JSON: $(cat out)"
    run_bireme 0 "${tokens[@]}" --append-eod
    expect_output 'train       6 tokens'
    ! grep -q W-END-TOKEN stderr || fail 'a warning with --append-eod'
    run_bireme 0 inspect tokens --sample 0 --json
    tr -d ' \n' <out | grep -qF '[1,2,269]' || fail "no end token: $(cat out)"
    # A document of text always has one.
    echo '{"text": "a"}' >text.jsonl
    run_bireme 0 "${tokens[@]}" text.jsonl --append-eod
    expect_output 'train       8 tokens'
    prepare 64 --objective clm --input text.jsonl --append-eod
    expect_error '--append-eod: the tokenizer has no end-of-text token'
    prepare 64 --objective mlm --input text.jsonl --append-eod
    printf '%s\n' '{"text": "a"}' '{"text": "b"}' >text.jsonl
    prepare 0 --objective clm --input text.jsonl
    grep -q W-END-TOKEN stderr || fail 'no warning about joined texts'
    prepare 0 --objective clm --input "$source/LICENSE"
    ! grep -q W-END-TOKEN stderr || fail 'a warning about one document'
}

# SQuAD's own JSON gives the shards of the equivalent JSON Lines.
test_squad() {
    cat >rows.jsonl <<'END'
{"question": "the user", "context": "a \"[license\\", "answer": "license", "answer_start": 4}
{"question": "the work", "context": "a \"[license\\", "answers": {"text": [], "answer_start": []}}
{"question": "a work", "context": "the form", "answers": ANSWERS}
END
    sed -i 's/ANSWERS/{"text": ["the", "form"], "answer_start": [0, 4]}/' rows.jsonl
    cat >squad.json <<'END'
{"version": "v2.0", "data": [{"title": "a } b", "paragraphs": [
  {"qas": [
    {"question": "the user", "id": "q1", "answers": [{"text": "license", "answer_start": 4}]},
    {"question": "the work", "id": "q2", "answers": [], "is_impossible": true,
     "plausible_answers": [{"text": "a", "answer_start": 0}]}],
   "context": "a \"[license\\"}]},
 {"paragraphs": [], "title": "none"},
 {"paragraphs": [{"context": "the form", "qas": [{"question": "a work", "id": "q3", "answers":
  [{"answer_start": 0, "text": "the"}, {"answer_start": 4, "text": "form"}]}]}], "title": "x"}]}
END
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 120 --input "$source/LICENSE" \
        --output pieces
    local answer=(prepare --objective answer --tokenizer pieces --output rows)
    run_bireme 0 "${answer[@]}" --input rows.jsonl
    expect_output 'train       3 examples'
    cp rows/train-00000-of-00001.h5 expected.h5
    tr -d '\n' <squad.json >line.json
    { printf '\xEF\xBB\xBF' && cat squad.json; } >bom.json
    sed 's/"version": "v2.0", //' squad.json | gzip >noversion.json.gz
    for file in squad.json line.json bom.json noversion.json.gz; do
        run_bireme 0 "${answer[@]}" --input $file
        cmp rows/train-00000-of-00001.h5 expected.h5 || fail "$file gives other shards"
    done
    run_stdin 0 squad.json "${answer[@]}" --input -
    cmp rows/train-00000-of-00001.h5 expected.h5 || fail 'standard input gives other shards'
    run_bireme 0 "${answer[@]}" --input squad.json --validation-fraction 0.4
    grep -q '^validation  [12] example' out || fail "no validation set: $(cat out)"
    # Errors name the line and the question, or the place where the file ends.
    sed 's/"answer_start": 4}\]},$/"answer_start": 5}]},/' squad.json >bad.json
    run_bireme 65 "${answer[@]}" --input bad.json
    expect_error 'bad.json:2: question q1: the context does not contain the answer at character 5'
    run_bireme 0 "${answer[@]}" --input bad.json --skip-bad-rows
    expect_output 'train       2 examples'
    for bytes in 100 400 570; do
        head -c $bytes squad.json >cut.json
        run_bireme 65 "${answer[@]}" --input cut.json
        expect_error 'cut.json:.*damaged or truncated'
    done
    sed 's/"none"}/"none"/' squad.json >broken.json
    run_bireme 65 "${answer[@]}" --input broken.json
    expect_error 'around its paragraphs it is not valid JSON'
}

# `tokenizer train` reads columns, and adds special tokens.
test_tokenizer() {
    local type
    make_sorted
    cut -d, -f1 sorted.csv | sed 1d | awk '{ printf "{\"text\": \"%s\"}\n", $0 }' >expected.jsonl
    sed 's/^text,/review,/' sorted.csv >reviews.csv
    tr , '\t' <reviews.csv >reviews.tsv
    sed 's/"text"/"review"/' expected.jsonl >reviews.jsonl
    for type in char bpe; do
        run_bireme 0 tokenizer train --type $type --vocab-size 290 --input expected.jsonl \
            --output expected
        for file in reviews.csv reviews.tsv reviews.jsonl; do
            run_bireme 0 tokenizer train --type $type --vocab-size 290 --input $file \
                --columns text=review --output other --workers 2
            cmp other/tokenizer.json expected/tokenizer.json || fail "$type: other text of $file"
            ! grep -q W-PLAIN-TEXT stderr || fail "a warning about $file"
        done
    done
    run_stdin 0 reviews.csv tokenizer train --type bpe --vocab-size 290 --input - \
        --columns text=review --output other
    cmp other/tokenizer.json expected/tokenizer.json || fail 'other text of standard input'
    run_bireme 65 tokenizer train --type char --input reviews.csv --columns text=none --output bad
    grep -q "reviews.csv:2: no field 'none'" stderr || fail 'no warning about the column'
    run_bireme 64 prepare --tokenizer tokenizer --input 0.3 "$source/LICENSE" --output blend
    expect_error '0.3 is not a file: prepare takes files without weights.*E-USAGE'
    run_bireme 64 tokenizer train --type char --input "$source/LICENSE" --columns text=review \
        --output other
    expect_error 'is read as plain text, which has no columns'
    # Special tokens come after the usual ones; --vocab-size counts them.
    run_bireme 0 tokenizer train --type bpe --vocab-size 280 --input "$source/LICENSE" \
        --output bpe --special-tokens '<|im_start|>,<|im_end|>'
    run_bireme 0 inspect bpe
    grep -q 'vocabulary *280' out || fail "another vocabulary: $(cat out)"
    echo 'a<|im_start|><|im_end|><|endoftext|>' >text
    run_bireme 0 tokenizer encode --tokenizer bpe --special <text
    grep -q ' 278 279 277$' out || fail "other ids: $(cat out)"
    run_bireme 0 tokenizer train --type char --input "$source/LICENSE" --output ended \
        --special-tokens '<|endoftext|>'
    run_bireme 0 prepare --objective clm --tokenizer ended --input expected.jsonl --output ended
    ! grep -q W-END-TOKEN stderr || fail 'the character tokenizer has no end token'
    run_bireme 64 tokenizer train --type char --input text --output bad --special-tokens usal
    expect_error "did you mean 'usual'"
    run_bireme 64 tokenizer train --type char --input text --output bad --special-tokens a,,b
    expect_error 'an empty token'
    run_bireme 64 tokenizer train --type char --input text --output bad --special-tokens '<a>,<a>'
    expect_error "'<a>' is listed twice"
    run_bireme 64 tokenizer train --type char --input text --output bad \
        --special-tokens '<|im_start|>,<|im_end|>,usual'
    expect_error "'usual' must be the only name"
    run_bireme 64 tokenizer train --type bpe --vocab-size 2 --input text --output bad \
        --special-tokens '<a>,<b>'
    expect_error '--vocab-size 2 must be more than the 2 further'
    # A usual token in the list takes no place of another one.
    run_bireme 0 tokenizer train --type bpe --vocab-size 280 --input "$source/LICENSE" \
        --output bpe --special-tokens '<|endoftext|>,<|im_end|>'
    run_bireme 0 inspect bpe
    grep -q 'vocabulary *280' out || fail "another vocabulary: $(cat out)"
}

# Labels that are probably mistakes; counts in the singular.
test_labels() {
    printf '%s\n' text,label 'the license,Pos' 'the user,pos ' 'the work,neg' 'a form," n  eg"' \
        >labels.csv
    prepare 0 --objective classify --input labels.csv
    grep -q 'W-SIMILAR-LABELS' stderr || fail 'no warning about similar labels'
    expect_log "'Pos' and 'pos '"
    ! grep -q 'W-ONE-LABEL' stderr || fail 'a warning about one label'
    ! grep -q '"neg" and' stderr || fail 'different labels are called similar'
    printf '%s\n' text,label 'the license of the user,1' >labels.csv
    prepare 0 --objective classify --input labels.csv --sequence-length 8
    grep -q 'W-ONE-LABEL' stderr || fail 'no warning about a single label'
    ! grep -q 'W-SIMILAR' stderr || fail 'a warning about similar labels'
    expect_output 'train       1 example: 1 1'
    expect_log '1 of 1 example was cut at 8 tokens'
    expect_log '1 example from '
    # Exchanged columns: nearly every row has another label.
    {
        echo label,text
        for i in {1..30}; do echo "the license $i of the user,neg"; done
        echo 'the license 1 of the user,pos'
    } >labels.csv
    prepare 0 --objective classify --input labels.csv
    grep -q 'W-SINGLE-LABELS' stderr || fail 'no warning about exchanged columns'
    expect_log "29 of 31 examples have a label that no other example has, such as 'the license"
    expect_log 'check the columns (--columns text=NAME,label=NAME)'
    grep -q "'the license 1 of the user' 2, 'the license 10 of" out || fail "labels: $(cat out)"
    prepare 0 --objective classify --input labels.csv --columns text=label,label=text
    ! grep -q 'W-SINGLE-LABELS' stderr || fail 'a warning about two labels'
    echo '{"tokens": ["the", "user"], "labels": ["O", "o"]}' >words.jsonl
    prepare 0 --objective classify_tokens --input words.jsonl
    grep -q 'W-SIMILAR-LABELS' stderr || fail 'no warning about similar labels of tokens'
}

# A chat template is applied to messages only; plain rows give a warning.
test_template() {
    local message='{"role": "user", "content": "the license"}'
    local answer='{"role": "assistant", "content": "the user"}'
    run_bireme 0 tokenizer train --type bpe --vocab-size 270 --input "$source/LICENSE" --output bpe
    printf '%s\n' '{"prompt": "the license", "completion": " the user"}' '{"text": "the work"}' \
        "{\"messages\": [$message, $answer]}" >mixed.jsonl
    tail -n 1 mixed.jsonl >messages.jsonl
    head -n 1 mixed.jsonl >plain.jsonl
    echo '{"prompt": "the license", "chosen": " the user", "rejected": " the work"}' >pairs.jsonl
    local sft=(prepare --objective sft --tokenizer bpe --output rows)
    run_bireme 0 "${sft[@]}" --input plain.jsonl
    ! grep -q W-NO-TEMPLATE stderr || fail 'a warning without a template'
    run_bireme 0 "${sft[@]}" --input mixed.jsonl --chat-template alpaca
    expect_log "2 of 3 rows have texts instead of messages, so the chat template 'alpaca' is not"
    expect_log '[W-NO-TEMPLATE]'
    run_bireme 0 "${sft[@]}" --input plain.jsonl # the folder now has the template
    expect_log '1 of 1 rows have texts'
    run_bireme 0 "${sft[@]}" --input plain.jsonl --json
    grep -q '"plain_rows": 1,' out || fail "JSON: $(cat out)"
    run_bireme 0 "${sft[@]}" --input messages.jsonl
    ! grep -q W-NO-TEMPLATE stderr || fail 'a warning about messages'
    run_bireme 0 prepare --objective dpo --tokenizer bpe --input pairs.jsonl --output rows
    expect_log '1 of 1 rows have texts'
}

# A file in another encoding: the message names the remedy.
test_encoding() {
    printf 'text,label\ncaf\xe9,a\n' >rows.csv
    printf '{"text": "caf\xe9", "label": "a"}\n' >rows.jsonl
    printf 'caf\xe9\n' >text.txt
    for file in rows.csv rows.jsonl; do
        prepare 65 --objective classify --input $file
        expect_error 'UTF-8, for example with `iconv -f latin1 -t utf-8`'
    done
    prepare 65 --objective clm --input text.txt
    expect_error 'the byte 0xe9 is not UTF-8; .*iconv -f latin1'
    run_bireme 65 tokenizer train --type char --input text.txt --output bad
    expect_error 'byte 0xe9 at offset 3 is not UTF-8; .*iconv -f latin1'
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 50 --input text.txt --output bad
    grep -q 'text.txt: the byte 0xe9 at offset 3 is not UTF-8; .*iconv.*W-TEXT' stderr ||
        fail 'the training of a tokenizer does not report the encoding'
    printf 'caf\xc3\xa9\n' >text.txt
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 50 --input text.txt --output bad
    ! grep -q W-TEXT stderr || fail 'a warning about UTF-8'
}

# Only one preparation writes to a folder, also while it counts its rows.
test_lock() {
    make_sorted
    local rows=(--objective classify --input sorted.csv) first i
    mkfifo pipe
    "$program" prepare --tokenizer tokenizer --output rows --objective classify --input pipe \
        >first 2>&1 &
    first=$!
    exec 3>pipe # waits until the first one reads
    for ((i = 0; i < 100 && $(find rows -name .unfinished | wc -l) == 0; i++)); do sleep 0.1; done
    prepare 73 "${rows[@]}"
    expect_error 'another `bireme prepare` is writing to rows; wait for it or choose another'
    cat sorted.csv >&3
    exec 3>&-
    wait "$first" || fail "the first preparation: $(cat first)"
    run_bireme 0 inspect rows
    prepare 0 "${rows[@]}"
    # Preparations that end at the same time: each ends with 0 or 73, and the shards are complete.
    rm -rf rows
    for ((i = 0; i < 8; i++)); do
        { "$program" prepare --tokenizer tokenizer --output rows "${rows[@]}" >"out$i" 2>&1
          echo $? >"code$i"; } &
    done
    wait
    cat code? | grep -qvxE '0|73' && fail "another exit code: $(cat out?)"
    cat code? | grep -qx 0 || fail "no preparation succeeds: $(cat out?)"
    run_bireme 0 inspect rows
    [ ! -e rows/.unfinished ] || fail 'the temporary folder is left'
    # After an error, a folder that was created for the output is removed.
    echo 'text,label' >empty.csv
    run_bireme 65 prepare --tokenizer tokenizer --output new/rows --objective classify \
        --input empty.csv
    [ ! -e new ] || fail 'an empty output folder is left'
    mkdir kept
    run_bireme 65 prepare --tokenizer tokenizer --output kept/new//rows/ --objective classify \
        --input empty.csv
    [ -e kept ] && [ ! -e kept/new ] || fail 'not only the new folders are removed'
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
        run_bireme 65 prepare --objective clm --tokenizer tokenizer --output cut \
            --input "cut.csv.$suffix"
        [ ! -e cut ] || fail "$suffix: an output is left after an error"
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
    expect_error "standard input:1: the field 'text' is not a string"
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

run_part "$@"
