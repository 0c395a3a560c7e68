#!/bin/bash
# Denoising of texts with encoder-decoder models: the corruption is the same at any layout and after
# a resume. Evaluation, and settings that are refused.
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
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
run_bireme 0 evaluate --checkpoint denoise_t5 --data 'texts/validation-*.h5' --json
print_losses denoise_t5 evaluate | tail -1 |
    awk -v got="$(sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' out)" \
        '{ d = $2 - got; exit !(d < 1e-5 && d > -1e-5) }' || fail "evaluate: $(cat out)"
run_bireme 78 "${common[@]}" run_dir=bad model.architecture=t5 model.activation=relu \
    model.vocab_size=301
expect_error 'but there are 1 sentinels'
run_bireme 78 "${common[@]}" run_dir=bad model.architecture=t5 data.document_mask=true
expect_error 'denoise corrupts windows of texts'
