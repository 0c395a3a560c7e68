# shellcheck shell=bash
# Cases of run_fault.sh: ranks and launchers that end, hang, are slow or receive signals.

check_rank_crashed() {
    need_mpirun
    local signal saved
    for signal in SEGV:11 ABRT:6; do
        start_job crashed "${launch[@]}" -n 2 "$program" train recipe.yaml \
            run_dir="$folder/crashed" "${settings[@]}"
        wait_for_step crashed 50
        kill -"${signal%:*}" "$(find_ranks crashed | tail -n 1)"
        end_job
        [ "$code" = 71 ] || fail "SIG${signal%:*} in a rank ended the launcher with $code"
        expect_error "signal ${signal#*:}.*\[E-RANK-LOST\]$"
        grep -q '\[ *0\] ' stderr || fail 'there is no backtrace'
        has_no_ranks crashed || fail 'a rank runs after the end of the job'
        saved=$(newest_saved)
        resume crashed 2 "$saved"
        rm -rf crashed
    done
}

check_rank_hangs() {
    need_mpirun
    start_ranks hung 2 parallel.timeout_seconds=3 # the stop may hit a save
    wait_for_step hung 50
    kill -STOP "$(find_ranks hung | tail -n 1)"
    end_job
    [ "$code" = 76 ] || fail "a stopped rank ended the job with $code"
    expect_error 'rank 1 host .* in phase.*\[E-HANG\]$'
    wait_until 20 'a rank runs after the end of the job' has_no_ranks hung
    resume hung 2 "$(newest_saved)"
    check_stopped_in_save
}

# A save may take 600 s, but a process that is stopped in it is reported after the normal limit.
check_stopped_in_save() {
    need_shim
    start_job in_save "${mpirun[@]}" -np 2 env LD_PRELOAD="$shim" FAULT_RANK=1 FAULT_DO=stop \
        FAULT_DIR=in_save/checkpoints/tmp-step-00000040 FAULT_AT=3 "$program" train recipe.yaml \
        run_dir="$folder/in_save" "${settings[@]}" parallel.timeout_seconds=3 \
        checkpoint.async=false
    end_job # within 100 s
    [ "$code" = 76 ] || fail "a rank that is stopped in a save ended the job with $code"
    expect_error 'rank 1 host .* in phase .checkpoint. .*process is stopped'
    wait_until 20 'a rank runs after the end of the job' has_no_ranks in_save
    resume in_save 2 20
}

# The stop must be agreed between ranks at any moment.
check_stop_signal() {
    need_mpirun
    local i left
    train_whole 2
    for ((i = 0; i < $(choose_number 6 50); i++)); do
        [ ! -d stopped/final ] || rm -rf stopped
        start_ranks stopped 2
        left=$((RANDOM % 100))
        wait_until 60 'the ranks do not start' grep -qE 'steps done|is finished' stderr
        sleep "0.$(printf '%02d' $left)"
        kill -USR1 "$(find_mpirun stopped)" 2>/dev/null
        end_job
        # Without launch_mpirun.sh, a signal at the end of a finished job can end mpirun itself.
        [ "$code" != 138 ] || [ ! -d stopped/final ] || code=0
        [ "$code" = 75 ] || [ "$code" = 0 ] || fail "SIGUSR1 ended mpirun with $code"
        [ "$code" = 0 ] || [ "$(grep -c '^stopped after step' stderr)" = 1 ] ||
            fail 'the stop is not reported once'
    done
    resume stopped 2 "$(newest_saved)"
}

check_terminated() {
    need_mpirun
    local signal
    for signal in TERM INT; do
        start_job terminated env --default-signal=INT "${mpirun[@]}" -np 2 "$program" train \
            recipe.yaml run_dir="$folder/terminated" "${settings[@]}"
        wait_for_step terminated $((50 + RANDOM % 50))
        kill -$signal "$(find_mpirun terminated)"
        end_job
        [ "$code" != 0 ] || [ -d terminated/final ] || fail "SIG$signal ended mpirun with 0"
        wait_until 30 'a rank runs after the end of mpirun' has_no_ranks terminated
        resume terminated 2 "$(newest_saved)"
        rm -rf terminated
    done
}

# Slow writes make the save long enough to receive signals.
check_stopped_twice() {
    need_shim
    local signal count
    for signal in TERM USR1; do
        start_job twice env LD_PRELOAD="$shim" FAULT_DIR=twice/checkpoints/tmp- FAULT_DO=slow \
            FAULT_AT=1 FAULT_STICKY=1 FAULT_SLOW_MS=20 \
            "$program" train recipe.yaml run_dir="$folder/twice" "${settings[@]}"
        wait_for_step twice $((30 + RANDOM % 15))
        while ! has_ended; do
            kill -$signal "$(find_ranks twice | tail -n 1)" 2>/dev/null
            sleep 0.01
        done
        end_job
        [ "$code" = 75 ] || fail "repeated SIG$signal ended the run with $code"
        [ "$(grep -c '^stopped after step' stderr)" = 1 ] || fail 'not one stop'
        count=$(sed -n 's/^saved step \([0-9]*\) .*/\1/p' stderr | sort | uniq -d | wc -l)
        [ "$count" = 0 ] || fail 'a step was saved twice'
        [ -z "$(find twice/checkpoints -name 'tmp-*')" ] || fail 'a temporary folder is left'
        resume twice 1 "$(newest_saved)"
        rm -rf twice
    done
}

check_mpirun_killed() {
    need_mpirun
    start_ranks orphans 2
    wait_for_step orphans 50
    kill -KILL "$(find_mpirun orphans)"
    end_job
    wait_until 30 'a rank runs after mpirun was killed' has_no_ranks orphans
    resume orphans 2 "$(newest_saved)"
}

check_two_jobs() {
    local first
    start_ranks shared 1 train.max_steps=500
    wait_for_step shared 20
    first=$job
    cp stderr first_stderr
    kill -STOP "$(find_ranks shared)" # so that the first job does not end too early
    run_bireme 73 train recipe.yaml run_dir="$folder/shared" "${settings[@]}" train.max_steps=500
    expect_error "LOCK is held by another job (host [^ ]* process $(find_ranks shared))"
    kill -CONT "$(find_ranks shared)"
    job=$first
    end_job
    [ "$code" = 0 ] || fail "the first job ended with $code"
    run_bireme 0 train recipe.yaml run_dir="$folder/whole" "${settings[@]}" train.max_steps=500
    compare_weights whole shared 00000500
    compare_losses whole shared 0
}

# The rank is stopped for nine tenths of the time.
check_slow_rank() {
    need_mpirun
    local victim=''
    has_warned() { grep -q '^warning: rank 1 .*\[W-SLOW\]$' stderr; }
    start_ranks slow 2 train.max_steps=1000000 checkpoint.every=0 evaluate.every=0 \
        data.validation=null log.every=20
    wait_for_step slow 20
    victim=$(find_ranks slow | tail -n 1)
    (
        trap 'kill -CONT $victim; exit' TERM
        while kill -STOP "$victim" 2>/dev/null; do
            sleep 0.2
            kill -CONT "$victim"
            sleep 0.02
        done
    ) &
    local brake=$!
    wait_until 60 'there is no warning about the slow rank' has_warned
    kill -TERM $brake
    wait $brake
    kill -CONT "$victim"
    kill -USR1 "$(find_mpirun slow)"
    end_job
    [ "$code" = 75 ] || fail "the run with a slow rank ended with $code"
}

# mixed_ranks COMMAND...: run the command as rank 0, and with other.sh as rank 1.
mixed_ranks() {
    timeout 50 "${mpirun[@]}" -np 2 bash ./mixed.sh "$@" >out 2>stderr
    code=$?
}

check_mixed_job() {
    need_mpirun
    local version patched
    # shellcheck disable=SC2016
    echo '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" seed=8; exec "$@"' >mixed.sh
    mixed_ranks "$program" train recipe.yaml run_dir="$folder/mixed"
    [ $code = 78 ] || fail "two recipes ended the job with $code"
    expect_error 'the resolved recipe differs between ranks: .*rank 1 .*\[E-RECIPE\]$'
    [ ! -e mixed ] || fail 'a run folder was made'
    # A copy of the program with another version.
    version=$("$program" --version | sed -n '1s/^bireme //p')
    patched=$(echo "$version" | tr '0-9' '1-90')
    sed "s/${version//./\\.}/$patched/g" "$program" >other
    chmod +x other
    [ "$(./other --version | sed -n '1s/^bireme //p')" = "$patched" ] || {
        echo 'not checked: two builds: the copy does not run'
        return
    }
    # shellcheck disable=SC2016
    echo '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || { shift; set -- ./other "$@"; }; exec "$@"' >mixed.sh
    mixed_ranks "$program" train recipe.yaml run_dir="$folder/mixed"
    [ $code = 78 ] || fail "two builds ended the job with $code"
    expect_error "the program's build differs between ranks: .*rank 1 "
}

# The clock of the machine jumps forwards and backwards by a day every 40 readings.
check_clock_jumps() {
    need_shim
    need_mpirun
    start_job jumping "${mpirun[@]}" -np 2 env LD_PRELOAD="$shim" FAULT_CLOCK=86400 "$program" \
        train recipe.yaml run_dir="$folder/jumping" "${settings[@]}" parallel.timeout_seconds=30 \
        train.max_minutes=60 train.wall_minutes=60
    end_job
    [ "$code" = 0 ] || fail "a run under a jumping clock ended with $code"
    train_whole 2
    compare_weights whole jumping "$(printf '%08d' $steps)"
    grep -E '"event":"(train|checkpoint|evaluate)"' jumping/metrics.jsonl |
        grep -oE '"(tokens_per_second|[a-z_]*seconds)":[-0-9.e+]*' >durations
    [ -s durations ] || fail 'there are no times'
    awk -F: '!($2 >= 0 && $2 < 1e9) || ($1 !~ /tokens/ && $2 > 1000) { print; bad = 1 }
        END { exit bad }' durations >>stderr || fail 'a time or rate is wrong'
    awk -F'"time":' '/"event":"train"/ { split($2, t, ","); if (n++ && (d = t[1] - last) * d > 1e8)
        jumps++; last = t[1] } END { exit jumps < 2 }' jumping/metrics.jsonl ||
        fail 'the clock did not jump'
}
