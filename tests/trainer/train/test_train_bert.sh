#!/bin/bash
# A tiny BERT with dropout, trained on sentence pairs: equal losses at any layout and after a
# resume; fill-mask; errors of commands for other models. Part encoders: the other encoders.
# ctest: name train
# ctest: parts bert encoders parts
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
    --output tok
run_bireme 0 prepare --objective mlm --tokenizer tok --input "$source/LICENSE" \
    --sequence-length 32 --validation-fraction 0.2 \
    --output pairs
cat >bert.yaml <<'YAML'
objective: mlm
model: {architecture: bert, num_layers: 2, hidden_size: 16, num_heads: 2,
  max_position_embeddings: 32, dropout: 0.1}
data: {tokenizer: tok, train: pairs/train-*.h5, validation: pairs/validation-*.h5}
batch: {global_size: 6, micro_size: 2}
optimizer: {learning_rate: 1.0e-3}
train: {max_steps: 12}
evaluate: {every: 6, batches: 2}
checkpoint: {every: 6}
log: {every: 1}
YAML

test_bert() {
    local default
    run_bireme 0 plan bert.yaml
    for default in 'activation gelu_tanh; a BERT in transformers has gelu_erf' \
        'layer_norm_epsilon 1.0e-05; a BERT in transformers has 1.0e-12'; do
        grep -qx "default: model.$default" stderr || fail 'the defaults are not printed'
    done
    run_bireme 0 plan bert.yaml model.activation=gelu_erf model.layer_norm_epsilon=1e-12
    ! grep -q '^default: ' stderr || fail 'defaults are printed for given settings'
    run_bireme 0 train bert.yaml run_dir=one
    grep -q '"mlm_loss":5\.[67].*"nsp_accuracy"' one/metrics.jsonl ||
        fail "the first loss is not about ln 300"
    run_ranks 2 0 train bert.yaml run_dir=two parallel.zero_stage=1
    compare_losses one two 1e-5
    run_ranks 3 0 train bert.yaml run_dir=three parallel.zero_stage=2 batch.micro_size=1
    compare_losses one three 1e-5
    run_ranks 2 0 train bert.yaml run_dir=tensor parallel.tensor=2 parallel.sequence=true
    compare_losses one tensor 1e-5
    check_reproducible bert.yaml bits
    if has_bf16 bert.yaml; then
        check_reproducible bert.yaml bits-bf16 train.precision=bf16
    fi

    cp -r two again && rm -r again/final again/checkpoints/step-00000012
    run_bireme 0 train bert.yaml run_dir=again
    compare_losses one again 1e-5
    ! grep -q 'W-DROPOUT' stderr || fail 'a warning about the same dropout scheme'
    # A manifest of version 0.1 has no number of the dropout scheme.
    cp -r two older && rm -r older/final older/checkpoints/step-00000012
    edit_manifest older/checkpoints/step-00000006/manifest.json '/^ "dropout_law": 2,$/d'
    run_bireme 0 train bert.yaml run_dir=older
    grep -q 'step-00000006 was written with dropout scheme 1, .*\[W-DROPOUT\]$' stderr ||
        fail 'no warning about another dropout scheme'

    run_bireme 0 evaluate --checkpoint one --data 'pairs/validation-*.h5' --json
    grep -q '"mlm_accuracy"' out || fail "evaluate prints no mlm_accuracy"
    run_bireme 0 fill-mask --checkpoint one 'this [MASK] is [MASK]' --top-k 3 --json
    grep -q '"masks": *\[\[{.*\], *\[{' out || fail "two masks were not filled: $(cat out)"
    run_bireme 65 fill-mask --checkpoint one 'nothing is hidden'
    expect_error "no mask token"
    run_bireme 65 generate --checkpoint one --prompt this
    expect_error "fill-mask"
}

# Models with free parts: equal losses at another layout and after a resume there. Export writes
# Bireme's own config.json, and the imported model has the same weights and settings.
test_parts() {
    local settings i=0
    for settings in \
        'model.activation=relu model.head_dim=12 model.attention_bias=true model.mlp_bias=true' \
        'model.norm_placement=pre model.position_embedding_type=learned model.attention_bias=true
        model.mlp_bias=true model.activation=gelu_erf model.type_vocab_size=2' \
        'model.normalize_embedding=true model.embedding_size=12 model.num_hidden_groups=1
        model.position_embedding_type=learned model.type_vocab_size=2 model.num_layers=3' \
        'model.norm_placement=pre model.normalize_embedding=true model.norm_bias=false
        model.position_embedding_type=rotary model.sliding_window=8 model.num_layers=4
        model.layer_types=[full_attention,sliding_attention,sliding_attention,full_attention]
        model.head_transform=false model.decoder_bias=false'; do
        settings="model.architecture=transformer_encoder $settings"
        i=$((i + 1))
        # shellcheck disable=SC2086
        run_bireme 0 train bert.yaml run_dir="parts-$i" $settings
        # shellcheck disable=SC2086
        run_ranks 2 0 train bert.yaml run_dir="parts-$i-2" $settings parallel.tensor=2 \
            parallel.sequence=true train.activation_checkpointing=full
        compare_losses "parts-$i" "parts-$i-2" 1e-5
        rm -r "parts-$i-2/final" "parts-$i-2/checkpoints/step-00000012"
        # shellcheck disable=SC2086
        run_bireme 0 train bert.yaml run_dir="parts-$i-2" $settings
        compare_losses "parts-$i" "parts-$i-2" 1e-5
        run_bireme 0 export --checkpoint "parts-$i" --output "parts-$i-exported"
        run_bireme 0 import "parts-$i-exported" --output "parts-$i-imported"
        run_bireme 0 checkpoint diff "parts-$i/final" "parts-$i-imported" --tolerance 0
        run_bireme 0 fill-mask --checkpoint "parts-$i" 'this [MASK] is' --json
        mv out first
        run_bireme 0 fill-mask --checkpoint "parts-$i-imported" 'this [MASK] is' --json
        cmp first out || fail "the imported model $i has other predictions"
    done
}

# Other encoders: equal losses at another layout, after a resume there, and with recompute.
test_encoders() {
    local both settings name albert lora targets
    both='transformer_encoder model.norm_placement=both model.norm_type=rmsnorm
        model.position_embedding_type=none model.gated_linear_unit=true model.activation=silu'
    for settings in 'distilbert model.activation=relu' 'megatron-bert model.activation=gelu_erf' \
        'transformer_encoder model.activation=relu model.head_dim=12 model.attention_bias=true' \
        'modernbert model.sliding_window=8 model.sliding_window_pattern=2
        model.attention_dropout=0.1' \
        'albert model.embedding_size=12 model.num_layers=3' \
        "$both"; do
        name=$(tr -dc 'a-z_-' <<<"$settings")
        settings="model.architecture=$settings"
        # shellcheck disable=SC2086
        run_bireme 0 train bert.yaml run_dir="$name" $settings
        # shellcheck disable=SC2086
        run_ranks 2 0 train bert.yaml run_dir="$name-2" $settings parallel.tensor=2 \
            parallel.sequence=true
        compare_losses "$name" "$name-2" 1e-5
        rm -r "$name-2/final" "$name-2/checkpoints/step-00000012"
        # shellcheck disable=SC2086
        run_bireme 0 train bert.yaml run_dir="$name-2" $settings
        compare_losses "$name" "$name-2" 1e-5
        # shellcheck disable=SC2086
        run_bireme 0 train bert.yaml run_dir="$name-full" $settings \
            train.activation_checkpointing=full
        compare_losses "$name" "$name-full" 0
        run_bireme 0 fill-mask --checkpoint "$name" 'this [MASK] is'
    done
    grep -q '"nsp_accuracy"' megatron-bert*/metrics.jsonl ||
        fail 'megatron-bert has no next sentences'
    ! grep -q '"nsp_accuracy"' distilbert*/metrics.jsonl || fail 'distilbert has next sentences'

    # ALBERT: pairs for the order of their segments; ZeRO and adapters with shared layers.
    run_bireme 0 prepare --objective mlm --tokenizer tok --input "$source/LICENSE" \
        --sequence-length 32 --validation-fraction 0.2 --sentence-order --output order
    run_bireme 64 prepare --objective clm --tokenizer tok --input "$source/LICENSE" \
        --sentence-order --output refused
    expect_error '--sentence-order can only be used with --objective mlm, not clm'
    albert='model.architecture=albert model.embedding_size=12 model.num_layers=3
        data.train=order/train-*.h5 data.validation=order/validation-*.h5'
    # shellcheck disable=SC2086
    run_bireme 0 train bert.yaml run_dir=ordered $albert
    grep -q '"nsp_accuracy"' ordered/metrics.jsonl || fail 'albert does not predict the order'
    # shellcheck disable=SC2086
    run_ranks 3 0 train bert.yaml run_dir=ordered-3 $albert parallel.zero_stage=2 \
        batch.micro_size=1 train.activation_checkpointing=selective
    compare_losses ordered ordered-3 1e-5
    lora="$albert model.init_from=ordered adapter.type=lora adapter.dropout=0.1"
    targets='adapter.targets=[query, attention.dense, ffn, ffn_output]'
    # shellcheck disable=SC2086
    run_bireme 0 train bert.yaml run_dir=lora $lora "$targets"
    # shellcheck disable=SC2086
    run_ranks 2 0 train bert.yaml run_dir=lora-2 $lora "$targets" parallel.tensor=2 \
        parallel.sequence=true train.activation_checkpointing=full
    compare_losses lora lora-2 1e-5
    run_bireme 0 export --checkpoint lora --adapter --output adapter
    run_bireme 0 import adapter --output adapted
    grep -qF 'targets: ["query", "attention.dense", "ffn", "ffn_output"]' out ||
        fail 'import finds other target modules'
    run_bireme 0 checkpoint diff lora/final adapted --tolerance 0
    # shellcheck disable=SC2086
    run_bireme 78 plan bert.yaml $albert train.freeze_layers=1
    expect_error 'freeze_layers: 1 conflicts with model.architecture (albert); all layers of alb'

    # A model with free parts is exported with Bireme's own config.json and imported again.
    name=$(tr -dc 'a-z_-' <<<"$both")
    run_bireme 0 export --checkpoint "$name" --output exported
    grep -q '"norm_placement": "both"' exported/config.json || fail 'config.json has no placement'
    run_bireme 0 import exported --output imported
    run_bireme 0 fill-mask --checkpoint "$name" 'this [MASK] is'
    mv out first
    run_bireme 0 fill-mask --checkpoint imported 'this [MASK] is'
    cmp first out || fail 'the imported model has other predictions'
    # shellcheck disable=SC2086
    run_bireme 0 train bert.yaml run_dir=adapters model.architecture=$both model.init_from="$name" \
        adapter.type=lora train.max_steps=1
    run_bireme 69 export --checkpoint adapters --adapter --output refused
    expect_error 'peft has no class for the adapters of a transformer_encoder'
    run_bireme 78 plan bert.yaml model.norm_placement=pre
    expect_error 'norm_placement: pre conflicts with model.architecture (bert); it requires transf'
}

run_part "$@"
