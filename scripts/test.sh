#!/usr/bin/env bash
# Installs missing packages, builds Bireme and runs the tests.
#
#   scripts/test.sh         build into build/ and run all tests except the longest ones; about five
#                           minutes the first time, less the next time
#   scripts/test.sh --fast  the same build, and one test of each operation, objective and layout; at
#                           most a minute after the build
#   scripts/test.sh --ci    build into build/ with warnings as errors, run all tests, then
#                           the sanitizers, fuzzing, the check of the style, the clients of the
#                           server, long tests of kills and faults, and the quickstart in a bare
#                           Debian root
#
# Environment: BIREME_WERROR=ON makes warnings errors without --ci too. FRESH_SUITE selects the
# Debian release of the bare root of --ci (default: trixie).
# Each part has a time limit and prints its duration. The exit code is 0 only if no part failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Some tests only wait for deadlines, so there are two jobs more than cores. There are at most eight
# jobs, because each job needs memory.
jobs=$(($(nproc) + 2))
[ "$jobs" -le 8 ] || jobs=8
# These tests take more than half of the total time; other tests check the same on smaller runs. An
# expression of ctest has at most nine groups, so the names are joined without groups.
readonly longest=(
    'simt_.*_random' 'simt_.*_warp' 'simt_attention_lifo' 'simt_attention_tiles_lifo'
    'simt_attention_99_kib' 'simt_on_gpu_norm' 'simt_on_gpu_flat' 'simt_on_gpu_linear'
    'simt_on_gpu_cross_entropy' 'simt_on_gpu_attention.*' 'simt_cross_entropy_16_kib'
    'memory_(adapters|adapters_bf16|rollback|moments|2_ranks|2_ranks_rollback)' 'train_seq2seq'
    'gpu_bundle' 'simt_train_fp32' 'simt_train_graphs' 'simt_train_memory' 'simt_train_objectives'
    'simt_train_plans' 'simt_train_ranks' 'tensor_parallel_2_hosts' 'tensor_parallel_4_ranks'
    'train_kills_[12]' 'train_zero' 'train_tensor' 'train_reproducible' 'train_masked_layouts'
    'train_lamb' 'train_samples' 'comm_launch' 'comm_launch_restarts' 'train_dpo_whole_batch'
    'train_change_layout' 'train_start' 'train_faults_power_cut_.*' 'train_spikes_layouts'
    'train_spikes_resume' 'train_spikes_not_finite' 'train_spikes_stop' 'train_spikes_warn'
    'replica_check_(replicas|unchanged)' 'fault_.*' 'debian_package' 'gpu_check' 'headers'
    'tensor_parallel_3_ranks' 'train_lora_seq2seq' 'train_moments_of_lamb'
    'simt_train_(seq2seq|bench_objectives|ahead|lamb_ahead|times|wgmma)' 'simt_attention_wgmma_lifo'
    'simt_attention_wgmma_lowest' 'simt_attention_wgmma_highest'
    'train_(qwen2|mistral|openai_gpt|gemma3_text|smollm3|granite|olmo2|phi3|stablelm)'
)
# One test of each operation, objective and layout, and all tests with a name of one word, which
# test one module each.
readonly fast='^([a-z0-9]+|attention_features|cross_entropy|post_processor|row_workers'\
'|sentence_pairs|shard_task|tokenizer_command|sentence_embedding|early_stopping|checkpoint_damage'\
'|untrusted_manifest|(reference|huggingface)_[a-z]+|comm_[124]|comm_4_on_2_hosts|comm_nccl_3'\
'|comm_staged_3|comm_fault_agree_one|comm_fault_kill|bucket_2|bucket_nccl_2|model_layout'\
'|(model_layout|tensor_parallel|rounding|checkpoint)_2_ranks|tensor_parallel'\
'|train_(bert|inspect|lora_objectives|tasks_objectives|dpo_resume)|checkpoint_kill_rank_0_of_2'\
'|sft_trl|model_folder_commands|include_rules|style_can_fail|simt_planted|simt_gemm'\
'|simt_device_late|sample_order|swiglu_rotary|token_files'\
'|simt_(norm|flat|embedding|rows|swiglu_rotary|linear|fp8)_lifo'\
'|simt_(attention_features|attention_wgmma)_lifo)$'
excluded=$(printf '|^%s$' "${longest[@]}")
ci=false selected=(--exclude-regex "${excluded#|}")
case ${1:-} in
"") ;;
--fast) selected=(--tests-regex "$fast") ;;
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

# check_selection OPTION...: end the script if ctest cannot compile an expression of the selection.
# ctest reports this error and then runs all tests.
check_selection() {
    if ctest --show-only "$@" 2>&1 | grep 'Error in compile'; then
        print_message "the list of tests is not an expression that ctest can compile"
        exit 1
    fi
}

# run_sanitizer PRESET LIMIT: build and run the tests with a sanitizer. The preset excludes some
# tests; an option -E on the command line would replace this list.
run_sanitizer() {
    local preset=$1 limit=$2
    run_part "configure $preset" 120 cmake --preset "$preset" --log-level=NOTICE || return 0
    run_part "build $preset" 900 cmake --build --preset "$preset" --parallel "$(nproc)" || return 0
    check_selection --preset "$preset"
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
    build_folder build 900 -DBIREME_WERROR="${BIREME_WERROR:-OFF}"
    check_selection --test-dir build "${selected[@]}"
    keep_session_folder
    start=$SECONDS code=0
    TMPDIR=$temporary ctest --test-dir build --output-on-failure --no-tests=error --parallel $jobs \
        --output-junit tests.xml "${selected[@]}" || code=$?
    print_report build/tests.xml
    result=passed
    [ $code = 0 ] || result="failed with exit code $code"
    print_message "tests: $result in $((SECONDS - start)) s; total time $SECONDS s"
    exit $code
fi

# Without clang only the part "fuzzing" is skipped.
./scripts/setup.sh --fuzz || true
build_folder build 900 --preset release
run_part "tests, 40 kills" 1800 env BIREME_KILLS=40 \
    TMPDIR="$temporary" ctest --preset release --parallel $jobs --no-tests=error || true
run_sanitizer asan 1200
# simt_*_lifo and simt_on_gpu_* run the same kernels. So asan excludes most of the second group, and
# tsan all of it. tsan also excludes the slowest kernels, and programs with threads that run in
# other tests too. It excludes the tests of layouts, because all layouts have the same threads.
run_sanitizer tsan 1200
# The bare Debian root waits for the network, fuzzing has no short deadlines, and most other parts
# wait most of the time. So these two run at the same time as the others, with a lower priority.
start_background "bare Debian root" 1200 env QUICKSTART_MINUTES="${QUICKSTART_MINUTES:-0.3}" \
    ./scripts/test_fresh.sh "${FRESH_SUITE:-trixie}" --quickstart
# The seed is fixed, so that an old fault does not fail the test of an unrelated change by chance.
start_background "fuzzing" 900 ./scripts/fuzz.sh --seed 1 10
run_part "style" 300 ./scripts/check_style.sh --ci build || true
run_part "clients of the server" 900 ./scripts/test_clients.sh || true
run_part "short soak" 900 env BIREME_LONG=1 ctest --preset release --no-tests=error -R '^soak$' ||
    true
# On a busy machine the deadlines of TCP may be missed, so there are three attempts.
run_part "network failures" 300 env BIREME_LONG=1 \
    ctest --preset release --no-tests=error --repeat until-pass:3 -R '^(comm|train)_network$' ||
    true
# The seed, which the script prints, depends on the commit.
run_part "a tenth of the faults at file calls" 300 \
    ./scripts/fault_sweep.sh --sample 10 --seconds 110 build || true
run_part "CUDA" 900 env BIREME_LONG=1 \
    ctest --preset release --no-tests=error -R '^(cuda_compile_|simt_train_curves$)' || true
finish_background
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
