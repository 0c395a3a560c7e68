#!/bin/bash
# Tests a job on two hosts, simulated by network namespaces with a router between them. The job
# continues after a short outage. It ends soon on both hosts if the network is cut or the daemon of
# the other host dies. After a killed mpirun, no file and no shared memory of the job remains.
#
#   test_network.sh PROGRAM
#
# PROGRAM is the program of test_fault.c. Needs root; skipped (77) elsewhere.
# ctest: name comm_network
# ctest: targets test_program_comm_fault_agree_one
# ctest: timeout 120
set -u
program=$1
source=${BIREME_SOURCE_DIR:?}
source "$source/tests/comm/host/two_hosts.sh"
launch=$source/scripts/launch_mpirun.sh
source "$source/tests/temporary_folder.sh"
token=network-$$
trap 'hosts_remove; remove_folder' EXIT
hosts_make "$folder"
export TMPDIR=$folder/tmp
mkdir "$TMPDIR"

# start_job MODE: start four ranks on the two hosts and wait until they run.
start_job() {
    : >"$folder/output" # remove the output of the previous job
    hosts_run "$launch" -n 4 --host "near:2,$hosts_address:2" --no-bind "${hosts_options[@]}" \
        "$program" child "$1" $token >"$folder/output" 2>&1 &
    job=$!
    for ((i = 0; i < 100; i++)); do
        grep -q 'running, 2 of 4' "$folder/output" && return
        sleep 0.1
    done
    echo 'the job did not start on two hosts:' && cat "$folder/output"
    kill -KILL "$job"
    exit 1
}

# count_ranks: print the number of ranks that still run.
count_ranks() {
    pgrep -f "child .* $token\$" | wc -l
}

# check_end CASE CODE SECONDS TEXT: the job ends within SECONDS with this exit code, prints this
# text and leaves no rank.
check_end() {
    local begin=$SECONDS code
    for ((i = 0; i < $3 * 10; i++)); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 "$job" 2>/dev/null; then
        echo "$1: still running after $3 s"
        cat "$folder/output"
        exit 1
    fi
    wait "$job"
    code=$?
    echo "$1: exit code $code after $((SECONDS - begin)) s"
    if [ "$code" != "$2" ] || ! grep -q "$4" "$folder/output"; then
        cat "$folder/output"
        exit 1
    fi
    for ((i = 0; i < 50; i++)); do
        [ "$(count_ranks)" = 0 ] && return
        sleep 0.1
    done
    echo "$1: $(count_ranks) ranks still run"
    exit 1
}

start_job steps
hosts_forward 0
sleep 3
hosts_forward 1
check_end 'an outage of 3 s' 0 20 finished

start_job steps
hosts_forward 0
check_end 'a silent cut' 71 40 E-RANK-LOST
hosts_forward 1

# list_files: print the temporary files and the shared memory of the hosts near and far.
list_files() {
    find "$TMPDIR" /dev/shm -mindepth 1 \( -path "$TMPDIR/*" -o -name 'vader_segment.near.*' \
        -o -name 'vader_segment.far.*' \) 2>/dev/null | sort
}

before=$(list_files)
start_job steps
mpirun=
for process in $(ip netns pids "$hosts_near"); do
    [ "$(cat "/proc/$process/comm" 2>/dev/null)" != mpirun ] || mpirun=$process
done
kill -KILL "$mpirun"
check_end 'a killed mpirun' 71 20 E-RANK-LOST
for ((i = 0; i < 200; i++)); do # the daemon of the other host needs time to end
    after=$(list_files)
    [ "$after" != "$before" ] || break
    sleep 0.1
done
if [ "$after" != "$before" ]; then
    echo 'a killed mpirun leaves files:'
    comm -13 <(echo "$before") <(echo "$after")
    exit 1
fi

start_job steps
daemon=
for ((i = 0; i < 50; i++)); do
    for process in $(ip netns pids "$hosts_far"); do
        [ "$(cat "/proc/$process/comm" 2>/dev/null)" != orted ] || daemon=$process
    done
    [ -z "$daemon" ] || break
    sleep 0.1
done
kill -KILL "$daemon"
check_end 'a dead daemon' 71 20 E-RANK-LOST
