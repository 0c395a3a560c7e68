#!/bin/bash
# translate, summarize, generate and attention with an encoder-decoder: files and standard input,
# the order and number of lines, equal targets with every batch, JSON, and errors.
# ctest: timeout 180
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

write_pairs 200 8 capitals
run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input pairs.a pairs.b --output words
run_bireme 0 prepare --objective seq2seq --tokenizer words --source pairs.a --target pairs.b \
    --output pairs
run_bireme 0 train recipe.yaml objective=seq2seq data.tokenizer=words \
    'data.train=pairs/train-*.h5' data.validation=null evaluate.every=0 \
    model.architecture=marian model.num_layers=1 model.hidden_size=64 model.dropout=0 \
    model.activation=relu optimizer.learning_rate=4e-3 train.max_steps=200 \
    checkpoint.every=200 run_dir=model
grep -q 'bireme translate --checkpoint model/final' stderr || fail 'next commands'

# The model has learned the capital letters. Sources and targets are aligned.
run_bireme 0 translate --checkpoint model pairs.a
mv out expected
paste -d'|' expected pairs.b | awk -F'|' '$1 == $2 { n++ } END { exit !(NR == 200 && n > 190) }' ||
    fail "learned: $(paste -d'|' expected pairs.b | head)"
for more in '--batch-size 1' '--buffer-size 7 --batch-size 3' '--batch-size 200'; do
    # shellcheck disable=SC2086
    run_bireme 0 translate --checkpoint model $more pairs.a
    cmp out expected || fail "$more changes the targets"
done
run_bireme 0 summarize --checkpoint model --num-beams 3 pairs.a
paste -d'|' out pairs.b | awk -F'|' '$1 == $2 { n++ } END { exit !(NR == 200 && n > 190) }' ||
    fail 'beam search'

# Standard input; an empty line gives an empty line.
printf 'the list\n\nof files\r\n' | run_bireme 0 translate --checkpoint model
[ "$(sed -n 2p out)" = '' ] && [ "$(wc -l <out)" = 3 ] || fail "empty line: $(cat out)"
head -3 pairs.a | run_bireme 0 translate --checkpoint model --json
[ "$(sed 's/.*"text":"\([^"]*\)".*/\1/' out)" = "$(head -3 expected)" ] || fail "JSON: $(cat out)"
grep -q '"source":".*"ids":\[[0-9]' out || fail "ids: $(cat out)"

# --columns reads a column of a table or a field of JSON Lines. A text in place of FILE is an error.
{
    echo number,document
    head -3 pairs.a | sed 's/^/1,/'
} >rows.csv
head -3 pairs.a | sed 's/.*/{"document": "&"}/' >rows.jsonl
for file in rows.csv rows.jsonl; do
    run_bireme 0 summarize --checkpoint model --columns source=document "$file"
    [ "$(cat out)" = "$(head -3 expected)" ] || fail "$file: $(cat out)"
done
run_bireme 0 translate --checkpoint model rows.jsonl
grep -q 'use --columns source=NAME' stderr || fail 'no warning about JSON Lines'
run_bireme 66 translate --checkpoint model 'the list of files'
expect_error "there is no file the list of files; .* echo 'TEXT' | bireme translate --checkpoint mo"

# print_ids: print the ids of the only line of JSON in the file out, with commas between them.
print_ids() {
    sed 's/.*"ids": *\[\([^]]*\)\].*/\1/' out
}

# generate prints the same target, also of each line of a file, without the source.
run_bireme 0 generate --checkpoint model --prompt "$(sed -n 4p pairs.a)"
[ "$(cat out)" = "$(sed -n 4p expected)" ] || fail "generate: $(cat out)"
# --json prints the ids of the target, the same as translate does.
for text in 'the list' "$(sed -n 5p pairs.a)"; do
    run_bireme 0 translate --checkpoint model --json <<<"$text"
    ids=$(print_ids)
    [ "$ids" != '' ] || fail "no ids: $(cat out)"
    run_bireme 0 generate --checkpoint model --prompt "$text" --json
    [ "$(print_ids)" = "$ids" ] || fail "generate --json: $(cat out), not $ids"
    tr , ' ' <<<"$ids" >ids
    run_bireme 0 translate --checkpoint model <<<"$text"
    mv out text
    run_bireme 0 tokenizer decode --tokenizer words <ids
    diff out text || fail "the ids $ids have another text"
done
run_bireme 0 generate --checkpoint model --prompt 'the list' --num-beams 3 --num-samples 2 --json
[ "$(wc -l <out)" = 2 ] || fail "hypotheses: $(cat out)"
run_bireme 0 translate --checkpoint model --no-repeat-ngram-size 1 --min-new-tokens 6 \
    --max-new-tokens 6 --json <<<'the list'
sed 's/.*"ids":\[\([^]]*\)\].*/\1/' out | tr ',' '\n' | sort | uniq -d | grep -q . &&
    fail "a token is repeated: $(cat out)"
[ "$(sed 's/.*"ids":\[\([^]]*\)\].*/\1/' out | tr ',' '\n' | wc -l)" = 6 ] ||
    fail "length: $(cat out)"

# A model with more ids than its tokenizer never generates an id without a text.
run_bireme 0 train recipe.yaml objective=seq2seq data.tokenizer=words \
    'data.train=pairs/train-*.h5' data.validation=null evaluate.every=0 \
    model.architecture=marian model.num_layers=1 model.hidden_size=64 model.vocab_size=3000 \
    train.max_steps=6 run_dir=wide
run_bireme 0 translate --checkpoint wide pairs.a
head -n 40 pairs.a >some
run_bireme 0 translate --checkpoint wide --num-beams 3 some
run_bireme 0 generate --checkpoint wide --temperature 2 --num-samples 4 --prompt the

# Defaults of generation_config.json; options on the command line replace them.
cp -r model/final other
set_default() {
    printf '%s' "$1" >other/tokenizer/generation_config.json
}
set_default '{"max_length": 3, "bad_words_ids": [[1]], "num_beams": 2, "min_length": 2}'
run_bireme 0 translate --checkpoint other --json <<<'the list of files'
[ "$(grep -o '"ids":\[[0-9]*,[0-9]*\]' out)" != '' ] || fail "max_length: $(cat out)"
run_bireme 0 translate --checkpoint other --max-new-tokens 40 <<<"$(sed -n 4p pairs.a)"
[ "$(cat out)" = "$(sed -n 4p expected)" ] || fail "replaced default: $(cat out)"
set_default '{"num_beams": "two"}'
run_bireme 65 translate --checkpoint other <<<'the'
expect_error 'generation_config.json: num_beams is not an integer'
set_default '{"early_stopping": "never"}'
run_bireme 69 translate --checkpoint other <<<'the'
expect_error 'early_stopping must be true or false'
set_default '{"decoder_start_token_id": 273, "repetition_penalty": 1.2}'
run_bireme 65 translate --checkpoint other <<<'the'
expect_error 'decoder_start_token_id is 273; the token ids of the model are 0 to 272'
run_bireme 65 generate --checkpoint other --prompt the
expect_error 'decoder_start_token_id is 273; the token ids of the model are 0 to 272'

# A folder of transformers: `import` copies its generation_config.json, `translate` reads the
# defaults there, and `export` keeps the file.
run_bireme 0 export --checkpoint model --output folder
defaults=folder/generation_config.json
grep -q '"decoder_start_token_id"' $defaults || fail 'no start token is exported'

# translate_folder SETTINGS: import the folder with these defaults, and print the ids of a target.
translate_folder() {
    printf '%s\n' "$1" >$defaults
    rm -rf imported kept
    run_bireme 0 import folder --output imported
    run_bireme 0 export --checkpoint imported --output kept
    cmp $defaults kept/generation_config.json || fail 'export changes the defaults'
    run_bireme 0 translate --checkpoint imported --json <<<'the list of files'
    print_ids
}

# translate_plainly OPTION...: print the ids of the same target without defaults.
translate_plainly() {
    run_bireme 0 translate --checkpoint model --json "$@" <<<'the list of files'
    print_ids
}
plain=$(translate_plainly)
[ "$(translate_folder '{}')" = "$plain" ] || fail 'the imported model has another target'
first=${plain%%,*}
for id in 7 9; do # the first token is forced
    [ "$(translate_folder "{\"forced_bos_token_id\": $id}")" != "$plain" ] &&
        [ "$(print_ids | cut -d, -f1)" = $id ] || fail "forced_bos_token_id $id: $(cat out)"
done
last=$(translate_folder '{"max_length": 5, "forced_eos_token_id": 11}')
[[ $last =~ ^([0-9]+,){3}11$ ]] || fail "forced_eos_token_id: $last"
bad=$(translate_folder "{\"bad_words_ids\": [[$first]]}")
[ "$bad" != "$plain" ] && ! grep -qw "$first" <<<"$bad" || fail "bad_words_ids: $bad"
short=$(translate_folder '{"max_length": 4}')
[ "$(tr , '\n' <<<"$short" | wc -l)" = 3 ] || fail "max_length: $short"
long=$(translate_folder \
    '{"max_length": 30, "min_length": 26, "num_beams": 3, "length_penalty": 2.0}')
[ "$long" = "$(translate_plainly --max-new-tokens 29 --min-new-tokens 25 --num-beams 3 \
    --length-penalty 2)" ] || fail "other defaults: $long"
[ "$(tr , '\n' <<<"$long" | wc -l)" -ge 25 ] || fail "min_length: $long"
[ "$(translate_folder '{"decoder_start_token_id": 20}')" = \
    "$(translate_plainly --set model.decoder_start_token_id=20)" ] || fail 'another start token'
[ "$(print_ids)" != "$plain" ] || fail 'the start token has no effect'

# Settings that are not supported are named in one warning.
set_default '{"diversity_penalty": 0.5, "num_beam_groups": 2, "guidance_scale": 1}'
run_bireme 0 translate --checkpoint other <<<'the'
[ "$(grep -c '^warning: ' stderr)" = 1 ] &&
    grep -q ' no effect: num_beam_groups, diversity_penalty \[W-GENERATION\]$' stderr ||
    fail 'settings that are not supported'

# A start token outside the vocabulary, without a file.
rm other/tokenizer/generation_config.json
run_bireme 65 translate --checkpoint other --set model.decoder_start_token_id=273 <<<'the'
expect_error 'the start token of the decoder is 273, but the token ids of the model are 0 to 272'

# The model has 32 positions: the default fits, and one warning reports a larger number.
run_bireme 0 translate --checkpoint model --num-beams 2 <<<$'the\nlist'
! grep -q '^warning' stderr || fail 'the default does not fit'
run_bireme 0 translate --checkpoint model --num-beams 2 --max-new-tokens 32 <<<$'the\nlist'
[ "$(grep -c '^warning: at most 31 new tokens are possible.*\[W-LENGTH\]$' stderr)" = 1 ] ||
    fail 'not one warning about the length'
run_bireme 0 generate --checkpoint model --max-new-tokens 31 --prompt the
! grep -q '^warning' stderr || fail 'a warning about a length that fits'

# A source that is too long is an error with its line, or truncated.
{ echo the; yes list | head -60 | tr '\n' ' '; echo; } >long
run_bireme 65 translate --checkpoint model long
expect_error 'long:2: the source has .* tokens, but the model has 32 positions'
run_bireme 0 translate --checkpoint model --truncate long
grep -q 'truncated 1 text' stderr || fail 'truncated'
run_bireme 64 translate --checkpoint model --target-lang es pairs.a
expect_error 'the tokenizer has no token >>es<<'
run_bireme 66 generate --checkpoint model --chat --prompt x
expect_error 'chat_template.json'

# attention computes the three attentions of a source and its target, which is generated or given.
run_bireme 0 attention --checkpoint model 'the list' --json --output page.html
mv out generated
run_bireme 0 translate --checkpoint model <<<'the list'
run_bireme 0 attention --checkpoint model 'the list' --target "$(cat out)" --json
cmp out generated || fail "another attention of the same target: $(cut -c1-300 out)"
[ "$(grep -o '[a-z]*_attentions":' out | tr -d '\n')" = \
    'encoder_attentions":decoder_attentions":cross_attentions":' ] || fail "attentions: $(cat out)"
[ "$(grep -o '"name":"[A-Za-z-]*"' page.html | tr -d '\n')" = \
    '"name":"Encoder""name":"Decoder""name":"Cross-attention"' ] || fail 'the parts of the page'
[ "$(grep -c '^"' page.html)" = 6 ] || fail 'the page does not have two heads of each attention'
run_bireme 64 attention --checkpoint model 'the list' 'THE LIST' --json
expect_error 'is an encoder-decoder and takes one TEXT, the source; give the target with --target'
run_bireme 65 attention --checkpoint model --json "$(sed -n 2p long)"
expect_error 'the source has .* tokens, but the model has 32 positions'
run_bireme 65 attention --checkpoint model --json the --target "$(sed -n 2p long)"
expect_error 'the target has .* tokens, but the model has 32 positions'
damage_weights model
run_bireme 79 attention --checkpoint damaged --json the --target THE
expect_error 'the attention scores of token 0 are not finite: the weights are damaged'

run_bireme 0 train recipe.yaml run_dir=decoder
run_bireme 64 attention --checkpoint decoder --json the --target THE
expect_error 'can only be used with an encoder-decoder, not with gpt2'
run_bireme 65 translate --checkpoint decoder pairs.a
expect_error 'decoder has the architecture gpt2, which is not an encoder-decoder; use .bireme gen'
