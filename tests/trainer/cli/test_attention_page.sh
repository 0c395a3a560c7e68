#!/bin/bash
# Tests the page of `bireme attention` in a browser without network, for an encoder, a decoder and
# an encoder-decoder: every cell, the tokens, light and dark mode, and the width of a phone.
# Screenshots go to the folder BIREME_SCREENSHOTS if it is set.
# ctest: timeout 600
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

for command in chromium python3; do
    command -v $command >/dev/null || {
        echo "skipped: no $command"
        exit 77
    }
done

# check_page RUN TEXT...: write the page of the texts and use it in the browser.
check_page() {
    local run=$1 screenshots=()
    shift
    if [ -n "${BIREME_SCREENSHOTS:-}" ]; then
        mkdir -p "$BIREME_SCREENSHOTS/$run"
        screenshots=("$BIREME_SCREENSHOTS/$run")
    fi
    run_bireme 0 attention --checkpoint "$run" "$@" --output "$run.html" --json
    mv out "$run.json"
    timeout 170 python3 "$source/scripts/clients/check_attention.py" "$run.html" "$run.json" \
        "${screenshots[@]}" >page 2>&1 || fail "the page of $run: $(tail -n 3 page)"
}

run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
    --output wordpiece
run_bireme 0 prepare --objective mlm --tokenizer wordpiece --input "$source/LICENSE" \
    --sequence-length 32 --output sentences
# With large initial weights, the attention of each head and token is different.
cat >encoder.yaml <<'YAML'
objective: mlm
run_dir: encoder
model: {architecture: transformer_encoder, num_layers: 3, hidden_size: 16, num_heads: 4,
  max_position_embeddings: 32, sliding_window: 6, sliding_window_pattern: 3,
  initializer_range: 0.4}
data: {tokenizer: wordpiece, train: sentences/train-*.h5}
batch: {global_size: 4, micro_size: 2}
train: {max_steps: 3}
checkpoint: {every: 0}
evaluate: {every: 0}
YAML
run_bireme 0 train encoder.yaml
check_page encoder 'You may copy the [MASK] of this license.' 'a </script> & "b" <i>'
run_bireme 0 train recipe.yaml run_dir=decoder model.num_heads=2 model.initializer_range=0.4
check_page decoder $'a list\nof  users'
make_pairs
run_bireme 0 "${common[@]}" run_dir=pair model.initializer_range=0.4
check_page pair 'the list of files' --target 'files of list'
