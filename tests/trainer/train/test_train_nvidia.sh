#!/bin/bash
# Training on unconverted shards of NVIDIA's BERT examples, with LAMB and its schedule as in
# phase 1: shuffled, several epochs, 1 and 2 ranks, resume, errors for a model that does not fit.
#
#   test_train_nvidia.sh MAKER      MAKER is the program of nvidia_shards.c
# ctest: targets test_program_nvidia_shards
# ctest: timeout 120
maker=$(realpath "$1")
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

mkdir shards && "$maker" shards || exit 1
cat >phase1.yaml <<'YAML'
objective: mlm
model: {architecture: bert, num_layers: 2, hidden_size: 16, num_heads: 2,
  max_position_embeddings: 32, vocab_size: 64, dropout: 0.1, initializer_range: 0.1}
data: {train: shards/train-*.hdf5, validation: shards/validation.hdf5, sequence_length: 32}
mlm: {max_predictions: 5}
batch: {global_size: 8, micro_size: 2}
optimizer: {name: lamb, learning_rate: 1.0e-2, beta2: 0.999, epsilon: 1.0e-6, weight_decay: 0.01}
schedule: {name: polynomial_nvidia, power: 0.5, min_ratio: 0.0, warmup_steps: 4}
train: {max_steps: 24}
evaluate: {every: 12, batches: null}
checkpoint: {every: 12}
log: {every: 1}
YAML

run_bireme 0 train phase1.yaml run_dir=one
print_losses one train >stderr # fail prints this file
awk 'NR <= 8 { first += $2 } NR > 16 { last += $2 }
    END { exit !(last / 8 < first / 8 - 0.15) }' stderr || fail 'the loss does not decrease'
grep '"event":"evaluate","step":0,' one/metrics.jsonl | grep -Eq '"mlm_loss":4\.[0-9]' ||
    fail 'the first loss is not about ln 64'
[ "$(print_losses one train | cut -d' ' -f2 | sort -u | wc -l)" = 24 ] ||
    fail 'two steps have the same loss'
run_ranks 2 0 train phase1.yaml run_dir=two parallel.zero_stage=1
compare_losses one two 1e-5
cp -r two again && rm -r again/final again/checkpoints/step-00000024
run_bireme 0 train phase1.yaml run_dir=again
compare_losses one again 1e-5
run_bireme 0 train phase1.yaml run_dir=ordered data.shuffle=false train.max_steps=4
print_losses one train | head -n 1 >a && print_losses ordered train | head -n 1 >b
! cmp -s a b || fail 'data.shuffle changes nothing'

# Without masked tokens the gradient is the gradient of next-sentence prediction, at any layout.
unmasked='data.train=shards/unmasked.hdf5 train.max_steps=6 model.dropout=0
    schedule.warmup_steps=0'
# shellcheck disable=SC2086
run_bireme 0 train phase1.yaml run_dir=unmasked $unmasked
grep '"event":"train"' unmasked/metrics.jsonl >stderr
grep -q '"step":1,.*"loss":0\.[67]' stderr || fail 'the loss is not about ln 2'
! grep -qE '"grad_norm":0(\.0*)?[,}]' stderr && [ "$(wc -l <stderr)" = 6 ] ||
    fail 'next-sentence prediction has no gradient'
# shellcheck disable=SC2086
run_ranks 2 0 train phase1.yaml run_dir=unmasked-2 $unmasked parallel.zero_stage=1
compare_losses unmasked unmasked-2 1e-5

run_bireme 65 train phase1.yaml run_dir=small model.vocab_size=32
expect_error 'shards/.*hdf5'
run_bireme 65 train phase1.yaml run_dir=few mlm.max_predictions=3
expect_error 'has . predictions; at most 3'
