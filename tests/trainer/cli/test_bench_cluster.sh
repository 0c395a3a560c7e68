#!/bin/bash
# `bench cluster` describes this machine. The description contains a rate of FP8 GEMMs only if the
# recipe trains in FP8. `plan --cluster` reads descriptions with and without this rate, and requires
# the rate for a recipe in FP8.
# ctest: timeout 60
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
small='model.num_layers=3 model.hidden_size=32 model.num_heads=1 model.vocab_size=76
    data.sequence_length=32 batch.global_size=2 batch.micro_size=2 train.max_steps=1
    schedule.warmup_steps=0'

has_bf16 recipe.yaml || exit 77
for precision in bf16 fp8; do
    # shellcheck disable=SC2086 # words
    run_bireme 0 bench cluster --repeats 1 $small train.precision=$precision
    mv out $precision.yaml
    grep -q '^  gemm_tflops_bf16: [0-9]' $precision.yaml || fail "$precision: no rate of GEMMs"
done
grep -q '^  gemm_tflops_fp8: [0-9]' fp8.yaml || fail "no rate of FP8 GEMMs: $(cat fp8.yaml)"
! grep -q fp8 bf16.yaml || fail 'a rate of FP8 GEMMs without such GEMMs'
# shellcheck disable=SC2086
for precision in bf16 fp8; do
    run_bireme 0 plan recipe.yaml $small train.precision=$precision --cluster fp8.yaml
done
# shellcheck disable=SC2086
run_bireme 78 plan recipe.yaml $small train.precision=fp8 --cluster bf16.yaml
expect_error 'bf16.yaml: device.gemm_tflops_fp8 is missing'
