# shellcheck shell=bash disable=SC2154
# Items of scripts/gpu_check.sh, which sources this file: the kernel tests, and the same tests under
# compute-sanitizer. They use the functions and variables of gpu_check.sh.

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

# run_kernel_test ARGUMENT...: run a kernel test, and store its exit code. A failed test runs again
# under memcheck, which names the thread and the address of an invalid access.
run_kernel_test() {
    local words="$*" code=0 log
    log=$folder/${words// /_}.log
    BIREME_PLANS=$log.plans timeout --foreground 60 "$test" "$@" >"$log" 2>&1 </dev/null || code=$?
    case $code in
    0 | 77) ;;
    *)
        echo "$* ended with code $code" >>"$log"
        if command -v compute-sanitizer >/dev/null; then
            BIREME_PLANS=off timeout --foreground --kill-after=2 20 compute-sanitizer \
                --check-exit-code no --report-api-errors no "$test" "$@" >"$log.memcheck" 2>&1 \
                </dev/null
        fi
        ;;
    esac
    echo "$code" >"$log.code"
    report_kernel_tests >"$folder/partial.json"
}

# count_codes PATTERN: print the number of kernel tests that ended with such an exit code.
count_codes() {
    cat "$folder"/*.log.code 2>/dev/null | grep -cE "^($1)$"
}

# report_kernel_tests: write the summary of the kernel tests that have ended, and print their
# numbers as JSON. Sets $count, $passed and $skipped.
report_kernel_tests() {
    passed=$(count_codes 0) skipped=$(count_codes 77) count=$(count_codes '.*')
    write_summary "$passed of $count runs passed, $skipped skipped"
    echo "{\"tests\":$count,\"failed\":$((count - passed - skipped)),\"skipped\":$skipped}"
}

item_kernels() {
    need_gpu
    local test words log count passed skipped
    need_kernel_tests
    while read -r words; do
        while [ "$(jobs -rp | wc -l)" -ge "${GPU_CHECK_JOBS:-6}" ]; do
            wait -n
        done
        # shellcheck disable=SC2086 # $words is one or two arguments
        run_kernel_test $words &
    done < <(list_kernel_tests)
    wait
    for log in "$folder"/*.log; do
        cat "$log" >&2
    done
    report_kernel_tests
    [ "$count" -gt 0 ] || skip 1 "$test --list prints no tests: $folder/log"
    [ $((passed + skipped)) = "$count" ] ||
        skip 1 "$((count - passed - skipped)) of $count runs failed: $folder/log"
    [ "$skipped" -lt "$count" ] || skip 1 "all skipped: $(grep -m 1 skipped: "$folder/log")"
}

# The tests that run under compute-sanitizer. The attention kernels copy asynchronously between
# barriers, the others sum over warps and blocks. Kernels of NVIDIA's libraries (GEMMs, sorting) are
# excluded. Failing CUDA calls are not reported, since some tests cause them.
SANITIZED="attention aligned,linear,cross_entropy,norm,embedding,flat"
SANITIZER_OPTIONS=(--error-exitcode 9 --check-exit-code no --report-api-errors no
    --kernel-name-exclude 'regex=cutlass|cublas|nvjet|xmma|gem[mv]|splitK|cub[0-9]|DeviceRadix')

# run_sanitizer TOOL TEST ARGUMENT...: run a test under a tool of compute-sanitizer. Returns 0 if no
# error was found, 1 if there was one or the test failed, 77 if the tool does not work here or the
# test was skipped, 124 if the time limit was exceeded.
run_sanitizer() {
    local tool=$1 code=0 output=$folder/output
    shift
    BIREME_PLANS=off timeout --kill-after=2 20 compute-sanitizer --tool "$tool" \
        "${SANITIZER_OPTIONS[@]}" "$@" >"$output" 2>&1 || code=$?
    cat "$output" >&2
    case $code in 124 | 137) return 124 ;; esac
    grep -qE '(ERROR|RACECHECK) SUMMARY: ' "$output" || return 77
    if grep -qE '(ERROR SUMMARY: [1-9]|[(][1-9][0-9]* error)' "$output"; then
        return 1
    fi
    case $code in 0 | 77) return "$code" ;; *) return 1 ;; esac
}

item_sanitizer() {
    need_gpu
    local test words tool clean=0 late=0 code
    command -v compute-sanitizer >/dev/null || skip 77 "no compute-sanitizer"
    need_kernel_tests
    for tool in racecheck memcheck; do
        while read -r words; do
            code=124
            # shellcheck disable=SC2086 # $words is one or two arguments
            [ "$SECONDS" -ge 38 ] ||
                { code=0 && run_sanitizer "$tool" "$test" $words </dev/null || code=$?; }
            case $code in
            0) clean=$((clean + 1)) ;;
            1) skip 1 "$tool: errors in the test of $words, or it failed: $folder/log" ;;
            124) late=$((late + 1)) ;;
            *) echo "$tool cannot check the test of $words: $(tail -n 1 "$folder/output")" |
                tee -a "$folder/refused" >&2 ;;
            esac
            printf '{"clean":%d,"late":%d,"refused":%d}\n' "$clean" "$late" \
                "$(cat "$folder/refused" 2>/dev/null | wc -l)" >"$folder/partial.json"
            write_summary "racecheck and memcheck of ${SANITIZED//,/, }: no error in $clean runs," \
                "$late exceeded the time limit"
        done < <(tr ',' '\n' <<<"$SANITIZED")
    done
    [ "$clean" -gt 0 ] || skip 77 "$(head -n 1 "$folder/refused" 2>/dev/null ||
        echo "all runs exceeded the time limit")"
}
