#!/bin/bash
# Functions for the hidden setups of the pages: small tokenizers, shards and recipes. Sourced by
# run_page.sh.

# small_recipe FILE...: reduce the model and the run of these recipes to the size of a test.
small_recipe() {
    sed -E -i '
        s/(num_layers: )[0-9]+/\11/
        s/(hidden_size: )[0-9]+/\132/
        s/(num_heads: )[0-9]+/\12/
        s/(intermediate_size: )[0-9]+/\164/
        s/(max_position_embeddings: )[0-9]+/\1128/
        s/(sequence_length: )[0-9]+/\164/
        s/(global_size: )[0-9]+/\14/
        s/(micro_size: )[0-9]+/\12/
        s/(max_steps|epochs): [0-9]+/max_steps: 6/
        s/(warmup_steps: )[0-9]+/\11/
        s/(precision: )[a-z0-9]+/\1fp32/
        s/(batches: )[0-9]+/\11/
        s/^((evaluate|checkpoint): \{every: )[1-9][0-9]*/\13/
        /^(evaluate|checkpoint):$/,/^[a-z]+:$/s/^( *every: )[1-9][0-9]*/\13/
        /^log:$/,/^[a-z]+:$/s/^( *every: )[0-9]+/\11/' "$@"
}

# small_text_data FOLDER: write a tokenizer and shards of the license.
small_text_data() {
    bireme tokenizer train --type bpe --vocab-size 400 --input corpus/*.txt --output "$1/tokenizer"
    bireme prepare --objective clm --tokenizer "$1/tokenizer" --input corpus/*.txt \
        --documents file --validation-fraction 0.2 --output "$1"
}

# small_run RECIPE RUN: write a small version of the quickstart recipe, for data/mine, and train it.
small_run() {
    [ -d data/mine ] || small_text_data data/mine
    sed "s#data/manual#data/mine#; s#runs/quickstart#$2#" recipes/quickstart.yaml >"$1"
    small_recipe "$1"
    bireme train "$1"
}

# small_bert FOLDER RUN: write a WordPiece tokenizer to FOLDER and train a BERT in RUN.
small_bert() {
    bireme tokenizer train --type wordpiece --vocab-size 300 --input corpus/*.txt \
        --output "$1/tokenizer"
    bireme prepare --objective mlm --tokenizer "$1/tokenizer" --input corpus/*.txt \
        --documents file --sentences stop --sequence-length 64 --validation-fraction 0.2 \
        --output "$1"
    cat >small_bert.yaml <<END_OF_RECIPE
objective: mlm
run_dir: $2
model: {architecture: bert, num_layers: 1, hidden_size: 32, num_heads: 2, intermediate_size: 64,
  max_position_embeddings: 128}
data: {tokenizer: $1/tokenizer, train: $1/train-*.h5, sequence_length: 64}
batch: {global_size: 4, micro_size: 4}
train: {max_steps: 4}
checkpoint: {every: 0}
END_OF_RECIPE
    bireme train small_bert.yaml
}

# small_rows: write five conversations to rows.jsonl and five preference pairs to pairs.jsonl.
small_rows() {
    local name verb
    while read -r name verb; do
        printf '{"messages": [{"role": "user", "content": "What does %s do?"}, ' "$name" >&3
        printf '{"role": "assistant", "content": "It %s files."}]}\n' "$verb" >&3
        printf '{"prompt": "What does %s do?", "chosen": " It %s files.", ' "$name" "$verb" >&4
        printf '"rejected": " It is a bird."}\n' >&4
    done 3>rows.jsonl 4>pairs.jsonl <<END_OF_COMMANDS
ls lists
cat prints
rm removes
cp copies
mv moves
END_OF_COMMANDS
}
