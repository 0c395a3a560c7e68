#!/bin/bash
# Fine-tuning tasks from rows to a checkpoint: shards, a head on a pretrained model, equal losses at
# any layout and after a resume, stored labels.
# ctest: parts layouts objectives checkpoint pad_token
# ctest: timeout 300
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# make_rows: write the rows of each task. The last word of a text is its label; the texts of
# rows.jsonl have a second text.
make_rows() {
    awk 'BEGIN {
        split("the list of files and user system answer license work source object form", w, " ")
        x = 7
        for (i = 0; i < 120; i++) {
            text = ""
            for (j = 0; j < 4 + i % 5; j++) {
                x = (x * 1103 + 12345) % 65536
                text = text w[x % 13 + 1] " "
            }
            label = x % 3
            text = text (label == 0 ? "red" : label == 1 ? "green" : "blue")
            pair = ", \"text_pair\": \"" w[i % 13 + 1] " and " w[i % 7 + 1] "\""
            printf "{\"text\": \"%s\"%s, \"label\": \"%s\"}\n", text, pair,
                label == 0 ? "r" : label == 1 ? "g" : "b" > "rows.jsonl"
            printf "{\"text\": \"%s\", \"label\": %s}\n", text, label / 2 - 0.25 > "numbers.jsonl"
            n = split(text, t, " ")
            tokens = tags = ""
            for (j = 1; j <= n; j++) {
                tokens = tokens (j > 1 ? ", " : "") "\"" t[j] "\""
                tags = tags (j > 1 ? ", " : "") "\"" (j == n ? "color" : "other") "\""
            }
            printf "{\"tokens\": [%s], \"labels\": [%s]}\n", tokens, tags > "words.jsonl"
            printf "{\"question\": \"which\", \"context\": \"%s\", ", text > "answers.jsonl"
            printf "\"answer\": \"%s\", \"answer_start\": %d}\n", t[n],
                length(text) - length(t[n]) > "answers.jsonl"
            printf "{\"text\": \"%s\", \"choices\": [\"red\", \"green\", \"blue\"], ",
                text > "choices.jsonl"
            printf "\"label\": %d}\n", label > "choices.jsonl"
            printf "{\"text\": \"%s\", \"text_pair\": \"%s %s\"}\n", text, t[n],
                t[1] > "pairs.jsonl"
        } }'
}

prepare_rows() { # OBJECTIVE ROWS TOKENIZER FOLDER
    run_bireme 0 prepare --objective "$1" --tokenizer "$3" --input "$2" --output "$4" \
        --validation-fraction 0.2 --sequence-length 24
}

make_wordpiece() {
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 120 --input rows.jsonl \
        --output pieces
}

common=(model.num_heads=4 data.sequence_length=24 optimizer.learning_rate=3e-3
    checkpoint.every=0 train.max_steps=8)
bert=(model.architecture=bert data.tokenizer=pieces "${common[@]}")
gpt=("${common[@]}")

# Equal losses at any layout, with dropout: the dropout of a head depends only on the position of
# the example in the global batch.
test_layouts() {
    need_mpirun
    make_rows
    make_wordpiece
    prepare_rows classify rows.jsonl pieces labels
    prepare_rows regress numbers.jsonl tokenizer numbers
    local labels=(train recipe.yaml objective=classify 'data.train=labels/train-*.h5'
        'data.validation=labels/validation-*.h5' "${bert[@]}")
    local numbers=(train recipe.yaml objective=regress 'data.train=numbers/train-*.h5'
        'data.validation=numbers/validation-*.h5' "${gpt[@]}")
    run_bireme 0 "${labels[@]}" run_dir=one
    run_bireme 0 "${labels[@]}" run_dir=no_dropout model.dropout=0
    ! (compare_losses one no_dropout 1e-5 2>/dev/null) || fail 'dropout changes nothing'
    run_bireme 0 "${labels[@]}" run_dir=small batch.micro_size=2
    compare_losses one small 1e-5
    check_reproducible recipe.yaml bits "${labels[@]:2}" train.max_steps=6 checkpoint.every=6
    run_bireme 0 "${numbers[@]}" run_dir=number
    local ranks more
    while read -r ranks more; do
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 "${labels[@]}" run_dir=more $more
        compare_losses one more 1e-5
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 "${numbers[@]}" run_dir=more $more --resume never
        compare_losses number more 1e-5
        rm -rf more
    done <<END
3 parallel.zero_stage=2
2 parallel.tensor=2 parallel.sequence=true
2 parallel.reproducible=true
END
}

# The other objectives and heads: one rank, two with ZeRO, two with tensor parallelism, other
# micro-batches.
test_objectives() {
    need_mpirun
    make_rows
    make_wordpiece
    local objective rows model name
    while read -r objective rows model; do
        name=$objective$model
        prepare_rows "$objective" "$rows" pieces "$objective"
        local task=(train recipe.yaml "objective=$objective" "data.train=$objective/train-*.h5"
            "data.validation=$objective/validation-*.h5" "${bert[@]}" model.dropout=0.1
            ${model:+"model.architecture=$model"})
        run_bireme 0 "${task[@]}" "run_dir=$name-1" evaluate.batches=null
        run_bireme 0 evaluate --checkpoint "$name-1" --data "$objective/validation-*.h5" --json
        print_losses "$name-1" evaluate | tail -1 |
            awk -v got="$(sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out)" \
            '{ d = $2 - got; exit !(d < 1e-5 && d > -1e-5) }' ||
            fail "evaluate $objective: $(cat out)"
        run_ranks 2 0 "${task[@]}" "run_dir=$name-2" evaluate.batches=null \
            parallel.zero_stage=1 batch.micro_size=2
        compare_losses "$name-1" "$name-2" 1e-5
        run_ranks 2 0 "${task[@]}" "run_dir=$name-t" evaluate.batches=null parallel.tensor=2 \
            parallel.sequence=true
        compare_losses "$name-1" "$name-t" 1e-5
    done <<END
classify_tokens words.jsonl
answer answers.jsonl
choose choices.jsonl
embed pairs.jsonl
classify rows.jsonl modernbert
classify_tokens words.jsonl modernbert
END
}

# A new head on a pretrained encoder; the checkpoint stores the labels; wrong shards and wrong
# commands are refused.
test_checkpoint() {
    make_rows
    make_wordpiece
    run_bireme 0 prepare --objective mlm --tokenizer pieces --input "$source/LICENSE" \
        --output text --sequence-length 24
    prepare_rows classify rows.jsonl pieces labels
    run_bireme 0 train recipe.yaml objective=mlm 'data.train=text/train-*.h5' \
        data.validation=null evaluate.every=0 run_dir=encoder "${bert[@]}"
    local labels=(train recipe.yaml objective=classify 'data.train=labels/train-*.h5'
        'data.validation=labels/validation-*.h5' "${bert[@]}" evaluate.batches=null run_dir=head)
    run_bireme 0 "${labels[@]}" model.init_from=encoder checkpoint.every=4
    grep -qx 'new, at random: classifier.\*; not used: cls.predictions.\*.*' stderr ||
        fail 'the new head and the ignored head are not reported in one line'
    [ "$(cat head/final/tokenizer/labels.json)" = '["b", "g", "r"]' ] ||
        fail "labels: $(cat head/final/tokenizer/labels.json)"
    grep -q '^  num_labels: 3' head/recipe.yaml ||
        fail 'the resolved recipe does not contain the number of labels'
    cp -r head whole
    rm -rf head/final head/checkpoints/step-00000008
    run_bireme 0 "${labels[@]}" model.init_from=encoder checkpoint.every=4
    compare_losses whole head 0
    run_bireme 0 evaluate --checkpoint head --data 'labels/validation-*.h5' --json
    print_losses head evaluate | tail -1 |
        awk -v got="$(sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out)" \
        '{ d = $2 - got; exit !(d < 1e-5 && d > -1e-5) }' || fail "evaluate: $(cat out)"
    grep -q '"accuracy"' out || fail 'no accuracy'
    printf 'the list\tof files\n' >lines
    run_bireme 0 classify --checkpoint head lines
    printf 'the list\tof files\nthe list of files\n' >lines
    run_bireme 65 classify --checkpoint head lines
    expect_error 'lines:2: the line has no second text'
    sed 's/, "text_pair": "[^"]*"//' rows.jsonl >single.jsonl
    prepare_rows classify single.jsonl pieces single
    run_bireme 65 evaluate --checkpoint head --data 'single/validation-*.h5'
    expect_error 'has examples with one text, but the model was trained on pairs'
    run_bireme 65 "${labels[@]}" run_dir=wrong 'data.validation=single/validation-*.h5'
    expect_error 'data.validation.* has examples with one text'
    run_bireme 0 train "${labels[@]:1}" run_dir=single 'data.train=single/train-*.h5' \
        'data.validation=single/validation-*.h5' model.init_from=encoder
    ! grep -q W-TOKENIZER stderr || fail 'a warning about the same tokenizer'
    run_bireme 0 classify --checkpoint single lines
    # Another tokenizer with the same number of tokens.
    mkdir other
    awk '{ l[NR] = $0 } END { for (i = 1; i <= 5; i++) print l[i]
        for (i = NR; i > 5; i--) print l[i] }' pieces/vocab.txt >other/vocab.txt
    prepare_rows classify rows.jsonl other other_rows
    local other=("${labels[@]:1}" run_dir=other_run 'data.train=other_rows/train-*.h5'
        'data.validation=other_rows/validation-*.h5' data.tokenizer=other model.init_from=encoder)
    run_bireme 78 train "${other[@]}"
    expect_error "data.tokenizer: .*not the tokenizer of the initial weights.* instead of '.*'"
    expect_error 'model.ignore_mismatched_tokenizer=true'
    run_bireme 78 plan "${other[@]}"
    expect_error 'not the tokenizer of the initial weights'
    run_bireme 78 train "${other[@]}" run_dir=other_lora adapter.type=lora
    expect_error 'not the tokenizer of the initial weights'
    run_bireme 65 train "${other[@]}" data.tokenizer=null \
        model.vocab_size="$(wc -l <pieces/vocab.txt)"
    expect_error 'data.train: .*not prepared with the tokenizer of the initial weights'
    run_bireme 0 train "${other[@]}" model.ignore_mismatched_tokenizer=true
    grep -q 'warning: data.tokenizer other (.*) is not the tokenizer of the initial weights' \
        stderr || fail 'another tokenizer is not reported'
    # Further tokens leave the ids of the others unchanged.
    run_bireme 0 train recipe.yaml objective=mlm 'data.train=text/train-*.h5' run_dir=wide \
        data.validation=null evaluate.every=0 "${bert[@]}" \
        model.vocab_size=$(($(wc -l <pieces/vocab.txt) + 2))
    mkdir longer
    { cat pieces/vocab.txt && echo '[EXTRA]'; } >longer/vocab.txt
    prepare_rows classify rows.jsonl longer longer_rows
    run_bireme 0 "${labels[@]}" run_dir=longer_run 'data.train=longer_rows/train-*.h5' \
        'data.validation=longer_rows/validation-*.h5' data.tokenizer=longer model.init_from=wide
    grep -q 'but their common ids are the same tokens.*W-TOKENIZER' stderr ||
        fail 'the further token is not reported'
    run_bireme 0 prepare --objective classify --tokenizer pieces --input rows.jsonl \
        --output reordered --labels r,g,b --sequence-length 24
    run_bireme 65 evaluate --checkpoint head --data 'reordered/train-*.h5'
    expect_error 'in another order'
    # A test set with the labels of the run; a label can be missing in it.
    grep -v '"label": "b"' rows.jsonl | head -n 20 >test.jsonl
    local test=(prepare --objective classify --tokenizer pieces --validation-input test.jsonl
        --sequence-length 24 --output)
    run_bireme 0 "${test[@]}" test --labels head
    grep -q '^validation *20 examples: b 0, g' out || fail "labels: $(cat out)"
    ! grep -q 'the training set has no example' stderr || fail 'a warning about no training set'
    [ "$(ls test)" = validation-00000-of-00001.h5 ] || fail "files: $(ls test)"
    run_bireme 0 evaluate --checkpoint head --data 'test/validation-*.h5'
    run_bireme 65 evaluate --checkpoint head --data test.jsonl
    expect_error 'bireme prepare --objective classify --tokenizer head/final/tokenizer '\
'--validation-input test.jsonl --labels head --sequence-length 24 --output DIR'
    run_bireme 65 evaluate --checkpoint head --data test
    expect_error "name its shards: --data 'test/validation-"
    run_bireme 65 "${labels[@]}" run_dir=wrong data.train=test.jsonl
    expect_error 'not an HDF5 file; create shards with `bireme prepare --objective classify '\
'--tokenizer pieces --input test.jsonl'
    cp test/validation-*.h5 expected.h5
    for labels_from in head/final head/final/tokenizer head/final/tokenizer/labels.json \
        head/checkpoints; do
        run_bireme 0 "${test[@]}" test --labels $labels_from
        cmp test/validation-*.h5 expected.h5 || fail "other shards with --labels $labels_from"
    done
    run_bireme 0 "${test[@]}" labels --labels head
    [ -e labels/train-00000-of-00001.h5 ] || fail 'the training shards are removed'
    run_bireme 65 "${test[@]}" test --labels encoder
    expect_error 'has no labels'
    run_bireme 64 prepare --objective classify --tokenizer pieces --output test
    expect_error '--input FILE... is missing'
    run_bireme 64 prepare --objective clm --tokenizer pieces --output test --validation-input x
    run_bireme 0 export --checkpoint head --output folder
    grep -q '"architectures": \["BertForSequenceClassification"\]' folder/config.json ||
        fail "config.json: $(cat folder/config.json)"
    grep -q '"id2label": {"0":"b","1":"g","2":"r"}' folder/config.json ||
        fail "config.json: $(cat folder/config.json)"
    run_bireme 0 inspect labels/train-00000-of-00001.h5
    grep -q '^labels  *3: \["b", "g", "r"\]' out || fail "inspect: $(cat out)"
    run_bireme 0 plan "${labels[@]:1}" --json
    grep -q '"num_labels": *3' out || fail "plan: $(grep labels out)"
    run_bireme 0 bench step "${labels[@]:1}" --repeats 1
    grep -q '^linear_backward_weight ' out || fail "bench step: $(cat out)"
    run_bireme 65 generate --checkpoint head --prompt the
    expect_error 'objective classify and does not predict next tokens; use .bireme classify'
    run_bireme 65 translate --checkpoint head recipe.yaml
    expect_error 'head has the architecture bert, which is not an encoder-decoder; use .bireme cla'
    run_bireme 78 "${labels[@]}" run_dir=wrong model.num_labels=2
    expect_error 'labels/train-\*.h5 has 3 labels'
    run_bireme 65 train recipe.yaml 'data.train=labels/train-*.h5' data.tokenizer=pieces \
        data.validation=null evaluate.every=0
    expect_error "examples of the kind 'classify'"
}

# The exported head of a decoder has a pad token, which transformers needs for a batch of texts: the
# one of the tokenizer, else the end token. The head reads the last token that is not a pad token.
test_pad_token() {
    local pad
    make_rows
    sed 's/, "text_pair": "[^"]*"//' rows.jsonl >single.jsonl
    run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input single.jsonl --output bpe \
        --special-tokens '<extra>'
    prepare_rows classify single.jsonl bpe tokens
    run_bireme 0 train recipe.yaml objective=classify run_dir=gpt 'data.train=tokens/train-*.h5' \
        data.validation=null evaluate.every=0 data.tokenizer=bpe "${gpt[@]}"
    run_bireme 0 export --checkpoint gpt --output folder
    grep -q '"pad_token": "<|endoftext|>"' folder/tokenizer_config.json || fail 'no pad token'
    pad=$(sed -nE 's/^ *"pad_token_id": ([0-9]+),$/\1/p' folder/config.json)
    [ -n "$pad" ] && grep -q "\"eos_token_id\": $pad," folder/config.json ||
        fail "config.json: $(cat folder/config.json)"
    [ ! -e folder/special_tokens_map.json ] || fail 'a new special_tokens_map.json'
    # A pad token of the tokenizer remains.
    sed -i 's/"pad_token": "[^"]*"/"pad_token": {"content": "<extra>"}/' \
        folder/tokenizer_config.json
    run_bireme 0 import folder --output back
    run_bireme 0 export --checkpoint back --output second
    grep -q '"pad_token": "<extra>"' second/tokenizer_config.json || fail 'another pad token'
    [ "$(sed -nE 's/^ *"pad_token_id": ([0-9]+),$/\1/p' second/config.json)" != "$pad" ] ||
        fail 'the end token is the pad token'
}

run_part "$@"
