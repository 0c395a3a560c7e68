#!/bin/bash
# Tests mBART with language tokens: a model learns one word for each target language, and translate
# and generate select it with --target-lang. Scores of generated targets, both places of the token
# and errors are tested.
# ctest: timeout 180
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

reference=$source/tests/reference/tokenizer
yes 'the list' | head -40 >pairs.a
yes one | head -40 >pairs.en
yes uno | head -40 >pairs.es
model='model.architecture=mbart model.num_layers=1 model.hidden_size=32 model.num_heads=2
    model.dropout=0 model.activation=gelu_erf optimizer.learning_rate=4e-3 train.max_steps=60
    checkpoint.every=60 data.validation=null evaluate.every=0'

# train_words NAME TOKENIZER: train on pairs of both target languages.
train_words() {
    local code
    for code in en es; do
        run_bireme 0 prepare --objective seq2seq --tokenizer "$2" --source pairs.a \
            --target pairs.$code --source-lang fr_XX --target-lang ${code}_XX --output "$1-$code"
    done
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml objective=seq2seq data.tokenizer="$2" run_dir="$1" $model \
        "data.train=[{path: $1-en/train-*.h5, weight: 1}, {path: $1-es/train-*.h5, weight: 1}]"
}

# expect_words NAME LANGUAGE WORD
expect_words() {
    run_bireme 0 translate --checkpoint "$1" --source-lang fr_XX --target-lang "$2" pairs.a
    [ "$(sort -u out)" = "$3" ] || fail "$1: $2: $(sort out | uniq -c)"
    run_bireme 0 translate --checkpoint "$1" --target-lang "$2" --num-beams 2 <<<'the list'
    [ "$(cat out)" = "$3" ] || fail "$1: $2, two beams: $(cat out)"
    run_bireme 0 generate --checkpoint "$1" --prompt 'the list' --source-lang fr_XX \
        --target-lang "$2"
    [ "$(cat out)" = "$3" ] || fail "$1: $2: generate: $(cat out)"
}

# expect_decoder_tokens NAME TOKENS: the input of the decoder for a given target, as in training.
expect_decoder_tokens() {
    run_bireme 0 attention --checkpoint "$1" --target-lang es_XX --target uno --json 'the list'
    grep -q "\"decoder_tokens\":\[$2\]" out || fail "$1: decoder_tokens: $(cut -c1-300 out)"
}

for name in mbart mbart50; do
    train_words $name "$reference/$name"
    expect_words $name en_XX one
    expect_words $name es_XX uno
    case $name in
    mbart) expect_decoder_tokens $name '"es_XX",.*"o","<\/s>"' ;;
    mbart50) expect_decoder_tokens $name '"<\/s>","es_XX",.*"o"' ;;
    esac
    # evaluate.generate generates each target in the language of its reference.
    run_bireme 0 evaluate --checkpoint $name --data "$name-e[ns]/train-*.h5" --json \
        --set evaluate.generate=true "data.validation=$name-e[ns]/train-*.h5"
    grep -q '"exact_match": *1.0' out || fail "$name: evaluate.generate: $(cat out)"
    run_bireme 64 translate --checkpoint $name --target-lang es <<<'the list'
    expect_error 'target-lang es: the tokenizer has no token of this language'
done

# The token after the end token is the start token of the decoder, which has no default.
run_bireme 64 translate --checkpoint mbart <<<'the list'
expect_error 'give it with --target-lang'
run_bireme 64 serve --checkpoint mbart --port 0
expect_error 'give it with --target-lang'
run_bireme 0 translate --checkpoint mbart --set model.decoder_start_token_id=249 <<<'the list'
[ "$(cat out)" = uno ] || fail "model.decoder_start_token_id: $(cat out)"

# Marian with source.spm, target.spm and vocab.json has a token before the source.
yes 'la lista' | head -40 >pairs.es
yes 'el nombre' | head -40 >pairs.fr
for code in es fr; do
    run_bireme 0 prepare --objective seq2seq --tokenizer "$reference/marian" --source pairs.a \
        --target pairs.$code --source-prefix ">>$code<< " --output marian-$code
done
# shellcheck disable=SC2086
run_bireme 0 train recipe.yaml objective=seq2seq data.tokenizer="$reference/marian" \
    run_dir=marian $model model.architecture=marian \
    "data.train=[{path: marian-es/train-*.h5, weight: 1}, {path: marian-fr/train-*.h5, weight: 1}]"
run_bireme 0 export --checkpoint marian --output exported-marian
for file in source.spm target.spm; do
    cmp "exported-marian/$file" "$reference/marian/$file" || fail "export: $file differs"
done
grep -q '"tokenizer_class": "MarianTokenizer"' exported-marian/tokenizer_config.json ||
    fail "tokenizer_class: $(cat exported-marian/tokenizer_config.json)"
run_bireme 0 import exported-marian --output imported-marian
for folder in marian imported-marian; do
    run_bireme 0 translate --checkpoint $folder --target-lang es <<<'the list'
    [ "$(cat out)" = 'la lista' ] || fail "$folder: es: $(cat out)"
    run_bireme 0 translate --checkpoint $folder --num-beams 2 <<<'>>fr<< the list'
    [ "$(cat out)" = 'el nombre' ] || fail "$folder: fr: $(cat out)"
done
run_bireme 64 translate --checkpoint marian --target-lang de <<<'the list'
expect_error 'the tokenizer has no token >>de<<'

# The tokenizer is part of an export. An import of the export gives the same ids.
run_bireme 0 export --checkpoint mbart --output exported
run_bireme 0 import exported --output imported
run_bireme 0 translate --checkpoint imported --target-lang es_XX <<<'the list'
[ "$(cat out)" = uno ] || fail "imported: $(cat out)"

# A model that is not an encoder-decoder refuses the options.
run_bireme 0 train recipe.yaml train.max_steps=1 schedule.warmup_steps=0 run_dir=decoder \
    data.validation=null evaluate.every=0
run_bireme 64 generate --checkpoint decoder --prompt a --target-lang es_XX
expect_error 'can only be used with an encoder-decoder, not with gpt2'
run_bireme 64 serve --checkpoint decoder --port 0 --source-lang en_XX
expect_error 'can only be used with an encoder-decoder, not with gpt2'
