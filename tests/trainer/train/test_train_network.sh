#!/bin/bash
# A run on two hosts (tests/comm/host/two_hosts.sh) loses its network. The job ends soon with code
# 71 and an error that names the lost host and the operation. The next start, on both hosts after
# the link is back or on one host, resumes from the last checkpoint and equals a run without a cut.
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
source "$source/tests/comm/host/two_hosts.sh"
need_mpirun
trap 'hosts_remove; remove_folder' EXIT
hosts_make "$folder"

# Tensor parallelism inside each host, data parallelism with ZeRO stage 1 between the hosts.
settings=(parallel.tensor=2 parallel.zero_stage=1 parallel.bucket_mib=1 train.max_steps=400
    checkpoint.every=20 evaluate.every=200 parallel.timeout_seconds=30)
printf 'near slots=2\n%s slots=2\n' "$hosts_address" >hosts

# run_on_both ARGUMENT...: start two ranks on each host.
run_on_both() {
    hosts_run "$source/scripts/launch_mpirun.sh" -n 4 --threads 1 --hostfile hosts --no-bind \
        "${hosts_options[@]}" "$@" >out 2>stderr
}

# wait_for SECONDS TEXT COMMAND...: wait until the command succeeds; after SECONDS fail with TEXT.
wait_for() {
    local tries=$(($1 * 10)) text=$2
    shift 2
    for ((i = 0; i < tries; i++)); do
        "$@" && return
        sleep 0.1
    done
    fail "$text"
}

run_ranks 4 0 train recipe.yaml run_dir=whole "${settings[@]}"

run_on_both "$program" train recipe.yaml run_dir=cut "${settings[@]}" &
job=$!
wait_for 20 'a run on two hosts saves no third checkpoint' test \
    -e cut/checkpoints/step-00000040/manifest.json
hosts_forward 0
start=$SECONDS
has_ended() { ! kill -0 $job 2>/dev/null; }
wait_for 40 'the job does not end after the cut' has_ended
wait $job
code=$?
echo "code $code $((SECONDS - start)) s after the cut"
[ $code = 71 ] || fail "the job ended with $code"
lost='^error: rank [01] host near step [0-9]*: no answer for .* in [a-z-]* .*'
grep -q "$lost from rank [23] host far" stderr ||
    fail 'the error does not name the lost rank, its host and the operation'
[ ! -d cut/final ] || fail 'the job was complete before the network was cut'
has_no_ranks() { ! pgrep -f "$program train recipe.yaml run_dir=cut " >/dev/null; }
wait_for 20 'ranks run after the end of the job' has_no_ranks
hosts_forward 1

# On both hosts the bits are equal, because each sum has two terms; on one rank they are rounded
# differently.
saved=$(find cut/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1)
cp -r cut alone
run_on_both "$program" train recipe.yaml run_dir=cut "${settings[@]}" ||
    fail 'the job cannot be resumed on both hosts'
grep -q "resuming cut/checkpoints/$(basename "$saved"): " stderr || fail "not resumed from $saved"
compare_losses whole cut 0
compare_weights whole cut 00000400
run_bireme 0 train recipe.yaml run_dir=alone "${settings[@]}" parallel.tensor=1
compare_losses whole alone 1e-4

# Tensor parallelism between hosts gives a warning.
run_on_both --mpirun --map-by --mpirun node "$program" train recipe.yaml run_dir=apart \
    "${settings[@]}" train.max_steps=1 schedule.warmup_steps=1 ||
    fail 'tensor-parallel ranks on two hosts do not train'
grep -q '"event":"warning".*"name":"TENSOR-HOSTS"' apart/metrics.jsonl ||
    fail 'there is no warning about tensor parallelism between hosts'
! grep -q TENSOR-HOSTS cut/metrics.jsonl ||
    fail 'there is a warning about tensor parallelism inside a host'
