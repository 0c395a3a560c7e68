#!/bin/bash
# Checkpoints that the program wrote before models were compositions of parts (commit ac727121):
# GPT-2, BERT and Llama, at step 4 of 8. This program resumes them with the losses that the old
# program wrote, and finds no difference between their settings and the recipes. The losses are
# equal within rounding: the sums of some gradients have another order since commit 3de058a0.
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

tar -xf "$source/tests/reference/old_checkpoints.tar.xz" || {
    echo 'skipped: tar cannot read files of xz'
    exit 77
}
for name in gpt2 bert llama; do
    run_bireme 0 checkpoint verify "$name/checkpoints/step-00000004"
    run_bireme 0 train "$name.yaml"
    grep -q 'step-00000004' stderr out || fail "the run of $name does not resume"
    ! grep -q '^warning' stderr || fail "a warning about the checkpoint of $name"
    print_losses "$name" train >resumed
    paste -d' ' "$name.losses" resumed | awk '
        { d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || $1 != $3 || !(d <= 1e-5 * $4)) bad = 1 }
        END { exit bad || NR != 4 }' ||
        fail "other losses of $name: $(paste -d' ' "$name.losses" resumed | tr '\n' ';')"
done
