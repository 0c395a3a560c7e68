# shellcheck shell=bash
# Cases of run_fault.sh: memory and threads that are not available.

# check_shortage TEXT: the last run, with exit code `code`, succeeded, or it ended with one error
# line and code 70.
check_shortage() {
    case $code in
    0) ! grep -q '^E-' stderr || fail "$1: an error line, but exit code 0" ;;
    70) [ "$(grep -c '^E-' stderr)" = 1 ] || fail "$1: not one error line" ;;
    *) fail "$1: exit code $code" ;;
    esac
}

# The number of threads is limited. Some are started by the program, the others by OpenMP.
check_no_threads() {
    need_shim
    local at refused=0 threads
    unset OMP_NUM_THREADS
    for threads in 2 5; do
        for ((at = 1; at <= 10; at++)); do
            rm -rf few
            LD_PRELOAD=$shim FAULT_DIR=few FAULT_THREADS=$at timeout 60 "$program" train \
                recipe.yaml run_dir="$folder/few" parallel.threads=$threads >out 2>stderr
            code=$?
            check_shortage "at most $at threads with parallel.threads=$threads"
            [ $code = 0 ] || refused=$((refused + 1))
        done
    done
    [ $refused -ge 6 ] || fail "only $refused runs were refused a thread"
}

# check_shortage_in_hdf5 TEXT: the last run succeeded, or ended with one error line. HDF5 reports a
# failed allocation like an unreadable or unwritable file, and sometimes crashes.
check_shortage_in_hdf5() {
    case $code in
    0 | 134 | 139 | 255) ;;
    65 | 70 | 74 | 80) [ "$(grep -c '^E-' stderr)" = 1 ] || fail "$1: not one error line" ;;
    *) fail "$1: exit code $code" ;;
    esac
}

# fail_allocations LIBRARY: a sample of the allocations of a run with checkpoints fails, one in each
# run. Every second run resumes; half of the failing allocations are among those of the start.
fail_allocations() {
    local count at i failed=0 check=check_shortage
    [ -z "$1" ] || { export ALLOCATION_IN=$1 && check=check_shortage_in_$1; }
    for ((i = 0; i < $(choose_number 14 300); i++)); do
        rm -rf few
        if [ $((i % 2)) = 1 ]; then
            run_bireme 0 train recipe.yaml run_dir="$folder/few"
            rm -rf few/final few/checkpoints/step-00000006
        fi
        if [ $i -lt 2 ]; then
            LD_PRELOAD=$allocation_shim ALLOCATION_COUNT=count$i "$program" train recipe.yaml \
                run_dir="$folder/few" >out 2>stderr || fail 'a run without a fault fails'
            [ "$(cat count$i)" -gt 1000 ] || fail "only $(cat count$i) allocations were counted"
            continue
        fi
        count=$(cat count$((i % 2)))
        at=$((i % 4 < 2 ? 1 + (RANDOM * 32768 + RANDOM) % count : 1 + RANDOM % 2000))
        LD_PRELOAD=$allocation_shim ALLOCATION_AT=$at timeout 60 "$program" train recipe.yaml \
            run_dir="$folder/few" >out 2>stderr
        code=$?
        $check "allocation $at of $count fails in ${1:-the program}"
        [ $code = 0 ] || failed=$((failed + 1))
        resume few 1 "$(newest_saved)"
    done
    unset ALLOCATION_IN
    [ $failed -ge 2 ] || fail "only $failed of $i runs failed"
    echo "${1:-program}: $failed of $((i - 2)) failed allocations ended the run"
}

check_allocation_fails() {
    need_shim
    sed -i 's/num_layers: 2/num_layers: 1/; s/max_steps: 20/max_steps: 6/; s/every: 10/every: 2/
        s/warmup_steps: 5/warmup_steps: 1/' recipe.yaml
    settings=() steps=6
    train_whole 1
    fail_allocations ''
    fail_allocations hdf5
}
