#!/bin/bash
# Tests training on an emulated GPU: the losses equal the losses of the CPU, checkpoints resume on
# either device, and the commands that read a trained model give the same results. The host cannot
# access device memory, and streams execute late. Many parts also run on a real GPU (the item
# `training` of scripts/gpu_check.sh); they omit what only the emulator measures.
# usage: test_train.sh PART; ctest sets BIREME_PROGRAM (CPU), BIREME_SIMT and BIREME_SOURCE_DIR
# ctest: name simt_train
# ctest: parts fp32 graphs bf16 fp8 wgmma plans curves checkpoints readers beams ranks objectives
# ctest: parts seq2seq seq2seq_layouts lora tasks memory bench bench_objectives errors spikes
# ctest: parts metrics
# ctest: timeout 300
# shellcheck disable=SC2034,SC2086,SC2154 # settings are words; tiny_training.sh shares variables
source "${BIREME_SOURCE_DIR:=$PWD}/tests/simt/devices.sh"

test_fp32() {
    train_cpu one $small
    train_gpu late $small
    grep -q 'GPU 0 (' stderr || fail "the log does not name the device"
    compare_losses one late 1e-4
    # Eager or late streams, and asynchronous or synchronous checkpoints, give the same bits.
    SIMT_STREAMS=eager run_on gpu 0 train recipe.yaml run_dir=eager $small checkpoint.async=false
    compare_losses late eager 0
    compare_weights late eager 00000004
    # Activation checkpointing gives the same bits too.
    local mode
    for mode in selective full; do
        run_on gpu 0 train recipe.yaml run_dir=$mode $small train.activation_checkpointing=$mode
        compare_losses late $mode 0
        compare_weights late $mode 00000004
    done
}

# Micro-batches and updates in graphs give the same bits, with dropout and a learning rate that
# change in each step. SIMT_GRAPHS counts graphs created, launches and argument updates.
test_graphs() {
    local many="$small train.max_steps=5 evaluate.every=0 checkpoint.every=5
        batch.global_size=2 batch.micro_size=1"
    train_gpu single $many
    SIMT_GRAPHS=$PWD/counts train_gpu graphs train.cuda_graphs=true $many
    compare_losses single graphs 0
    compare_weights single graphs 00000005
    [ $emulated = true ] || return 0
    local created launched updated
    read -r created launched updated <counts
    [ "$created" -ge 4 ] && [ "$launched" -ge $((3 * created)) ] &&
        [ "$updated" -gt "$launched" ] ||
        fail "$created graphs, $launched launches, $updated argument updates"
    # Checks this test: without argument updates the model differs.
    SIMT_STALE=1 train_gpu stale train.cuda_graphs=true $many
    if (compare_losses single stale 0) >/dev/null 2>&1; then
        fail "stale arguments were not detected"
    fi
    # If no graph can be created, the training continues without.
    SIMT_NO_GRAPHS=1 train_gpu without train.cuda_graphs=true $many
    grep -q 'W-CUDA-GRAPHS' stderr || fail "no warning"
    compare_losses single without 0
}

test_bf16() {
    train_cpu one $small
    # Stochastic rounding of the bf16 weights and moments is the same after a resume and in graphs.
    # test_objectives tests rounding to nearest.
    local half="train.device=cuda train.precision=bf16 optimizer.stochastic_rounding=true
        optimizer.state_dtype=bf16 $small"
    run_on gpu 0 train recipe.yaml run_dir=half $half
    compare_losses one half 1e-2
    cp -r half resumed
    rm -rf resumed/checkpoints/step-00000004 resumed/final
    run_on gpu 0 train recipe.yaml run_dir=resumed train.cuda_graphs=true $half
    compare_losses half resumed 0
    compare_weights half resumed 00000004
}

# Attention with TMA and wgmma, forward and backward, with two tiles of keys for each head of 64.
# The losses equal the losses of the CPU, and graphs give the same bits.
test_wgmma() {
    export SIMT_CAPABILITY=9
    local wide="$small train.max_steps=3 evaluate.every=0 checkpoint.every=3 model.num_layers=1
        model.hidden_size=128 model.num_heads=2 model.max_position_embeddings=160
        data.sequence_length=160 batch.global_size=2 batch.micro_size=1 model.dropout=0"
    local half="train.precision=bf16 $wide"
    train_cpu one $wide
    train_gpu half $half
    compare_losses one half 1e-2
    train_gpu graphs train.cuda_graphs=true $half
    compare_losses half graphs 0
    compare_weights half graphs 00000003
    # On an H200 both attention kernels give the same bits here.
    [ $emulated = true ] || return 0
    BIREME_ATTENTION=mma train_gpu mma $half
    if (compare_weights half mma 00000003) >/dev/null 2>&1; then
        fail "the weights do not depend on BIREME_ATTENTION"
    fi
}

# The losses in FP8 are near the losses of the CPU, a resume and graphs give the same bits, and GPUs
# without FP8 are refused.
test_fp8() {
    train_cpu one $small
    local by eight="train.device=cuda train.precision=fp8 fp8.first_last_layers_bf16=false $small"
    for by in delayed rowwise; do
        run_on gpu 0 train recipe.yaml run_dir=$by fp8.recipe=$by $eight
        compare_losses one $by 2e-2
        (compare_losses one $by 1e-5) >/dev/null 2>&1 && fail "nothing was rounded"
        cp -r $by $by-resumed
        rm -rf $by-resumed/checkpoints/step-00000004 $by-resumed/final
        run_on gpu 0 train recipe.yaml $eight run_dir=$by-resumed fp8.recipe=$by \
            train.cuda_graphs=true
        compare_losses $by $by-resumed 0
        compare_weights $by $by-resumed 00000004
    done
    cmp delayed{,-resumed}/checkpoints/step-00000004/fp8-00000-of-00001.h5 ||
        fail "the amax history differs"
    [ $emulated = true ] || return 0
    SIMT_CAPABILITY=8 run_on gpu 69 train recipe.yaml run_dir=old $eight
    expect_error 'precision fp8: .*compute capability 8.0; FP8 needs 8.9'
    SIMT_CAPABILITY=10 run_on gpu 69 train recipe.yaml run_dir=new fp8.recipe=rowwise $eight
    expect_error 'fp8.recipe rowwise: .*compute capability 10.0; .* 9.0 (Hopper) only'
}

# Fifty steps with heads of 32, so that attention in bf16 uses the tensor-core kernels. The learning
# rate is low enough that rounding errors do not grow: at 1e-2 the losses of two instruction sets of
# one CPU differ by 2 % after 20 steps in fp32, and at 3e-3 the losses of bf16 and fp32 differ as
# much. scripts/gpu_check.sh does the same on a GPU.
test_curves() {
    [ "${BIREME_LONG:-0}" = 1 ] || {
        echo "skipped: takes a minute; set BIREME_LONG=1 to run this test"
        exit 77
    }
    local many="$small train.max_steps=50 evaluate.every=0 checkpoint.every=0
        model.hidden_size=64 optimizer.learning_rate=1e-3 schedule.warmup_steps=10"
    run_seconds=250
    train_cpu one $many
    train_gpu fp32 $many
    compare_losses one fp32 1e-4
    train_gpu bf16 train.precision=bf16 $many
    compare_losses one bf16 1e-2
}

# resume_on RUN PROGRAM DEVICE SETTING...: repeat the second half of a run on the other device.
resume_on() {
    local run=$1 program=$2 device=$3
    shift 3
    rm -rf other
    cp -r "$run" other
    rm -rf other/checkpoints/step-00000004 other/final
    run_on "$program" 0 train recipe.yaml run_dir=other train.device="$device" $small "$@"
    compare_losses "$run" other 1e-4
}

test_checkpoints() {
    train_cpu from_cpu $small
    train_gpu from_gpu $small
    resume_on from_cpu gpu cuda
    resume_on from_gpu cpu cpu
    train_gpu half $small optimizer.state_dtype=bf16
    resume_on half cpu cpu optimizer.state_dtype=bf16
    resume_on half gpu cuda optimizer.state_dtype=bf16
    compare_losses half other 0
    compare_weights half other 00000004
    resume_on half gpu cuda optimizer.state_dtype=fp32
    resume_on from_cpu gpu cuda optimizer.state_dtype=bf16
}

# compare_first FILE FILE TOLERANCE: the first fields of all lines differ by at most the tolerance.
compare_first() {
    paste "$1" "$2" | awk -v t="$3" '{ d = $1 - $(NF / 2 + 1); if (d < 0) d = -d
        if (!(d <= t)) exit 1 }'
}

# compare_readers RUN: commands that read this trained model give the same results on both devices.
compare_readers() {
    local device model
    for device in cpu gpu; do
        model="--checkpoint $1/final --set train.device=${device/gpu/cuda}"
        run_on $device 0 generate --prompt 'the ' --max-new-tokens 8 --temperature 0 $model
        mv out generated-$device
        run_on $device 0 generate --prompt 'the ' --max-new-tokens 6 --num-beams 2 --json $model
        sed 's/,"log_probability".*//' out >beams-$device
        sed -n 's/.*"log_probability":\([-0-9.]*\).*/\1/p' out >probability-$device
        run_on $device 0 score lines $model
        mv out scores-$device
        run_on $device 0 evaluate --data 'data/validation-*.h5' --batches 2 --json $model
        sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' out >loss-$device
    done
    cmp generated-cpu generated-gpu || fail "the generated text differs"
    cmp beams-cpu beams-gpu || fail "the beams differ"
    [ -s scores-cpu ] && [ -s loss-cpu ] && [ -s loss-gpu ] && [ -s probability-cpu ] ||
        fail "there are no scores, no loss or no probability"
    cat scores-gpu loss-gpu >stderr
    compare_first probability-cpu probability-gpu 1e-4 ||
        fail "the probability of the beam differs: $(cat probability-cpu probability-gpu)"
    compare_first scores-cpu scores-gpu 1e-3 || fail "the scores differ: $(cat scores-cpu)"
    compare_first loss-cpu loss-gpu 1e-4 || fail "the loss differs: $(cat loss-cpu)"
}

# GPT-2, and a decoder with a window in every second layer, which ends before the first cached key.
test_readers() {
    head -c 60 "$source/LICENSE" | tr '\n' ' ' | fold -w 20 >lines
    train_cpu one $small
    compare_readers one
    train_cpu parts $small model.architecture=transformer_decoder model.norm_placement=both \
        model.norm_type=rmsnorm model.position_embedding_type=rotary model.qk_norm=head \
        model.num_kv_heads=1 model.head_dim=12 model.sliding_window=5 \
        model.sliding_window_pattern=2 model.attn_logit_softcapping=2 \
        model.final_logit_softcapping=3 optimizer.learning_rate=3e-2
    compare_readers parts
}

# Translation with more beams than the model has rows: here they are the 24 positions.
test_beams() {
    tr -cs 'A-Za-z' '\n' <"$source/LICENSE" | sed '/^$/d; 60q' >lines
    run_on cpu 0 tokenizer train --type bpe --vocab-size 300 --input lines --output words
    run_on cpu 0 prepare --objective seq2seq --tokenizer words --source lines --target lines \
        --output pairs
    train_cpu pairs_run objective=seq2seq data.tokenizer=words 'data.train=pairs/train-*.h5' \
        data.validation=null model.architecture=marian model.activation=relu \
        model.max_position_embeddings=24 data.sequence_length=24 $small evaluate.every=0 \
        batch.global_size=1 batch.micro_size=1
    local device
    for device in cpu gpu; do
        run_on $device 0 translate --checkpoint pairs_run --num-beams 40 --max-new-tokens 4 \
            --batch-size 1 --json --set train.device=${device/gpu/cuda} <<<'the'
        mv out beams-$device
    done
    cmp beams-cpu beams-gpu || fail "the beams differ: $(cat beams-*)"
}

# Sums and gathered weights are in page-locked memory: three steps have the pageable copies of one.
count_pageable_copies() {
    local steps counts=()
    for steps in 1 3; do
        SIMT_PAGEABLE=$PWD/pageable run_ranks 2 0 train recipe.yaml run_dir=pageable-$steps \
            train.device=cuda parallel.zero_stage=1 $small train.max_steps=$steps \
            evaluate.every=0 checkpoint.every=0
        counts+=("$(cat pageable)")
    done
    [ "${counts[0]}" = "${counts[1]}" ] ||
        fail "two more steps have $((counts[1] - counts[0])) copies of pageable memory"
}

# Ranks that share one GPU: their sums are staged through the host, in the same order as on the CPU.
test_ranks() {
    need_mpirun
    train_cpu one $small
    program=$gpu
    local layout
    for layout in zero_stage=1 zero_stage=2 tensor=2; do
        run_ranks 2 0 train recipe.yaml run_dir=two-$layout train.device=cuda parallel.$layout \
            parallel.check_every=2 $small
        [ "$(grep -c '^warning: ranks 0, 1 share one GPU.*\[W-COMM-STAGED\]$' stderr)" = 1 ] ||
            fail "not exactly one warning"
        compare_losses one two-$layout 1e-5
    done
    # With data-parallel and tensor-parallel groups, one warning names all four ranks.
    run_ranks 4 0 train recipe.yaml run_dir=four train.device=cuda parallel.tensor=2 $small
    [ "$(grep -c '\[W-COMM-STAGED\]$' stderr)" = 1 ] &&
        grep -q '^warning: ranks 0, 1, 2, 3 share one GPU' stderr ||
        fail "not exactly one warning that names all four ranks"
    compare_losses one four 1e-5
    [ $emulated = false ] || count_pageable_copies
    # Both ranks use the tuned plans of rank 0.
    BIREME_PLANS=$PWD/plans run_ranks 2 0 train recipe.yaml run_dir=tuned train.device=cuda \
        parallel.tensor=2 $small
    compare_losses one tuned 1e-5
    [ "$(wc -l <plans)" -ge 10 ] || fail "no plans were written"
    # bf16 transport of gradients, on GPUs and CPUs: the losses differ by rounding only.
    local device kind
    for device in cpu gpu; do
        program=${!device}
        [ $device = cpu ] && kind=cpu || kind=cuda
        run_ranks 2 0 train recipe.yaml run_dir=bf16-$device train.device=$kind \
            parallel.zero_stage=1 parallel.reduce_dtype=bf16 $small
        compare_losses one bf16-$device 1e-3
        if (compare_losses one bf16-$device 0) >/dev/null 2>&1; then
            fail "no gradient was rounded"
        fi
    done
}

# prepare_shards OBJECTIVE TOKENIZER INPUT FOLDER: prepare sequences of 32 tokens.
prepare_shards() {
    run_on cpu 0 prepare --objective "$1" --tokenizer "$2" --input "$3" --output "$4" \
        --validation-fraction 0.2 --sequence-length 32
}

# write_rows FORMAT: write rows.jsonl with a line for each two words of the license. The third field
# of the format is the second word reversed.
write_rows() {
    grep -oE '[a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -80 |
        awk -v format="$1\n" '{ reversed = ""
            for (i = length($2); i > 0; i--) reversed = reversed substr($2, i, 1)
            if (reversed != $2) printf format, $1, $2, reversed }' >rows.jsonl
}

compare_llama() {
    compare_devices llama recipe.yaml model.architecture=llama model.num_kv_heads=1 \
        model.intermediate_size=48 model.dropout=0
    compare_devices mistral recipe.yaml model.architecture=mistral model.num_kv_heads=1 \
        model.head_dim=24 model.sliding_window=8 model.intermediate_size=48 model.dropout=0
    compare_devices qwen3 recipe.yaml model.architecture=qwen3 model.num_kv_heads=1 \
        model.head_dim=24 model.intermediate_size=48 model.dropout=0
    compare_devices gemma3 recipe.yaml model.architecture=gemma3_text model.num_kv_heads=1 \
        model.head_dim=24 model.sliding_window=8 model.sliding_window_pattern=2 \
        model.intermediate_size=48 model.dropout=0.1
    compare_devices gemma2 recipe.yaml model.architecture=gemma2 model.num_kv_heads=1 \
        model.head_dim=24 model.sliding_window=8 model.attn_logit_softcapping=2 \
        model.final_logit_softcapping=3 model.intermediate_size=48 model.dropout=0.1
    compare_devices granite recipe.yaml model.architecture=granite model.num_kv_heads=1 \
        model.embedding_multiplier=3 model.attention_multiplier=0.3 model.residual_multiplier=0.4 \
        model.logits_scaling=2 model.intermediate_size=48 model.dropout=0.1
    compare_devices smollm3 recipe.yaml model.architecture=smollm3 model.num_kv_heads=1 \
        model.no_rope_layer_interval=2 model.intermediate_size=48 model.dropout=0
    compare_devices olmo recipe.yaml model.architecture=olmo model.num_kv_heads=1 \
        model.intermediate_size=48 model.dropout=0.1
    compare_devices olmo2 recipe.yaml model.architecture=olmo2 model.num_kv_heads=1 \
        model.intermediate_size=48 model.dropout=0.1
    compare_devices phi3 recipe.yaml model.architecture=phi3 model.num_kv_heads=1 \
        model.head_dim=24 model.partial_rotary_factor=0.7 model.sliding_window=8 \
        model.intermediate_size=48 model.dropout=0.1
    compare_devices stablelm recipe.yaml model.architecture=stablelm model.num_kv_heads=1 \
        model.partial_rotary_factor=0.5 model.use_qkv_bias=true model.intermediate_size=48 \
        model.dropout=0.1
    compare_devices gpt1 recipe.yaml model.architecture=openai-gpt
    compare_devices qwen2 recipe.yaml model.architecture=qwen2 model.num_kv_heads=1 \
        model.intermediate_size=48 model.dropout=0
}

compare_mlm() {
    run_on cpu 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output words
    prepare_shards mlm words "$source/LICENSE" pairs
    sed -e 's/clm/mlm/' -e 's/gpt2/bert/' -e 's/tokenizer: tokenizer/tokenizer: words/' \
        -e 's/data\//pairs\//g' recipe.yaml >mlm.yaml
    compare_devices mlm mlm.yaml optimizer.name=lamb
    compare_devices roberta mlm.yaml model.architecture=roberta model.max_position_embeddings=34
}

compare_sft() {
    write_rows '{"prompt": "%s ", "completion": "%s %s"}'
    prepare_shards sft tokenizer rows.jsonl rows
    sed -e 's/clm/sft/' -e 's/data\//rows\//g' recipe.yaml >sft.yaml
    compare_devices sft sft.yaml sft.packing=bfd
}

compare_dpo() {
    write_rows '{"prompt": "%s ", "chosen": "%s", "rejected": "%s"}'
    prepare_shards dpo tokenizer rows.jsonl choices
    train_cpu base train.max_steps=2 evaluate.every=0 checkpoint.every=0 schedule.warmup_steps=0
    sed -e 's/clm/dpo/' -e 's/dropout: 0.1/init_from: base\/final/' -e 's/data\//choices\//g' \
        recipe.yaml >dpo.yaml
    compare_devices dpo dpo.yaml
    # Shared prompt: chosen and rejected response after one prefix.
    run_on gpu 0 train dpo.yaml run_dir=shared train.device=cuda $few dpo.shared_prefix=true
    compare_losses dpo-cpu shared 1e-4
    # A whole-batch loss makes two passes over the data.
    run_on cpu 0 train dpo.yaml run_dir=whole-cpu train.device=cpu $few dpo.loss_type=aot_unpaired
    run_on gpu 0 train dpo.yaml run_dir=whole train.device=cuda $few dpo.loss_type=aot_unpaired
    compare_losses whole-cpu whole 1e-4
}

test_objectives() {
    compare_llama
    compare_mlm
    compare_sft
    compare_dpo
}

# print_chrf RUN: print the step and chrF of each evaluation.
print_chrf() {
    sed -nE 's/.*"event":"evaluate","step":([0-9]+).*"chrf":([0-9.e-]+).*/\1 \2/p' \
        "$1/metrics.jsonl"
}

# make_seq2seq: make pairs, their tokenizer `words` and the recipe seq2seq.yaml.
make_seq2seq() {
    write_pairs 120 13 reversed
    run_on cpu 0 tokenizer train --type bpe --special-tokens roberta --vocab-size 300 \
        --input pairs.a --output words
    run_on cpu 0 prepare --objective seq2seq --tokenizer words --source pairs.a --target pairs.b \
        --output pairs --validation-fraction 0.2
    sed -e 's/clm/seq2seq/' -e 's/tokenizer: tokenizer/tokenizer: words/' -e 's/data\//pairs\//g' \
        recipe.yaml >seq2seq.yaml
}

# Encoder-decoders: T5 with its relative position bias, Marian, mBART, and BART that denoises. Each
# rank of a tensor-parallel pair has half of the heads.
test_seq2seq() {
    make_seq2seq
    # The generated targets are equal.
    local name t5='model.architecture=t5 model.head_dim=8 model.activation=relu'
    local targets='evaluate.generate=true evaluate.generation_max_length=8'
    compare_devices t5 seq2seq.yaml $t5 $targets
    compare_devices marian seq2seq.yaml model.architecture=marian model.activation=silu $targets \
        evaluate.generation_num_beams=2
    compare_devices mbart seq2seq.yaml model.architecture=mbart model.activation=gelu_erf $targets
    for name in t5 mbart marian; do
        print_chrf $name-cpu >a
        [ "$(wc -l <a)" = 2 ] || fail "$name: no scores: $(cat a)"
        print_chrf $name-fp32 | cmp a - || fail "$name: the scores of generated targets differ"
    done
    grep -q '^2 0\.0*[1-9]' a || fail "marian: no character is correct: $(cat a)"
    run_on cpu 0 prepare --tokenizer words --input "$source/LICENSE" --output texts \
        --validation-fraction 0.2
    sed -e 's/seq2seq/denoise/' -e 's/pairs\//texts\//g' seq2seq.yaml >denoise.yaml
    compare_devices bart denoise.yaml model.architecture=bart model.activation=gelu_erf \
        denoise.noise=bart
    need_mpirun
    program=$gpu
    run_ranks 2 0 train seq2seq.yaml run_dir=tensor train.device=cuda $few parallel.tensor=2 \
        parallel.sequence=true $t5 $targets
    compare_losses t5-cpu tensor 1e-5
    print_chrf t5-cpu >a
    print_chrf tensor | cmp a - || fail 'the scores of two ranks differ'
}

# T5 and Marian with LoRA, with full recomputation, and on two ranks with ZeRO 2: the losses equal
# the losses of the CPU. Recomputation gives the same bits on one device.
test_seq2seq_layouts() {
    need_mpirun
    make_seq2seq
    local name model lora='adapter.type=lora adapter.targets=all-linear adapter.dropout=0.1'
    local two="train.device=cuda $few parallel.zero_stage=2"
    for name in t5 marian; do
        model="model.architecture=$name model.activation=relu"
        [ $name = marian ] || model+=' model.head_dim=8'
        compare_devices $name seq2seq.yaml $model
        run_on gpu 0 train seq2seq.yaml run_dir=$name-full train.device=cuda $few $model \
            train.activation_checkpointing=full
        compare_losses $name-fp32 $name-full 0
        compare_devices $name-lora seq2seq.yaml $model model.init_from=$name-cpu/final $lora
        program=$gpu
        run_ranks 2 0 train seq2seq.yaml run_dir=$name-zero $two $model
        compare_losses $name-cpu $name-zero 1e-5
        run_ranks 2 0 train seq2seq.yaml run_dir=$name-lora-zero $two $model \
            model.init_from=$name-cpu/final $lora train.activation_checkpointing=full
        compare_losses $name-lora-cpu $name-lora-zero 1e-5
    done
}

# compare_task OBJECTIVE FORMAT: the losses of an objective with a task head.
compare_task() {
    write_rows "$2"
    prepare_shards "$1" tokenizer rows.jsonl "$1"
    sed -e "s/clm/$1/" -e "s/data\\//$1\\//g" recipe.yaml >"$1.yaml"
    compare_devices "$1" "$1.yaml" optimizer.learning_rate=1e-3
}

# Task heads with many outputs: two for every row (answer), and the vectors of a whole batch, which
# the host reads (embed).
test_tasks() {
    compare_task answer \
        '{"question":"which","context":"red %s %s","answer":"red","answer_start":0,"else":"%s"}'
    compare_task embed '{"text": "%s", "text_pair": "%s %s"}'
}

# LoRA adapters on a base model that the GPU stores in bf16 only, with a fully trained head.
test_lora() {
    train_cpu base train.max_steps=2 evaluate.every=0 checkpoint.every=0 schedule.warmup_steps=0
    compare_devices lora recipe.yaml model.init_from=base/final adapter.type=lora \
        adapter.targets=all-linear adapter.dropout=0.1
    run_on gpu 0 evaluate --checkpoint lora-bf16 --data 'data/validation-*.h5' --batches 1 \
        --set train.device=cuda
}

# The GPU memory that `bireme plan` prints is sufficient, and 10 % less is not. The emulated
# cuBLASLt does not need the 32 MiB of workspace.
test_memory() {
    local mode bytes settings
    local large="train.device=cuda train.max_steps=1 evaluate.every=0 checkpoint.every=0
        schedule.warmup_steps=0 model.num_layers=8 model.hidden_size=64 batch.global_size=8
        batch.micro_size=8"
    for mode in none full; do
        settings="$large train.activation_checkpointing=$mode"
        run_on gpu 0 plan recipe.yaml --json $settings
        bytes=$(sed -n 's/.*"device_bytes": *\([0-9]*\).*/\1/p' out)
        [ "${bytes:-0}" -gt $((40 << 20)) ] || fail "no device memory in the plan: $bytes"
        bytes=$((bytes - (32 << 20)))
        SIMT_MEMORY_MIB=$((bytes / 10 * 9 >> 20)) \
            run_on gpu 70 train recipe.yaml run_dir=less $settings
        expect_error 'out of memory on GPU 0'
        SIMT_MEMORY_MIB=$((bytes / 100 * 102 + (1 << 20) >> 20)) \
            run_on gpu 0 train recipe.yaml run_dir=enough-$mode $settings
        echo "$bytes" >>sizes
    done
    [ "$(sed -n 2p sizes)" -lt $(($(sed -n 1p sizes) * 8 / 10)) ] ||
        fail "full activation checkpointing needs as much memory: $(tr '\n' ' ' <sizes)"
}

# GEMM plans that were tuned after the first step are stored, and the next run uses them from its
# first step on.
test_plans() {
    local run small="$small model.num_layers=1"
    export BIREME_PLANS=$PWD/cache/gemm.plans
    train_cpu one $small
    train_gpu first $small
    compare_losses one first 1e-4
    [ "$(grep -c 'emulated, driver 13.0, cuBLASLt' "$BIREME_PLANS")" -ge 10 ] ||
        fail "too few plans: $(wc -l "$BIREME_PLANS")"
    [ "$(cut -f 4 "$BIREME_PLANS" | grep -c '^3 ')" -ge 1 ] || fail "no activation is fused"
    cp "$BIREME_PLANS" tuned
    for run in second third; do
        train_gpu $run $small
    done
    compare_losses second third 0
    compare_weights second third 00000004
    compare_losses one third 1e-4
    cmp tuned "$BIREME_PLANS" || fail "a run without new plans changed the file"
    # FP8 GEMMs have a key with type 28 (E4M3), or 29 (E5M2) and 28.
    for run in fourth fifth; do
        train_gpu $run train.precision=fp8 fp8.first_last_layers_bf16=false $small
    done
    compare_losses one fourth 1e-1
    compare_losses fourth fifth 1e-2
    [ "$(cut -f 3 "$BIREME_PLANS" | grep -cE ' (28|7453) ')" -ge 8 ] ||
        fail "too few plans of FP8 GEMMs: $(cat "$BIREME_PLANS")"
    echo "not a plan" >>"$BIREME_PLANS"
    train_gpu damaged $small
    grep -q '1 damaged lines.*\[W-GEMM-PLANS\]$' stderr || fail "no warning about a damaged line"
}

# print_first_losses FILE: print five losses, one on each line.
print_first_losses() {
    grep -o '"first_losses": *\[[^]]*' "$1" | sed 's/.*\[//' | tr ',' '\n' | head -n 5
}

# The benchmarks that scripts/gpu_check.sh runs, with the losses of the CPU. A measured step waits
# for the device three times (for its losses, its gradient norm and its end), not for each
# operation.
test_bench() {
    local counts=() repeats name small='model.num_layers=1 model.hidden_size=32 model.num_heads=1
        model.vocab_size=50 data.sequence_length=16 batch.global_size=2 batch.micro_size=2'
    run_on cpu 0 bench step --json --no-roofline --repeats 3 train.device=cpu $small
    mv out cpu
    for repeats in 1 3; do
        SIMT_WAITS=$PWD/waits run_on gpu 0 bench step --json --no-roofline --repeats $repeats \
            train.device=cuda $small
        counts+=("$(cat waits)")
    done
    [ $((counts[1] - counts[0])) -le 6 ] ||
        fail "two more steps waited $((counts[1] - counts[0])) times"
    grep -q '"name": *"attention_backward"' out ||
        fail "the output does not list the operations of the step"
    grep -q '"name": *"adamw_update", *"calls": *1,' out || fail "AdamW has more than one launch"
    paste -d' ' <(print_first_losses cpu) <(print_first_losses out) |
        awk 'NF != 2 { bad = 1 } { d = $1 - $2 }
            !(d <= 1e-4 && d >= -1e-4) { bad = 1 } END { exit bad || NR != 5 }' ||
        fail "the losses differ: $(print_first_losses cpu | tr '\n' ' ')"
    run_on gpu 0 bench kernels --json --repeats 1 train.device=cuda train.precision=bf16 $small
    for name in linear_forward attention_forward attention_backward adamw_update convert; do
        grep -q "\"name\": *\"$name\"" out || fail "bench kernels lacks $name"
    done
    ! grep -qE '"(copy_bytes|gemm_flops)_per_second": *(0[,.}]|-|n|i)' out || fail "no rates"
}

# `bench step` measures every objective, with the losses of the CPU.
test_bench_objectives() {
    local objective model words settings='model.num_layers=1 model.hidden_size=32 model.num_heads=1
        model.vocab_size=50 data.sequence_length=8 batch.global_size=2 batch.micro_size=2
        dpo.shared_prefix=false'
    local shared='model.normalize_embedding=true model.embedding_size=16 model.num_hidden_groups=1
        model.position_embedding_type=learned model.type_vocab_size=2'
    local plain='model.norm_placement=pre model.normalize_embedding=true model.norm_bias=false
        model.head_transform=false model.decoder_bias=false'
    while read -r objective model; do
        words="bench step --json --no-roofline --repeats 3 objective=$objective $settings"
        words+=" model.architecture=$model"
        run_on cpu 0 $words train.device=cpu
        mv out cpu
        run_on gpu 0 $words train.device=cuda
        grep -q '"device_bytes": *[1-9]' out || fail "$objective: no GPU memory is reported"
        paste -d' ' <(print_first_losses cpu) <(print_first_losses out) |
            awk 'NF != 2 { bad = 1 } { d = $1 - $2 }
                !(d <= 1e-4 && d >= -1e-4) { bad = 1 } END { exit bad || NR != 5 }' ||
            fail "$objective: the losses differ: $(print_first_losses cpu | tr '\n' ' ')"
    done <<END
mlm bert
mlm distilbert
mlm megatron-bert
mlm modernbert
mlm albert model.embedding_size=16
mlm transformer_encoder
mlm transformer_encoder ${shared//$'\n'/}
mlm transformer_encoder ${plain//$'\n'/}
mlm transformer_encoder model.qk_norm=full model.sliding_window=4 model.residual_multiplier=0.5
clm transformer_decoder model.position_embedding_type=rotary model.qk_norm=head
clm transformer_decoder model.norm_placement=both model.norm_type=rmsnorm model.sliding_window=3
clm transformer_decoder model.attn_logit_softcapping=5 model.final_logit_softcapping=9
classify distilbert
sft llama
dpo gpt2
reward gpt2
classify roberta
regress bert
classify_tokens bert
answer bert
choose gpt2
embed bert
END
}

test_errors() {
    run_on gpu 78 train recipe.yaml run_dir=none train.device=cuda parallel.reproducible=true
    expect_error 'in a fixed order'
    run_on gpu 69 train recipe.yaml run_dir=none parallel.reproducible=true
    expect_error 'order-independent sums are supported on CPUs'
    run_on cpu 69 train recipe.yaml run_dir=none train.device=cuda
    SIMT_DEVICES=0 run_on gpu 69 train recipe.yaml run_dir=none train.device=cuda
    expect_error 'no CUDA-capable device'
    SIMT_DEVICES=0 run_on gpu 0 plan recipe.yaml train.device=auto
    SIMT_MEMORY_MIB=1 run_on gpu 70 train recipe.yaml run_dir=none train.device=cuda
    expect_error 'out of memory on GPU 0'
    run_on gpu 79 train recipe.yaml run_dir=none train.device=cuda optimizer.learning_rate=100 \
        optimizer.weight_decay=1 optimizer.max_grad_norm=0 schedule.warmup_steps=0 \
        batch.global_size=4
    local samples='samples [0-9]* (data/train-.*h5 tokens [0-9]* to [0-9]*)'
    expect_error "$samples.*the weights were not updated"
}

# train.on_spike in bf16 with stochastic rounding, and weights in device memory.
test_spikes() {
    need_mpirun
    local flipping=${BIREME_FLIPPING_SIMT:?} bf16="$small train.device=cuda train.precision=bf16
        optimizer.stochastic_rounding=true schedule.name=constant evaluate.every=0"
    # The second update is skipped. A run that resumes after it rounds the weights in the same way.
    local gradient='FLIP_RANK=0 FLIP_STEP=1 FLIP_BEFORE=norm' steps counts
    for steps in 4 2; do
        program=$flipping
        export $gradient
        run_bireme 0 recipe.yaml run_dir=skip-$steps $bf16 train.on_spike=skip \
            train.max_steps=$steps
        unset FLIP_RANK FLIP_STEP FLIP_BEFORE
        grep -q '^warning: step 2: .*; the weights were not updated.*\[W-SPIKE\]$' stderr ||
            fail 'no skipped step'
    done
    # The averages contain all steps with a finite value, also those of queued steps.
    counts=$(sed -n '/"spikes"/,/"updated/s/^ *"count": *\([0-9]*\).*/\1/p' \
        skip-4/checkpoints/step-00000004/manifest.json | head -n 2 | tr '\n' ' ')
    [ "$counts" = '4 3 ' ] || fail "the averages are of $counts values"
    # All values from step 2 on are NaN. Step 3 exceeds the limit, and step 4 is queued.
    program=$flipping
    export FLIP_RANK=0 FLIP_STEP=1 FLIP_BEFORE=step FLIP_TENSOR=4 FLIP_NAN=1
    run_bireme 79 recipe.yaml run_dir=limit $bf16 train.on_spike=skip train.max_spikes=1
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE FLIP_TENSOR FLIP_NAN
    expect_error 'step 3: .*more than the 1 spikes of train.max_spikes'
    [ "$(grep -c '"event":"train"' limit/metrics.jsonl)" = 2 ] || fail 'a line of step 3'
    run_on gpu 0 train recipe.yaml run_dir=skip-2 train.on_spike=skip $bf16
    compare_weights skip-4 skip-2 00000004
    # With ZeRO a rank has its shards of the f32 weights, and all weights in bf16.
    program=$flipping
    export FLIP_RANK=1 FLIP_STEP=3 FLIP_BEFORE=step FLIP_TENSOR=4 FLIP_NAN=1
    run_ranks 2 0 recipe.yaml run_dir=back train.on_spike=rollback $bf16 parallel.zero_stage=1
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE FLIP_TENSOR FLIP_NAN
    grep -q '^warning: step 4: .*; back to step 2, and samples 8 to 15 are skipped' stderr ||
        fail 'no rollback'
    cp -r back from_disk
    rm -r from_disk/final from_disk/checkpoints/step-00000004
    set_samples from_disk/checkpoints/step-00000002/manifest.json 16
    program=$gpu
    run_ranks 2 0 train recipe.yaml run_dir=from_disk $bf16 parallel.zero_stage=1
    grep -q '^resuming from_disk/checkpoints/step-00000002' stderr || fail 'step 2 is not used'
    compare_weights back from_disk 00000004
}

# has_field NAME PATTERN: the newest train line has the field with a value of this pattern.
has_field() {
    grep '"event":"train"' "$run/metrics.jsonl" | tail -n 1 | grep -qE "\"$1\":$2[,}]" ||
        fail "$run: $1 is not $2: $(tail -n 3 "$run/metrics.jsonl")"
}

# Utilization and sensors in the metrics. The mock of NVML has power and clock of the emulated GPU;
# without NVML they are null. The peak of an emulated GPU is unknown unless it is set.
test_metrics() {
    local run=set number='[0-9.e+-]+'
    train_gpu set $small train.max_steps=2 train.peak_tflops=1e-3 log.tensorboard=true
    has_field gpu_power_watts '321.5'
    has_field gpu_clock_mhz '1980(.0)?'
    has_field gpu_memory_bytes '[1-9][0-9]*'
    has_field mfu $number
    has_field mfu_full_attention $number
    has_field tflops $number
    grep -qr gpu_power_watts set/tensorboard || fail 'no power in TensorBoard'
    run=unset
    BIREME_NVML=/nowhere train_gpu unset $small train.max_steps=2
    has_field gpu_power_watts null
    has_field gpu_clock_mhz null
    has_field gpu_memory_bytes '[1-9][0-9]*'
    has_field mfu null
    has_field mfu_full_attention null
    has_field tflops $number
    run=host
    train_cpu host $small train.max_steps=2
    has_field mfu null
    has_field tflops $number
    ! grep -q gpu_ host/metrics.jsonl || fail 'fields of a GPU on a CPU'
}

run_part "$@"
