#!/bin/bash
# A model with a SentencePiece tokenizer: training, checkpoint, export and import keep the file.
# ctest: timeout 120
# shellcheck source=tests/trainer/tiny_training.sh
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
model=$source/tests/reference/tokenizer/sentencepiece/bpe_bytes/tokenizer.model

mkdir pieces
cp "$model" pieces/spiece.model
run_bireme 0 prepare --objective clm --tokenizer pieces --input "$source/LICENSE" --output data_p
run_bireme 0 train recipe.yaml data.tokenizer=pieces 'data.train=data_p/train-*.h5' \
    data.validation=null evaluate.every=0 train.max_steps=2 schedule.warmup_steps=1
run_bireme 0 generate --checkpoint run --prompt 'Permission is' --max-new-tokens 4
grep -q '^Permission is' out || fail 'generate'
run_bireme 0 export --checkpoint run --output hf
cmp hf/spiece.model "$model" || fail 'the exported tokenizer differs'
grep -q '"tokenizer_class": "LlamaTokenizer"' hf/tokenizer_config.json || fail 'class'
grep -q '"bos_token": "<s>"' hf/tokenizer_config.json || fail 'token before a text'
run_bireme 0 import hf --output back
echo 'Permission' >line
run_bireme 0 score --checkpoint back line
run_bireme 0 inspect pieces
grep -q 'type *sentencepiece' out || fail 'inspect'

printf 'not a model' >pieces/spiece.model
run_bireme 65 tokenizer encode --tokenizer pieces recipe.yaml
expect_error 'pieces/spiece.model: it is not a SentencePiece model'
