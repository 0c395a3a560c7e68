#!/bin/bash
# Tests scripts/launch_mpirun.sh: signals stop the job gracefully, exit codes of the program are
# kept, and killed ranks are reported.
# usage: test_launch.sh PROGRAM, the program of test_fault.c
set -u
program=$1
launch=${BIREME_SOURCE_DIR:-.}/scripts/launch_mpirun.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "failed: $1; output:" >&2
    cat "$folder/output" >&2
    exit 1
}

expect() { # CODE TEXT WHAT
    [ "$code" = "$1" ] || fail "$3: code $code instead of $1"
    grep -q -- "$2" "$folder/output" || fail "$3: no '$2' in the output"
}

launched() { # ARGUMENT...
    timeout 30 "$launch" "$@" >"$folder/output" 2>&1
    code=$?
}

launched -n 0 "$program"
expect 64 'must be a whole number' 'zero ranks'
launched -n 2 --host a:1 --hostfile /dev/null "$program"
expect 64 'exclude each other' 'two host lists'
launched -n 2 "$folder/missing"
expect 66 'no such program' 'a missing program'
launched --help
expect 0 'usage: ' 'help'
launched -n 3 "$program" child agree_one x
expect 65 'E-DATA rank 1' 'an error of the program'
launched -n 3 "$program" child kill x
expect 71 'E-RANK-LOST .*signal 9' 'a killed rank'
[ "$(tail -n 1 "$folder/output" | cut -c1-11)" = E-RANK-LOST ] || fail 'the last line is not from the launcher'
launched -n 2 --time-limit 3 --grace 10 "$program" child until_stopped x
expect 75 'running' 'a time limit'

# an mpirun that does not exit after its ranks
mkdir "$folder/bin"
cat >"$folder/bin/mpirun" <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
bash -c 'echo rank; sleep 0.5; exit 76' # not a subshell, which looks like mpirun
while :; do read -rt 1 -u 9; done 9<><(:)
END
chmod +x "$folder/bin/mpirun"
for limit in '' '--time-limit 60'; do
    # shellcheck disable=SC2086
    PATH=$folder/bin:$PATH launched -n 2 $limit --grace 1 "$program"
    expect 71 'E-RANK-LOST its ranks are gone, and mpirun did not end for 1 s' 'an mpirun that does not exit'
done

for signal in TERM INT USR1; do
    : >"$folder/output" # remove the output of the previous job
    # background jobs of a shell ignore SIGINT by default
    env --default-signal=INT "$launch" -n 3 "$program" child until_stopped x >"$folder/output" 2>&1 &
    job=$!
    for ((i = 0; i < 100; i++)); do
        grep -q 'running' "$folder/output" && break
        sleep 0.1
    done
    kill -"$signal" "$job"
    kill -"$signal" "$job" # twice, as impatient users do
    wait "$job"
    code=$?
    expect 75 'running' "SIG$signal"
done
echo "launch_mpirun.sh: all checks passed"
