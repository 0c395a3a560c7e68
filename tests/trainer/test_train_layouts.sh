#!/bin/bash
# Training at every arrangement of ranks, on a tiny corpus (the licence's text): the same losses, checkpoints for all.
# usage: test_train_layouts.sh PART; BIREME_PROGRAM and BIREME_SOURCE_DIR are set by ctest
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"

layouts() { # the same losses at any number of ranks, the same bits at the same one
    need_mpirun
    run 0 train recipe.yaml run_dir=one
    run 0 train recipe.yaml run_dir=again
    same_losses one again 0
    same_weights one again 00000020
    for ranks in 2 4 5; do # 12 sequences do not divide by 5
        run_ranks $ranks 0 train recipe.yaml run_dir=np$ranks
        same_losses one np$ranks 1e-5
    done
    run_ranks 2 0 train recipe.yaml run_dir=np2again
    same_losses np2 np2again 0
    same_weights np2 np2again 00000020
    run 0 train recipe.yaml run_dir=micro batch.micro_size=12
    same_losses one micro 1e-5
    run 0 train recipe.yaml run_dir=mask data.document_mask=true
}

sent_as_planned() { # RUN: a step's bytes, but for its small meetings; the plan is in out
    local sent planned
    sent=$(sed -n '/"event":"train","step":2,/s/.*"comm_bytes":\([0-9]*\).*/\1/p' "$1/metrics.jsonl")
    planned=$(sed -n 's/.*"communicated_bytes_per_step": \([0-9.]*\).*/\1/p' out)
    awk -v s="$sent" -v p="$planned" 'BEGIN { exit !(p > 0 && s >= p && s < p + 5000) }' ||
        fail "$1 sent $sent bytes in a step, planned are $planned"
}

# Moments of shares: the same bits as with all of them, and any layout goes on from any other's checkpoint.
zero() {
    need_mpirun
    local common='model.hidden_size=40 optimizer.learning_rate=1e-3 train.max_steps=50 evaluate.every=25 checkpoint.every=25 parallel.bucket_mib=1'
    for ranks in 2 3 4; do
        for stage in 0 1 2; do
            # shellcheck disable=SC2086
            run_ranks $ranks 0 train recipe.yaml run_dir=zero$stage-$ranks parallel.zero_stage=$stage $common
            [ $ranks = 4 ] && continue
            # shellcheck disable=SC2086
            run 0 plan recipe.yaml --ranks $ranks --json parallel.zero_stage=$stage $common
            sent_as_planned zero$stage-$ranks
        done
        same_losses zero0-$ranks zero1-$ranks 0
        same_losses zero0-$ranks zero2-$ranks 1e-5
    done
    # each rank as if on a host of its own: five buckets of weights are under way through the next forward pass
    local deep='model.hidden_size=128 model.num_layers=6 optimizer.learning_rate=1e-3 parallel.bucket_mib=1 parallel.zero_stage=1 log.every=100'
    # shellcheck disable=SC2086
    BIREME_COMM_NODES=3 run_ranks 3 0 train recipe.yaml run_dir=far $deep
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=near ${deep/stage=1/stage=0}
    same_losses near far 0
    run 0 checkpoint diff near far
    # on one host each rank fetches them when it reads them
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=lent $deep
    same_losses near lent 0
    run 0 checkpoint diff near lent
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=one parallel.zero_stage=1 $common
    same_losses one zero1-4 1e-5
    go_on() { # RUN RANKS STAGE TOLERANCE: from the middle of RUN
        rm -rf other
        cp -r "$1" other
        rm -rf other/checkpoints/step-00000050 other/final
        # shellcheck disable=SC2086
        run_ranks "$2" 0 train recipe.yaml run_dir=other parallel.zero_stage="$3" $common
        same_losses "$1" other "$4"
    }
    go_on zero1-3 3 1 0
    same_weights zero1-3 other 00000050
    go_on zero2-4 4 2 0
    for layout in '1 0' '2 2' '5 1'; do
        # shellcheck disable=SC2086
        go_on zero1-3 $layout 1e-5
    done
    go_on zero0-2 3 2 1e-5
    go_on zero2-4 3 0 1e-5
    common+=' train.precision=bf16 train.max_steps=20 evaluate.every=10 checkpoint.every=10'
    common=${common/train.max_steps=50 evaluate.every=25 checkpoint.every=25/batch.micro_size=12}
    has_bf16 recipe.yaml || return 0
    for stage in 0 1 2; do # f32 weights of the shares alone
        # shellcheck disable=SC2086
        run_ranks 3 0 train recipe.yaml run_dir=bf16-$stage parallel.zero_stage=$stage $common
    done
    for stage in 1 2; do # one micro-batch a rank: gradients are summed in one order at all stages
        same_losses bf16-0 bf16-$stage 0
        run 0 checkpoint diff bf16-0 bf16-$stage
    done
    common+=' parallel.zero_stage=1 optimizer.stochastic_rounding=true'
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=drawn $common
    same_losses bf16-1 drawn 1e-2
    ! (same_losses bf16-1 drawn 0 2>/dev/null) || fail 'nothing is rounded at random'
    cp -r drawn again
    rm -rf again/checkpoints/step-00000020 again/final
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=again $common
    same_losses drawn again 0
    same_weights drawn again 00000020
    run 0 evaluate --checkpoint drawn --data 'data/validation-*.h5' --set train.precision=fp32
}

# Trust ratios of whole tensors, of which ranks hold parts; and moments taken over without their step.
lamb() {
    need_mpirun
    local common='model.num_heads=4 optimizer.name=lamb optimizer.learning_rate=3e-2 optimizer.beta2=0.999 parallel.bucket_mib=1
        schedule.name=polynomial_nvidia schedule.power=0.5'
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=one $common
    local layout ranks tensor stage
    for layout in '3 1 2' '2 2 0' '4 2 1'; do
        read -r ranks tensor stage <<<"$layout"
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir="lamb-$ranks-$tensor-$stage" parallel.tensor="$tensor" \
            parallel.zero_stage="$stage" $common
        same_losses one "lamb-$ranks-$tensor-$stage" 1e-5
    done
    cp -r lamb-4-2-1 again
    rm -rf again/checkpoints/step-00000020 again/final
    # shellcheck disable=SC2086
    run_ranks 4 0 train recipe.yaml run_dir=again parallel.tensor=2 parallel.zero_stage=1 $common
    same_losses lamb-4-2-1 again 0
    same_weights lamb-4-2-1 again 00000020
    local second='model.init_from=one train.max_steps=2 checkpoint.every=1 evaluate.every=0 schedule.warmup_steps=0'
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=kept optimizer.init_from=one $second $common
    grep -q "optimizer moments from one/checkpoints/step-00000020, saved at step 20" told || fail 'not told whose moments'
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=kept3 optimizer.init_from=lamb-4-2-1 parallel.zero_stage=2 ${second/=one/=lamb-4-2-1} \
        $common
    same_losses kept kept3 1e-5
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=left $second $common
    losses kept train >a
    losses left train >b
    [ "$(head -1 a)" = "$(head -1 b)" ] || fail 'the first loss is not that of the same weights'
    [ "$(tail -1 a)" != "$(tail -1 b)" ] || fail 'the moments were not taken'
    # shellcheck disable=SC2086
    run 66 train recipe.yaml run_dir=no optimizer.init_from=nowhere $second $common
    one_line 66 'optimizer.init_from: .*nowhere'
}

start_number() { # RUN FIELD: of the start line
    sed -nE "s/.*\"event\":\"start\".*\"$2\":([0-9]+).*/\1/p" "$1/metrics.jsonl"
}

held_out() { # COMMAND...: its loss, beside the others
    "$@" --data 'data/validation-*.h5' --json
    sed -E 's/.*"loss": ?([0-9.]+).*/\1/' out >>held_out
}

tensor() { # the same losses however the ranks share model and data; any checkpoint is read by one rank
    need_mpirun
    local four=(train recipe.yaml model.num_heads=4 train.max_steps=50 checkpoint.every=25)
    run 0 "${four[@]}" run_dir=t1d1
    local all part layout name tensor data
    all=$(start_number t1d1 parameters)
    for layout in '2 1' '1 2' '2 2' '4 1' '1 4'; do
        read -r tensor data <<<"$layout"
        name=t${tensor}d$data
        run_ranks $((tensor * data)) 0 "${four[@]}" run_dir="$name" parallel.tensor="$tensor"
        same_losses t1d1 "$name" 1e-5
        # a rank holds its share of the matrices, and all of the norms and positions
        part=$(($(start_number "$name" rank_parameters) * $(start_number "$name" tensor)))
        [ $part -ge "$all" ] && [ $part -le $((all + tensor * 4096)) ] || fail "$name: rank_parameters"
    done
    run_ranks 4 0 "${four[@]}" run_dir=t2d2z2 parallel.tensor=2 parallel.zero_stage=2
    same_losses t1d1 t2d2z2 1e-5
    run_ranks 2 0 "${four[@]}" run_dir=t2d1s parallel.tensor=2 parallel.sequence=true
    same_losses t1d1 t2d1s 1e-5
    run_ranks 4 0 "${four[@]}" run_dir=t4d1s parallel.tensor=4 parallel.sequence=true
    same_losses t1d1 t4d1s 1e-5
    for name in t1d1 t2d2z2 t4d1s; do
        held_out run 0 evaluate --checkpoint $name
    done
    held_out run_ranks 2 0 evaluate --checkpoint t4d1 --set parallel.tensor=2
    awk 'NR == 1 { first = $1 } { d = $1 - first; if (d < 0) d = -d; if (!(d <= 1e-5 * first)) bad = 1 }
        END { exit bad || NR != 4 }' held_out || fail "held-out losses: $(tr '\n' ' ' <held_out)"
    run 0 generate --checkpoint t2d1 --prompt 'The ' --max-new-tokens 8 --temperature 0
    # saved by two ranks that share a model, continued by four, by two that do not, and by one
    for layout in '4 4' '2 1' '1 1'; do
        read -r data tensor <<<"$layout"
        rm -rf other
        cp -r t2d1 other
        rm -rf other/final other/checkpoints/step-00000050
        run_ranks "$data" 0 "${four[@]}" run_dir=other parallel.tensor="$tensor"
        same_losses t1d1 other 1e-5
    done
    run_ranks 3 78 "${four[@]}" run_dir=no parallel.tensor=2
    grep -q 'use one of 1, 3' told || fail 'the divisors are not told'
    run 78 "${four[@]}" run_dir=no parallel.tensor=3
    grep -q 'valid values: 1, 2, 4' told || fail 'the message does not list the valid values'
}

same_norms() { # RUN RUN
    for run in "$1" "$2"; do
        sed -n 's/.*"event":"train","step":\([0-9]*\).*"grad_norm":\([^,]*\).*/\1 \2/p' "$run/metrics.jsonl" >"norms-$run"
    done
    [ -s "norms-$1" ] && cmp "norms-$1" "norms-$2" || fail "gradient norms of $1 and $2 differ"
}

# The same bits at any number of data-parallel ranks and ZeRO stage, also where micro-batches do not divide evenly
# (5 and 1 short one), and after a resume at another number.
reproducible() {
    need_mpirun
    local common='parallel.reproducible=true parallel.bucket_mib=1 batch.global_size=16 model.hidden_size=40 optimizer.max_grad_norm=0.5 optimizer.learning_rate=1e-3'
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=one $common
    run 0 train recipe.yaml run_dir=plain ${common#* }
    same_losses one plain 1e-5
    ! (same_losses one plain 0 2>/dev/null) || fail 'sums in another order have the same bits: nothing is shown'
    local layout ranks stage
    for layout in '2 0' '3 1' '4 2' '5 0'; do
        read -r ranks stage <<<"$layout"
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir="r$ranks$stage" parallel.zero_stage="$stage" $common
        same_losses one "r$ranks$stage" 0
        same_norms one "r$ranks$stage"
        run 0 checkpoint diff one "r$ranks$stage"
        # shellcheck disable=SC2086
        run 0 plan recipe.yaml --ranks "$ranks" --json parallel.zero_stage="$stage" $common
        sent_as_planned "r$ranks$stage"
    done
    rm -rf r42/final r42/checkpoints/step-00000020
    # shellcheck disable=SC2086
    run_ranks 3 0 train recipe.yaml run_dir=r42 parallel.zero_stage=1 $common
    same_losses one r42 0
    run 0 checkpoint diff one r42
    # ranks that share a model make other bits, but the same ones at any number of copies
    # shellcheck disable=SC2086
    run_ranks 2 0 train recipe.yaml run_dir=t2d1 parallel.tensor=2 $common
    same_losses one t2d1 1e-5
    # shellcheck disable=SC2086
    run_ranks 4 0 train recipe.yaml run_dir=t2d2 parallel.tensor=2 parallel.zero_stage=1 $common
    same_losses t2d1 t2d2 0
    same_norms t2d1 t2d2
    run 0 checkpoint diff t2d1 t2d2
}

# Documents that do not see each other, dropout everywhere, four micro-batches a step: the same losses however ranks
# share rows, heads and data.
masked_layouts() {
    need_mpirun
    "$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" --output parts \
        --documents paragraph --validation-fraction 0.2 >out 2>told || fail prepare
    local masked=(train recipe.yaml 'data.train=parts/train-*.h5' 'data.validation=parts/validation-*.h5' model.num_heads=4
        model.attention_dropout=0.1 optimizer.learning_rate=3e-3) layout ranks tensor sequence stage
    run 0 "${masked[@]}" run_dir=seen
    run 0 "${masked[@]}" run_dir=one data.document_mask=true
    ! (same_losses seen one 1e-5 2>/dev/null) || fail 'the mask changes nothing'
    for layout in '2 2 true 0' '4 2 true 2' '4 4 true 0' '4 2 false 1' '3 1 false 1'; do
        read -r ranks tensor sequence stage <<<"$layout"
        run_ranks "$ranks" 0 "${masked[@]}" run_dir="m$ranks$tensor$sequence" data.document_mask=true \
            parallel.tensor="$tensor" parallel.sequence="$sequence" parallel.zero_stage="$stage"
        same_losses one "m$ranks$tensor$sequence" 1e-5
    done
}

# Two times two ranks with sharded moments; continued by any other arrangement, and by the same one to the bit.
any_layout() {
    need_mpirun
    local settings='model.num_heads=4 model.hidden_size=40 optimizer.learning_rate=3e-3 parallel.bucket_mib=1'
    # shellcheck disable=SC2086
    run_ranks 4 0 train recipe.yaml run_dir=made parallel.tensor=2 parallel.zero_stage=1 $settings
    local layout ranks tensor stage tolerance
    for layout in '4 2 1 0' '1 1 0 1e-5' '4 4 0 1e-5' '3 1 1 1e-5' '4 2 2 1e-5'; do
        read -r ranks tensor stage tolerance <<<"$layout"
        rm -rf other
        cp -r made other
        rm -rf other/final other/checkpoints/step-00000020
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir=other parallel.tensor="$tensor" parallel.zero_stage="$stage" \
            $settings
        same_losses made other "$tolerance"
    done
    run 0 checkpoint diff made other --tolerance 0.5
}

# Another architecture through all of it: layouts, resuming, generation.
llama() {
    need_mpirun
    local settings='model.architecture=llama model.num_heads=4 model.num_kv_heads=2 model.intermediate_size=48 model.dropout=0
        model.tie_word_embeddings=false parallel.bucket_mib=1'
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=one $settings
    awk '/"event":"train"/ { n++ } END { exit n != 20 }' one/metrics.jsonl || fail 'not 20 steps'
    local layout ranks more
    for layout in '2 parallel.tensor=2' '4 parallel.tensor=2 parallel.sequence=true parallel.zero_stage=2'; do
        read -r ranks more <<<"$layout"
        # shellcheck disable=SC2086
        run_ranks "$ranks" 0 train recipe.yaml run_dir="np$ranks" $more $settings
        same_losses one "np$ranks" 1e-5
    done
    rm -rf np4/checkpoints/step-00000020 np4/final
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=np4 $settings
    same_losses one np4 1e-5
    run 0 generate --checkpoint one --prompt 'The ' --max-new-tokens 8 --temperature 0
    # shellcheck disable=SC2086
    run 0 plan recipe.yaml $settings
    # shellcheck disable=SC2086
    run 78 train recipe.yaml run_dir=no parallel.tensor=4 $settings
    grep -qF '4 does not divide model.num_kv_heads (2)' told || fail 'the key-value heads are not named'
}

case ${1:-} in
layouts | tensor | zero | reproducible | lamb | llama | any_layout | masked_layouts) "$1" ;;
*)
    echo "no such part: ${1:-}" >&2
    exit 64
    ;;
esac
echo "$1: all as it should be"
