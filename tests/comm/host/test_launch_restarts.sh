#!/bin/bash
# Tests launch_mpirun.sh --restarts: which exit codes are followed by a restart, how many restarts
# there are without a new checkpoint, and that a requested stop is not restarted.
#
#   test_launch_restarts.sh PROGRAM
#
# PROGRAM is the program of test_fault.c. The other jobs run a script that ends as `plan` describes.
# ctest: name comm_launch_restarts
# ctest: targets test_program_comm_fault_agree_one
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:?}/tests/comm/host/launch_job.sh"

# Each start uses one line of `plan`: "CODE [STEP]". It saves a checkpoint of this step, then ends
# with the code; CODE may be a signal for itself, or "mpirun" to kill mpirun and continue.
cat >job <<'END'
#!/bin/bash
read -r code step <<<"$(sed -n "$(($(wc -l <starts) + 1))p" plan)"
checkpoint=run/checkpoints/step-$step
[ -z "$step" ] || { mkdir -p "$checkpoint" && touch "$checkpoint/manifest.json"; }
echo "$code" >>starts
case $code in
SIG*) kill -s "$code" $$ ;;
mpirun) kill -KILL $PPID && kill -STOP $$ ;;
esac
exit "$code"
END
chmod +x job

# The plans without signals use this mpirun, because the real one needs seconds to end a job.
mkdir bin
cat >bin/mpirun <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
while [ "$1" != ./job ]; do shift; done
"$@"
END
chmod +x bin/mpirun
printf 'objective: clm\nrun_dir: run   # a comment\n' >recipe.yaml

# run_plan RESTARTS PLAN CODE STARTS: a job of one rank ends with this code after STARTS starts.
run_plan() {
    rm -rf run
    : >starts
    tr ';' '\n' <<<"$2" >plan
    timeout 60 "$launch" -n 1 --restarts "$1" ./job train "${recipe[@]}" >output 2>&1
    code=$?
    [ $code = "$3" ] || fail "plan '$2': exit code $code instead of $3"
    [ "$(wc -l <starts)" = "$4" ] || fail "plan '$2': $(wc -l <starts) starts instead of $4"
    [ "$(grep -c '^launch_mpirun.sh: restart ' output)" = $(($4 - 1)) ] ||
        fail "plan '$2': the restarts are not printed"
}

recipe=(recipe.yaml)
run_plan 5 '76;SIGKILL;0' 0 3
mkdir temporary
export TMPDIR=$folder/temporary
run_plan 5 'mpirun;0' 0 2
[ -z "$(ls temporary)" ] || fail "files of a killed mpirun remain: $(ls temporary)"
# shellcheck disable=SC2009
! ps -eo args | grep -qE "^/bin/bash (.*/)?\./job train" || fail 'a rank of a killed mpirun remains'
real_path=$PATH
PATH=$folder/bin:$PATH
rows=0
while IFS=$'\t' read -r end code action; do
    rows=$((rows + 1))
    if [ "$action" = restart ]; then
        run_plan 0 "$end;0" "$code" 1
        run_plan 1 "$end;0" 0 2
    else
        run_plan 1 "$end;0" "$code" 1
    fi
done < <(grep -v '^#' "${0%/*}/launch_codes.tsv")
[ $rows -gt 20 ] || fail "launch_codes.tsv has $rows rows"
run_plan 2 '71 00000010;71 00000020;71 00000030;0' 71 3
grep -q 'restart 2 of 2 in 1 s, from the checkpoint of step 00000020' output ||
    fail 'the restart does not name the checkpoint'
# more than three restarts only with a new checkpoint
recipe=(recipe.yaml run_dir=run)
run_plan 9 '71 00000010;71 00000020;71 00000030;71 00000040;71 00000050;0' 0 6
recipe=(recipe.yaml run_dir=elsewhere)
run_plan 9 '71;71 00000010;71;71;71;71' 71 4
grep -q 'no restart: three restarts made no new checkpoint' output || fail 'no reason is printed'

PATH=$real_path
# A stop on request is not restarted, while the job runs and while the launcher waits.
: >output # remove the output of the previous job
"$launch" -n 2 --restarts 3 "$program" child until_stopped x >output 2>&1 &
launcher=$!
wait_for running
kill -TERM $launcher
wait $launcher
code=$?
[ $code = 75 ] || fail "a stop ends with $code instead of 75"
! grep -q 'restart ' output || fail 'a stop is restarted'
printf '71\n71\n71\n71\n0\n' >plan
: >starts
PATH=$folder/bin:$PATH
"$launch" -n 1 --restarts 9 ./job train >output 2>&1 &
launcher=$!
wait_for 'restart 2 of 9 in 4 s, from the start' 30
kill -TERM $launcher
wait $launcher
code=$?
[ $code = 75 ] || fail "a stop before a restart ends with $code instead of 75"
[ "$(wc -l <starts)" = 2 ] || fail 'the job is started again after a stop'
echo 'launch_mpirun.sh --restarts: all checks passed'
