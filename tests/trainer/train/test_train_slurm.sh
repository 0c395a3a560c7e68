#!/bin/bash
# scripts/launch_slurm.sbatch.
#
#   test_train_slurm.sh script | cluster | inside
#
#   script    the logic of the script with mock commands of Slurm, which record their arguments
#   cluster   jobs under a Slurm of one node in separate namespaces, which end all processes inside
#             them: a job that is stopped, requeued and resumed, a job that fails, a job without
#             network. Skipped where Slurm cannot run
#   inside    the part of `cluster` inside the namespaces
# ctest: parts script cluster
# ctest: timeout 120
set -u
script=${BIREME_SOURCE_DIR:?}/scripts/launch_slurm.sbatch

if [ "${1:-}" = script ]; then
    source "$BIREME_SOURCE_DIR/tests/temporary_folder.sh"
    outputs+=(calls)
    mkdir bin
    for name in srun scancel scontrol launcher bireme; do
        printf '#!/bin/bash\necho "%s $*" >>calls\n. ./%s\n' $name $name >bin/$name
        echo true >$name
        chmod +x bin/$name
    done
    # The mock srun and launcher run the program.
    # shellcheck disable=SC2016
    : >signal # commands for the time before the ranks exist
    echo '[ "$1" != --mpi=list ] || { . ./signal; cat plugins; exit; }
        while [ "$1" != bireme ]; do shift; done; exec "$@"' >srun
    cp srun launcher
    # shellcheck disable=SC2016 # before the job step exists, scancel has no effect and returns 0
    echo '[ ! -e program ] || kill -USR1 "$(cat program)"' >scancel
    export PATH=$folder/bin:$PATH BIREME=bireme RECIPE=r.yaml LAUNCHER=launcher SLURM_JOB_ID=41 \
        SLURM_CPUS_PER_TASK=3

    run_job() { # CODE ARGUMENT...: run the script, which must end with this code
        local expected=$1
        shift
        : >calls
        bash "$script" "$@" >stderr 2>&1
        local code=$?
        [ "$code" = "$expected" ] || fail "ended with $code instead of $expected"
    }
    expect_call() { grep -q -- "^$1\$" calls || fail "no call of $1"; }
    refuse_call() { ! grep -q -- "^$1" calls || fail "a call of $1"; }

    printf 'specific pmix plugin versions available: pmix_v4\n' >plugins
    run_job 0 train.max_steps=5 'run_dir=two words'
    options='--quiet --mpi=pmix --kill-on-bad-exit=0 --wait=30 --cpus-per-task=3 --cpu-bind=cores'
    expect_call "srun $options bireme train r.yaml train.max_steps=5 run_dir=two words"
    expect_call 'bireme train r.yaml train.max_steps=5 run_dir=two words'
    refuse_call 'scontrol requeue'
    SLURM_GPUS_ON_NODE=2 run_job 0
    expect_call "srun $options --gpu-bind=none bireme train r.yaml"
    # The same ends of a job as for launch_mpirun.sh, and a job that was requeued once.
    for launch in srun mpirun; do
        while IFS=$'\t' read -r end code action; do
            echo "exit $end" >bireme
            [[ $end != SIG* ]] || echo "kill -s $end \$\$" >bireme
            for restarts in 0 1 2; do
                rm -f launch_slurm-41.unproductive
                RESTARTS=$restarts SLURM_RESTART_COUNT=1 LAUNCH=$launch run_job "$code"
                case $action$restarts in
                stop* | restart2) expect_call 'scontrol requeue 41' ;;
                *) refuse_call 'scontrol requeue' ;;
                esac
                [ $launch$action$restarts$end != srunrestart0SIGKILL ] ||
                    grep -q 'complete; submit the job again \[E-RANK-LOST\]$' stderr ||
                    fail 'no instruction'
            done
        done < <(grep -v '^#' "$BIREME_SOURCE_DIR/tests/comm/host/launch_codes.tsv")
    done
    RESTARTS=1 run_job 71 # SIGTERM of the last row; SLURM_RESTART_COUNT is not set before a requeue
    expect_call 'scontrol requeue 41'
    grep -q 'signal 15: .* complete; the job is requeued \[E-RANK-LOST\]$' stderr ||
        fail 'the signal is not reported'
    RESTARTS=-1 run_job 64
    grep -q 'RESTARTS=-1: must be a whole number \[E-USAGE\]$' stderr || fail 'RESTARTS=-1'

    # The signal arrives before the ranks exist.
    rm -f launch_slurm-41.unproductive
    printf '%s\n' "kill -USR1 \$(pgrep -o -f '^bash $script')" >signal
    run_job 75
    grep -q 'near the time limit; the ranks are not started$' stderr ||
        fail 'a signal before the start is not reported'
    refuse_call bireme
    expect_call 'scontrol requeue 41'
    : >signal

    # The job is not requeued after three starts in a row without a new checkpoint.
    # run_starts END... -- ARGUMENT...: the job is requeued after each start except the last one.
    # END is "no" for a start without a new checkpoint, else the folder of the new one.
    run_starts() {
        local ends=()
        while [ "$1" != -- ]; do
            ends+=("$1")
            shift
        done
        shift
        rm -rf launch_slurm-41.unproductive runs
        while [ ${#ends[@]} -gt 0 ]; do
            echo 'kill -s USR1 $$' >bireme
            [ "${ends[0]}" = no ] ||
                echo "mkdir -p '${ends[0]}'; touch '${ends[0]}/manifest.json'; exit 75" >bireme
            run_job 75 "$@"
            ends=("${ends[@]:1}")
            [ ${#ends[@]} = 0 ] || expect_call 'scontrol requeue 41'
        done
    }
    refuse_requeue() { # FOLDER: the last start ended without a requeue
        refuse_call 'scontrol requeue'
        grep -q "no requeue: three starts made no new checkpoint in $1/checkpoints" stderr ||
            fail 'the missing requeue is not reported'
        [ ! -e launch_slurm-41.unproductive ] || fail 'the number of starts is left'
    }
    checkpoint=runs/r/checkpoints/step-00000001
    run_starts no no no --
    refuse_requeue runs/r
    # A rank that saves the same step again makes no progress.
    run_starts no no $checkpoint no $checkpoint $checkpoint --
    refuse_requeue runs/r
    run_starts 'runs/a b/checkpoints/step-00000001' no no no -- 'run_dir=runs/a b'
    refuse_requeue 'runs/a b'
    for value in 'runs/c' '"runs/c" # here' "'runs/c'"; do
        echo "run_dir: $value" >r.yaml
        run_starts runs/c/checkpoints/step-00000001 no no no --
        refuse_requeue runs/c
    done
    rm r.yaml
    printf '%s\n' "kill -USR1 \$(pgrep -o -f '^bash $script')" >signal
    run_starts no no no --
    refuse_requeue runs/r
    : >signal

    # The ranks have ended, but srun has not.
    cp srun srun.saved
    echo '[ "$1" != --mpi=list ] || { cat plugins; exit; }
        touch ranks; sleep 1.5; rm ranks; exec sleep 50' >srun
    echo '[ "$1" != listpids ] || [ ! -e ranks ] ||
        printf "PID JOBID STEPID LOCALID GLOBALID\n7 41 0 - -\n8 41 0 0 0\n"' >scontrol
    GRACE=1 run_job 71
    grep -q '^error: the ranks of .* are gone, and srun did not end for 1 s' stderr ||
        fail 'an srun that does not end is not reported'
    expect_call 'scontrol listpids 41.0'

    # The signal arrives after srun has started, but before Slurm has made the job step.
    # shellcheck disable=SC2016
    echo 'echo $$ >program
        trap "exit 75" USR1
        for ((i = 0; i < 60; i++)); do sleep 0.1; done' >bireme
    rm -f program
    { echo "[ \"\$1\" = --mpi=list ] || { kill -USR1 \$(pgrep -o -f '^bash $script'); sleep 1; }"
        cat srun.saved; } >srun
    run_job 75
    [ "$(grep -c '^scancel --signal=USR1 41$' calls)" -ge 2 ] || fail 'one call of scancel'
    expect_call 'scontrol requeue 41'

    mv srun.saved srun
    mv bin/srun bin/hidden
    if command -v srun >/dev/null; then
        echo 'not checked: a missing srun, because Slurm is installed'
    else
        LAUNCH=srun run_job 69
        grep -q '^error: srun cannot be started.*\[E-UNAVAILABLE\]$' stderr ||
            fail 'a missing srun is not reported'
    fi
    mv bin/hidden bin/srun

    # The signal before the time limit, which Slurm sends to the script only.
    for launch in srun mpirun; do
        cat >bireme <<'END'
echo $$ >program
trap 'exit 75' USR1
kill -USR1 $(pgrep -o -f "^bash $script")
for ((i = 0; i < 100; i++)); do sleep 0.1; done
END
        sed -i "s|\$script|$script|" bireme
        [ $launch = srun ] || echo 'trap "kill -USR1 \$child" USR1
            while [ "$1" != bireme ]; do shift; done; "$@" & child=$!
            wait $child; wait $child; exit $?' >launcher
        rm -f launch_slurm-41.unproductive
        LAUNCH=$launch run_job 75
        grep -q 'near the time limit; the ranks get SIGUSR1' stderr ||
            fail 'the warning is not printed'
        expect_call 'scontrol requeue 41'
        [ $launch = mpirun ] || expect_call 'scancel --signal=USR1 41'
    done

    echo true >bireme
    printf 'none\npmi2\n' >plugins
    run_job 0
    expect_call 'launcher --threads 3 -- bireme train r.yaml'
    BIREME=build/none run_job 66
    grep -q 'build/none: no such program.*set BIREME.*\[E-NO-INPUT\]$' stderr ||
        fail 'a missing program is not reported'
    LAUNCH=ssh run_job 64
    grep -q 'LAUNCH=ssh: use srun or mpirun' stderr || fail 'LAUNCH=ssh is not refused'
    echo 'script: passed'
    exit 0
fi

skip() {
    echo "skipped: $1"
    exit 77
}

if [ "${1:-}" = cluster ]; then
    [ -n "${BIREME_LONG:-}" ] ||
        skip "the deadlines of Slurm need an idle machine; set BIREME_LONG=1 to run this test"
    for command in slurmctld slurmd sbatch ip; do
        command -v $command >/dev/null ||
            skip "no $command (packages slurmctld, slurmd, slurm-client, iproute2)"
    done
    [ "$(id -u)" = 0 ] || skip "Slurm's daemons in namespaces need root"
    spaces=(unshare --net --uts --mount --pid --fork --kill-child --mount-proc)
    "${spaces[@]}" true 2>/dev/null || skip 'making namespaces is not permitted'
    "${spaces[@]}" bash "$0" inside
    exit
fi

source "$BIREME_SOURCE_DIR/tests/trainer/tiny_training.sh"
need_mpirun
export BIREME=$program RECIPE=recipe.yaml SLURM_CONF=$folder/slurm.conf
hostname near
ip link set lo up
ip addr add 10.79.3.1/32 dev lo # with 127.0.0.1 only, names are not resolved
mkdir state spool tmp
printf 'CgroupPlugin=cgroup/v1\n' >cgroup.conf
cat >slurm.conf <<END
ClusterName=bireme
SlurmctldHost=near(10.79.3.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
TmpFS=$folder/tmp
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MessageTimeout=5
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
NodeName=near NodeAddr=10.79.3.1 CPUs=2
PartitionName=all Nodes=near Default=YES
END
slurmctld -D >>daemons 2>&1 &
slurmd -D -N near >>daemons 2>&1 &

# wait_for SECONDS TEXT COMMAND...: wait until the command succeeds; after SECONDS fail with TEXT.
wait_for() {
    local end=$((SECONDS + $1)) text=$2
    shift 2
    while [ $SECONDS -lt $end ]; do
        "$@" && return
        sleep 0.3
    done
    tail -n 20 bireme-*.log >>stderr 2>/dev/null
    squeue >>stderr
    fail "$text"
}

is_ready() { [ "$(sinfo -h -o %T 2>/dev/null)" = idle ]; }
until [ $SECONDS -ge 15 ] || is_ready; do
    sleep 0.1
done
is_ready || skip "Slurm does not start here: $(tail -n 1 daemons)"

# submit_job ARGUMENT...: submit the script and print the number of the job.
submit_job() {
    sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --time=5 "$script" "$@"
}

# has_state JOB TEXT...: whether `scontrol show job` prints all of these texts.
has_state() {
    local text shown
    shown=$(scontrol show job "$1" 2>/dev/null)
    for text in "${@:2}"; do
        [[ $shown == *"$text"* ]] || return 1
    done
}

: >stderr
sed -i 's/max_steps: 20/max_steps: 1000000/; s/every: 10, batches: 1/every: 1000000, batches: 1/
    s/{every: 10, keep: 3}/{every: 100, keep: 1}/' recipe.yaml
id=$(submit_job log.every=1000)
wait_for 30 'no checkpoint under Slurm' compgen -G 'run/checkpoints/step-*/manifest.json' >calls
scancel --batch --signal=USR1 "$id" # the same signal as that of --signal=B:USR1@120
wait_for 30 'the stopped job is not requeued' has_state "$id" JobState=PENDING Restarts=1
grep -q '^stopped after step' bireme-"$id".log || fail 'the stopped job did not save'
saved=$(find run/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1)
step=$((10#${saved##*-}))
sed -i "s/max_steps: 1000000/max_steps: $((step + 5))/" recipe.yaml
has_ended() { # Slurm starts a requeued job after two minutes only
    ! has_state "$id" JobState=PENDING || scontrol update jobid="$id" StartTime=now
    has_state "$id" JobState=COMPLETED ExitCode=0:0
}
wait_for 30 'the resumed job does not end' has_ended
grep -q "^resuming $saved: step $step, saved by 2 ranks, running on 2" bireme-"$id".log ||
    fail 'the job was not resumed'
[ -d run/final ] || fail 'there are no final weights'
id=$(submit_job model.num_heads=3)
wait_for 30 'the exit code of the program is not that of the job' \
    has_state "$id" JobState=FAILED ExitCode=78:0

# The network is cut and the ranks end, but srun does not.
sed -i 's/max_steps: [0-9]*/max_steps: 1000000/' recipe.yaml
id=$(GRACE=2 submit_job run_dir=cut)
wait_for 30 'no checkpoint before the cut' compgen -G 'cut/checkpoints/step-*/manifest.json' >calls
sleep 3 # the script must find its ranks, which it lists once per second
ip link set lo down
pkill -KILL -f "^$program train"
wait_for 30 'the script does not end srun' \
    grep -q '^error: the ranks of near are gone, and srun did not end for 2 s' bireme-"$id".log
ip link set lo up
wait_for 30 'the job without network does not end with code 71' \
    has_state "$id" JobState=FAILED ExitCode=71:0
echo 'cluster: passed'
