#!/bin/bash
# `bireme train` with failing files: each fault ends the run with the right exit code, and the next
# start resumes and ends with the same bits as a run without faults.
# usage: test_train_faults.sh PART SHIM; SHIM is the library of tests/shim/fault_shim.c. Parts:
#
#   calls_odd, calls_even   a file call that changes a file fails (ENOSPC, EIO) or is the last one
#                (SIGKILL): a sample of the calls, with BIREME_FULL_SWEEP=1 all of them
#   calls_2      the same for each rank of two
#   full_disk    the run folder is on disks (tmpfs) of different sizes that are too small
#   power_cut_ext4, power_cut_xfs   the disk (a file system in a file) is copied at random moments
#                and after saves. A copy is the state after a power cut at this moment, except that
#                no blocks are reordered
#
# The last two parts mount file systems, as root in a separate mount namespace. They are skipped
# (exit code 77) where that is not permitted.
# ctest: parts calls_odd calls_even calls_2 full_disk power_cut_ext4 power_cut_xfs
# ctest: targets test_fault_shim
# ctest: timeout 600
part=${1:-} shim=$(realpath "${2:?}")
case $part in
full_disk | power_cut_*)
    source "${BIREME_SOURCE_DIR:=$PWD}/tests/mount_namespace.sh"
    enter_mount_namespace "$0" "$@"
    ;;
esac
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_shim

sed -i 's/num_layers: 2/num_layers: 1/; s/hidden_size: 32/hidden_size: 16/
    s/max_steps: 20/max_steps: 4/
    s/every: 10/every: 2/; s/keep: 3/keep: 1/; s/warmup_steps: 5/warmup_steps: 1/
    s/log: .*/log: {every: 2, tensorboard: true}/' recipe.yaml

# newest_saved FILE: print the newest step that the log reports as saved; 0 if there is none.
newest_saved() {
    local step
    step=$(sed -n 's/^saved step \([0-9]*\) .*/\1/p' "$1" | tail -n 1)
    echo "${step:-0}"
}

# add_lost_line WHOLE RUN: take a line of the metrics that RUN lacks from WHOLE, at most one. A line
# that was not written is lost if the save of its step was published. Lines that only RUN has stay.
add_lost_line() {
    local line key lost=0
    grep -E '"event":"(train|evaluate)"' "$2/metrics.jsonl" >lines
    : >keys
    while IFS= read -r line; do
        key=$(grep -oE '"event":"[a-z]+","step":[0-9]+,' <<<"$line")
        echo "$key" >>keys
        grep -F "$key" lines || { echo "$line" && lost=$((lost + 1)); }
    done < <(grep -E '"event":"(train|evaluate)"' "$1/metrics.jsonl") >"$2/metrics.jsonl"
    grep -vFf keys lines >>"$2/metrics.jsonl"
    [ $lost -le 1 ] || fail "$lost lines of the metrics are missing"
}

# check_resume RANKS WHOLE RUN SAVED STEPS [LOSABLE]: start RUN again. It resumes from step SAVED or
# later and ends with the same bits as the run WHOLE. With LOSABLE one line of the metrics may be
# missing.
check_resume() {
    local from
    run_ranks "$1" 0 train recipe.yaml run_dir="$3" train.max_steps="$5"
    from=$(sed -n 's/^resuming .*: step \([0-9]*\),.*/\1/p' stderr)
    grep -q 'is finished' stderr || [ "${from:-0}" -ge "$4" ] ||
        fail "step $4 was reported as saved, but step ${from:-0} is resumed"
    ! grep -q '\[W-CKPT-SKIP\]$' stderr || fail 'a published checkpoint is damaged'
    compare_weights "$2" "$3" "$(printf '%08d' "$5")"
    cmp "$2"/final/model-*00000-of-*.h5 "$3"/final/model-*00000-of-*.h5 ||
        fail 'the final weights differ'
    [ -z "${6:-}" ] || add_lost_line "$2" "$3"
    compare_losses "$2" "$3" 0
}

# ---- calls that fail ----

# run_with_fault RANKS VICTIM FAULT AT RUN: train with the shim in rank VICTIM, with FAULT at call
# AT (0: no fault). Set `code` and write the calls to the file `calls`.
run_with_fault() {
    local launcher=() shimmed=("LD_PRELOAD=$shim" FAULT_DIR=faulty "FAULT_DO=$3" "FAULT_AT=$4"
        FAULT_LOG=calls)
    rm -rf "$5" calls
    if [ "$1" -gt 1 ]; then
        launcher=(mpirun --oversubscribe --mca mpi_yield_when_idle 1
            --mca odls_base_sigkill_timeout 0 -np "$1")
        shimmed+=("FAULT_RANK=$2")
    fi
    {
        timeout 50 "${launcher[@]}" env "${shimmed[@]}" \
            "$program" train recipe.yaml run_dir="$5" >out 2>stderr
    } 2>/dev/null
    code=$?
}

# check_end FAULT CALL PLACE: the run with the fault ended with the right exit code and error.
check_end() {
    case $1:$code:$2 in
    kill:137:*) ;;
    kill:*) fail "a kill at $3 ($2) ended with $code" ;;
    *:74:*)
        expect_error 'E-WRITE'
        grep -qE 'No space left|Input/output error' stderr ||
            fail "the error at $3 ($2) gives no reason"
        ;;
    *:0:open*.h5) ;; # HDF5 tries twice
    # Errors of the clean-up, the report and the text in the lock file do not end the run.
    *:0:*)
        grep -qE '\[W-(LOCK|CKPT-CLEAN|REPORT)\]$' stderr ||
            fail "the error at $3 ($2) is not reported"
        ;;
    *) fail "an error at $3 ($2) ended with $code" ;;
    esac
}

# sweep_calls RANKS STRIDE [FIRST]: train with a fault at each STRIDE-th call of each rank.
sweep_calls() {
    local ranks=$1 stride=$2 tried=0 faults=(enospc eio kill) victim count at fault call losable \
        saved
    [ "$ranks" = 1 ] || need_mpirun
    run_ranks "$ranks" 0 train recipe.yaml run_dir=whole
    for ((victim = 0; victim < ranks; victim++)); do
        run_with_fault "$ranks" $victim '' 0 faulty
        [ $code = 0 ] || fail "a run without a fault ended with $code"
        count=$(wc -l <calls)
        [ "$count" -gt 50 ] || fail "only $count calls of rank $victim were counted"
        for ((at = ${3:-1 + RANDOM % stride}; at <= count; at += stride)); do
            fault=${faults[RANDOM % 3]}
            run_with_fault "$ranks" "$victim" "$fault" "$at" faulty
            call=$(sed -n "s/^$at //p" calls) # depends on the order of two threads
            if [ -z "$call" ]; then # this run made fewer calls
                [ $code = 0 ] || fail "a run without a fault ended with $code"
                continue
            fi
            check_end "$fault" "$call" "call $at of rank $victim"
            saved=$(newest_saved stderr)
            [[ $call == write*/metrics.jsonl ]] && losable=yes || losable=
            check_resume "$ranks" whole faulty "$saved" 4 $losable
            tried=$((tried + 1))
        done
    done
    echo "$tried faults injected"
}

# choose_number SHORT FULL: print the first number, or the second one in a full sweep.
choose_number() {
    [ -z "${BIREME_FULL_SWEEP:-}" ] && echo "$1" || echo "$2"
}

test_calls_odd() {
    sweep_calls 1 "$(choose_number 74 2)" $((1 + $(choose_number 1 0) * 2 * (RANDOM % 37)))
}

test_calls_even() {
    sweep_calls 1 "$(choose_number 74 2)" $((2 + $(choose_number 1 0) * 2 * (RANDOM % 37)))
}

test_calls_2() {
    sweep_calls 2 "$(choose_number 131 23)"
}

# ---- a disk that is too small ----

# mount_disk ARGUMENT...: mount a file system at `disk`; skip the test where that is not permitted.
mount_disk() {
    mkdir -p disk
    trap 'umount disk 2>/dev/null; remove_folder' EXIT
    mount "$@" disk 2>/dev/null || {
        echo "skipped: mounting is not permitted"
        exit 77
    }
}

test_full_disk() {
    local async kib whole_kib filled=0 honest=0
    run_bireme 0 train recipe.yaml run_dir=whole
    ! grep -q 'W-CKPT-SPACE' stderr || fail 'a warning about a disk with enough space'
    for async in true false; do
        mount_disk -t tmpfs -o size=100k none
        run_bireme 74 train recipe.yaml run_dir=disk/run checkpoint.async=$async
        grep -q '^warning: the next checkpoint does not fit: .* are free.*\[W-CKPT-SPACE\]$' \
            stderr || fail "no warning about a small disk at the start, async $async"
        umount disk
    done
    whole_kib=$(du -sk whole | cut -f1)
    for ((kib = 8 + RANDOM % 8; kib < whole_kib + 200; \
        kib += 1 + whole_kib / $(choose_number 8 24))); do
        mount_disk -t tmpfs -o "size=${kib}k" none
        honest=$((1 - honest)) # 0: the shim reports more free space than there is
        if [ $honest = 1 ]; then
            timeout 50 "$program" train recipe.yaml run_dir=disk/run >out 2>stderr
        else
            LD_PRELOAD=$shim FAULT_DIR=disk/run FAULT_FREE=1000000000 \
                timeout 50 "$program" train recipe.yaml run_dir=disk/run >out 2>stderr
        fi
        code=$?
        if [ $code != 0 ]; then
            [ $code = 74 ] || fail "a disk of $kib KiB ended the run with $code"
            expect_error 'E-WRITE'
            grep -qE 'No space left| are free' stderr || fail "a disk of $kib KiB: no reason"
            filled=$((filled + 1))
        fi
        saved=$(newest_saved stderr)
        mount -o remount,size=64m disk
        check_resume 1 whole disk/run "$saved" 4
        umount disk
    done
    [ $filled -ge 4 ] || fail "only $filled disks were too small"
    echo "$filled disks were too small"
}

# ---- a power cut ----

# copy_disk JOB NAME: copy the disk while the run is paused. Repeat the copy until the disk does not
# change in the meantime.
copy_disk() {
    kill -STOP "$1" 2>/dev/null
    cp stderr "$2.stderr"
    local i
    for ((i = 0; i < 50; i++)); do
        cp --sparse=always image "$2"
        cmp -s image "$2" && break
    done
    kill -CONT "$1" 2>/dev/null
    [ $i -lt 50 ] || fail 'the disk changes all the time'
}

# make_image TYPE: write an empty file system of this type into the file `image`.
make_image() {
    local options=(-q -F)
    command -v "mkfs.$1" >/dev/null || {
        echo "skipped: no mkfs.$1 (package $([ "$1" = xfs ] && echo xfsprogs || echo e2fsprogs))"
        exit 77
    }
    truncate -s 24M image
    if [ "$1" = xfs ]; then # its own tests set these variables to make small file systems
        export TEST_DIR=disk TEST_DEV=image QA_CHECK_FS=1
        options=(-q -f)
    fi
    "mkfs.$1" "${options[@]}" image >out 2>stderr || fail "mkfs.$1"
}

# With BIREME_UNSYNCED=files or folders, the fsync of files or of folders does nothing, and this
# test must fail. The next fsync of the other kind can write what was not synced. It is delayed by
# 100 ms, so that a copy after a save is made before it also on a busy machine.
test_power_cut() {
    local steps=200 most cuts=0 seen=0 preload=() job i
    [ -z "${BIREME_UNSYNCED:-}" ] || {
        preload=("LD_PRELOAD=$shim" FAULT_DIR=disk/run FAULT_SLOW_MS=100
            "FAULT_DO=unsynced_$BIREME_UNSYNCED")
    }
    make_image "$1"
    sed -i 's/checkpoint: {every: 2/checkpoint: {every: 20/
        s/evaluate: {every: 2/evaluate: {every: 100/' recipe.yaml
    run_bireme 0 train recipe.yaml run_dir=whole train.max_steps=$steps
    most=$(choose_number 8 24)
    mount_disk -o loop image
    env "${preload[@]}" "$program" train recipe.yaml run_dir=disk/run train.max_steps=$steps >out \
        2>stderr &
    job=$!
    while kill -0 $job 2>/dev/null && [ "$cuts" -lt "$most" ]; do
        if [ $((cuts % 2)) = 0 ] && [ ${#preload[@]} = 0 ]; then
            sleep "0.0$((RANDOM % 10))"
        else # directly after the next save
            while kill -0 $job 2>/dev/null && [ "$(newest_saved stderr)" = "$seen" ]; do :; done
        fi
        kill -0 $job 2>/dev/null || break
        copy_disk $job cut-$cuts
        seen=$(newest_saved stderr)
        cuts=$((cuts + 1))
    done
    wait $job || fail "the copied run ended with $?"
    umount disk
    [ $cuts -ge 4 ] || fail "only $cuts copies were made before the end of the run"
    for ((i = 0; i < cuts; i++)); do
        mount -o loop cut-$i disk || fail "copy $i is not a file system"
        check_resume 1 whole disk/run "$(newest_saved cut-$i.stderr)" $steps
        umount disk
    done
    echo "$cuts power cuts"
}

case $part in
power_cut_ext4 | power_cut_xfs) test_power_cut "${part##*_}" ;;
*) run_part "$@" ;;
esac
