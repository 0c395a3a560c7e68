#!/usr/bin/env bash
# Checks the results of the kernels on a GPU, and measures the speed of the kernels, of a training
# step, and of the same step in PyTorch. The script takes less than 9 minutes and changes no setting
# of the GPU.
#
#   scripts/gpu_check.sh [--bundle DIR] [--items DIR] [--only NAME[,NAME...]] [--list] OUT_DIR
#
# The programs come from a bundle (scripts/gpu_bundle.sh): from --bundle DIR, or from the bundle
# that contains this script. Otherwise they come from build/ in this repository.
#
# The script writes to OUT_DIR, after each item and when it is stopped: check.json (all
# measurements), table.txt (also printed at the end) and results.tgz, which contains both and the
# logs of the items. The logs are in --items DIR (default: OUT_DIR/items). Each item has a time
# limit and ends in one of these states:
#
#   passed                the item is a gate, and its condition holds
#   measured              the item is a measurement, and it reached its goal if it has one
#   skipped               something that the item needs is missing; the reason is printed
#   not in this version   this version of Bireme does not support the item
#   failed                the item ended with an error, exceeded its time limit or missed its goal
#
# A gate without a GPU is skipped. On a machine with a GPU, a gate that is skipped or runs no test
# is failed. The exit code is the number of failed items (at most 99), 64 for a wrong command line,
# or 143 if it was stopped.
#
# Environment:
#   BIREME_PROGRAM      the program (default: the one of the bundle or build/trainer/bireme)
#   PYTHON              Python, with the package torch for the PyTorch items (default: python3)
#   BIREME_CUBLASLT, BIREME_NCCL   libraries (default: from ldconfig, from /usr/local/cuda or from
#                       the packages nvidia of PYTHON)
#   GPU_CHECK_SECONDS   time limit of the whole check (default: 540)
#   GPU_CHECK_JOBS      tests of an item that run at the same time (default: 6)
#   GPU_CHECK_ITEMS     a shell file that changes ITEMS and defines further items, for tests
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
top=$(dirname "$here")
PYTHON=${PYTHON:-python3}

# One item per line: name, time limit in seconds, description. The function item_NAME runs the item.
# It prints JSON and writes a line for the table to $folder/summary. An item that may exceed its
# limit writes its results so far to $folder/partial.json. The exit codes: 0 success, 3 goal missed,
# 69 and 77 skipped, 78 not in this version. The sum of the limits exceeds the limit of the whole
# check, so that the most important items come first. The PyTorch items are late: PyTorch compiles a
# model for about a minute, and caches the result.
ITEMS="
versions 20 the machine, its driver and libraries
conformance 20 gate: the wrapper of each instruction gives the same results as the emulator
kernels 120 gate: the tests of the kernels pass on the GPU
training 150 gate: the tests of training pass on the GPU
losses 60 gate: losses of 50 steps: as on the CPU (fp32 1e-4, bf16 1 %), the same with CUDA graphs
gpt2_124m 90 a training step of GPT-2 124M, 64 x 1024 tokens; goal: 48 % MFU
train_gpt2_124m 60 the same steps by bireme train: without and with CUDA graphs, and with LAMB
operations 60 each operation and its bound; goal: 85 % of the copy rate for memory-bound operations
attention 80 attention in PyTorch by back-end; goals: mma.sync 85 % of flash, wgmma 95 % of cuDNN
plans 5 the timings of GEMMs and their epilogues from the steps: gemm.plans
timeline 60 Nsight Compute: the time of each kernel in a step of GPT-2 124M
profile 60 Nsight Compute: one launch of each of the slowest kernels
sanitizer 90 gate: memcheck finds no error in seven tests, and racecheck none in three
gpt2_124m_fp8 90 the step of gpt2_124m with train.precision fp8
torch_gpt2_124m 120 the same in PyTorch, eager and compiled; goal: Bireme has 1.10 times its rate
gpt2_1558m 90 GPT-2 1558M, 16 x 1024 tokens; goal: 55 % MFU
bert_large_phase1 90 BERT-large, 256 x 128 tokens; goal: 52 % MFU
bert_large_phase2 90 BERT-large, 64 x 512 tokens
torch_bert_large_phase1 120 the same in PyTorch
torch_gpt2_1558m 120 the same in PyTorch
torch_bert_large_phase2 120 the same in PyTorch
llama_1b 90 a Llama of 1B parameters, 8 x 4096 tokens
llama_1b_fp8 90 the step of llama_1b with train.precision fp8
llama_1b_fp8_rowwise 90 the step of llama_1b with train.precision fp8 and fp8.recipe rowwise
torch_llama_1b 120 the same in PyTorch
ceilings 40 the rates of a copy and of GEMMs in PyTorch
"
if [ -n "${GPU_CHECK_ITEMS:-}" ]; then
    # shellcheck source=/dev/null
    . "$GPU_CHECK_ITEMS"
fi

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
}

# fail_usage TEXT...: end because of a wrong command line.
fail_usage() {
    echo "gpu_check: $*" >&2
    exit 64
}

# skip CODE TEXT: end an item with this exit code and reason.
skip() {
    echo "$2" >"$folder/reason"
    exit "$1"
}

# write_summary TEXT...: write the item's line of the table.
write_summary() {
    echo "$*" >"$folder/summary"
}

need_program() {
    for program in "${BIREME_PROGRAM:-}" "$bundle/bireme" "$top/build/trainer/bireme"; do
        [ ! -x "$program" ] || return 0
    done
    skip 77 "no bireme: build it, or set BIREME_PROGRAM or --bundle"
}

need_gpu() {
    local output
    command -v nvidia-smi >/dev/null || skip 77 "no GPU: this machine has no nvidia-smi"
    output=$(nvidia-smi -L 2>&1) && [ -n "$output" ] ||
        skip 77 "no GPU: nvidia-smi reports: $(head -n 1 <<<"$output")"
}

need_torch() {
    "$PYTHON" -c 'import torch' 2>/dev/null ||
        skip 77 "no PyTorch: $PYTHON has no module torch (set PYTHON to another Python)"
}

# print_field NAME: print the first number with this name in the JSON text of standard input.
print_field() {
    grep -oE "\"$1\": *[-+0-9.eE]+" | head -n 1 | sed 's/.*: *//'
}

# run_bireme ARGUMENT...: run Bireme; end the item if it fails.
run_bireme() {
    local code=0
    need_program
    "$program" "$@" 2>"$folder/errors" || code=$?
    cat "$folder/errors" >&2
    case $code in
    0) ;;
    69) skip 77 "$(grep -m 1 '^error: ' "$folder/errors")" ;;
    78) skip 78 "$(grep -m 1 '^error: ' "$folder/errors")" ;;
    *) skip 1 "bireme ended with code $code: $(grep -m 1 '^error: ' "$folder/errors")" ;;
    esac
}

# ---- items ----

# shellcheck source=scripts/gpu/gpu_check_tests.sh
. "$here/gpu/gpu_check_tests.sh"

item_versions() {
    local gpu=null driver=null nvcc torch=null
    need_program
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        gpu=\"$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)\"
        driver=\"$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)\"
        local fields=name,memory.total,memory.free,clocks.sm,clocks.mem,power.limit,mig.mode.current
        nvidia-smi --query-gpu=$fields --format=csv >&2
    fi
    nvcc=$(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    torch=$("$PYTHON" "$here/bench/bench_gpu.py" versions 2>/dev/null) || torch=null
    write_summary "GPU $gpu, driver $driver, nvcc ${nvcc:-none}," \
        "cuBLASLt ${BIREME_CUBLASLT:-none}, NCCL ${BIREME_NCCL:-none}," \
        "$("$program" --version | head -n 2 | tr -s ' \n' ' ')"
    printf '{"gpu":%s,"driver":%s,"nvcc":"%s","cublaslt":"%s","nccl":"%s","torch":%s}\n' \
        "$gpu" "$driver" "${nvcc:-}" "${BIREME_CUBLASLT:-}" "${BIREME_NCCL:-}" "$torch"
}

# The program comes from scripts/gpu_bundle.sh, or it is compiled here.
item_conformance() {
    need_gpu
    local compare=$bundle/root/tests/conformance_cuda golden=$bundle/root/tests/conformance.bin
    if [ ! -x "$compare" ]; then
        command -v nvcc >/dev/null && [ -x "$top/build/tests/simt/conformance" ] ||
            skip 77 "no conformance program of a bundle, and no build with nvcc"
        compare=$folder/conformance golden=$folder/golden.bin
        # -arch=native would select sm_90, which has no wgmma.
        nvcc -std=c++17 -I"$top" -gencode arch=compute_90a,code=sm_90a \
            "$top"/tests/simt/{conformance,planted}.cu -o "$compare" >&2 ||
            skip 1 "nvcc cannot compile tests/simt/conformance.cu"
        "$top/build/tests/simt/conformance" write "$golden" >&2 ||
            skip 1 "the emulator did not write its results"
    fi
    "$compare" compare "$golden" >&2 ||
        skip 1 "the GPU and the emulator have different results: $folder/log"
    write_summary "the same results as in the emulator"
}

# print_losses RUN: print the step and the loss of each training step.
print_losses() {
    sed -nE 's/.*"event":"train".*"step":([0-9]+).*"loss":([-+.eE0-9]+).*/\1 \2/p' \
        "$folder/$1/metrics.jsonl"
}

# print_difference RUN RUN: print the largest relative difference between the losses of two runs.
print_difference() {
    paste -d' ' <(print_losses "$1") <(print_losses "$2") | awk 'NF != 4 || $1 != $3 { bad = 1 }
        { d = ($2 - $4) / $4; if (d < 0) d = -d; if (!(d <= most)) most = d }
        END { if (bad || NR == 0) print "none"; else printf "%.3g\n", most }'
}

# print_fastest_step RUN: print the seconds of the fastest step.
print_fastest_step() {
    sed -nE 's/.*"event":"train".*"step_seconds":([-+.eE0-9]+).*/\1/p' \
        "$folder/$1/metrics.jsonl" | sort -g | head -n 1
}

# prepare_text FILE: write a tokenizer of characters to $folder/words, and FILE's tokens to
# $folder/rows.
prepare_text() {
    run_bireme tokenizer train --type char --input "$1" --output "$folder/words" >&2
    run_bireme prepare --objective clm --tokenizer "$folder/words" --input "$1" \
        --output "$folder/rows" >&2
}

item_losses() {
    need_gpu
    local run settings
    # Without this, a run would use the timings of GEMMs from the previous run, and its losses would
    # differ in rounding.
    export BIREME_PLANS=off
    prepare_text "$here/gpu_check.sh"
    cat >"$folder/recipe.yaml" <<END
objective: clm
model:
  {architecture: gpt2, num_layers: 4, hidden_size: 128, num_heads: 2, max_position_embeddings: 128,
   dropout: 0.1}
data: {tokenizer: $folder/words, train: "$folder/rows/train-*.h5", sequence_length: 128}
batch: {global_size: 8, micro_size: 4}
optimizer: {learning_rate: 1.0e-3}
schedule: {warmup_steps: 10}
train: {max_steps: 50}
evaluate: {every: 0}
checkpoint: {every: 0}
log: {every: 1, tensorboard: false}
END
    for run in "cpu train.device=cpu" "fp32 train.device=cuda" \
        "bf16 train.device=cuda train.precision=bf16" \
        "graphs train.device=cuda train.precision=bf16 train.cuda_graphs=true"; do
        read -r run settings <<<"$run"
        # shellcheck disable=SC2086 # $settings is a list of arguments
        run_bireme train "$folder/recipe.yaml" run_dir="$folder/$run" $settings >&2
    done
    local fp32 bf16 graphs step graph_step
    fp32=$(print_difference fp32 cpu) bf16=$(print_difference bf16 cpu)
    graphs=$(print_difference graphs bf16)
    step=$(print_fastest_step bf16) graph_step=$(print_fastest_step graphs)
    printf '{"fp32":"%s","bf16":"%s","graphs":"%s","step_seconds":%s,"graph_step_seconds":%s}\n' \
        "$fp32" "$bf16" "$graphs" "$step" "$graph_step"
    write_summary "difference from the CPU: fp32 $fp32, bf16 $bf16; with graphs $graphs;" \
        "a step takes $step s, with graphs $graph_step s"
    awk -v a="$fp32" -v b="$bf16" -v c="$graphs" \
        'BEGIN { if (a == "none" || b == "none" || c == "none") exit 1
                 exit !(a <= 1e-4 && b <= 1e-2 && c == 0) }' ||
        skip 1 "losses differ: fp32 by $fp32, bf16 by $bf16, graphs by $graphs"
}

item_ceilings() {
    need_gpu
    need_torch
    "$PYTHON" "$here/bench/bench_gpu.py" ceilings >"$folder/out" || exit
    cat "$folder/out"
    write_summary "copy $(print_field copy_bytes_per_second <"$folder/out" |
        awk '{ printf "%.2f TB/s", $1 / 1e12 }')"
}

# Compares Bireme's causal attention by mma.sync, and by wgmma if the GPU has it, with PyTorch's on
# the same shapes: 16,384 tokens and a width of 2048 in total, two pairs of head width and sequence
# length.
item_attention() {
    need_gpu
    local shape rung data=
    for shape in "64 1024" "128 4096"; do
        read -r head tokens <<<"$shape"
        for rung in mma wgmma; do
            BIREME_ATTENTION=$rung time_operations model.num_layers=1 model.hidden_size=2048 \
                model.num_heads=$((2048 / head)) model.intermediate_size=2048 \
                model.vocab_size=1024 model.max_position_embeddings="$tokens" \
                data.sequence_length="$tokens" batch.global_size=$((16384 / tokens)) \
                batch.micro_size=$((16384 / tokens)) >"$folder/${rung}_${head}_$tokens.json"
            data+="\"${rung}_${head}_$tokens\":$(cat "$folder/${rung}_${head}_$tokens.json"),"
            echo "{$data\"torch\":null}" >"$folder/partial.json"
        done
    done
    need_torch
    "$PYTHON" "$here/bench/bench_gpu.py" attention >"$folder/out" ||
        skip 1 "bench_gpu.py attention failed: $folder/log"
    echo "{$data\"torch\":$(cat "$folder/out")}"
    judge_goals "$folder/out" "$folder"/{mma,wgmma}_{64_1024,128_4096}.json
}

# Summarizes the timings of GEMMs that the previous items wrote: a line of five fields for each GEMM
# (docs/design/gemm_tuning.md).
item_plans() {
    need_gpu
    local plans=$out_plans speedup
    [ -s "$plans" ] || skip 77 "there are no timings: no training step of Bireme has run"
    awk -F '\t' '
        NF == 5 {
            split($4, w, " ")
            n++
            fused += w[1] != 0 && w[1] != 1
            untimed += w[3]
            timed += w[2]
        }
        END {
            printf "{\"products\":%d,\"fused\":%d,", n, fused
            printf "\"untimed_seconds\":%.9g,\"timed_seconds\":%.9g}\n", untimed, timed
        }' "$plans" >"$folder/out"
    cat "$folder/out"
    speedup=$(awk -v a="$(print_field untimed_seconds <"$folder/out")" \
        -v b="$(print_field timed_seconds <"$folder/out")" \
        'BEGIN { printf "%.3f", a / (b > 0 ? b : 1) }')
    write_summary "$(print_field products <"$folder/out") GEMMs," \
        "$(print_field fused <"$folder/out") with a fused activation or sum," \
        "$speedup times the speed before tuning"
}

# judge_goals FILE...: write the line of the table; end the item if the goal was missed.
judge_goals() {
    local code=0
    "$PYTHON" "$here/bench/bench_gpu.py" judge "$@" >"$folder/summary" || code=$?
    case $code in
    0) ;;
    3) skip 3 "below its goal" ;;
    *) skip 1 "bench_gpu.py judge ended with code $code: $folder/log" ;;
    esac
}

# time_operations OVERRIDE...: print the timings of all operations.
time_operations() {
    run_bireme bench kernels --json train.device=cuda train.precision=bf16 "$@"
}

item_operations() {
    need_gpu
    time_operations batch.global_size=16 batch.micro_size=16 data.sequence_length=1024 \
        >"$folder/out"
    cat "$folder/out"
    judge_goals "$folder/out"
}

# model_overrides MODEL: print the settings of a model.
model_overrides() {
    case $1 in
    gpt2_124m) echo model.num_layers=12 model.hidden_size=768 model.num_heads=12 \
        model.intermediate_size=3072 data.sequence_length=1024 \
        batch.global_size=64 batch.micro_size=64 ;;
    gpt2_1558m) echo model.num_layers=48 model.hidden_size=1600 model.num_heads=25 \
        model.intermediate_size=6400 data.sequence_length=1024 \
        batch.global_size=16 batch.micro_size=16 ;;
    bert_large_phase1) echo objective=mlm model.architecture=bert model.num_layers=24 \
        model.hidden_size=1024 model.num_heads=16 model.intermediate_size=4096 \
        model.max_position_embeddings=512 model.vocab_size=30522 \
        data.sequence_length=128 batch.global_size=256 batch.micro_size=256 ;;
    bert_large_phase2) echo objective=mlm model.architecture=bert model.num_layers=24 \
        model.hidden_size=1024 model.num_heads=16 model.intermediate_size=4096 \
        model.max_position_embeddings=512 model.vocab_size=30522 \
        data.sequence_length=512 batch.global_size=64 batch.micro_size=64 ;;
    llama_1b) echo model.architecture=llama model.num_layers=16 model.hidden_size=2048 \
        model.num_heads=32 model.num_kv_heads=8 model.intermediate_size=8192 \
        model.max_position_embeddings=4096 model.vocab_size=128256 \
        data.sequence_length=4096 batch.global_size=8 batch.micro_size=8 ;;
    esac
}

PEAK_FLOPS=989e12 # H100 and H200, bf16 without sparsity

# bench_step MODEL [GOAL [PRECISION [SETTING]...]]: time a training step of Bireme. The MFU is
# computed twice: with half of the attention matrix, as causal attention needs it, and with all of
# it.
bench_step() {
    local model=$1 goal=${2:-0} precision=${3:-bf16} rate memory half full mfu mfu_full
    local settings=("${@:4}")
    need_gpu
    # shellcheck disable=SC2046 # a list of arguments
    run_bireme bench step --json --no-roofline --repeats 20 $(model_overrides "$model") \
        train.device=cuda train.precision="$precision" "${settings[@]}" >"$folder/out"
    rate=$(print_field tokens_per_second <"$folder/out")
    memory=$(print_field device_bytes <"$folder/out")
    read -r half full < <("$PYTHON" "$here/bench/bench_gpu.py" flops "$model") ||
        skip 1 "$PYTHON $here/bench/bench_gpu.py flops $model failed: $folder/log"
    mfu=$(awk -v r="$rate" -v f="$half" -v p="$PEAK_FLOPS" 'BEGIN { printf "%.4f", r * f / p }')
    mfu_full=$(awk -v r="$rate" -v f="$full" -v p="$PEAK_FLOPS" \
        'BEGIN { printf "%.4f", r * f / p }')
    printf '{"mfu":%s,"mfu_full_attention":%s,"peak_mib":%s,"goal_mfu":%s,"bireme":%s}\n' "$mfu" \
        "$mfu_full" "$((${memory:-0} >> 20))" "$goal" "$(cat "$folder/out")"
    write_summary "$(awk -v r="$rate" -v m="$mfu" -v b="${memory:-0}" \
        'BEGIN { printf "%.0f tokens/s, %.1f %% MFU, %.1f GiB", r, 100 * m, b / 2^30 }')"
    awk -v m="$mfu" -v g="$goal" 'BEGIN { exit !(m >= g) }' ||
        skip 3 "below the goal of $goal MFU"
}

# Trains with data from files. The host queues a step before the previous one ends. In `bench step`
# it does not.
# The rate is the rate of the median step after the first five.
item_train_gpt2_124m() {
    need_gpu
    local run rates=() graphs optimizer seconds flops
    for run in $(seq 40); do
        cat "$here"/*.{sh,py}
    done >"$folder/text"
    prepare_text "$folder/text"
    read -r flops _ < <("$PYTHON" "$here/bench/bench_gpu.py" flops gpt2_124m)
    cat >"$folder/recipe.yaml" <<END
objective: clm
model: {architecture: gpt2, vocab_size: 50257, dropout: 0}
data: {tokenizer: $folder/words, train: "$folder/rows/train-*.h5"}
optimizer: {learning_rate: 1.0e-4}
train: {device: cuda, precision: bf16, max_steps: 30}
evaluate: {every: 0}
checkpoint: {every: 0}
log: {every: 1, tensorboard: false}
END
    for run in 'false adamw' 'true adamw' 'false lamb'; do
        read -r graphs optimizer <<<"$run"
        # shellcheck disable=SC2046 # a list of arguments
        run_bireme train "$folder/recipe.yaml" $(model_overrides gpt2_124m) \
            run_dir="$folder/$optimizer-$graphs" train.cuda_graphs="$graphs" \
            optimizer.name="$optimizer" >&2
        seconds=$(sed -nE 's/.*"event":"train".*"step_seconds":([-+.eE0-9]+).*/\1/p' \
            "$folder/$optimizer-$graphs/metrics.jsonl" | tail -n +6 | sort -g | sed -n 13p)
        rates+=("$(awk -v s="$seconds" -v f="$flops" -v p="$PEAK_FLOPS" \
            'BEGIN { printf "%.0f tokens/s (%.1f %% MFU)", 65536 / s, 6553600 / s * f / p }')")
        echo "{\"step_seconds\":$seconds,\"graphs\":$graphs,\"optimizer\":\"$optimizer\"}" \
            >>"$folder/out"
    done
    echo "[$(paste -sd, "$folder/out")]"
    write_summary "${rates[0]}; with graphs ${rates[1]}; with LAMB ${rates[2]}"
}

item_gpt2_124m() { bench_step gpt2_124m 0.48; }
item_gpt2_1558m() { bench_step gpt2_1558m 0.55; }
item_bert_large_phase1() { bench_step bert_large_phase1 0.52; }
item_bert_large_phase2() { bench_step bert_large_phase2; }
item_llama_1b() { bench_step llama_1b; }
item_gpt2_124m_fp8() { bench_step gpt2_124m 0 fp8; }
item_llama_1b_fp8() { bench_step llama_1b 0 fp8; }
item_llama_1b_fp8_rowwise() { bench_step llama_1b 0 fp8 fp8.recipe=rowwise; }

# torch_step MODEL [RATIO]: time a training step of PyTorch in eager mode and compiled. The goal is
# the ratio of Bireme's rate to the rate of the compiled step. If the compilation exceeds the time
# limit, it is the ratio to the rate of the eager step.
torch_step() {
    local model=$1 goal=${2:-0} rate ours code=0
    need_gpu
    need_torch
    timeout 95 "$PYTHON" "$here/bench/bench_gpu.py" step "$model" --mode both >"$folder/out" ||
        code=$?
    [ -s "$folder/out" ] || exit "$code"
    echo "[$(paste -sd, "$folder/out")]"
    write_summary "$(while read -r run; do
        awk -v r="$(print_field tokens_per_second <<<"$run")" -v m="$(print_field mfu <<<"$run")" \
            -v w="$(grep -oE 'compiled|eager' <<<"$run" | head -n 1)" \
            'BEGIN { printf "%s %.0f tokens/s, %.1f %% MFU; ", w, r, 100 * m }'
    done <"$folder/out")"
    rate=$(tail -n 1 "$folder/out" | print_field tokens_per_second)
    ours=$(print_field tokens_per_second <"$folder/../$model/out" 2>/dev/null) || ours=
    [ -n "$ours" ] || return 0
    awk -v a="$ours" -v b="$rate" -v g="$goal" 'BEGIN { exit !(a >= g * b) }' ||
        skip 3 "Bireme has $(awk -v a="$ours" -v b="$rate" \
            'BEGIN { printf "%.2f", a / b }') times this rate; the goal is $goal"
}

item_torch_gpt2_124m() { torch_step gpt2_124m 1.10; }
item_torch_gpt2_1558m() { torch_step gpt2_1558m 1.10; }
item_torch_bert_large_phase1() { torch_step bert_large_phase1 1.10; }
item_torch_bert_large_phase2() { torch_step bert_large_phase2; }
item_torch_llama_1b() { torch_step llama_1b; }

# The time of each kernel in the last step of `bench step`, summed over its launches: kernels.tsv
# has the seconds, the launches and the name. Nsight Compute measures one kernel at a time, and
# leaves the clocks alone.
item_timeline() {
    need_gpu
    command -v ncu >/dev/null || skip 77 "no ncu (Nsight Compute)"
    need_program
    # shellcheck disable=SC2046 # a list of arguments
    timeout --kill-after=2 55 ncu --clock-control none --metrics gpu__time_duration.sum --csv \
        --print-units base --log-file "$folder/launches.csv" "$program" bench step --no-roofline \
        --repeats 1 $(model_overrides gpt2_124m) train.device=cuda train.precision=bf16 >&2 ||
        skip 1 "ncu ended with code $?: $(tail -n 1 "$folder/launches.csv")"
    "$PYTHON" "$here/bench/bench_gpu.py" timeline "$folder/launches.csv" >"$folder/kernels.tsv" ||
        skip 1 "bench_gpu.py timeline failed: $folder/log"
    write_summary "$(awk -F '\t' '{ t += $1; n += $2 }
        END { printf "%d kernels in %.1f ms", n, t * 1e3 }' "$folder/kernels.tsv")"
}

# The kernels that Nsight Compute measures, as regular expressions for their names.
PROFILED="(tiles|wgmma)_backward,wgmma_forward,norm_backward,cross_entropy_rows,norm_forward"

# One launch of each kernel, in a step of GPT-2 with two layers. It leaves the clocks alone.
item_profile() {
    need_gpu
    local kernel code count=0 names=
    command -v ncu >/dev/null || skip 77 "no ncu (Nsight Compute)"
    need_program
    for kernel in ${PROFILED//,/ }; do
        code=0
        [ "$SECONDS" -lt 38 ] || break
        # shellcheck disable=SC2046 # a list of arguments
        timeout --kill-after=2 20 ncu --target-processes all --clock-control none --set detailed \
            --kernel-name "regex:$kernel" --launch-skip 2 --launch-count 1 --kill yes \
            "$program" bench step --no-roofline --repeats 1 $(model_overrides gpt2_124m) \
            model.num_layers=2 train.device=cuda train.precision=bf16 \
            >"$folder/kernel_$count.txt" 2>&1 || code=$?
        if grep -q '^ *Duration ' "$folder/kernel_$count.txt"; then
            names+="${names:+,}\"$kernel\""
            count=$((count + 1))
            echo "{\"kernels\":[$names]}" >"$folder/partial.json"
        else
            echo "$kernel: ncu ended with code $code" >&2
            tail -n 5 "$folder/kernel_$count.txt" | tee "$folder/refused" >&2
        fi
    done
    [ "$count" -gt 0 ] || skip 77 "ncu measured no kernel: $(tail -n 1 "$folder/refused")"
    write_summary "$count kernels: kernel_*.txt in $folder"
}

# ---- one item, in a separate process ----

if [ "${1:-}" = --run-item ]; then
    folder=$4/$2 out_plans=$3/gemm.plans bundle=$5
    export BIREME_PLANS=$out_plans
    "item_$2"
    exit
fi

# ---- the command line ----

only= out= items_dir= bundle=$top
while [ $# -gt 0 ]; do
    case $1 in
    --only) [ $# -ge 2 ] || usage; only=$2; shift 2 ;;
    --bundle) [ $# -ge 2 ] || usage; bundle=$2; shift 2 ;;
    --items) [ $# -ge 2 ] || usage; items_dir=$2; shift 2 ;;
    --list)
        awk 'NF { n = $1; s = $2; $1 = $2 = ""; printf "%-24s %4d s %s\n", n, s, $0 }' <<<"$ITEMS"
        exit 0
        ;;
    -*) usage ;;
    *) [ -z "$out" ] || usage; out=$1; shift ;;
    esac
done
[ -n "$out" ] || usage
[ "$bundle" = "$top" ] || [ -x "$bundle/bireme" ] ||
    fail_usage "--bundle $bundle: contains no program bireme; make it with scripts/gpu_bundle.sh"
names=$(awk 'NF { print $1 }' <<<"$ITEMS")
for name in ${only//,/ }; do
    grep -qx "$name" <<<"$names" ||
        fail_usage "no item '$name'; the items are: $(tr '\n' ' ' <<<"$names")"
done
items_dir=${items_dir:-$out/items}
mkdir -p "$out" "$items_dir" || exit 73
out=$(cd "$out" && pwd -P) items_dir=$(cd "$items_dir" && pwd -P) bundle=$(cd "$bundle" && pwd -P)

# ---- the first start of a bundle unpacks its programs ----

if [ -x "$bundle/bireme" ]; then
    "$bundle/bireme" --version >/dev/null 2>&1 || true # the item `versions` reports an error
fi

# ---- the libraries of CUDA ----

# find_library NAME: print the path of a shared library.
find_library() {
    local path
    ldconfig -p 2>/dev/null | sed -n "s|^[[:blank:]]*$1 (.*x86-64.*=> ||p" | head -n 1 | grep . &&
        return
    for path in "${CUDA_HOME:-/usr/local/cuda}/lib64/$1" /usr/local/cuda*/lib64/"$1"; do
        [ ! -e "$path" ] || { echo "$path" && return; }
    done
    "$PYTHON" "$here/bench/bench_gpu.py" library "$1" 2>/dev/null
}

# An empty variable would name a library without a name.
for pair in BIREME_CUBLASLT:libcublasLt.so.13 BIREME_NCCL:libnccl.so.2; do
    name=${pair%%:*}
    if [ -z "${!name:-}" ]; then
        path=$(find_library "${pair#*:}") || path=
        unset "$name"
        [ -z "$path" ] || export "$name=$path"
    fi
done

# ---- all items ----

failed=0 items= table= budget=${GPU_CHECK_SECONDS:-540}
# shellcheck source=/dev/null
. "$here/gpu/gpu_check_results.sh"

# stop_check: end the running item, and the check with the results so far.
stop_check() {
    trap '' TERM INT HUP
    kill -TERM "$item_process" 2>/dev/null
    wait "$item_process"
    add_result "$name" "$what" "$(state_of 143 0)" $((SECONDS - begin))
    cat "$out/table.txt"
    exit 143
}

while read -r name seconds what; do
    if [ -z "$name" ] || { [ -n "$only" ] && ! grep -qx "$name" <<<"${only//,/$'\n'}"; }; then
        continue
    fi
    folder=$items_dir/$name
    rm -rf "$folder" && mkdir -p "$folder"
    begin=$SECONDS
    if [ "$SECONDS" -ge "$budget" ]; then
        state=skipped
        echo "the limit of $budget s for the whole check is reached: use --only $name" \
            >"$folder/reason"
    else
        [ "$seconds" -le $((budget - SECONDS)) ] || seconds=$((budget - SECONDS))
        # In the background, so that the trap runs at once.
        timeout --kill-after=5 "$seconds" bash "$0" --run-item "$name" "$out" "$items_dir" \
            "$bundle" >"$folder/data.json" 2>"$folder/log" </dev/null &
        item_process=$!
        trap stop_check TERM INT HUP
        wait "$item_process"
        code=$?
        trap - TERM INT HUP
        state=$(state_of "$code" "$seconds")
    fi
    add_result "$name" "$what" "$state" $((SECONDS - begin))
done <<<"$ITEMS"

cat "$out/table.txt"
[ "$failed" -le 99 ] || failed=99
exit "$failed"
