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
