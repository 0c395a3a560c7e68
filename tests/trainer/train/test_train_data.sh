#!/bin/bash
# The checks of the data of a recipe at the start.
# Parts:
#
#   same         validation data that is training data
#   tokenizers   data folders of different tokenizers, and of both encodings of prompts
#   rows         less data than a batch
# ctest: parts same tokenizers rows
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# expect_warning NAME COUNT: the last command printed COUNT warnings with this name.
expect_warning() {
    [ "$(grep -c "W-$1" stderr)" = "$2" ] || fail "not $2 warnings W-$1"
}

short=(recipe.yaml train.max_steps=2 schedule.warmup_steps=0 evaluate.every=1 checkpoint.every=0)

test_same() {
    run_bireme 0 train "${short[@]}"
    expect_warning SAME-DATA 0
    run_bireme 0 train "${short[@]}" run_dir=same 'data.validation=data/train-*.h5'
    expect_warning SAME-DATA 1
    run_bireme 0 plan "${short[@]}" 'data.validation=data/train-*.h5'
    expect_warning SAME-DATA 1
    cp -r data copy
    run_bireme 0 plan "${short[@]}" 'data.validation=copy/train-*.h5'
    expect_warning SAME-DATA 1
    grep -q 'copy/train-00000-of-00001.h5 is equal to data/train-' stderr || fail 'no names'
}

test_tokenizers() {
    tr 'z' '~' <"$source/LICENSE" >other.txt
    run_bireme 0 tokenizer train --type char --input other.txt --output other
    run_bireme 0 prepare --objective clm --tokenizer other --input other.txt --output others
    local size plain
    size=$(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' <("$program" inspect tokenizer --json))
    plain=("${short[@]}" data.tokenizer=null model.vocab_size="$size")
    run_bireme 0 train "${plain[@]}" run_dir=plain
    run_bireme 65 train "${plain[@]}" run_dir=bad 'data.validation=others/train-*.h5'
    expect_error 'data/train-.* and others/train-.* were made with different tokenizers'
    cat >mixture.yaml <<END
$(grep -v '^data:\|sequence_length: 32}' recipe.yaml)
data:
  train:
    - {path: data/train-*.h5, weight: 0.5}
    - {path: others/train-*.h5, weight: 0.5}
  sequence_length: 32
END
    run_bireme 65 train mixture.yaml "${plain[@]:1}" run_dir=bad evaluate.every=0
    expect_error 'data/train-.* and others/train-.* were made with different tokenizers'
    run_bireme 65 plan mixture.yaml "${plain[@]:1}" evaluate.every=0

    # The shards are compared with the tokenizer of the initial weights too.
    run_bireme 0 train "${short[@]}" run_dir=first
    run_bireme 0 train "${plain[@]}" run_dir=second model.init_from=first/final
    expect_warning TOKENIZER 0
    local third=("${plain[@]}" run_dir=third model.init_from=first/final
        'data.train=others/train-*.h5' 'data.validation=others/train-*.h5')
    run_bireme 65 train "${third[@]}"
    expect_error 'not prepared with the tokenizer of the initial weights'
    run_bireme 0 train "${third[@]}" model.ignore_mismatched_tokenizer=true
    expect_warning TOKENIZER 1

    for ((i = 0; i < 40; i++)); do
        echo "{\"prompt\": \"the user $((i % 10))\", \"completion\": \" is free\"}"
    done >rows.jsonl
    local rows=(prepare --objective sft --tokenizer data_end --input rows.jsonl)
    run_bireme 0 tokenizer train --type bpe --vocab-size 270 --input "$source/LICENSE" \
        --output data_end
    run_bireme 0 "${rows[@]}" --output separate
    run_bireme 0 "${rows[@]}" --output joined --join-encoding
    local sft=("${short[@]}" objective=sft data.tokenizer=data_end 'data.train=separate/train-*.h5')
    run_bireme 0 train "${sft[@]}" run_dir=sft 'data.validation=joined/train-*.h5'
    expect_warning JOIN-ENCODING 1
    run_bireme 0 plan "${sft[@]}" 'data.validation=separate/train-*.h5'
    expect_warning JOIN-ENCODING 0
}

test_rows() {
    head -c 700 "$source/LICENSE" >few.txt
    run_bireme 0 prepare --objective clm --tokenizer tokenizer --input few.txt --output few
    run_bireme 0 train "${short[@]}" 'data.train=few/train-*.h5' batch.global_size=24
    expect_warning ROWS 1
    grep -q 'has 21 samples, fewer than a batch of batch.global_size, 24' stderr || fail 'numbers'
    run_bireme 0 plan "${short[@]}" 'data.train=few/train-*.h5' batch.global_size=21
    expect_warning ROWS 0
}

run_part "$@"
