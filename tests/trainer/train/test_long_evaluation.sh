#!/bin/bash
# An evaluation or a sample may take longer than the limit of a long phase, 600 s: the limit applies
# to each token and each scored text. A faster clock makes the limit short.
# usage: test_long_evaluation.sh PART SHIM; SHIM is the library of tests/shim/fault_shim.c
# ctest: parts targets tasks rolling sample
# ctest: targets test_fault_shim
# ctest: timeout 120
shim=$(realpath "${2:?}")
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_shim

# run_fast SPEED ARGUMENT...: start a training with a clock of this speed.
run_fast() {
    local speed=$1
    shift
    LD_PRELOAD="$shim" FAULT_SPEED="$speed" "$program" train recipe.yaml run_dir=run \
        parallel.threads=1 parallel.start_seconds=1000000 "$@" >out 2>stderr &
    job=$!
}

# check_stop ARGUMENT...: the first evaluation takes 1200 s of a fast clock and is then stopped.
check_stop() {
    run_fast 400 "$@"
    stop_first_evaluation $job run 3
}

test_targets() {
    make_pairs
    for ((i = 0; i < 50; i++)); do cat pairs.a; done >many.a
    for ((i = 0; i < 50; i++)); do cat pairs.b; done >many.b
    run_bireme 0 prepare --objective seq2seq --tokenizer words --source many.a --target many.b \
        --output many
    check_stop "${common[@]:2}" 'data.validation=many/train-*.h5' evaluate.generate=true \
        evaluate.batches=1 evaluate.generation_num_beams=4 batch.global_size=6000
}

# write_task TYPE LINE...: write task.yaml with rows.jsonl.
write_task() {
    printf '%s\n' 'task: many' 'dataset_path: json' \
        'dataset_kwargs: {data_files: {test: rows.jsonl}}' 'test_split: test' \
        "output_type: $1" "${@:2}" >task.yaml
}

test_tasks() {
    awk 'BEGIN { for (i = 0; i < 200000; i++) print "{\"q\": \"the\", \"a\": \"x\"}" }' >rows.jsonl
    write_task generate_until 'doc_to_text: q' 'doc_to_target: a' \
        'generation_kwargs: {until: ["zzzz"], max_gen_toks: 28}'
    check_stop evaluate.tasks=task.yaml
}

# A batch of documents takes longer than the limit.
test_rolling() {
    make_pairs
    awk 'BEGIN { for (row = 0; row < 40; row++) {
            printf "{\"t\": \""
            for (i = 0; i < 50000; i++) printf "the list "
            print "\"}" } }' >rows.jsonl
    write_task loglikelihood_rolling 'doc_to_text: ""' 'doc_to_target: t'
    run_bireme 0 prepare --objective clm --tokenizer words --input "$source/LICENSE" \
        --output words-data --validation-fraction 0.2
    check_stop evaluate.tasks=task.yaml data.tokenizer=words \
        'data.train=words-data/train-*.h5' 'data.validation=words-data/validation-*.h5'
}

# print_sample_seconds: print the duration of the sample.
print_sample_seconds() {
    sed -nE 's/.*"event":"sample".*"seconds":([0-9.]+).*/\1/p' run/metrics.jsonl
}

# The first run measures the sample at normal speed. Each later run sets the clock such that the
# sample takes about 1200 s. The speed of the machine can change between runs, so there are up to
# five runs. The sample must take more than 700 s in one of them.
test_sample() {
    local sample=(data.validation=null evaluate.every=0 data.sequence_length=4096
        model.max_position_embeddings=4096 model.hidden_size=64 batch.global_size=1
        batch.micro_size=1 generate.prompt=L generate.max_new_tokens=4000 parallel.threads=1)
    local factor=0 try
    for try in 1 2 3 4 5; do
        rm -rf run
        run_fast "$factor" "${sample[@]}"
        wait_for_sample
        ! awk -v s="$(print_sample_seconds)" 'BEGIN { exit !(s > 700) }' || return 0
        factor=$(awk -v s="$(print_sample_seconds)" -v f="$factor" \
            'BEGIN { print int(1200 * (f > 0 ? f : 1) / s) }')
    done
    fail "the sample was too short in each of $try runs; the last one: $(cat run/metrics.jsonl)"
}

# wait_for_sample: end the run after its first sample.
wait_for_sample() {
    until grep -qs '"event":"sample"' run/metrics.jsonl; do
        kill -0 $job 2>/dev/null || fail 'the run ended before its sample'
        sleep 0.05
    done
    kill -KILL $job
    wait $job 2>/dev/null || true
}

run_part "$@"
