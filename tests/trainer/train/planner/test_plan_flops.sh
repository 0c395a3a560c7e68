#!/bin/bash
# The FLOPs of `bireme plan`, from which training computes its MFU, equal the FLOPs of the matrix
# products that a step issues: the sum of 2 M N K over the operations, as `bench step` counts them.
#
# Attention's backward pass has five products, one of which recomputes the scores: four count. With
# a window of W of T rows, a query sees W - W (W - 1) / 2 T keys on average, and the formula counts
# W - W^2 / 2 T. Without a window W is T. In both directions, a query sees twice as many keys, but
# itself only once. In an encoder-decoder only self-attention of the decoder is causal.
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
readonly tokens=32

# read_field NAME: print the number of the field in the JSON of standard input.
read_field() {
    grep -oE "\"$1\": ?[-+.eE0-9]+" | head -n 1 | sed 's/.*: *//'
}

# check_flops NAME WINDOW SETTINGS...: compare plan and step for a recipe with these lines. WINDOW
# is 0 for attention in both directions, -W if that has a window. For an encoder-decoder it is
# SOURCE,TARGET,ENCODER,DECODER: the lengths and the layers.
check_flops() {
    local name=$1 window=$2 planned counted
    shift 2
    printf '%s\n' "$@" "data: {sequence_length: $tokens}" 'batch: {global_size: 4, micro_size: 4}' \
        'train: {max_steps: 1}' >"$name.yaml"
    run_bireme 0 plan "$name.yaml" --json
    planned=$(read_field flops_per_step <out)
    run_bireme 0 bench step "$name.yaml" --json --repeats 1 --no-roofline
    counted=$(grep -oE '"name":"[a-z_]*"[^}]*' out | tr -d '"' | awk -F'[:,]' -v w="$window" \
        -v t=$tokens '
        { for (i = 3; i < NF; i += 2) if ($i == "flops") flops[$2] = $(i + 1) }
        END {
            n = split("linear_forward linear_backward_input linear_backward_weight linear_add " \
                      "classifier_run", names, " ")
            for (i = 1; i <= n; i++) sum += flops[names[i]]
            attention = flops["attention_forward"] + 0.8 * flops["attention_backward"]
            factor = w + 0 > 0 ? (2 * t - w) / (2 * t - w + 1) : 1
            if (w + 0 < 0) { w = -w; factor = w * (2 * t - w) / (w * (2 * t - w + 1) - t) }
            if (split(w, a, ",") == 4) {
                full = a[3] * a[1] ^ 2 + a[4] * a[1] * a[2]
                factor = (full + a[4] * a[2] ^ 2 / 2) / (full + a[4] * a[2] * (a[2] + 1) / 2)
            }
            printf "%.0f", sum + attention * factor
        }')
    echo "$name: $planned FLOPs planned, $counted counted"
    awk -v p="$planned" -v c="$counted" 'BEGIN { exit !(c > 0 && (p - c)^2 <= (1e-6 * c)^2) }' ||
        fail "$name: the plan has $planned FLOPs, the step $counted"
}

check_flops gpt2 $tokens 'model: {vocab_size: 512, hidden_size: 64, num_layers: 2, num_heads: 4}'
check_flops untied $tokens "model: {vocab_size: 512, hidden_size: 64, num_layers: 2, num_heads: 4,
    tie_word_embeddings: false}"
check_flops llama $tokens "model: {architecture: llama, vocab_size: 512, hidden_size: 64,
    num_layers: 2, num_heads: 4, num_kv_heads: 2, intermediate_size: 128}"
check_flops qwen3 $tokens "model: {architecture: qwen3, vocab_size: 512, hidden_size: 64,
    num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 24, intermediate_size: 128}"
check_flops mistral 8 "model: {architecture: mistral, vocab_size: 512, hidden_size: 64,
    num_layers: 2, num_heads: 4, num_kv_heads: 2, sliding_window: 8, intermediate_size: 128}"
check_flops bert 0 'objective: mlm' 'mlm: {mask_probability: 0.25, max_predictions: 8}' \
    'model: {architecture: bert, vocab_size: 512, hidden_size: 64, num_layers: 2, num_heads: 4}'
check_flops albert 0 'objective: mlm' 'mlm: {mask_probability: 0.25, max_predictions: 8}' \
    "model: {architecture: albert, vocab_size: 512, hidden_size: 64, embedding_size: 24,
    num_layers: 3, num_heads: 4}"
check_flops windows -8 'objective: mlm' 'mlm: {mask_probability: 0.25, max_predictions: 8}' \
    "model: {architecture: transformer_encoder, vocab_size: 512, hidden_size: 64, num_layers: 2,
    num_heads: 4, sliding_window: 14}"
for model in marian t5 bart mbart; do
    check_flops $model 32,32,2,3 'objective: seq2seq' "model: {architecture: $model,
        vocab_size: 512, hidden_size: 64, num_layers: 2, num_decoder_layers: 3, num_heads: 4}"
done
# 5 of 31 tokens are noise, in 2 spans. Both sides have the sentinels and an end token.
check_flops denoise 29,8,2,1 'objective: denoise' "model: {architecture: t5, vocab_size: 512,
    hidden_size: 64, num_layers: 2, num_decoder_layers: 1, num_heads: 4,
    tie_word_embeddings: false}"
# The base of the adapters is a checkpoint. A vocabulary of 512 tokens needs no padding.
run_bireme 0 tokenizer train --type bpe --vocab-size 512 --input "$source/LICENSE" --output large
run_bireme 0 prepare --objective clm --tokenizer large --input "$source/LICENSE" --output large-data
run_bireme 0 train recipe.yaml run_dir=base train.max_steps=1 schedule.warmup_steps=1 \
    data.tokenizer=large data.train='large-data/train-*.h5' data.validation=null evaluate.every=0
check_flops lora $tokens 'adapter: {type: lora, rank: 4, alpha: 8}' \
    'model: {init_from: base, vocab_size: 512}'
# Adapters of an encoder-decoder. The base is trained on random pairs.
make_pairs
run_bireme 0 "${common[@]}" run_dir=pairs_base train.max_steps=1 schedule.warmup_steps=0 \
    data.validation=null evaluate.every=0 model.num_decoder_layers=3 model.vocab_size=320
check_flops pairs_lora 32,32,2,3 'objective: seq2seq' \
    'adapter: {type: lora, rank: 4, alpha: 8,
    targets: [q_proj, k_proj, encoder_attn.v_proj, fc1]}' \
    'model: {init_from: pairs_base, vocab_size: 320}'
