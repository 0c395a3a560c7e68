# shellcheck shell=bash
# Cases of run_fault.sh: memory and threads that are not available.

# check_shortage TEXT: the last run, with exit code `code`, succeeded, or it ended with one error
# line and code 70.
check_shortage() {
    case $code in
    0) ! grep -q '^error: ' stderr || fail "$1: an error line, but exit code 0" ;;
    70) [ "$(grep -c '^error: ' stderr)" = 1 ] || fail "$1: not one error line" ;;
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

# check_shortage_in_hdf5 TEXT: the last run succeeded, or ended with an error line. HDF5 reports a
# failed allocation like an unreadable or unwritable file, and sometimes crashes. After it, further
# calls of HDF5 can fail, for example those of a save in the background: a second error line.
check_shortage_in_hdf5() {
    case $code in
    0 | 134 | 139 | 255) ;;
    65 | 70 | 74 | 80) grep -q '^error: ' stderr || fail "$1: no error line" ;;
    *) fail "$1: exit code $code" ;;
    esac
}

# fail_allocations LIBRARY: a sample of the allocations of a run with checkpoints fails, one in each
# run. Every second run resumes. Half of the failing allocations belong to the start of a run. If
# fewer than two runs failed, more follow, up to five times the number.
fail_allocations() {
    local count at i failed=0 check=check_shortage runs
    runs=$(choose_number 14 300)
    [ -z "$1" ] || { export ALLOCATION_IN=$1 && check=check_shortage_in_$1; }
    for ((i = 0; i < runs || (failed < 2 && i < 5 * runs); i++)); do
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

# list_places FUNCTION...: print "NUMBER FUNCTION", with the first allocation below each of these
# functions, from the file `places`.
list_places() {
    name_places | awk -v names="$*" '
        { for (i = 2; i <= NF; i++) if (!($i in first)) first[$i] = $1 }
        END {
            split(names, wanted, " ")
            for (i in wanted) if (wanted[i] in first) print first[wanted[i]], wanted[i]
        }' | sort -n
}

# train_short VARIABLE=VALUE...: train on two ranks; the variables configure the shim on rank 1.
train_short() {
    rm -rf short
    start_job short "${mpirun[@]}" -np 2 env LD_PRELOAD="$allocation_shim" ALLOCATION_RANK=1 \
        "$@" "$program" train recipe.yaml run_dir="$folder/short" "${settings[@]}"
    end_job
}

# fail_on_one_rank NUMBER FUNCTION...: let the first allocation of each function fail on rank 1. The
# compiler may have inlined some functions; at least this number must be found.
fail_on_one_rank() {
    local required=$1 at name begin place places
    shift
    train_short ALLOCATION_PLACES=places
    [ "$code" = 0 ] || fail 'a run without a fault fails'
    list_places "$@" >chosen
    mapfile -t places <chosen
    [ ${#places[@]} -ge "$required" ] || fail "only ${#places[@]} of $# functions were found"
    for place in "${places[@]}"; do
        read -r at name <<<"$place"
        begin=$SECONDS
        train_short ALLOCATION_AT="$at"
        [ "$code" = 70 ] || fail "$name: no memory on one rank: exit code $code"
        expect_error 'rank 1 .*out of memory'
        [ $((SECONDS - begin)) -lt 40 ] || fail "$name: the job ended after $((SECONDS - begin)) s"
    done
    echo "${#places[@]} functions"
}

# The other ranks must not wait for the rank without memory until a deadline. The functions allocate
# between collectives, or they create the parts of a job.
check_memory_on_one_rank() {
    need_shim
    need_mpirun
    settings=(train.max_steps=6 checkpoint.every=3 checkpoint.async=false evaluate.every=3
        parallel.zero_stage=1 parallel.check_every=2 train.on_spike=rollback)
    run_bireme 0 train recipe.yaml run_dir="$folder/base"
    fail_on_one_rank 14 watchdog_start comm_split hardware_count_threads tokenizer_open \
        model_create sharded_optimizer_create bucket_create comm_allocate optimizer_create \
        comm_calibrate state_dict_create_moments checkpoint_open data_open_train \
        replica_check_create rollback_create step_create checkpoint_reserve comm_all_gather_bytes \
        straggler_check checkpoint_save
    settings+=(model.init_from="$folder/base")
    fail_on_one_rank 3 comm_broadcast checkpoint_read_manifest manifest_parse manifest_add_shard \
        manifest_check_tiling checkpoint_load_pretrained
    make_pairs
    local tensor
    for tensor in 1 2; do
        settings=(train.max_steps=1 schedule.warmup_steps=0 generate.prompt=License
            parallel.tensor=$tensor)
        fail_on_one_rank 1 engine_create
        settings=("${common[@]:2}" train.max_steps=1 schedule.warmup_steps=0
            evaluate.generate=true evaluate.generation_num_beams=2 parallel.tensor=$tensor)
        fail_on_one_rank 1 beam_search_run
    done
}
