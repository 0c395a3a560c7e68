#!/bin/bash
# A training over two hosts (tests/comm/two_hosts.sh) whose network is cut in the middle: the job ends soon, with
# code 71 through the launcher, naming the lost host and what was waited for; started again, over both hosts
# once the link is back, or on one, it goes on from the last published checkpoint and ends as the uninterrupted run.
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
source "$source/tests/comm/two_hosts.sh"
need_mpirun
trap 'hosts_remove; rm -rf "$folder"' EXIT
hosts_make "$folder"

# Ranks that share a model are neighbours on a host; the hosts have each a copy, and moments are sharded over them.
settings=(parallel.tensor=2 parallel.zero_stage=1 parallel.bucket_mib=1 train.max_steps=400 checkpoint.every=20
    evaluate.every=200 parallel.timeout_seconds=30)
printf 'near slots=2\n%s slots=2\n' "$hosts_address" >hosts

over_both() { # ARGUMENT...
    hosts_run "$source/scripts/launch_mpirun.sh" -n 4 --threads 1 --hostfile hosts --no-bind "${hosts_options[@]}" \
        "$@" >out 2>told
}

wait_for() { # SECONDS TEXT COMMAND...: until it succeeds
    local tries=$(($1 * 10)) text=$2
    shift 2
    for ((i = 0; i < tries; i++)); do
        "$@" && return
        sleep 0.1
    done
    fail "$text"
}

run_ranks 4 0 train recipe.yaml run_dir=whole "${settings[@]}"

over_both "$program" train recipe.yaml run_dir=cut "${settings[@]}" &
job=$!
wait_for 20 'no third checkpoint of a training over two hosts' test -e cut/checkpoints/step-00000040/manifest.json
hosts_forward 0
start=$SECONDS
ended() { ! kill -0 $job 2>/dev/null; }
wait_for 40 'the job outlives its network' ended
wait $job
code=$?
echo "code $code $((SECONDS - start)) s after the cut"
[ $code = 71 ] || fail "the job ended with $code"
grep -q '^E-RANK-LOST rank [01] host near step [0-9]*: no answer for .* in [a-z-]* .* from rank [23] host far' told ||
    fail 'the lost rank, its host and the operation are not told'
[ ! -d cut/final ] || fail 'the job came to its end before the network was cut'
nobody_left() { ! pgrep -f "$program train recipe.yaml run_dir=cut " >/dev/null; }
wait_for 20 'ranks outlive their job' nobody_left
hosts_forward 1

# To the bit on both hosts, since each sum has two terms; on one rank within rounding.
saved=$(find cut/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1)
cp -r cut alone
over_both "$program" train recipe.yaml run_dir=cut "${settings[@]}" || fail 'the job does not go on over both hosts'
grep -q "resuming cut/checkpoints/$(basename "$saved"): " told || fail "not resumed from $saved"
same_losses whole cut 0
same_weights whole cut 00000400
run 0 train recipe.yaml run_dir=alone "${settings[@]}" parallel.tensor=1
same_losses whole alone 1e-4

# Neighbours on different hosts are warned of.
over_both --mpirun --map-by --mpirun node "$program" train recipe.yaml run_dir=apart "${settings[@]}" train.max_steps=1 schedule.warmup_steps=1 ||
    fail 'tensor ranks on two hosts do not train'
grep -q '"event":"warning".*"name":"TENSOR-HOSTS"' apart/metrics.jsonl || fail 'nobody warned of the network'
! grep -q TENSOR-HOSTS cut/metrics.jsonl || fail 'warned of ranks that are neighbours'
