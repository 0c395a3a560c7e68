#!/bin/bash
# scripts/launch_slurm.sbatch. "script": its logic with stand-ins for Slurm's commands, which note how they were called.
# "cluster": the job itself, under a Slurm of one node in namespaces of its own, which end with all that runs in
# them: stopped, queued again, resumed to its end, and one that fails. Where Slurm cannot run it is skipped.
# usage: test_train_slurm.sh script|cluster|inside
set -u
script=${BIREME_SOURCE_DIR:?}/scripts/launch_slurm.sbatch

if [ "${1:-}" = script ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cd "$folder" || exit 1
    fail() {
        echo "failed: $1; told: $(cat told); calls: $(cat calls)" >&2
        exit 1
    }
    mkdir bin
    for name in srun scancel scontrol launcher bireme; do
        printf '#!/bin/bash\necho "%s $*" >>calls\n. ./%s\n' $name $name >bin/$name
        echo true >$name
        chmod +x bin/$name
    done
    # what srun and the launcher do here: run the program, which waits for its end where it is told to
    # shellcheck disable=SC2016
    echo '[ "$1" != --mpi=list ] || { cat plugins; exit; }; while [ "$1" != bireme ]; do shift; done; exec "$@"' >srun
    cp srun launcher
    # shellcheck disable=SC2016
    echo 'kill -USR1 "$(cat program)"' >scancel
    export PATH=$folder/bin:$PATH BIREME=bireme RECIPE=r.yaml LAUNCHER=launcher SLURM_JOB_ID=41 SLURM_CPUS_PER_TASK=3

    job() { # CODE ARGUMENT...: the script in this shell's place ends with this code
        local wanted=$1
        shift
        : >calls
        bash "$script" "$@" >told 2>&1
        local code=$?
        [ "$code" = "$wanted" ] || fail "ended with $code instead of $wanted"
    }
    called() { grep -q -- "^$1\$" calls || fail "no call of $1"; }
    not_called() { ! grep -q -- "^$1" calls || fail "a call of $1"; }

    printf 'specific pmix plugin versions available: pmix_v4\n' >plugins
    job 0 train.max_steps=5 'run_dir=two words'
    called 'srun --mpi=pmix --kill-on-bad-exit=0 --wait=30 --cpus-per-task=3 --cpu-bind=cores bireme train r.yaml train.max_steps=5 run_dir=two words'
    called 'bireme train r.yaml train.max_steps=5 run_dir=two words'
    not_called 'scontrol requeue'
    echo 'exit 78' >bireme
    job 78
    not_called 'scontrol requeue'
    echo 'kill -KILL $$' >bireme
    job 71
    grep -q '^E-RANK-LOST .*signal 9' told || fail 'the signal is not told'
    not_called 'scontrol requeue'

    # its ranks have ended, and srun stays
    cp srun srun.kept
    echo '[ "$1" != --mpi=list ] || { cat plugins; exit; }; touch ranks; sleep 1.5; rm ranks; exec sleep 50' >srun
    echo '[ "$1" != listpids ] || [ ! -e ranks ] || printf "PID JOBID STEPID LOCALID GLOBALID\n7 41 0 - -\n8 41 0 0 0\n"' >scontrol
    GRACE=1 job 71
    grep -q '^E-RANK-LOST the ranks of .* are gone, and srun did not end for 1 s' told || fail 'not told that srun stayed'
    called 'scontrol listpids 41.0'
    mv srun.kept srun

    # the warning before the time is up, as Slurm gives it: to the script alone
    for launch in srun mpirun; do
        cat >bireme <<'END'
echo $$ >program
trap 'exit 75' USR1
kill -USR1 $(pgrep -o -f "^bash $script")
for ((i = 0; i < 100; i++)); do sleep 0.1; done
END
        sed -i "s|\$script|$script|" bireme
        [ $launch = srun ] || echo 'trap "kill -USR1 \$child" USR1; while [ "$1" != bireme ]; do shift; done; "$@" & child=$!
            wait $child; wait $child; exit $?' >launcher
        LAUNCH=$launch job 75
        grep -q 'near the time limit' told || fail 'the warning is not printed'
        called 'scontrol requeue 41'
        [ $launch = mpirun ] || called 'scancel --signal=USR1 41'
    done

    echo true >bireme
    printf 'none\npmi2\n' >plugins
    job 0
    called 'launcher --threads 3 -- bireme train r.yaml'
    LAUNCH=ssh job 64
    grep -q 'LAUNCH=ssh: use srun or mpirun' told || fail 'not refused'
    echo 'script: all as it should be'
    exit 0
fi

skip() {
    echo "skipped: $1"
    exit 77
}

if [ "${1:-}" = cluster ]; then
    [ -n "${BIREME_LONG:-}" ] || skip "Slurm's own deadlines want a machine that does nothing else: BIREME_LONG=1 runs it"
    for command in slurmctld slurmd sbatch ip; do
        command -v $command >/dev/null || skip "no $command (packages slurmctld, slurmd, slurm-client, iproute2)"
    done
    [ "$(id -u)" = 0 ] || skip "Slurm's daemons in namespaces need root"
    spaces=(unshare --net --uts --mount --pid --fork --kill-child --mount-proc)
    "${spaces[@]}" true 2>/dev/null || skip 'this machine lets nobody make namespaces'
    "${spaces[@]}" bash "$0" inside
    exit
fi

source "$BIREME_SOURCE_DIR/tests/trainer/tiny_training.sh"
need_mpirun
export BIREME=$program RECIPE=recipe.yaml SLURM_CONF=$folder/slurm.conf
hostname near
ip link set lo up
ip addr add 10.79.3.1/32 dev lo # names are not looked up where there is no address but 127.0.0.1
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

until_true() { # SECONDS TEXT COMMAND...
    local end=$((SECONDS + $1)) text=$2
    shift 2
    while [ $SECONDS -lt $end ]; do
        "$@" && return
        sleep 0.3
    done
    tail -n 20 bireme-*.log >>told 2>/dev/null
    squeue >>told
    fail "$text"
}

ready() { [ "$(sinfo -h -o %T 2>/dev/null)" = idle ]; }
until [ $SECONDS -ge 15 ] || ready; do
    sleep 0.1
done
ready || skip "Slurm does not start here: $(tail -n 1 daemons)"

submit() { # ARGUMENT...: as a user does; prints the job's number
    sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --time=5 "$script" "$@"
}
shows() { # JOB TEXT...
    local text shown
    shown=$(scontrol show job "$1" 2>/dev/null)
    for text in "${@:2}"; do
        [[ $shown == *"$text"* ]] || return 1
    done
}

: >told
sed -i 's/max_steps: 20/max_steps: 1000000/; s/every: 10, batches: 1/every: 1000000, batches: 1/; s/{every: 10, keep: 3}/{every: 100, keep: 1}/' recipe.yaml
id=$(submit log.every=1000)
until_true 30 'no checkpoint under Slurm' compgen -G 'run/checkpoints/step-*/manifest.json' >calls
scancel --batch --signal=USR1 "$id" # what --signal=B:USR1@120 does at its time
until_true 30 'the job that was stopped is not queued again' shows "$id" JobState=PENDING Restarts=1
grep -q '^stopped after step' bireme-"$id".log || fail 'the stopped job saved nothing'
saved=$(find run/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1)
step=$((10#${saved##*-}))
sed -i "s/max_steps: 1000000/max_steps: $((step + 5))/" recipe.yaml
ended() { # Slurm lets a job that was queued again wait for two minutes
    ! shows "$id" JobState=PENDING || scontrol update jobid="$id" StartTime=now
    shows "$id" JobState=COMPLETED ExitCode=0:0
}
until_true 30 'the resumed job does not come to its end' ended
grep -q "^resuming $saved: step $step, saved by 2 ranks, running on 2" bireme-"$id".log || fail 'not resumed'
[ -d run/final ] || fail 'no weights at the end'
id=$(submit model.num_heads=3)
until_true 30 "the program's code does not come through" shows "$id" JobState=FAILED ExitCode=78:0

# The network is cut, the ranks end, and srun, which hears of nothing, stays.
sed -i 's/max_steps: [0-9]*/max_steps: 1000000/' recipe.yaml
id=$(GRACE=2 submit run_dir=cut)
until_true 30 'no checkpoint before the cut' compgen -G 'cut/checkpoints/step-*/manifest.json' >calls
sleep 3 # the script looks for its ranks once a second, and a tiny model saves sooner than that
ip link set lo down
pkill -KILL -f "^$program train"
until_true 30 'nobody ended srun' grep -q '^E-RANK-LOST the ranks of near are gone, and srun did not end for 2 s' bireme-"$id".log
ip link set lo up
until_true 30 'the code of a cut job does not come through' shows "$id" JobState=FAILED ExitCode=71:0
echo 'cluster: all as it should be'
