#!/usr/bin/env bash
# Fuzzes the readers of foreign files (tests/fuzz/) with libFuzzer, the address sanitizer and the
# undefined-behavior sanitizer.
#
#   scripts/fuzz.sh [--seed N] [SECONDS] [TARGET...]
#                                            build, then run each target for SECONDS (default: 60),
#                                            two at a time; without a target, all targets. N selects
#                                            the random numbers (default: other ones in each run)
#   scripts/fuzz.sh --merge TARGET FOLDER    add the inputs of a folder that reach new code to
#                                            tests/fuzz/corpus/TARGET, and remove the superfluous
#
# New inputs that reach new code go to build-fuzz/corpus/TARGET, and the next run begins with them.
# An input that breaks a rule goes to build-fuzz/findings/. The script then prints its path and ends
# with exit code 1. Exit code 77: clang or its libFuzzer is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=build-fuzz jobs=2

print_message() {
    echo "fuzz: $*"
}

has_libfuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n == 1; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null
}

# run_target TARGET SECONDS: run a target, print its result and return 1 after a finding. Leaks are
# detected at the end of a run: a check after each input makes the targets with HDF5 ten times
# slower. The option -detect_leaks=1 then finds the input.
run_target() {
    local target=$1 seconds=$2 log=$folder/logs/$1.txt code=0 count
    mkdir -p "$folder/corpus/$target" "$work/$target"
    TMPDIR=$work/$target timeout --kill-after=10 $((seconds + 120)) \
        "$folder/tests/fuzz/fuzz_$target" -seed="$seed" -max_total_time="$seconds" -timeout=30 \
        -detect_leaks=0 -rss_limit_mb=2048 -report_slow_units=5 -print_final_stats=1 \
        -dict=tests/fuzz/tokens.dict -artifact_prefix="$folder/findings/$target-" \
        "$folder/corpus/$target" "tests/fuzz/corpus/$target" </dev/null >"$log" 2>&1 || code=$?
    rm -rf "${work:?}/$target"
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [ $code = 0 ]; then
        print_message "$target: ${count:-0} inputs, no finding"
        return 0
    fi
    print_message "$target: failed with exit code $code; from $log:"
    grep -aE 'ERROR: |^fuzz: |runtime error|SUMMARY|^ +#[0-9]+ .*/(base|datasets|trainer)/' \
        "$log" | head -n 30 || tail -n 30 "$log"
    print_message "$target: reproduce it with: $folder/tests/fuzz/fuzz_$target" \
        "$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)"
    return 1
}

# run_all SECONDS TARGET...: run the targets, $jobs at a time.
run_all() {
    local seconds=$1 target running=0 failed=0
    shift
    for target in "$@"; do
        if [ $running = $jobs ]; then
            wait -n || failed=1
            running=$((running - 1))
        fi
        run_target "$target" "$seconds" &
        running=$((running + 1))
    done
    while [ $running -gt 0 ]; do
        wait -n || failed=1
        running=$((running - 1))
    done
    return $failed
}

# merge TARGET FOLDER: replace the corpus of a target by the smallest one with the same coverage.
merge() {
    local target=$1 new=$work/merged
    mkdir -p "$new" "$work/files"
    TMPDIR=$work/files "$folder/tests/fuzz/fuzz_$target" -merge=1 -use_counters=0 \
        -close_fd_mask=1 "$new" \
        "tests/fuzz/corpus/$target" "$2" 2>"$work/log" || { tail "$work/log" && exit 1; }
    mkdir -p "tests/fuzz/corpus/$target"
    rm -f "tests/fuzz/corpus/$target"/*
    cp "$new"/* "tests/fuzz/corpus/$target"
    du -sh "tests/fuzz/corpus/$target"
}

if ! has_libfuzzer; then
    print_message "skipped: clang with libFuzzer was not found; run scripts/setup.sh --fuzz"
    exit 77
fi
mkdir -p "$folder/findings" "$folder/logs"
start=$SECONDS
if ! { cmake --preset fuzz && cmake --build --preset fuzz --parallel "$(nproc)"; } \
    >"$folder/logs/build.txt" 2>&1; then
    tail -n 40 "$folder/logs/build.txt"
    print_message "the build failed"
    exit 1
fi
print_message "build: $((SECONDS - start)) s"
# Files of the targets; in memory where possible, because fsync takes no time there.
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
work=$(realpath "$work")
trap 'rm -rf "$work"' EXIT
export ASAN_OPTIONS=detect_leaks=1:intercept_tls_get_addr=0:quarantine_size_mb=64
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitizers/leak.txt:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1

if [ "${1:-}" = --merge ]; then
    merge "$2" "$3"
    exit 0
fi
seconds=60 seed=0
if [ "${1:-}" = --seed ]; then
    seed=$2
    shift 2
fi
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    seconds=$1
    shift
fi
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    for path in tests/fuzz/corpus/*/; do
        targets+=("$(basename "$path")")
    done
fi
run_all "$seconds" "${targets[@]}"
