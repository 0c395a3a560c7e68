#!/bin/bash
# Functions of the tests of training on a GPU, emulated or real; sourced. ctest sets BIREME_PROGRAM
# (CPU), BIREME_SIMT and BIREME_SOURCE_DIR.
# shellcheck disable=SC2034,SC2086,SC2154 # settings are words; tiny_training.sh shares variables
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
cpu=$program gpu=${BIREME_SIMT:?}
emulated=false
! "$gpu" --version | grep -q emulated || emulated=true
small='train.max_steps=4 evaluate.every=2 checkpoint.every=2 batch.global_size=4
    batch.micro_size=2 schedule.warmup_steps=1'

# run_on DEVICE CODE ARGUMENT...: run the program for the device cpu or gpu.
run_on() {
    program=${!1}
    shift
    run_bireme "$@"
}

# train_cpu RUN SETTING..., train_gpu RUN SETTING...: train recipe.yaml on this device.
train_cpu() {
    local run=$1
    shift
    run_on cpu 0 train recipe.yaml run_dir="$run" train.device=cpu "$@"
}

train_gpu() {
    local run=$1
    shift
    run_on gpu 0 train recipe.yaml run_dir="$run" train.device=cuda "$@"
}

few='train.max_steps=2 evaluate.every=2 checkpoint.every=0 batch.global_size=4 batch.micro_size=2
    schedule.warmup_steps=1'

# compare_devices NAME RECIPE SETTING...: the losses of the first steps on both devices, in fp32 and
# in bf16, where attention uses tensor cores.
compare_devices() {
    local name=$1 recipe=$2
    shift 2
    run_on cpu 0 train "$recipe" run_dir="$name-cpu" train.device=cpu $few "$@"
    run_on gpu 0 train "$recipe" run_dir="$name-fp32" train.device=cuda $few "$@"
    compare_losses "$name-cpu" "$name-fp32" 1e-4
    rm -f -- */reference-*.hdf5 # computed in fp32
    run_on gpu 0 train "$recipe" run_dir="$name-bf16" train.device=cuda train.precision=bf16 $few \
        "$@"
    compare_losses "$name-cpu" "$name-bf16" 1e-2
    rm -f -- */reference-*.hdf5
}
