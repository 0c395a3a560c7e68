#!/bin/bash
# Training on a tiny corpus at different layouts: the losses are equal, and any layout reads the
# checkpoints.
# ctest: name train
# ctest: parts layouts tensor zero reproducible lamb moments moments_of_lamb llama qwen2 mistral
# ctest: parts qwen3 openai_gpt gemma2 gemma3_text smollm3 granite olmo olmo2 phi3 stablelm
# ctest: parts transformer_decoder change_layout masked_layouts
# ctest: timeout 900
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# Equal losses at any number of ranks, and equal bits in two runs on the same number, and at any
# number of threads.
test_layouts() {
    need_mpirun
    run_bireme 0 train recipe.yaml run_dir=one
    unset OMP_THREAD_LIMIT
    run_bireme 0 train recipe.yaml run_dir=again parallel.threads=3
    export OMP_THREAD_LIMIT=1
    compare_losses one again 0
    compare_weights one again 00000020
    for ranks in 2 4 5; do # 12 sequences do not divide by 5
        run_ranks $ranks 0 train recipe.yaml run_dir=np$ranks
        compare_losses one np$ranks 1e-5
    done
    run_ranks 2 0 train recipe.yaml run_dir=np2again
    compare_losses np2 np2again 0
    compare_weights np2 np2again 00000020
    run_bireme 0 train recipe.yaml run_dir=micro batch.micro_size=12
    compare_losses one micro 1e-5
    run_bireme 0 train recipe.yaml run_dir=mask data.document_mask=true
}

# check_traffic RUN: a step sends the number of bytes that the plan in `out` states, plus less than
# 5000 bytes of small messages.
check_traffic() {
    local sent planned
    sent=$(sed -n '/"event":"train","step":2,/s/.*"comm_bytes":\([0-9]*\).*/\1/p' \
        "$1/metrics.jsonl")
    planned=$(sed -n 's/.*"communicated_bytes_per_step": \([0-9.]*\).*/\1/p' out)
    awk -v s="$sent" -v p="$planned" 'BEGIN { exit !(p > 0 && s >= p && s < p + 5000) }' ||
        fail "$1 sent $sent bytes in a step instead of $planned"
}

# ZeRO: sharded moments give the same bits, and any layout resumes from a checkpoint of any other.
test_zero() {
    need_mpirun
    local common='model.hidden_size=40 optimizer.learning_rate=1e-3 parallel.bucket_mib=1'
    for ranks in 2 3 4; do
        for stage in 0 1 2; do
            # shellcheck disable=SC2086
            run_ranks $ranks 0 train recipe.yaml run_dir=zero$stage-$ranks \
                parallel.zero_stage=$stage $common
            [ $ranks = 4 ] && continue
            # shellcheck disable=SC2086
            run_bireme 0 plan recipe.yaml --ranks $ranks --json parallel.zero_stage=$stage $common
            check_traffic zero$stage-$ranks
        done
        compare_losses zero0-$ranks zero1-$ranks 0
        compare_losses zero0-$ranks zero2-$ranks 1e-5
    done
    # Each rank on a simulated host: five buckets of weights are gathered during the next forward
    # pass.
    local deep='model.hidden_size=128 model.num_layers=6 optimizer.learning_rate=1e-3
        parallel.bucket_mib=1 parallel.zero_stage=1 log.every=100 train.max_steps=8
        evaluate.every=4 checkpoint.every=8'
    # shellcheck disable=SC2086
    BIREME_COMM_NODES=3 run_ranks 3 0 train recipe.yaml run_dir=far $deep
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=near ${deep/stage=1/stage=0}
    compare_losses near far 0
    run_bireme 0 checkpoint diff near far
    # On one host each rank copies the weights when it needs them (lazy gather).
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=lazy $deep
    compare_losses near lazy 0
    run_bireme 0 checkpoint diff near lazy
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=one parallel.zero_stage=1 $common
    compare_losses one zero1-4 1e-5
    resume_from() { # RUN RANKS STAGE TOLERANCE: repeat the second half of RUN
        rm -rf other
        cp -r "$1" other
        rm -rf other/checkpoints/step-00000020 other/final
        # shellcheck disable=SC2086
        run_ranks "$2" 0 train recipe.yaml run_dir=other parallel.zero_stage="$3" $common
        compare_losses "$1" other "$4"
    }
    resume_from zero1-3 3 1 0
    compare_weights zero1-3 other 00000020
    resume_from zero2-4 4 2 0
    for layout in '1 0' '2 2' '5 1'; do
        # shellcheck disable=SC2086
        resume_from zero1-3 $layout 1e-5
    done
    resume_from zero0-2 3 2 1e-5
    resume_from zero2-4 3 0 1e-5
    common+=' train.precision=bf16 batch.micro_size=12'
    has_bf16 recipe.yaml || return 0
    for stage in 0 1 2; do # stages 1 and 2 shard the f32 master weights
        # shellcheck disable=SC2086
        run_ranks 3 0 train recipe.yaml run_dir=bf16-$stage parallel.zero_stage=$stage $common
    done
    for stage in 1 2; do # one micro-batch per rank: all stages sum gradients in the same order
        compare_losses bf16-0 bf16-$stage 0
        run_bireme 0 checkpoint diff bf16-0 bf16-$stage
    done
    common+=' parallel.zero_stage=1 optimizer.stochastic_rounding=true'
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=stochastic $common
    compare_losses bf16-1 stochastic 1e-2
    ! (compare_losses bf16-1 stochastic 0 2>/dev/null) || fail 'stochastic rounding changes nothing'
    cp -r stochastic again
    rm -rf again/checkpoints/step-00000020 again/final
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=again $common
    compare_losses stochastic again 0
    compare_weights stochastic again 00000020
    run_bireme 0 evaluate --checkpoint stochastic --data 'data/validation-*.h5' \
        --set train.precision=fp32
}

# LAMB: trust ratios of sharded tensors; optimizer moments from another run, without its step.
test_lamb() {
    need_mpirun
    local common='model.num_heads=4 optimizer.name=lamb optimizer.learning_rate=3e-2
        optimizer.beta2=0.999 parallel.bucket_mib=1
        schedule.name=polynomial_nvidia schedule.power=0.5'
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=one $common
    local layout ranks tensor stage
    for layout in '3 1 2' '2 2 0' '4 2 1'; do
        read -r ranks tensor stage <<<"$layout"
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir="lamb-$ranks-$tensor-$stage" \
            parallel.tensor="$tensor" \
            parallel.zero_stage="$stage" $common
        compare_losses one "lamb-$ranks-$tensor-$stage" 1e-5
    done
    cp -r lamb-4-2-1 again
    rm -rf again/checkpoints/step-00000020 again/final
    # shellcheck disable=SC2086
    run_ranks 4 0 train recipe.yaml run_dir=again parallel.tensor=2 parallel.zero_stage=1 $common
    compare_losses lamb-4-2-1 again 0
    compare_weights lamb-4-2-1 again 00000020
    local second='model.init_from=one train.max_steps=2 checkpoint.every=1 evaluate.every=0
        schedule.warmup_steps=0'
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=moments optimizer.init_from=one $second $common
    grep -q "optimizer moments from one/checkpoints/step-00000020, saved at step 20" stderr ||
        fail 'the source of the moments is not reported'
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=moments3 optimizer.init_from=lamb-4-2-1 \
        parallel.zero_stage=2 ${second/=one/=lamb-4-2-1} $common
    compare_losses moments moments3 1e-5
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=without_moments $second $common
    print_losses moments train >a
    print_losses without_moments train >b
    [ "$(head -1 a)" = "$(head -1 b)" ] || fail 'the first loss is not that of the same weights'
    [ "$(tail -1 a)" != "$(tail -1 b)" ] || fail 'the moments were not loaded'
    # shellcheck disable=SC2086
    run_bireme 66 train recipe.yaml run_dir=no optimizer.init_from=nowhere $second $common
    expect_error 'optimizer.init_from: .*nowhere'
}

# print_start_value RUN FIELD: print a number of the start event.
print_start_value() {
    sed -nE "s/.*\"event\":\"start\".*\"$2\":([0-9]+).*/\1/p" "$1/metrics.jsonl"
}

# repeat_half RUN RANKS SETTING...: copy RUN to `other` and repeat its steps 11 to 20.
repeat_half() {
    local run=$1 ranks=$2
    shift 2
    rm -rf other
    cp -r "$run" other
    rm -rf other/checkpoints/step-00000020 other/final
    run_ranks "$ranks" 0 train recipe.yaml run_dir=other "$@"
}

# expect_dtype FOLDER TYPE: the manifest of a checkpoint lists optimizer tensors of this type only.
expect_dtype() {
    [ "$(grep -A 2 '"family": "optimizer"' "$1/manifest.json" | grep '"dtype"' | sort -u |
        tr -d ' ')" = "\"dtype\":\"$2\"," ] || fail "$1 has other moments than $2"
}

# check_moments RUN SETTING...: RUN was trained on one rank with bf16 moments and these settings.
# Other layouts have the same losses within rounding, a resume has the same bits, and a resume with
# the other type converts.
check_moments() {
    local run=$1 layout ranks tensor stage
    shift
    expect_dtype "$run/checkpoints/step-00000020" bf16
    for layout in '3 1 1' '4 2 2'; do
        read -r ranks tensor stage <<<"$layout"
        run_ranks "$ranks" 0 train recipe.yaml run_dir="$run-$ranks" parallel.tensor="$tensor" \
            parallel.zero_stage="$stage" "$@"
        compare_losses "$run" "$run-$ranks" 1e-4
    done
    repeat_half "$run" 1 "$@"
    compare_losses "$run" other 0
    compare_weights "$run" other 00000020
    repeat_half "$run-4" 4 parallel.tensor=2 parallel.zero_stage=2 "$@"
    compare_losses "$run-4" other 0
    compare_weights "$run-4" other 00000020
    repeat_half "$run-4" 1 "$@"
    compare_losses "$run" other 1e-4
    repeat_half "$run" 2 "$@" parallel.zero_stage=1 optimizer.state_dtype=fp32
    tr -s '\n ' ' ' <stderr | grep -q 'optimizer-\*.h5 are stored in bf16 and converted to fp32' ||
        fail 'the conversion is not reported'
    compare_losses "$run" other 1e-2
    expect_dtype other/checkpoints/step-00000010 bf16
    expect_dtype other/checkpoints/step-00000020 f32
    mv other converted
    repeat_half converted 1 "$@"
    tr -s '\n ' ' ' <stderr | grep -q 'stored in bf16' && fail 'a conversion without need'
    expect_dtype other/checkpoints/step-00000020 bf16
}

# optimizer.state_dtype: bf16 moments of AdamW.
test_moments() {
    need_mpirun
    local half='optimizer.state_dtype=bf16 model.num_heads=4 optimizer.beta2=0.999
        optimizer.learning_rate=3e-3 parallel.bucket_mib=1' f32 bf16
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=half $half
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=full $half optimizer.state_dtype=fp32
    expect_dtype full/checkpoints/step-00000020 f32
    compare_losses half full 1e-2
    ! (compare_losses half full 0 2>/dev/null) || fail 'bf16 moments change nothing'
    f32=$(stat -c %s full/checkpoints/step-00000020/optimizer-*.h5)
    bf16=$(stat -c %s half/checkpoints/step-00000020/optimizer-*.h5)
    [ $((f32 - bf16)) -gt $((3 * $(print_start_value half trained_parameters))) ] ||
        fail "the file of the moments has $bf16 bytes instead of $f32"
    # shellcheck disable=SC2086
    check_moments half $half
    # A run of an earlier version has f32 moments; another run of bf16 ones begins with them.
    # shellcheck disable=SC2086
    repeat_half full 3 $half parallel.zero_stage=2
    tr -s '\n ' ' ' <stderr | grep -q 'stored in fp32 and converted to bf16' ||
        fail 'the conversion is not reported'
    compare_losses full other 1e-2
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=next $half model.init_from=half \
        optimizer.init_from=half train.max_steps=2 checkpoint.every=2 schedule.warmup_steps=0
    # A copy with other numbers of files keeps the type and the values.
    run_bireme 0 checkpoint reshard half --output two --ranks 2
    expect_dtype two bf16
    run_bireme 0 checkpoint diff half two
    # The same bits at any number of data-parallel ranks, and after a rollback.
    # shellcheck disable=SC2086
    check_reproducible recipe.yaml bits $half
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=copies train.on_spike=rollback $half
    compare_losses half copies 0
}

# bf16 moments of LAMB.
test_moments_of_lamb() {
    need_mpirun
    local half='optimizer.state_dtype=bf16 optimizer.name=lamb model.num_heads=4
        optimizer.beta2=0.999 optimizer.learning_rate=1e-2 parallel.bucket_mib=1'
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=lamb $half
    # shellcheck disable=SC2086
    check_moments lamb $half
}

# collect_loss COMMAND...: append the loss that the command prints to the file `validation_losses`.
collect_loss() {
    "$@" --data 'data/validation-*.h5' --json
    sed -E 's/.*"loss": ?([0-9.]+).*/\1/' out >>validation_losses
}

# Equal losses at all tensor-parallel and data-parallel sizes; one rank reads any checkpoint.
test_tensor() {
    need_mpirun
    # With the recipe's learning rate of 1e-2, rounding grows by a factor of 10,000 in 50 steps.
    local four=(train recipe.yaml model.num_heads=4 optimizer.learning_rate=3e-3)
    run_bireme 0 "${four[@]}" run_dir=t1d1
    local all part layout name tensor data
    all=$(print_start_value t1d1 parameters)
    for layout in '2 1' '1 2' '2 2' '4 1' '1 4'; do
        read -r tensor data <<<"$layout"
        name=t${tensor}d$data
        run_ranks $((tensor * data)) 0 "${four[@]}" run_dir="$name" parallel.tensor="$tensor"
        compare_losses t1d1 "$name" 1e-5
        # A rank holds a part of each matrix, and all norms and positions.
        part=$(print_start_value "$name" rank_parameters)
        part=$((part * $(print_start_value "$name" tensor)))
        [ $part -ge "$all" ] && [ $part -le $((all + tensor * 4096)) ] ||
            fail "$name: wrong rank_parameters"
    done
    run_ranks 4 0 "${four[@]}" run_dir=t2d2z2 parallel.tensor=2 parallel.zero_stage=2
    compare_losses t1d1 t2d2z2 1e-5
    run_ranks 2 0 "${four[@]}" run_dir=t2d1s parallel.tensor=2 parallel.sequence=true
    compare_losses t1d1 t2d1s 1e-5
    run_ranks 4 0 "${four[@]}" run_dir=t4d1s parallel.tensor=4 parallel.sequence=true
    compare_losses t1d1 t4d1s 1e-5
    for name in t1d1 t2d2z2 t4d1s; do
        collect_loss run_bireme 0 evaluate --checkpoint $name
    done
    collect_loss run_ranks 2 0 evaluate --checkpoint t4d1 --set parallel.tensor=2
    awk 'NR == 1 { first = $1 }
        { d = $1 - first; if (d < 0) d = -d; if (!(d <= 1e-5 * first)) bad = 1 }
        END { exit bad || NR != 4 }' validation_losses ||
        fail "validation losses: $(tr '\n' ' ' <validation_losses)"
    run_bireme 0 generate --checkpoint t2d1 --prompt 'The ' --max-new-tokens 8 --temperature 0
    # A checkpoint of two tensor-parallel ranks, resumed at other layouts.
    for layout in '4 4' '2 1' '1 1'; do
        read -r data tensor <<<"$layout"
        rm -rf other
        cp -r t2d1 other
        rm -rf other/final other/checkpoints/step-00000020
        run_ranks "$data" 0 "${four[@]}" run_dir=other parallel.tensor="$tensor"
        compare_losses t1d1 other 1e-5
    done
    run_ranks 3 78 "${four[@]}" run_dir=no parallel.tensor=2
    grep -q 'set parallel.tensor to 1 ' stderr || fail 'the message does not list the divisors'
    run_bireme 78 "${four[@]}" run_dir=no parallel.tensor=3
    grep -q 'values that fit the model: 1, 2, 4' stderr ||
        fail 'the message does not list the valid values'
}

# compare_norms RUN RUN: the gradient norms are equal.
compare_norms() {
    for run in "$1" "$2"; do
        sed -n 's/.*"event":"train","step":\([0-9]*\).*"grad_norm":\([^,]*\).*/\1 \2/p' \
            "$run/metrics.jsonl" >"norms-$run"
    done
    [ -s "norms-$1" ] && cmp "norms-$1" "norms-$2" || fail "gradient norms of $1 and $2 differ"
}

# parallel.reproducible: equal bits at any number of data-parallel ranks and any ZeRO stage, with an
# uneven division (5 micro-batches and a short one), and after a resume on another number of ranks.
test_reproducible() {
    need_mpirun
    local common='parallel.reproducible=true parallel.bucket_mib=1 batch.global_size=16
        model.hidden_size=40 optimizer.max_grad_norm=0.5 optimizer.learning_rate=1e-3'
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=one $common
    run_bireme 0 train recipe.yaml run_dir=plain ${common#* }
    compare_losses one plain 1e-5
    ! (compare_losses one plain 0 2>/dev/null) ||
        fail 'sums in another order have the same bits: nothing is tested'
    local layout ranks stage
    for layout in '2 0' '3 1' '4 2' '5 0'; do
        read -r ranks stage <<<"$layout"
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir="r$ranks$stage" \
            parallel.zero_stage="$stage" $common
        compare_losses one "r$ranks$stage" 0
        compare_norms one "r$ranks$stage"
        run_bireme 0 checkpoint diff one "r$ranks$stage"
        # shellcheck disable=SC2086
        run_bireme 0 plan recipe.yaml --ranks "$ranks" --json parallel.zero_stage="$stage" $common
        check_traffic "r$ranks$stage"
    done
    rm -rf r42/final r42/checkpoints/step-00000020
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=r42 parallel.zero_stage=1 $common
    compare_losses one r42 0
    run_bireme 0 checkpoint diff one r42
    # Tensor parallelism changes the bits, but they do not depend on the number of data-parallel
    # ranks.
    # shellcheck disable=SC2086
    run_ranks 2 0 train recipe.yaml run_dir=t2d1 parallel.tensor=2 $common
    compare_losses one t2d1 1e-5
    # shellcheck disable=SC2086
    run_ranks 4 0 train recipe.yaml run_dir=t2d2 parallel.tensor=2 parallel.zero_stage=1 $common
    compare_losses t2d1 t2d2 0
    compare_norms t2d1 t2d2
    run_bireme 0 checkpoint diff t2d1 t2d2
}

# data.document_mask with dropout and four micro-batches per step: equal losses at any layout, with
# and without sequence parallelism.
test_masked_layouts() {
    need_mpirun
    "$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" \
        --output parts \
        --documents paragraph --validation-fraction 0.2 >out 2>stderr || fail prepare
    local layout ranks tensor sequence stage
    local masked=(train recipe.yaml 'data.train=parts/train-*.h5'
        'data.validation=parts/validation-*.h5' model.num_heads=4 model.attention_dropout=0.1
        optimizer.learning_rate=3e-3)
    run_bireme 0 "${masked[@]}" run_dir=unmasked
    run_bireme 0 "${masked[@]}" run_dir=one data.document_mask=true
    ! (compare_losses unmasked one 1e-5 2>/dev/null) || fail 'the mask changes nothing'
    for layout in '2 2 true 0' '4 2 true 2' '4 4 true 0' '4 2 false 1' '3 1 false 1'; do
        read -r ranks tensor sequence stage <<<"$layout"
        run_ranks "$ranks" 0 "${masked[@]}" run_dir="m$ranks$tensor$sequence" \
            data.document_mask=true \
            parallel.tensor="$tensor" parallel.sequence="$sequence" parallel.zero_stage="$stage"
        compare_losses one "m$ranks$tensor$sequence" 1e-5
    done
}

# A checkpoint of 2 x 2 ranks with sharded moments, resumed at any other layout. At the same layout
# the bits are equal.
test_change_layout() {
    need_mpirun
    local settings='model.num_heads=4 model.hidden_size=40 optimizer.learning_rate=3e-3
        parallel.bucket_mib=1'
    # shellcheck disable=SC2086
    run_ranks 4 0 train recipe.yaml run_dir=made parallel.tensor=2 parallel.zero_stage=1 $settings
    local layout ranks tensor stage tolerance
    for layout in '4 2 1 0' '1 1 0 1e-5' '4 4 0 1e-5' '3 1 1 1e-5' '4 2 2 1e-5'; do
        read -r ranks tensor stage tolerance <<<"$layout"
        rm -rf other
        cp -r made other
        rm -rf other/final other/checkpoints/step-00000020
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir=other parallel.tensor="$tensor" \
            parallel.zero_stage="$stage" \
            $settings
        compare_losses made other "$tolerance"
    done
    run_bireme 0 checkpoint diff made other --tolerance 0.5
}

# test_architecture SETTING...: a model at several layouts, resume, generation.
test_architecture() {
    need_mpirun
    local settings="$* parallel.bucket_mib=1"
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=one $settings
    awk '/"event":"train"/ { n++ } END { exit n != 20 }' one/metrics.jsonl || fail 'not 20 steps'
    local layout ranks more
    for layout in '2 parallel.tensor=2' \
        '4 parallel.tensor=2 parallel.sequence=true parallel.zero_stage=2'; do
        read -r ranks more <<<"$layout"
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir="np$ranks" $more $settings
        compare_losses one "np$ranks" 1e-5
    done
    rm -rf np4/checkpoints/step-00000020 np4/final
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=np4 $settings
    compare_losses one np4 1e-5
    run_bireme 0 generate --checkpoint one --prompt 'The ' --max-new-tokens 8 --temperature 0
    # shellcheck disable=SC2086
    run_bireme 0 plan recipe.yaml $settings
}

# test_rotary ARCHITECTURE SETTING...: the same for a model with rotary positions and grouped heads.
test_rotary() {
    local settings="model.architecture=$* model.num_heads=4 model.num_kv_heads=2
        model.intermediate_size=48 model.dropout=0 model.tie_word_embeddings=false"
    # shellcheck disable=SC2086
    test_architecture $settings
    # shellcheck disable=SC2086
    run_bireme 78 train recipe.yaml run_dir=no parallel.tensor=4 $settings
    grep -qF '4 does not divide model.num_kv_heads (2)' stderr ||
        fail 'the message does not name the key-value heads'
}

# OLMo 2: its norms of queries and keys read all heads, including the heads of the other
# tensor-parallel ranks. bf16 runs of one and of two ranks differ by rounding.
test_olmo2() {
    test_rotary olmo2 optimizer.learning_rate=1e-3
    local settings='model.architecture=olmo2 model.num_heads=4 model.num_kv_heads=2
        model.intermediate_size=48 model.dropout=0.1 parallel.bucket_mib=1
        optimizer.learning_rate=1e-3'
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=dropped $settings
    # shellcheck disable=SC2086
    run_ranks 2 0 train recipe.yaml run_dir=full parallel.tensor=2 \
        train.activation_checkpointing=full $settings
    compare_losses dropped full 1e-5
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=selective train.activation_checkpointing=selective \
        $settings
    compare_losses dropped selective 0
    run_bireme 0 generate --checkpoint one --prompt 'The ' --max-new-tokens 8 --temperature 0
    mv out cached
    run_bireme 0 generate --checkpoint one --prompt 'The ' --max-new-tokens 8 --temperature 0 \
        --no-cache
    cmp out cached || fail 'generation without a cache differs'
    has_bf16 recipe.yaml || return 0
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=bf16 train.precision=bf16 $settings
    # shellcheck disable=SC2086
    run_ranks 2 0 train recipe.yaml run_dir=bf16-2 train.precision=bf16 parallel.tensor=2 $settings
    compare_losses bf16 bf16-2 1e-2
}

case ${1:-} in
llama | qwen2) test_rotary "$1" ;;
mistral) test_rotary mistral model.sliding_window=8 model.head_dim=12 ;;
qwen3) test_rotary qwen3 model.head_dim=12 ;;
smollm3) test_rotary smollm3 model.no_rope_layer_interval=2 ;;
olmo) test_rotary olmo ;;
stablelm) test_rotary stablelm model.partial_rotary_factor=0.5 model.use_qkv_bias=true ;;
phi3) test_rotary phi3 model.head_dim=12 model.partial_rotary_factor=0.5 model.sliding_window=8 ;;
granite)
    test_rotary granite model.embedding_multiplier=3 model.attention_multiplier=0.3 \
        model.residual_multiplier=0.4 model.logits_scaling=2
    ;;
gemma2)
    test_rotary gemma2 model.head_dim=12 model.sliding_window=8 model.attn_logit_softcapping=2 \
        model.final_logit_softcapping=3 optimizer.learning_rate=1e-3
    ;;
gemma3_text)
    test_rotary gemma3_text model.head_dim=12 model.sliding_window=8 \
        model.sliding_window_pattern=2 optimizer.learning_rate=1e-3
    ;;
openai_gpt) test_architecture model.architecture=openai-gpt model.num_heads=4 ;;
transformer_decoder)
    test_architecture model.architecture=transformer_decoder model.num_heads=4 \
        model.num_kv_heads=2 model.head_dim=10 model.norm_placement=branch \
        model.position_embedding_type=sinusoidal model.activation=relu2 model.mlp_bias=true
    ;;
*) run_part "$@" ;;
esac
