# shellcheck shell=bash disable=SC2154
# Items of scripts/gpu_check.sh, which sources this file: the kernel tests, the same tests under
# compute-sanitizer, and the tests of training. They use the functions and variables of
# gpu_check.sh.

# start_test NAME COMMAND ARGUMENT...: wait until fewer than GPU_CHECK_JOBS tests run, then start a
# test in the background. Its output goes to $folder/NAME.log and its exit code to
# $folder/NAME.log.code.
start_test() {
    local test_name=$1
    shift
    while [ "$(jobs -rp | wc -l)" -ge "${GPU_CHECK_JOBS:-6}" ]; do
        wait -n
    done
    {
        code=0
        "$@" >"$folder/$test_name.log" 2>&1 </dev/null || code=$?
        [ "$code" = 0 ] || echo "$test_name ended with code $code" >>"$folder/$test_name.log"
        echo "$code" >"$folder/$test_name.log.code"
        report_tests >"$folder/partial.json"
    } &
}

# report_tests: write the summary of the tests that have ended, and print their numbers as JSON.
# Sets $count, $passed and $skipped.
report_tests() {
    read -r count passed skipped < <(cat "$folder"/*.log.code 2>/dev/null |
        awk '{ n++ } $1 == 0 { passed++ } $1 == 77 { skipped++ }
            END { print n + 0, passed + 0, skipped + 0 }')
    write_summary "$passed of $count runs passed, $skipped skipped"
    echo "{\"tests\":$count,\"failed\":$((count - passed - skipped)),\"skipped\":$skipped}"
}

# finish_tests: wait for the tests and write their output to the log. End the item as failed if a
# test failed or all were skipped.
finish_tests() {
    local log count passed skipped
    wait
    for log in "$folder"/*.log; do
        cat "$log" >&2
    done
    report_tests
    [ $((passed + skipped)) = "$count" ] ||
        skip 1 "$((count - passed - skipped)) of $count runs failed: $folder/log"
    [ "$skipped" -lt "$count" ] || skip 1 "all skipped: $(grep -m 1 skipped: "$folder/log")"
}

# need_kernel_tests: set $test to the program with the kernel tests, and the environment in which a
# bundle's program finds its libraries. Python must not get this environment.
need_kernel_tests() {
    for test in "$bundle/root/tests/test_cuda_operations" \
        "$top/build/tests/kernels/test_cuda_operations"; do
        [ ! -x "$test" ] || break
    done
    [ -x "$test" ] || skip 78 "no kernel tests for a GPU: build with cmake -DBIREME_CUDA=ON"
    case $test in "$top"/build/*) return 0 ;; esac
    export LD_LIBRARY_PATH=$bundle/root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# list_kernel_tests: print the arguments of each kernel test, the most important ones first.
list_kernel_tests() {
    local list first='attention aligned
attention wgmma
linear
cross_entropy'
    list=$("$test" --list) || return
    grep -xF "$list" <<<"$first"
    grep -vxF "$first" <<<"$list" | grep .
}

# run_kernel_test ARGUMENT...: run a kernel test. A failed test runs again under memcheck, which
# names the thread and the address of an invalid access.
run_kernel_test() {
    local words="$*" code=0
    words=$folder/${words// /_}
    BIREME_PLANS=$words.plans timeout --foreground 60 "$test" "$@" || code=$?
    case $code in
    0 | 77) ;;
    *)
        ! command -v compute-sanitizer >/dev/null ||
            BIREME_PLANS=off timeout --foreground --kill-after=2 20 compute-sanitizer \
                --check-exit-code no --report-api-errors no "$test" "$@" >"$words.memcheck" 2>&1
        ;;
    esac
    return "$code"
}

item_kernels() {
    need_gpu
    local test words
    need_kernel_tests
    "$test" --list | grep . >/dev/null || skip 1 "$test --list prints no tests"
    while read -r words; do
        # shellcheck disable=SC2086 # $words is one or two arguments
        start_test "${words// /_}" run_kernel_test $words
    done < <(list_kernel_tests)
    finish_tests
}

# The parts of tests/simt/test_train.sh that run on a real GPU, slow ones first.
TRAINING_TESTS="objectives seq2seq bench_objectives ranks tasks fp32 checkpoints bf16 graphs fp8
readers wgmma lora beams"

# Trains with the program on the CPU and on the GPU, and compares losses, checkpoints and outputs.
item_training() {
    need_gpu
    need_program
    local part source=$bundle
    [ -e "$source/tests/simt/test_train.sh" ] || source=$top
    export BIREME_PROGRAM=$program BIREME_SIMT=$program BIREME_SOURCE_DIR=$source
    export BIREME_PLANS=off PATH=$bundle:$PATH
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    for part in $TRAINING_TESTS; do
        start_test "$part" bash "$source/tests/simt/test_train.sh" "$part"
    done
    finish_tests
}

# The tests that run under compute-sanitizer. racecheck ignores the order that mbarriers define: it
# reports a race for each tile that TMA writes and wgmma reads. Therefore it checks only the
# attention kernels without mbarriers. It does not check linear and cross_entropy, because GEMMs of
# cuBLASLt failed under it, nor norm: after named barriers it reports hazards between accesses that
# __syncthreads orders. Kernels of NVIDIA's libraries (GEMMs, sorting) are excluded. CUDA calls that
# fail are not reported, since some tests cause them.
SANITIZED="racecheck attention aligned
memcheck attention aligned
memcheck attention wgmma
memcheck linear
memcheck cross_entropy
memcheck norm
memcheck embedding
racecheck embedding
memcheck flat
racecheck flat"
SANITIZER_OPTIONS=(--error-exitcode 9 --check-exit-code no --report-api-errors no
    --kernel-name-exclude 'regex=cutlass|cublas|nvjet|xmma|gem[mv]|splitK|cub[0-9]|DeviceRadix')

# run_sanitizer TOOL TEST ARGUMENT...: run a test under a tool of compute-sanitizer. Returns 0 if no
# error was found, 1 if there was one or the test failed, 77 if the tool does not work here, the
# test was skipped or the time limit was exceeded.
run_sanitizer() {
    local tool=$1 code=0 output kernels=
    shift
    [ "$tool" = memcheck ] || kernels=mma
    output=$(BIREME_PLANS=off BIREME_ATTENTION=$kernels timeout --kill-after=2 50 \
        compute-sanitizer --tool "$tool" "${SANITIZER_OPTIONS[@]}" "$test" "$@" 2>&1) || code=$?
    echo "$output"
    case $code in 124 | 137) echo "skipped: exceeded its time limit" && return 77 ;; esac
    if ! grep -qE '(ERROR|RACECHECK) SUMMARY: ' <<<"$output"; then
        echo "skipped: $tool cannot check the test of $*: $(tail -n 1 <<<"$output")"
        return 77
    fi
    if grep -qE '(ERROR SUMMARY: [1-9]|[(][1-9][0-9]* error)' <<<"$output"; then
        return 1
    fi
    case $code in 0 | 77) return "$code" ;; *) return 1 ;; esac
}

item_sanitizer() {
    need_gpu
    local test words
    command -v compute-sanitizer >/dev/null || skip 77 "no compute-sanitizer"
    need_kernel_tests
    while read -r words; do
        # shellcheck disable=SC2086 # $words is a tool and one or two arguments
        start_test "${words// /_}" run_sanitizer $words
    done <<<"$SANITIZED"
    finish_tests
}
