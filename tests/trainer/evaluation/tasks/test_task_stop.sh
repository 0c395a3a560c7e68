#!/bin/bash
# A stop request and the end of train.wall_minutes end the tasks of an evaluation between two
# batches. The next session repeats the evaluation.
# ctest: timeout 180
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

awk 'BEGIN { for (i = 0; i < 100000; i++) print "{\"q\": \"the\", \"a\": \"x\"}" }' >rows.jsonl
cat >task.yaml <<'EOF'
task: many
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: q
doc_to_target: a
generation_kwargs: {until: ["zzzz"], max_gen_toks: 28}
EOF
tasks=(train recipe.yaml evaluate.tasks=task.yaml train.max_steps=6)
stop_task() {
    local run=$1
    shift
    "$@" "$program" "${tasks[@]}" run_dir="$run" parallel.threads=1 >out 2>stderr &
    local job=$!
    until grep -qs '"event":"start"' "$run/metrics.jsonl"; do sleep 0.1; done
    sleep 1
    kill -USR1 $job
    wait $job
    code=$?
    [ $code = 75 ] || fail "$run: a stop in a task ended with $code"
    grep -q '^stopped after step 0 ' stderr || fail "$run: the stop is not reported"
    ! grep -q '"event":"evaluate"' "$run/metrics.jsonl" || fail "$run: a part was recorded"
    run_bireme 0 "${tasks[@]}" run_dir="$run" evaluate.task_limit=5
    [ "$(grep -c '"event":"evaluate".*"many/documents":5' "$run/metrics.jsonl")" = 2 ] ||
        fail "$run: the evaluation was not repeated"
}
stop_task task-single env
if command -v mpirun >/dev/null && "$program" --version | grep -q '^MPI  *MPI'; then
    stop_task task-ranks mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2
fi
run_bireme 75 "${tasks[@]}" run_dir=task-wall train.wall_minutes=0.2
grep -q '^stopped after step 0 because train.wall_minutes' stderr || fail 'the limit of a session'
