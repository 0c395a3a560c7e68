#!/bin/bash
# Denoising of texts with encoder-decoder models: the corruption is the same at any layout and after
# a resume. Evaluation, and settings that are refused.
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

run_bireme 0 tokenizer train --type bpe --special-tokens roberta --vocab-size 300 \
    --input "$source/LICENSE" --output words
run_bireme 0 prepare --tokenizer words --input "$source/LICENSE" --output texts \
    --validation-fraction 0.2
common=(train recipe.yaml objective=denoise data.tokenizer=words 'data.train=texts/train-*.h5'
    'data.validation=texts/validation-*.h5' model.num_heads=4 optimizer.learning_rate=3e-3
    train.max_steps=8 evaluate.batches=null checkpoint.every=4 model.vocab_size=320)
compare_layouts denoise_t5 model.architecture=t5 model.activation=relu
compare_layouts denoise_bart model.architecture=bart model.activation=gelu_erf denoise.noise=bart \
    denoise.rotate=0.5
for noise in ul2 prefix_lm; do
    run_bireme 0 "${common[@]}" run_dir=$noise model.architecture=t5 model.activation=relu \
        denoise.noise=$noise
done
run_bireme 0 bench data "${common[@]:1}" --repeats 1 model.architecture=t5 model.activation=relu
# mBART with the language token of each text: the language alone selects the words of a target.
mbart=$source/tests/reference/tokenizer/mbart
yes 'the the the the' | head -200 >texts.en
yes 'l l l l l l' | head -200 >texts.es
for code in en es; do
    run_bireme 0 prepare --tokenizer "$mbart" --input texts.$code --output texts_$code
done
languages=("${common[@]:0:3}" data.tokenizer="$mbart" 'data.validation=texts_en/train-*.h5'
    model.architecture=mbart model.activation=gelu_erf denoise.noise=bart model.num_heads=4)
both='data.train=[{path: texts_en/train-*.h5, language: en_XX},
    {path: texts_es/train-*.h5, language: es_XX}]'
run_bireme 0 "${languages[@]}" "$both" run_dir=languages model.dropout=0 train.max_steps=30 \
    optimizer.learning_rate=4e-3 checkpoint.every=30 evaluate.every=0
for pair in en:the es:l; do
    run_bireme 0 translate --checkpoint languages --source-lang ${pair%:*}_XX \
        --target-lang ${pair%:*}_XX --max-new-tokens 10 <<<'the l'
    [ "$(grep -oE 'the|l' out | sort -u)" = "${pair#*:}" ] || fail "$pair: $(cat out)"
    run_bireme 0 evaluate --checkpoint languages --data "texts_${pair%:*}/train-*.h5" \
        --set "data.train=[{path: x, language: ${pair%:*}_XX}]" --json
    sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out >>losses
done
run_bireme 0 evaluate --checkpoint languages --data "texts_es/train-*.h5" \
    --set 'data.train=[{path: x, language: en_XX}]' --json
sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out >>losses
[ "$(sort -g losses | tail -1)" = "$(tail -1 losses)" ] ||
    fail "another language is not worse: $(cat losses)"
run_bireme 78 "${languages[@]}" "${both/es_XX/es}" run_dir=bad
expect_error 'data.train: the tokenizer has no language token es; use a code of mBART'
run_bireme 78 "${languages[@]}" "${both/, language: es_XX/}" run_dir=bad
expect_error 'data.train: only some entries have a language'
run_bireme 78 "${common[@]}" 'data.train=[{path: texts/train-*.h5, language: en_XX}]' run_dir=bad \
    model.architecture=bart model.activation=gelu_erf denoise.noise=bart
expect_error 'data.train: the tokenizer has no language token en_XX'
run_bireme 78 train recipe.yaml 'data.train=[{path: data/train-*.h5, language: en_XX}]' run_dir=bad
expect_error 'data.train: language can only be used with objective: denoise'
run_bireme 0 evaluate --checkpoint denoise_t5 --data 'texts/validation-*.h5' --json
print_losses denoise_t5 evaluate | tail -1 |
    awk -v got="$(sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out)" \
        '{ d = $2 - got; exit !(d < 1e-5 && d > -1e-5) }' || fail "evaluate: $(cat out)"
run_bireme 78 "${common[@]}" run_dir=bad model.architecture=t5 model.activation=relu \
    model.vocab_size=301
expect_error 'but there are 1 sentinels; set model.vocab_size to 302: the tokenizer has 300 ids'
run_bireme 78 "${common[@]}" run_dir=bad model.architecture=t5 data.document_mask=true
expect_error 'denoise corrupts windows of texts'
