#!/bin/bash
# Tests that an emulated GPU has work after each wait of the host between two steps.
# usage: test_waits.sh PART; ctest sets BIREME_PROGRAM (CPU), BIREME_SIMT and BIREME_SOURCE_DIR
# ctest: name simt_train
# ctest: parts waits head_waits dpo_waits batch_waits embed_waits mixed_waits
# ctest: timeout 300
# shellcheck disable=SC2034,SC2086,SC2154 # settings are words; tiny_training.sh shares variables
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
cpu=$program gpu=${BIREME_SIMT:?}

# count_waits RECIPE SETTING...: train 2 and 6 steps on the GPU. Both runs contain the first step,
# which times GEMMs, and the last step. The run of 6 steps has four more steps. Each of these steps
# has at most $waits_max waits, and the device has work after each wait.
waits_max=3
count_waits() {
    local recipe=$1 steps waits=() idle=()
    shift
    program=$gpu
    for steps in 2 6; do
        rm -f ranges
        SIMT_RANGES=$PWD/ranges SIMT_WAITS=$PWD/waits SIMT_IDLE=$PWD/idle run_bireme 0 train \
            "$recipe" run_dir="waits-${recipe%.yaml}-$steps" train.device=cuda \
            train.max_steps=$steps schedule.warmup_steps=0 evaluate.every=0 checkpoint.every=0 "$@"
        waits+=("$(cat waits)")
        idle+=("$(cat idle)")
    done
    echo "$recipe, four more steps: $((waits[1] - waits[0])) waits," \
        "$((idle[1] - idle[0])) of them idle"
    [ "${idle[0]}" = "${idle[1]}" ] ||
        fail "four more steps left the device without work $((idle[1] - idle[0])) times"
    [ $((waits[1] - waits[0])) -le $((4 * waits_max)) ] ||
        fail "four more steps waited $((waits[1] - waits[0])) times"
}

# The host queues a step before it waits for the results of the previous one.
test_waits() {
    local phases
    count_waits recipe.yaml model.num_layers=4 model.hidden_size=128 batch.global_size=2 \
        batch.micro_size=1 parallel.bucket_mib=1
    cp recipe.yaml fp8.yaml
    count_waits fp8.yaml model.num_layers=3 model.hidden_size=64 batch.global_size=2 \
        batch.micro_size=1 train.precision=fp8 fp8.recipe=delayed
    # The device decides about spikes.
    cp recipe.yaml skip.yaml
    cp recipe.yaml fp8-skip.yaml
    count_waits fp8-skip.yaml model.num_layers=3 model.hidden_size=64 batch.global_size=2 \
        batch.micro_size=1 train.precision=fp8 fp8.recipe=delayed train.on_spike=skip
    count_waits skip.yaml batch.global_size=2 batch.micro_size=1 train.on_spike=skip
    # NVTX ranges mark the phases of a step.
    phases='forward;loss;backward;data;forward;loss;backward;gradient reduction;step reduction;'
    [ "$(grep -v evaluation ranges | tail -10 | sed 's/^0 //' | tr '\n' ';')" = \
        "${phases}optimizer;" ] || fail "unexpected ranges: $(tail -12 ranges | tr '\n' ';')"
}

# write_rows FORMAT: write rows.jsonl. The first three fields of the format are words. The fourth
# field is 0, 1 or 2.
write_rows() {
    grep -oE '[a-z]{3,} [a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -60 |
        awk -v format="$1\n" '{ printf format, $1, $2, $3, NR % 3 }' >rows.jsonl
}

# Kernels compute the losses of task heads. The list at the end has one line for each kind of loss
# in kernels/head_loss.h. Evaluations read the outputs. All losses equal the losses of the CPU.
test_head_waits() {
    local objective format settings='train.max_steps=3 evaluate.every=2 schedule.warmup_steps=1
        checkpoint.every=0 batch.global_size=4 batch.micro_size=2 model.dropout=0'
    while read -r objective format; do
        write_rows "$format"
        program=$cpu
        run_bireme 0 prepare --objective "${objective/reward/dpo}" --tokenizer tokenizer \
            --input rows.jsonl --output $objective --validation-fraction 0.2 --sequence-length 32
        sed -e "s/clm/$objective/" -e "s/data\\//$objective\\//g" recipe.yaml >$objective.yaml
        run_bireme 0 train $objective.yaml run_dir=$objective-cpu train.device=cpu $settings
        program=$gpu
        run_bireme 0 train $objective.yaml run_dir=$objective-gpu train.device=cuda $settings
        compare_losses $objective-cpu $objective-gpu 1e-4
        count_waits $objective.yaml batch.global_size=4 batch.micro_size=2
    done <<'END'
classify {"text": "%s %s %s", "label": "%d"}
regress {"text": "%s %s %s", "label": %d.5}
answer {"question": "%s", "context": "red %s %s", "answer": "red", "answer_start": 0}
reward {"prompt": "%s ", "chosen": "%s", "rejected": "%s ", "else": %d}
END
}

# prepare_dpo: make the initial weights base/final, the shards dpo/ and the recipe dpo.yaml.
prepare_dpo() {
    run_bireme 0 train recipe.yaml run_dir=base train.device=cpu train.max_steps=2 \
        schedule.warmup_steps=0 evaluate.every=0 checkpoint.every=0
    write_rows '{"prompt": "%s ", "chosen": "%s", "rejected": "%s ", "else": %d}'
    run_bireme 0 prepare --objective dpo --tokenizer tokenizer --input rows.jsonl --output dpo \
        --validation-fraction 0.2 --sequence-length 32
    sed -e 's/clm/dpo/' -e 's/data\//dpo\//g' recipe.yaml >dpo.yaml
}

# Kernels compute the losses of preference pairs. `none` adds no setting. All losses equal the
# losses of the CPU.
test_dpo_waits() {
    local setting pairs='model.init_from=base/final batch.global_size=4 batch.micro_size=2
        model.dropout=0' few='train.max_steps=3 evaluate.every=2 schedule.warmup_steps=1
        checkpoint.every=0'
    prepare_dpo
    for setting in none dpo.shared_prefix=false dpo.loss_type=discopop; do
        cp dpo.yaml "dpo-$setting.yaml"
        [ $setting = none ] || pairs+=" $setting"
        program=$cpu
        run_bireme 0 train "dpo-$setting.yaml" run_dir="$setting-cpu" train.device=cpu $pairs $few
        program=$gpu
        run_bireme 0 train "dpo-$setting.yaml" run_dir="$setting-gpu" train.device=cuda $pairs $few
        compare_losses "$setting-cpu" "$setting-gpu" 1e-4
        count_waits "dpo-$setting.yaml" $pairs
    done
}

# A block of threads computes the losses that read the whole batch. The collect pass uploads each
# micro-batch a second time. The last batch of an evaluation is incomplete.
test_batch_waits() {
    need_mpirun
    local loss ranks pairs='model.init_from=base/final batch.global_size=5 batch.micro_size=3
        model.dropout=0' few='train.max_steps=3 evaluate.every=2 evaluate.batches=null
        schedule.warmup_steps=1 checkpoint.every=0'
    prepare_dpo
    for loss in aot aot_unpaired sft; do
        for ranks in 1 2; do
            program=$cpu
            run_ranks $ranks 0 train dpo.yaml run_dir=$loss-cpu-$ranks train.device=cpu \
                dpo.loss_type=$loss $pairs $few
            program=$gpu
            run_ranks $ranks 0 train dpo.yaml run_dir=$loss-gpu-$ranks train.device=cuda \
                dpo.loss_type=$loss $pairs $few
            compare_losses $loss-cpu-$ranks $loss-gpu-$ranks 1e-4
            compare_losses $loss-cpu-1 $loss-gpu-$ranks 1e-4
        done
        waits_max=5
        cp dpo.yaml "dpo-$loss.yaml"
        count_waits "dpo-$loss.yaml" dpo.loss_type=$loss $pairs
    done
}

# Kernels compute the contrastive loss of the global batch. The collect pass uploads each
# micro-batch a second time. The last batch of an evaluation is incomplete. All losses equal the
# losses of the CPU.
test_embed_waits() {
    need_mpirun
    local ranks pairs='batch.global_size=5 batch.micro_size=3 model.dropout=0'
    local few='train.max_steps=3 evaluate.every=2 evaluate.batches=null schedule.warmup_steps=1
        checkpoint.every=0'
    write_rows '{"text": "%s %s", "text_pair": "%s", "else": %d}'
    run_bireme 0 prepare --objective embed --tokenizer tokenizer --input rows.jsonl \
        --output embed --validation-fraction 0.2 --sequence-length 32
    sed -e 's/clm/embed/' -e 's/data\//embed\//g' recipe.yaml >embed.yaml
    for ranks in 1 2; do
        program=$cpu
        run_ranks $ranks 0 train embed.yaml run_dir=cpu-$ranks train.device=cpu $pairs $few
        program=$gpu
        run_ranks $ranks 0 train embed.yaml run_dir=gpu-$ranks train.device=cuda $pairs $few
        compare_losses cpu-$ranks gpu-$ranks 1e-4
        compare_losses cpu-1 gpu-$ranks 1e-4
    done
    waits_max=5
    count_waits embed.yaml $pairs
}

# count_pair_waits MODELS RESPONSE: train 2 and 6 steps on two ranks, and print the number of waits
# of rank 0 in four steps. MODELS is the number of models of GPU (one, two). RESPONSE is the value
# of train.on_spike.
count_pair_waits() {
    local waits=() steps program=./named
    for steps in 2 6; do
        run_ranks 2 0 train recipe.yaml run_dir="$1-$2-$steps" train.device=cuda \
            train.on_spike="$2" train.max_steps=$steps schedule.warmup_steps=0 evaluate.every=0 \
            checkpoint.every=100 batch.global_size=2 batch.micro_size=1 log.every=1
        waits+=("$(cat waits-0)")
    done
    echo $((waits[1] - waits[0]))
}

# With on_spike: skip, GPUs of one model decide about the updates. For GPUs of two models, the host
# decides as with rollback, because the scores of the GPUs can differ.
test_mixed_waits() {
    need_mpirun
    local one two host
    cat >named <<'END'
#!/bin/bash
[[ $* != *two-* ]] || export SIMT_NAME="model $OMPI_COMM_WORLD_RANK"
SIMT_WAITS=waits-$OMPI_COMM_WORLD_RANK exec "$BIREME_SIMT" "$@"
END
    chmod +x named
    one=$(count_pair_waits one skip) && two=$(count_pair_waits two skip) &&
        host=$(count_pair_waits one rollback) || exit
    echo "waits in four steps: $one with one model of GPU, $two with two, $host with rollback"
    [ "$two" = "$host" ] || fail "the host did not decide about the updates"
    [ "$one" != "$host" ] || fail "the GPUs did not decide about the updates"
    compare_losses one-skip-6 two-skip-6 0
}

run_part "$@"
