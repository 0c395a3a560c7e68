#!/usr/bin/env bash
# Installs missing packages, builds Bireme and runs the tests.
#
#   scripts/test.sh         build into build/ and run all tests except the longest ones; about five
#                           minutes the first time, less the next time. An existing build/ keeps its
#                           configuration. A new one has the preset release, without the instruction
#                           sets that this machine cannot run
#   scripts/test.sh --fast  the same build, and one test of each operation, objective and layout; at
#                           most a minute after the build
#   scripts/test.sh --ci    build into build/ with the preset release, run all tests, then the
#                           sanitizers, fuzzing, the check of the style, the clients of the server,
#                           long tests of kills and faults, and the quickstart in a bare Debian root
#
# Environment: BIREME_WERROR=ON or OFF selects whether warnings are errors (the preset: ON).
# FRESH_SUITE selects the Debian release of the bare root of --ci (default: trixie).
# Each part has a time limit and prints its duration. The exit code is 0 only if no part failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Some tests only wait for deadlines, so there are two jobs more than cores. There are at most eight
# jobs, because each job needs memory.
jobs=$(($(nproc) + 2))
[ "$jobs" -le 8 ] || jobs=8
# tests/labels.tsv has the labels of the tests.
ci=false selected=(--label-exclude '^slow$')
case ${1:-} in
"") ;;
--fast) selected=(--label-regex '^fast$') ;;
--ci) ci=true ;;
*)
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
    ;;
esac

# Open MPI runs as root only with both of these.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# The tests write to memory if it has 4 GiB free and runs programs: they create thousands of
# small files and wait until each one is on the disk. The bare Debian root stays on the disk.
temporary=${TMPDIR:-/tmp}
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] &&
    [ "$(df --output=avail /dev/shm | tail -n 1)" -ge $((4 << 20)) ] &&
    ! grep -q '^[^ ]* /dev/shm .*noexec' /proc/mounts; then
    temporary=/dev/shm
fi

export CMAKE_GENERATOR=Ninja # for a new build folder; an existing one keeps its generator

print_message() {
    echo "test: $*"
}

passed=0 failed=0 skipped=0
readonly total_limit=4800 # seconds for all parts together; two fast cores need less than half

# run_limited NAME LIMIT COMMAND...: run one part for at most LIMIT seconds and print its duration.
run_limited() {
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    if [ $((total_limit - SECONDS)) -lt "$limit" ]; then
        limit=$((total_limit > SECONDS ? total_limit - SECONDS : 1))
    fi
    timeout --kill-after=20 "$limit" "$@" </dev/null || code=$?
    case $code in
    0) print_message "$name: passed in $((SECONDS - start)) s" ;;
    77) print_message "$name: skipped" ;;
    124 | 137) print_message "$name: failed: not complete after $limit s" ;;
    *) print_message "$name: failed with exit code $code after $((SECONDS - start)) s" ;;
    esac
    return "$code"
}

# count_result CODE: count the exit code of a part, and return it.
count_result() {
    case $1 in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
    return "$1"
}

# run_part NAME LIMIT COMMAND...: run one part and count its result.
run_part() {
    local code=0
    run_limited "$@" || code=$?
    count_result $code
}

background_names=() background_processes=()

# start_background NAME LIMIT COMMAND...: start a part in the background with a lower priority.
# finish_background prints its output.
start_background() {
    local name=$1 limit=$2
    shift 2
    background=${background:-$(mktemp -d)}
    run_limited "$name" "$limit" nice -n 10 "$@" >"$background/$name" 2>&1 &
    background_names+=("$name")
    background_processes+=($!)
}

# finish_background: wait for the parts of start_background, print their output and count their
# results.
finish_background() {
    local i code
    for i in "${!background_names[@]}"; do
        code=0
        wait "${background_processes[i]}" || code=$?
        cat "$background/${background_names[i]}"
        count_result $code || true
    done
    rm -rf "$background"
}

# build_folder FOLDER LIMIT OPTION...: configure and build. A failure ends the script, because all
# other parts need the build.
build_folder() {
    local folder=$1 limit=$2
    shift 2
    run_part "configure $folder" 120 cmake -S . -B "$folder" "$@" --log-level=NOTICE || exit 1
    run_part "build $folder" "$limit" cmake --build "$folder" --parallel "$(nproc)" || exit 1
}

# run_sanitizer PRESET LIMIT: build and run the tests with a sanitizer. The preset excludes tests by
# their labels.
run_sanitizer() {
    local preset=$1 limit=$2
    run_part "configure $preset" 120 cmake --preset "$preset" --log-level=NOTICE || return 0
    run_part "build $preset" 900 cmake --build --preset "$preset" --parallel "$(nproc)" || return 0
    run_part "tests $preset" "$limit" \
        env TMPDIR="$temporary" ctest --preset "$preset" --parallel $jobs --no-tests=error ||
        return 0
}

# keep_session_folder: keep the session folder of Open MPI 4 while the tests run. mpirun creates it
# and removes it if it is empty; if another job starts at the same time, that job may fail with
# "unable to create the desired directory".
keep_session_folder() {
    session=$temporary/ompi.$(uname -n | cut -d. -f1).$(id -u)
    mkdir -p "$session/bireme-tests-$$"
    trap 'rmdir "$session/bireme-tests-$$" "$session" 2>/dev/null || true' EXIT
}

# print_report FILE: from a JUnit file of ctest, print the reasons of skipped tests with the number
# of tests, and the ten slowest tests.
print_report() {
    awk '
        /<testcase / { name = $0; sub(/.* name="/, "", name); sub(/".*/, "", name) }
        sub(/.*skipped: /, "") && !((name, $0) in seen) { seen[name, $0] = 1; count[$0]++ }
        END { for (reason in count) print "test: skipped: " count[reason] ": " reason }' "$1" |
        sed "s/&apos;/'/g; s/&quot;/\"/g; s/&amp;/\&/g" | sort
    print_message "the ten slowest tests, in seconds:"
    sed -n 's/.*<testcase name="\([^"]*\)".* time="\([0-9.e+-]*\)".*/\2 \1/p' "$1" |
        sort -rg | sed -n 1,10p
}

run_part "setup" 600 ./scripts/setup.sh || exit 1
# Limits the time that programs wait for a host name that cannot be resolved.
export RES_OPTIONS="${RES_OPTIONS:-timeout:1 attempts:1}"
if ! $ci; then
    options=()
    [ -f build/CMakeCache.txt ] || options+=(--preset release -DBIREME_CPU_VARIANTS=NATIVE)
    [ -z "${BIREME_WERROR:-}" ] || options+=(-DBIREME_WERROR="$BIREME_WERROR")
    build_folder build 900 "${options[@]}"
    keep_session_folder
    start=$SECONDS code=0
    TMPDIR=$temporary ctest --test-dir build --output-on-failure --no-label-summary \
        --no-tests=error --parallel $jobs --output-junit tests.xml "${selected[@]}" || code=$?
    print_report build/tests.xml
    result=passed
    [ $code = 0 ] || result="failed with exit code $code"
    print_message "tests: $result in $((SECONDS - start)) s; total time $SECONDS s"
    exit $code
fi

# Without clang only the part "fuzzing" is skipped.
./scripts/setup.sh --fuzz || true
build_folder build 900 --preset release
# The part "style" runs the same checks.
run_part "tests, 40 kills" 1800 env BIREME_KILLS=40 TMPDIR="$temporary" ctest --preset release \
    --exclude-regex '^(style|style_format|include_rules|excerpts)$' --parallel $jobs \
    --no-tests=error || true
run_sanitizer asan 1500
run_sanitizer tsan 1500
# The bare Debian root waits for the network, fuzzing has no short deadlines, and most other parts
# wait most of the time. Therefore these two run at the same time as the others, with a lower
# priority.
start_background "bare Debian root" 1200 env QUICKSTART_MINUTES="${QUICKSTART_MINUTES:-0.3}" \
    ./scripts/test_fresh.sh "${FRESH_SUITE:-trixie}" --quickstart
# The seed is fixed, so that an old fault does not fail the test of an unrelated change by chance.
start_background "fuzzing" 900 ./scripts/fuzz.sh --seed 1 10
run_part "style" 300 ./scripts/check_style.sh --ci build || true
run_part "clients of the server" 900 ./scripts/clients/test_clients.sh || true
run_part "short soak" 900 env BIREME_LONG=1 ctest --preset release --no-tests=error -R '^soak$' ||
    true
# On a busy machine the deadlines of TCP may be missed, so there are three attempts.
run_part "network failures" 300 env BIREME_LONG=1 \
    ctest --preset release --no-tests=error --repeat until-pass:3 -R '^(comm|train)_network$' ||
    true
run_part "faults at all file calls of a save" 600 \
    env BIREME_SWEEP_TIMEOUT=50 ./scripts/fault_sweep.sh --direct build || true
# The seed, which the script prints, depends on the commit.
run_part "one in 30 of these faults, with exit codes" 300 \
    ./scripts/fault_sweep.sh --sample 30 --seconds 60 build || true
run_part "CUDA" 900 env BIREME_LONG=1 \
    ctest --preset release --no-tests=error -R '^(cuda_compile_|simt_train_curves$)' || true
finish_background
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
