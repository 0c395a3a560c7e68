#!/bin/bash
# Tests scripts/gpu_check.sh without a GPU: usage errors, each state of an item, the time limit, the
# exit code and the JSON. With a mock nvidia-smi and a mock bireme, tests the evaluation of
# measurements.
# ctest: timeout 200
set -u
check=${BIREME_SOURCE_DIR:?}/scripts/gpu_check.sh
source "$BIREME_SOURCE_DIR/tests/temporary_folder.sh"
program=${BIREME_PROGRAM:?}
unset BIREME_PROGRAM

# run_check CODE ARGUMENT...: run gpu_check.sh, which must end with this code.
run_check() {
    local expected=$1
    shift
    # shellcheck disable=SC2086 # $check is the script and perhaps an option
    timeout 60 $check "$@" >output 2>&1
    local code=$?
    [ "$code" = "$expected" ] || fail "gpu_check $* ended with $code instead of $expected"
}

# expect_state ITEM STATE [TEXT]: the table has a line with this item, state and text.
expect_state() {
    grep -qE "^$1 +$2 .*${3:-}" output || fail "$1 is not '$2' with '${3:-}'"
}

run_check 64
run_check 64 --what
run_check 64 one two
run_check 64 --only
run_check 64 --only versions,nothing out
grep -q "no item 'nothing'" output || fail "the message does not name the item"
run_check 0 --list
grep -q '^gpt2_124m .*64 x 1024 tokens' output || fail "the list lacks the first model"

for item in $(awk '{ print $1 }' output); do
    grep -q "^item_$item()" "$check" "${check%/*}/gpu/gpu_check_tests.sh" ||
        fail "item $item is listed but not implemented"
done

# On a machine without a GPU no item fails, and each one has a reason.
mkdir bin
printf '#!/bin/sh\necho "no devices were found"; exit 6\n' >bin/nvidia-smi
chmod +x bin/nvidia-smi
export PATH=$folder/bin:$PATH
run_check 0 --only conformance,gpt2_124m,torch_llama_1b out
for item in conformance gpt2_124m torch_llama_1b; do
    expect_state $item skipped 'no GPU: nvidia-smi reports: no devices were found'
done

cat >items.sh <<'E2'
ITEMS="
good 5 a measurement
gate 5 gate: a gate
bad 5 ends with an error
slow 1 does not end
without 5 is skipped
older 5 is not there
missed 5 misses a goal
quoted 5 has a reason with \"quotes\"
broken 5 has no JSON
$ITEMS"
item_good() { echo '{"value": 1.5e3}'; write_summary "1500 things"; }
item_gate() { write_summary fine; }
item_bad() { echo "something broke" >&2; exit 9; }
item_slow() { sleep 30; }
item_without() { skip 77 "nothing here"; }
item_older() { skip 78 "error: no such thing [E-RECIPE]"; }
item_missed() { echo '{}'; skip 3 "below"; }
item_quoted() { skip 77 "$(printf 'a "reason" with \\ and\ttab')"; }
item_broken() { echo '{"value": '; }
E2
export GPU_CHECK_ITEMS=$folder/items.sh
run_check 3 --only good,gate,bad,slow,without,older,missed,quoted,broken out
expect_state good measured '1500 things'
expect_state gate passed fine
expect_state bad failed 'something broke'
expect_state slow failed 'exceeded its limit of 1 s'
expect_state without skipped 'nothing here'
expect_state older 'not in this version' 'no such thing'
expect_state missed failed below
grep -q '^3 failed' output || fail "the last line does not count the failed items"
cmp -s <(sed '$d' output) <(sed '$d' out/table.txt) || fail "table.txt is not the printed table"
if command -v python3 >/dev/null; then
    python3 - >output 2>&1 <<'E2' || fail "check.json is wrong"
import json
check = json.load(open("out/check.json"))
items = {item["name"]: item for item in check["items"]}
assert check["schema"] == 1 and check["failed"] == 3 and len(items) == 9, check
assert items["good"]["data"] == {"value": 1500.0} and items["gate"]["data"] is None
assert items["quoted"]["reason"] == 'a "reason" with \\ and tab', items["quoted"]
assert items["broken"]["data"] is None and "not JSON" in items["broken"]["reason"]
keys = {"name", "what", "state", "reason", "seconds", "data"}
assert all(set(item) == keys for item in items.values())
E2
    has_python=true
fi
# The results are written after each item, when an item exceeds its limit, and when the check is
# stopped. An item that ends early keeps its results so far. --items moves the logs.
cat >>items.sh <<'E2'
ITEMS="
partial 2 has results before its limit
$ITEMS
endless 50 does not end"
item_partial() { echo '{"tests":3}' >"$folder/partial.json"; write_summary "3 tests"; sleep 30; }
item_endless() { write_summary "so far"; sleep 50; }
E2
run_check 1 --only partial,good --items logs stopped
expect_state partial failed '3 tests exceeded its limit of 2 s'
[ -e logs/partial/log ] && [ ! -e stopped/items ] || fail "--items has no effect"
grep -q '"data":{"tests":3}' stopped/check.json || fail "the partial results are missing"
rm -rf stopped
"$check" --only good,endless stopped >output 2>&1 &
check_process=$!
for _ in $(seq 300); do
    [ ! -s stopped/items/endless/summary ] || break
    sleep 0.1
done
grep -q '"name":"good"' stopped/check.json || fail "there are no results after the first item"
tar -tzf stopped/results.tgz | grep -q items/good || fail "results.tgz lacks the first item"
kill -TERM "$check_process"
wait "$check_process"
[ $? = 143 ] || fail "a stopped check ended with another code"
expect_state endless failed 'so far the check was stopped'
tar -xzOf stopped/results.tgz table.txt | grep -q '^endless' || fail "results.tgz is not complete"

GPU_CHECK_SECONDS=0 run_check 0 --only good out
expect_state good skipped 'the limit of 0 s for the whole check is reached'

# In all following tests a mock nvidia-smi reports a GPU.
printf '#!/bin/sh\necho "GPU 0: a mock"\n' >bin/nvidia-smi

# A gate without its tool or time is failed; a measurement is skipped.
cat >>items.sh <<'E2'
ITEMS="
unchecked 5 gate: is skipped
$ITEMS"
item_unchecked() { skip 69 "no tool"; }
E2
run_check 1 --only unchecked,without out
expect_state unchecked failed 'skipped despite a GPU: no tool'
expect_state without skipped 'nothing here'
GPU_CHECK_SECONDS=0 run_check 1 --only unchecked,good out
expect_state unchecked failed 'the limit of 0 s for the whole check is reached'
expect_state good skipped

# A mock bireme prints the measurement MOCK_RATE. GPT-2 124M has 798,031,872 FLOPs per token.
if [ "${has_python:-}" = true ]; then
    cat >bin/bireme <<'E2'
#!/bin/sh
case "$*" in
bench\ kernels*hidden_size=2048*) echo "{\"operations\": [
    {\"name\": \"attention_forward\", \"flops_per_second\": ${MOCK_RATE}e12},
    {\"name\": \"attention_backward\", \"flops_per_second\": ${MOCK_BACK:-96}e12}]}" ;;
bench\ kernels*) echo "{\"copy_bytes_per_second\": 100, \"operations\": [
    {\"name\": \"convert\", \"bytes_per_second\": 99},
    {\"name\": \"adamw_update\", \"bytes_per_second\": $MOCK_RATE},
    {\"name\": \"linear_forward\", \"bytes_per_second\": 1}]}" ;;
*architecture=bert*) echo "error: no such architecture [E-RECIPE]" >&2; exit 78 ;;
*num_layers=48*) echo "error: no CUDA [E-UNAVAILABLE]" >&2; exit 69 ;;
*num_layers=16*) echo "error: out of memory [E-INTERNAL]" >&2; exit 70 ;;
*) echo "{\"tokens_per_second\": $MOCK_RATE, \"device_bytes\": 5368709120}" ;;
esac
E2
    chmod +x bin/bireme
    export BIREME_PROGRAM=$folder/bin/bireme
    MOCK_RATE=620000 run_check 1 --only gpt2_124m,gpt2_1558m,bert_large_phase1,llama_1b out
    expect_state gpt2_124m measured '620000 tokens/s, 50.0 % MFU, 5.0 GiB'
    expect_state gpt2_1558m skipped 'no CUDA'
    expect_state bert_large_phase1 'not in this version' 'no such architecture'
    expect_state llama_1b failed 'out of memory'
    MOCK_RATE=90 run_check 0 --only operations out
    expect_state operations measured 'the slowest of 3: adamw_update, 90 % of the copy rate'
    MOCK_RATE=80 run_check 1 --only operations out
    expect_state operations failed 'below its goal'
    MOCK_RATE=500000 run_check 1 --only gpt2_124m out
    expect_state gpt2_124m failed 'below the goal of 0.48 MFU'

    # Bireme and PyTorch use the same models. Their FLOPs per token differ slightly, by the padding
    # of the vocabulary and one masked token.
    printf '%s\n' 'objective: clm' 'data: {tokenizer: none, train: none}' \
        'train: {max_steps: 1, device: auto}' >plan.yaml
    # shellcheck source=/dev/null
    . <(sed -n '/^model_overrides()/,/^}/p' "$check")
    for model in gpt2_124m gpt2_1558m bert_large_phase1 bert_large_phase2 llama_1b; do
        # shellcheck disable=SC2046 # words of overrides
        "$program" plan plan.yaml --json model.vocab_size=50257 $(model_overrides $model) \
            >out/plan 2>output || fail "there is no plan of $model"
        awk -v a="$(sed -n 's/.*"flops_per_token": *\([0-9.]*\).*/\1/p' out/plan)" \
            -v b="$(python3 "$BIREME_SOURCE_DIR/scripts/bench/bench_gpu.py" flops $model |
                cut -d' ' -f1)" \
            'BEGIN { d = a / b - 1; exit !(d < 2e-3 && d > -2e-3) }' ||
            fail "$model is a different model in bench_gpu.py"
    done

    # A mock PyTorch, with and without a compilation within the time limit.
    cat >bin/torch <<'E2'
#!/bin/bash
case "$*" in
*attention) row() { echo "{\"backend\": \"$1\", \"head_width\": $2, \"causal\": true,
    \"tokens\": $3, \"forward_flops_per_second\": 400e12, \"backward_flops_per_second\": 100e12}"; }
    echo "{\"capability\": ${CAPABILITY:-9}, \"attention\": [
    $(row flash 64 1024), $(row cudnn 64 1024),
    $(row flash 128 4096), {\"backend\": \"cudnn\", \"head_width\": 128, \"causal\": true,
    \"tokens\": 4096, \"reason\": \"no\"}]}" ;;
*"step gpt2_124m --mode both")
    echo '{"mode": "eager", "tokens_per_second": 300000, "mfu": 0.2}'
    [ -n "${EAGER:-}" ] || echo '{"mode": "compiled", "tokens_per_second": 560000, "mfu": 0.4}' ;;
-c*) ;;
*) exec python3 "$@" ;;
esac
E2
    chmod +x bin/torch
    export PYTHON=$folder/bin/torch
    MOCK_RATE=390 run_check 0 --only attention out
    expect_state attention measured 'mma 64 x 1024 390 TFLOP/s, 0.97 and back 0.96 of flash; .*'\
'wgmma 64 x 1024 .* of cudnn; wgmma 128 x 4096: PyTorch has no cudnn'
    MOCK_RATE=370 run_check 1 --only attention out
    expect_state attention failed 'below its goal'
    CAPABILITY=8 MOCK_RATE=370 run_check 0 --only attention out
    MOCK_BACK=90 MOCK_RATE=390 run_check 1 --only attention out
    expect_state attention failed 'below its goal'
    MOCK_RATE=620000 run_check 0 --only gpt2_124m,torch_gpt2_124m out
    expect_state torch_gpt2_124m measured \
        'eager 300000 tokens/s, 20.0 % MFU; compiled 560000 tokens/s, 40.0 % MFU'
    MOCK_RATE=600000 run_check 1 --only gpt2_124m,torch_gpt2_124m out
    expect_state torch_gpt2_124m failed 'Bireme has 1.07 times this rate'
    EAGER=1 MOCK_RATE=600000 run_check 0 --only gpt2_124m,torch_gpt2_124m out
    unset PYTHON
fi

# The libraries of CUDA come from ldconfig, from CUDA's folder or from Python's packages.
mkdir -p bin cuda/lib64 packages/nvidia/cu13/lib
printf '#!/bin/sh\necho "  libnccl.so.2 (libc6,x86-64) => /somewhere/libnccl.so.2"\n' >bin/ldconfig
chmod +x bin/ldconfig
touch cuda/lib64/libcublasLt.so.13 packages/nvidia/cu13/lib/libcublasLt.so.13
CUDA_HOME=$folder/cuda run_check 0 --only versions out
expect_state versions measured "cuBLASLt $folder/cuda/lib64/libcublasLt.so.13"
expect_state versions measured 'NCCL /somewhere/libnccl.so.2'
BIREME_NCCL=off CUDA_HOME=$folder/cuda run_check 0 --only versions out
expect_state versions measured 'NCCL off'
if [ "${has_python:-}" = true ]; then
    PYTHONPATH=$folder/packages python3 "$BIREME_SOURCE_DIR/scripts/bench/bench_gpu.py" \
        library libcublasLt.so.13 >output
    [ "$(cat output)" = "$folder/packages/nvidia/cu13/lib/libcublasLt.so.13" ] ||
        fail "bench_gpu.py library"
fi

# Mock kernel tests, of a bundle: the gate is failed if no test runs on the GPU. The tests find the
# libraries of the bundle, and start in the order of their importance.
mkdir -p tree/root/tests tree/root/lib && cp -r "$BIREME_SOURCE_DIR/scripts" tree/scripts
cat >tree/root/tests/test_cuda_operations <<'E2'
#!/bin/sh
[ "${LD_LIBRARY_PATH%%:*}" = "${0%/tests/*}/lib" ] || exit 127
case "$1 $MOCK_TESTS" in
"--list none") ;;
"--list "*) printf '%s\n' norm linear 'attention wgmma' flat ;;
*" skipped") echo "skipped: no GPU: none"; exit 77 ;;
"norm failing") exit 1 ;;
"norm slow") sleep 100 ;;
*) echo "ran $*" | tee -a started ;;
esac
E2
printf '#!/bin/sh\necho "bireme 0"\n' >tree/bireme
chmod +x tree/root/tests/test_cuda_operations tree/bireme
unset BIREME_PROGRAM
for check in "$check --bundle $folder/tree" "$folder/tree/scripts/gpu_check.sh"; do
    rm -f started
    GPU_CHECK_JOBS=1 MOCK_TESTS=good run_check 0 --only kernels out
    expect_state kernels passed '4 of 4 runs passed'
done
paste -sd' ' started >output
[ "$(cat output)" = "ran attention wgmma ran linear ran norm ran flat" ] || fail "another order"
MOCK_TESTS=none run_check 1 --only kernels out
expect_state kernels failed 'prints no tests'
MOCK_TESTS=skipped run_check 1 --only kernels out
expect_state kernels failed '0 of 4 .* all skipped: skipped: no GPU'
MOCK_TESTS=failing run_check 1 --only kernels out
expect_state kernels failed '3 of 4 .* 1 of 4 runs failed'
GPU_CHECK_SECONDS=8 MOCK_TESTS=slow run_check 1 --only kernels out
expect_state kernels failed '[1-3] of [1-3] runs passed, 0 skipped exceeded its limit'
grep -q '"data":{"tests":[1-3],"failed":0' out/check.json || fail "the partial counts are missing"
mv bin/nvidia-smi away
printf '#!/bin/sh\nexit 6\n' >bin/nvidia-smi
chmod +x bin/nvidia-smi
MOCK_TESTS=skipped run_check 0 --only kernels out
expect_state kernels skipped 'no GPU'
mv away bin/nvidia-smi

# Mock tests of training: all run, and one fails.
mkdir -p tree/tests/simt
cat >tree/tests/simt/test_train.sh <<'E2'
[ "$BIREME_PROGRAM" = "$BIREME_SIMT" ] && [ -d "$BIREME_SOURCE_DIR/tests" ] || exit 1
[ "$1" != "${MOCK_FAILING:-}" ] || { echo "failed: $1 differs"; exit 1; }
E2
MOCK_FAILING='' run_check 0 --only training --bundle tree out
expect_state training passed '14 of 14 runs passed'
MOCK_FAILING=lora run_check 1 --only training --bundle tree out
expect_state training failed '13 of 14 .* 1 of 14 runs failed'
grep -q '^failed: lora differs' out/items/training/log || fail "the log lacks the failure"

# A mock Nsight Compute measures one launch of each kernel, or none.
cat >bin/ncu <<'E2'
#!/bin/sh
[ "$MOCK_RESULT" = clean ] || { echo "==ERROR== no permission"; exit 1; }
echo "    Duration    us    12.3 of $*"
E2
chmod +x bin/ncu
MOCK_RESULT=clean run_check 0 --only profile out
expect_state profile measured '5 kernels'
MOCK_RESULT=none run_check 0 --only profile out
expect_state profile skipped 'measured no kernel: ==ERROR== no permission'

# The timeline has the kernels of the last step: those after the last AdamW but one.
if [ "${has_python:-}" = true ]; then
    cat >bin/ncu <<'E2'
#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
cat >"$2" <<'E3'
==PROF== Connected to process 1
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","first(int)","gpu__time_duration.sum","ns","7,000"
"1","adamw_step(int)","gpu__time_duration.sum","ns","1,000"
"2","f<int>(int)","gpu__time_duration.sum","ns","2,000,000"
"3","g(int)","gpu__time_duration.sum","ns","3,000,000"
"4","f<int>(int)","gpu__time_duration.sum","ns","2,500,000"
"5","adamw_step(int)","gpu__time_duration.sum","ns","1,000"
"6","after(int)","gpu__time_duration.sum","ns","9,000"
E3
E2
    run_check 0 --only timeline out
    expect_state timeline measured '4 kernels in 7.5 ms'
    head -n 1 out/items/timeline/kernels.tsv >output
    [ "$(cat output)" = "$(printf '0.004500000\t2\tf<int>')" ] || fail "another first kernel"
fi

# A mock compute-sanitizer: it finds errors, does not support the machine, or runs a failing test.
printf '#!/bin/sh\necho "$*" >>%s/sanitized\n[ "$*" != "${FAILING:-}" ]\n' "$folder" \
    >tree/root/tests/test_cuda_operations
cat >bin/compute-sanitizer <<'E2'
#!/bin/bash
[ "$1 $3 $4" = "--tool --error-exitcode 9" ] || exit 64
tool=$2
while [ $# -gt 0 ] && [ "$(basename "$1")" != test_cuda_operations ]; do shift; done
[ "$MOCK_RESULT" != refused ] || { echo "========= Error: Device not supported."; exit 255; }
"$@"
code=$?
case "$tool $MOCK_RESULT $2" in
"memcheck found flat") # the broken context makes the test fail
    echo "========= ERROR SUMMARY: 3 errors"
    exit 1
    ;;
"racecheck raced attention")
    echo "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"
    exit 9
    ;;
racecheck*)
    echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    exit $code
    ;;
*) echo "========= ERROR SUMMARY: 0 errors"; exit $code ;;
esac
E2
chmod +x bin/compute-sanitizer tree/root/tests/test_cuda_operations
run_sanitizer() { # CODE MOCK_RESULT
    rm -f sanitized
    MOCK_RESULT=$2 run_check "$1" --only sanitizer out
}
run_sanitizer 0 clean
expect_state sanitizer passed '10 of 10 runs passed, 0 skipped'
[ "$(sort -u sanitized | wc -l)" = 7 ] || fail "not seven tests"
run_sanitizer 1 found
expect_state sanitizer failed '9 of 10 .* 1 of 10 runs failed'
grep -q '^memcheck_flat ended with code 1' out/items/sanitizer/log || fail "not memcheck of flat"
run_sanitizer 1 raced
grep -q '^racecheck_attention_aligned ended' out/items/sanitizer/log || fail "no race is found"
FAILING=linear run_sanitizer 1 clean
grep -q '^memcheck_linear ended with code 1' out/items/sanitizer/log || fail "not the test linear"
run_sanitizer 1 refused
expect_state sanitizer failed '0 of 10 .* all skipped: skipped: .*check cannot check'
[ "${has_python:-}" = true ] ||
    echo "not checked without python3: check.json as JSON, the goals of bench_gpu.py"
echo "passed"
