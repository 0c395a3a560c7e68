#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests.
#
#   scripts/test.sh         into build/, as a user builds; about five minutes the first time, less again; without
#                           the tests that take longest
#   scripts/test.sh --fast  the same build, and one test of each operation, objective and layout: at most a minute
#                           after the build
#   scripts/test.sh --ci    into build-release/ with warnings as errors, all tests, then what takes longer:
#                           sanitizers, the long kill sweeps, the quickstart in a bare Debian root
#
# Environment: BIREME_WERROR=ON makes warnings errors without --ci too. --ci: FRESH_SUITE is the suite of the
# bare root (trixie unless set).
# Every part has a time limit of its own and tells the seconds it took. The exit code is 0 only if
# every part that ran has passed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Some tests wait for deadlines: one more than there are cores. Eight are enough for the memory of most machines.
jobs=$(($(nproc) + 1))
[ "$jobs" -le 8 ] || jobs=8
# A quarter of the suite's time, and other tests ask the same of smaller runs.
readonly longest='^(simt_.*_random_[12]|simt_train_(memory|objectives|plans|ranks)|comm_launch|train_kills_2|train_zero)$'
# One test of each operation, objective and layout. A test with a name of one word tests one module, and is among them.
readonly fast='^([a-z0-9]+|attention_features|cross_entropy|post_processor|row_workers|sentence_pairs|shard_task'\
'|tokenizer_command|sentence_embedding|early_stopping|checkpoint_damage'\
'|(reference|huggingface)_[a-z]+|comm_[124]|comm_(4_on_2_hosts|nccl_3|staged_3)|comm_fault_(agree_one|kill)|bucket_(2|nccl_2)'\
'|(model_layout|tensor_parallel)(_2_ranks)?|(rounding|checkpoint)_2_ranks|train_(bert|inspect)|train_(lora|tasks)_objectives|train_dpo_resume'\
'|checkpoint_kill_rank_0_of_2|sft_trl|model_folder_commands|include_rules|style_can_fail|simt_planted|simt_gemm|simt_device_late'\
'|simt_(norm|flat|embedding|rows|llama|linear|attention_features|attention_wgmma)_lifo)$'
ci=false selected=(--exclude-regex "$longest")
case ${1:-} in
"") ;;
--fast) selected=(--tests-regex "$fast") ;;
--ci) ci=true ;;
*)
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
    ;;
esac

# Open MPI refuses root unless told twice, and more ranks than cores unless told.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

export CMAKE_GENERATOR=Ninja # for a new build folder; one that exists keeps its own

say() {
    echo "test: $*"
}

passed=0 failed=0 skipped=0
readonly whole_limit=4800 # seconds for all parts together; two fast cores need about 2300

# part NAME LIMIT COMMAND...: one part of the work, at most LIMIT seconds.
part() {
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    if [ $((whole_limit - SECONDS)) -lt "$limit" ]; then
        limit=$((whole_limit > SECONDS ? whole_limit - SECONDS : 1))
    fi
    timeout --kill-after=20 "$limit" "$@" </dev/null || code=$?
    case $code in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
    case $code in
    0) say "$name: passed in $((SECONDS - start)) s" ;;
    77) say "$name: skipped" ;;
    124 | 137) say "$name: not done within $limit s" ;;
    *) say "$name: failed with code $code after $((SECONDS - start)) s" ;;
    esac
    return "$code"
}

# build FOLDER LIMIT CONFIGURE...: configure and compile; ends the script where that fails, since the rest hangs on it.
build() {
    local folder=$1 limit=$2
    shift 2
    part "configure $folder" 120 cmake -S . -B "$folder" "$@" --log-level=NOTICE || exit 1
    part "build $folder" "$limit" cmake --build "$folder" --parallel "$(nproc)" || exit 1
}

# sanitizer PRESET LIMIT: build and run the suite with a sanitizer. What a sanitizer leaves out stands in its preset:
# on a command line -E would take the preset's list away.
sanitizer() {
    local preset=$1 limit=$2
    part "configure $preset" 120 cmake --preset "$preset" --log-level=NOTICE || return 0
    part "build $preset" 900 cmake --build --preset "$preset" --parallel "$(nproc)" || return 0
    part "tests $preset" "$limit" ctest --preset "$preset" --no-tests=error || return 0
}

# mpirun of Open MPI 4 makes a folder for all jobs of this user and removes it when it is empty. Of two that start and end
# at the same time one may then fail ("unable to create the desired directory"): the folder is kept while tests run.
keep_session_folder() {
    session=${TMPDIR:-/tmp}/ompi.$(uname -n | cut -d. -f1).$(id -u)
    mkdir -p "$session/bireme-tests-$$"
    trap 'rmdir "$session/bireme-tests-$$" "$session" 2>/dev/null || true' EXIT
}

# report FILE: of ctest's JUnit file, why tests were skipped, how many for each reason, and the ten slowest tests.
report() {
    awk '
        /<testcase / { name = $0; sub(/.* name="/, "", name); sub(/".*/, "", name) }
        sub(/.*skipped: /, "") && !((name, $0) in seen) { seen[name, $0] = 1; count[$0]++ }
        END { for (reason in count) print "test: skipped: " count[reason] ": " reason }' "$1" |
        sed "s/&apos;/'/g; s/&quot;/\"/g; s/&amp;/\&/g" | sort
    say "the ten slowest tests, in seconds:"
    sed -n 's/.*<testcase name="\([^"]*\)".* time="\([0-9.e+-]*\)".*/\2 \1/p' "$1" | sort -rg | sed -n 1,10p
}

part "setup" 600 ./scripts/setup.sh || exit 1
# Where neither /etc/hosts nor a name server has this machine's name, a program that looks for it waits this long.
export RES_OPTIONS="${RES_OPTIONS:-timeout:1 attempts:1}"
if ! $ci; then
    build build 900 -DBIREME_WERROR="${BIREME_WERROR:-OFF}"
    keep_session_folder
    start=$SECONDS code=0
    ctest --test-dir build --output-on-failure --no-tests=error --parallel $jobs --output-junit tests.xml \
        "${selected[@]}" || code=$?
    report build/tests.xml
    say "tests: ended with code $code after $((SECONDS - start)) s; all of it took $SECONDS s"
    exit $code
fi

build build-release 900 --preset release
part "tests" 1200 ctest --preset release --no-tests=error || true
sanitizer asan 1200
# One layout has the threads of all: of several minutes of layouts, the address sanitizer's are enough.
sanitizer tsan 1200
part "style" 300 ./scripts/check_style.sh --ci build-release || true
part "a hundred kills" 900 env BIREME_KILLS=100 ctest --preset release --no-tests=error -R '^train_kills_' || true
# Its deadlines are those of TCP on a machine that may be busy: up to three tries.
part "a broken network" 300 env BIREME_LONG=1 \
    ctest --preset release --no-tests=error --repeat until-pass:3 -R '^(comm|train)_network$' || true
part "CUDA" 900 env BIREME_LONG=1 ctest --preset release --no-tests=error -R '^(cuda_compile_|simt_train_curves$)' || true
part "every call of a save" 900 env BIREME_FULL_SWEEP=1 \
    ctest --preset release --no-tests=error -R '^(checkpoint_(kill|enospc)|train_faults)_' || true
part "a bare Debian root" 900 env QUICKSTART_MINUTES="${QUICKSTART_MINUTES:-0.3}" \
    ./scripts/test_fresh.sh "${FRESH_SUITE:-trixie}" --quickstart || true
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
