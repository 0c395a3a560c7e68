#!/bin/bash
# Tests that an export to GGUF and an import return the models of each family. Decoders and T5 1.1
# are equal bit for bit, embeddings within 1e-6. T5 1.0 has the same targets and loss. Unigram
# tokenizers give texts the same scores. Models that llama.cpp does not support are refused.
# ctest: name gguf
# ctest: parts decoders encoders seq2seq unigram refused
# ctest: timeout 120
# shellcheck source=tests/trainer/tiny_training.sh
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
cat >small.yaml <<'END'
objective: clm
run_dir: run
model: {num_layers: 1, hidden_size: 32, num_heads: 2, max_position_embeddings: 32}
data: {tokenizer: tokenizer, train: data/train-*.h5, sequence_length: 32}
batch: {global_size: 4, micro_size: 2}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 2}
END
grep -o '[A-Z][a-z].*[a-z]' "$source/LICENSE" | head -n 9 | cut -c1-30 | sed 's/ *$//' >lines

# export_and_import NAME: write NAME.gguf in f32 and import it as NAME-back.
export_and_import() {
    run_bireme 0 export --format gguf --checkpoint "$1" --output "$1.gguf" --type f32
    run_bireme 0 import "$1.gguf" --output "$1-back"
}

# check_decoder NAME SETTING...: train, export, import; compare weights and scores.
check_decoder() {
    local name=$1
    shift
    run_bireme 0 train small.yaml run_dir="$name" "$@"
    export_and_import "$name"
    run_bireme 0 checkpoint diff "$name/final" "$name-back" --tolerance 0
    grep -q '^equal: ' out || fail "the weights of $name differ"
    run_bireme 0 score --checkpoint "$name/final" lines
    cp out before
    run_bireme 0 score --checkpoint "$name-back" lines
    cmp before out || fail "the scores of $name differ"
}

test_decoders() {
    rm -r tokenizer data
    run_bireme 0 tokenizer train --vocab-size 300 --input "$source/LICENSE" --output tokenizer
    run_bireme 0 prepare --tokenizer tokenizer --input "$source/LICENSE" --output data
    check_decoder phi3 model.architecture=phi3 model.partial_rotary_factor=0.75 \
        model.sliding_window=8
    check_decoder stablelm model.architecture=stablelm model.use_qkv_bias=true
    check_decoder untied model.architecture=stablelm model.tie_word_embeddings=false
    check_decoder olmo model.architecture=olmo model.num_kv_heads=1
    check_decoder olmo2 model.architecture=olmo2
    check_decoder gemma2 model.architecture=gemma2 model.num_layers=2 model.sliding_window=8 \
        model.attn_logit_softcapping=5 model.final_logit_softcapping=3
    check_decoder gemma3 model.architecture=gemma3_text model.num_layers=3 model.sliding_window=8 \
        model.sliding_window_pattern=2
}

# check_encoder NAME SETTING...: train, export, import; compare the embeddings. The file has no
# head, so that the imported model has fewer weights. The sizes of the batches differ too, and the
# last bits of a row may depend on the number of rows in a batch.
check_encoder() {
    local name=$1
    shift
    run_bireme 0 train words.yaml run_dir="$name" model.architecture="$name" "$@"
    export_and_import "$name"
    run_bireme 0 embed --checkpoint "$name/final" lines
    cp out before
    run_bireme 0 embed --checkpoint "$name-back" lines
    paste -d ' ' before out | awk '
        { n = NF / 2 }
        { for (i = 1; i <= n; i++) { d = $i - $(i + n); bad += !(d < 1e-6 && d > -1e-6) } }
        END { exit NR != 9 || bad }' || fail "the embeddings of $name differ"
}

test_encoders() {
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output words
    run_bireme 0 prepare --objective mlm --tokenizer words --input "$source/LICENSE" \
        --sequence-length 32 --output pairs
    sed -e 's/clm/mlm/; s/tokenizer: tokenizer/tokenizer: words/; s/data.train/pairs\/train/' \
        -e 's/, sequence_length: 32//' small.yaml >words.yaml
    check_encoder bert
    check_encoder distilbert model.layer_norm_epsilon=1e-12
    check_encoder modernbert model.num_layers=4 model.sliding_window=8
}

# check_seq2seq NAME SETTING...: train a T5, export, import; compare the targets and the loss.
check_seq2seq() {
    local name=$1
    shift
    run_bireme 0 "${common[@]}" run_dir="$name" model.architecture=t5 model.head_dim=6 "$@"
    export_and_import "$name"
    run_bireme 0 translate --checkpoint "$name/final" --max-new-tokens 12 pairs.a
    cp out before
    run_bireme 0 translate --checkpoint "$name-back" --max-new-tokens 12 pairs.a
    cmp before out || fail "the targets of $name differ"
    run_bireme 0 evaluate --checkpoint "$name/final" --data 'pairs/validation-*.h5' --json
    cp out before
    run_bireme 0 prepare --objective seq2seq --tokenizer "$name-back/tokenizer" \
        --source pairs.a --target pairs.b --output "$name-pairs" --validation-fraction 0.2
    run_bireme 0 evaluate --checkpoint "$name-back" --data "$name-pairs/validation-*.h5" --json
    sed -nE 's/.*"loss": *([0-9.e-]+).*/\1/p' before out | awk -v name="$name" \
        '{ v[NR] = $1; d = v[2] - v[1] } END { exit !(NR == 2 && d < 1e-5 && d > -1e-5) }' ||
        fail "the loss of $name differs: $(cat before out)"
    run_bireme 0 export --format gguf --checkpoint "$name-back" --output "$name-again.gguf" \
        --type f32
    cmp "$name.gguf" "$name-again.gguf" || fail "the second export of $name differs"
}

# T5 1.0 scales the output of the last norm. In the file, the weights of this norm contain the
# scale, so only this tensor differs.
test_seq2seq() {
    make_pairs
    check_seq2seq t5 model.num_decoder_layers=1
    run_bireme 81 checkpoint diff t5/final t5-back --tolerance 0
    grep -q '^error: 1 tensors of' stderr || fail "the weights of t5 differ: $(cat stderr)"
    check_seq2seq gated model.gated_linear_unit=true model.activation=gelu_tanh \
        model.tie_word_embeddings=false model.decoder_start_token_id=7
    run_bireme 0 checkpoint diff gated/final gated-back --tolerance 0
    grep -q '^equal: ' out || fail 'the weights of gated differ'
}

test_unigram() {
    local name
    for name in t5 xlm byte unigram unigram_bytes; do
        cp -r "$source/tests/reference/tokenizer/sentencepiece/$name" "$name-tokenizer"
        run_bireme 0 prepare --tokenizer "$name-tokenizer" --input "$source/LICENSE" \
            --output "$name-data"
        run_bireme 0 train small.yaml run_dir="$name" data.tokenizer="$name-tokenizer" \
            data.train="$name-data/train-*.h5"
        export_and_import "$name"
        run_bireme 0 score --checkpoint "$name/final" lines
        cp out before
        run_bireme 0 score --checkpoint "$name-back" lines
        cmp before out || fail "the scores with the tokenizer $name differ"
        run_bireme 0 export --format gguf --checkpoint "$name-back" --output "$name-again.gguf" \
            --type f32
        cmp "$name.gguf" "$name-again.gguf" || fail "the second export of $name differs"
    done
}

# check_refused TEXT SETTING...: the export of a model with these settings is refused.
check_refused() {
    local text=$1
    shift
    rm -rf refused
    run_bireme 0 train small.yaml run_dir=refused train.max_steps=1 "$@"
    run_bireme 69 export --format gguf --checkpoint refused --output refused.gguf
    expect_error "$text"
    [ ! -e refused.gguf ] || fail 'a file remains'
}

test_refused() {
    check_refused 'is not a GELU' model.architecture=gpt2 model.activation=relu
    check_refused model.attention_bias model.architecture=olmo2 model.attention_bias=true
    check_refused model.attention_bias model.architecture=olmo model.attention_bias=true
    check_refused 'requires model.hidden_size, 32' model.architecture=qwen2 model.head_dim=8
    check_refused 'must be greater than 0' model.architecture=gemma2
    check_refused 'must be null' model.architecture=gemma3_text model.final_logit_softcapping=30
    check_refused 'only in every n-th layer' model.architecture=gemma3_text \
        model.num_layers=3 \
        'model.layer_types=[full_attention, sliding_attention, full_attention]'
    check_refused 'is not 16' model.architecture=gemma3_text model.query_pre_attn_scalar=32
    check_refused 'cannot be exported to GGUF' model.architecture=openai-gpt
    cp -r "$source/tests/reference/tokenizer/sentencepiece/albert" albert
    run_bireme 0 prepare --tokenizer albert --input "$source/LICENSE" --output albert-data
    check_refused 'the normalizer or the pre-tokenizer' model.architecture=llama \
        data.tokenizer=albert data.train='albert-data/train-*.h5'
    make_pairs
    sed -i 's/clm/seq2seq/; s/tokenizer: tokenizer/tokenizer: words/; s/data.train/pairs\/train/' \
        small.yaml
    check_refused 'is not relu' model.architecture=t5 model.activation=gelu_tanh
    check_refused 'is not gelu_tanh' model.architecture=t5 model.gated_linear_unit=true \
        model.activation=silu
    check_refused 'supports only 128' model.architecture=t5 model.activation=relu \
        model.relative_attention_max_distance=64
    check_refused 'model.num_decoder_layers is greater' model.architecture=t5 \
        model.activation=relu model.num_decoder_layers=2
    check_refused 'cannot be exported to GGUF' model.architecture=bart
}

run_part "$@"
