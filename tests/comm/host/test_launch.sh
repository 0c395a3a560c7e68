#!/bin/bash
# Tests scripts/launch_mpirun.sh: a signal stops the job gracefully, the exit code of the program is
# returned, and killed ranks are reported.
#
#   test_launch.sh PROGRAM
#
# PROGRAM is the program of test_fault.c.
# ctest: name comm_launch
# ctest: targets test_program_comm_fault_agree_one
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:?}/tests/comm/host/launch_job.sh"

# check_job CODE TEXT CASE: the last job ended with this exit code and printed this text.
check_job() {
    [ "$code" = "$1" ] || fail "$3: exit code $code instead of $1"
    grep -q -- "$2" "$folder/output" || fail "$3: no '$2' in the output"
}

# run_job ARGUMENT...: run the launcher, at most 30 s.
run_job() {
    timeout 30 "$launch" "$@" >"$folder/output" 2>&1
    code=$?
}

run_job -n 0 "$program"
check_job 64 'must be a whole number' 'zero ranks'
run_job -n 2 --host a:1 --hostfile /dev/null "$program"
check_job 64 'exclude each other' 'two host lists'
run_job -n 2 "$folder/missing"
check_job 66 'no such program' 'a missing program'
run_job --help
check_job 0 'usage: ' 'help'
run_job -n 3 "$program" child agree_one x
check_job 65 '^error: rank 1 .*\[E-DATA\]$' 'an error of the program'
! grep -qE 'MPI_ABORT|^---' "$folder/output" || fail 'the message of MPI_Abort is not removed'
run_job -n 3 "$program" child kill x
check_job 71 '^error: .*signal 9.*\[E-RANK-LOST\]$' 'a killed rank'
tail -n 1 "$folder/output" | grep -q '\[E-RANK-LOST\]$' ||
    fail 'the last line is not from the launcher'
run_job -n 2 --time-limit 3 --grace 10 "$program" child until_stopped x
check_job 75 'running' 'a time limit'
# The signal at the time limit ends ranks that do not handle it yet, as while a job starts.
run_job -n 2 --time-limit 2 --grace 10 sleep 60
check_job 75 'stopped while mpirun started or ended' 'a time limit during the start'

# an mpirun that does not exit after its ranks
mkdir "$folder/bin"
cat >"$folder/bin/mpirun" <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
bash -c 'echo rank; sleep 0.5; exit 76' # a subshell would have the name of mpirun
while :; do read -rt 1 -u 9; done 9<><(:)
END
chmod +x "$folder/bin/mpirun"
for limit in '' '--time-limit 60'; do
    # shellcheck disable=SC2086
    PATH=$folder/bin:$PATH run_job -n 2 $limit --grace 1 "$program"
    check_job 71 '^error: its ranks are gone, and mpirun did not end for 1 s' \
        'an mpirun that does not exit'
done

# The messages about an exit code are removed, and all others are printed.
cat >"$folder/bin/mpirun" <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
line=--------------------------------------------------------------------------
printf '%s\n' one $line 'Primary job  terminated normally, but' 'aborted.' $line $line \
    'There are not enough slots' $line $line 'mpirun detected that one or more processes '\
'exited with non-zero status, thus causing' $line $line 'prterun has exited due to process '\
'rank 1 with PID 0 on node vm calling' '"abort". This may have caused' $line two $line >&2
printf three >&2
exit 78
END
PATH=$folder/bin:$PATH run_job -n 2 "$program"
check_job 78 'enough slots' 'messages of mpirun'
printf '%s\n' one ---- 'There are not enough slots' ---- two ---- three >"$folder/expected"
sed 's/^--*$/----/' "$folder/output" | grep -v namespaces | cmp - "$folder/expected" ||
    fail 'other messages of mpirun'

# an mpirun that does not reach a host
cat >"$folder/bin/mpirun" <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
exit 255
END
PATH=$folder/bin:$PATH run_job -np 2 --restarts 3 --host missing:2 "$program"
check_job 69 '^error: mpirun did not reach a host.*\[E-UNAVAILABLE\]$' 'a missing host'
! grep -q 'restart' "$folder/output" || fail 'a missing host: the job was started again'
run_job -n 1 "$program" child agree_one missing.yaml
! grep -q '^sed' "$folder/output" || fail 'sed reports a missing recipe'

for signal in TERM INT USR1; do
    : >"$folder/output" # remove the output of the previous job
    # a shell starts background jobs with SIGINT ignored
    env --default-signal=INT "$launch" -n 3 "$program" child until_stopped x \
        >"$folder/output" 2>&1 &
    job=$!
    wait_for running
    kill -"$signal" "$job"
    kill -"$signal" "$job" # a second signal must change nothing
    wait "$job"
    code=$?
    check_job 75 'running' "SIG$signal"
done
# A second signal, later than two seconds after the first one, ends a job that does not stop.
for signal in TERM INT; do
    : >"$folder/output"
    env --default-signal=INT "$launch" -n 2 bash -c 'trap "" USR1; echo running; sleep 1000' \
        >"$folder/output" 2>&1 &
    job=$!
    for ((i = 0; i < 300; i++)); do
        [ "$(grep -c 'running' "$folder/output")" -lt 2 ] || break # both ranks ignore USR1
        sleep 0.1
    done
    kill -"$signal" "$job"
    sleep 3.5
    kill -0 "$job" 2>/dev/null || fail "the first SIG$signal ended the job"
    grep -q 'a second Ctrl-C or SIGTERM' "$folder/output" || fail "SIG$signal: no line about it"
    kill -"$signal" "$job"
    wait "$job"
    code=$?
    check_job $((128 + $(kill -l $signal))) 'ended by the second signal' "a second SIG$signal"
    ! pgrep -f 'sleep [1]000' >/dev/null || fail "a second SIG$signal left a rank"
done
echo "launch_mpirun.sh: all checks passed"
