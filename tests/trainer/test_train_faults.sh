#!/bin/bash
# `bireme train` where files fail: after each fault the right end, and the next start goes on to the same bits.
# usage: test_train_faults.sh PART SHIM; SHIM is tests/shim/fault_shim.c. Parts:
#
#   calls_odd, calls_even   a file call of a run that changes something fails (ENOSPC, EIO) or is the last
#                (SIGKILL): some of them, with BIREME_FULL_SWEEP=1 all
#   calls_2      likewise some calls of each rank of two
#   full_disk    the run folder is on a disk (tmpfs) that is too small by more or less
#   power_cut    the disk (ext4 in a file) is copied at random moments and whenever a step was told as saved:
#                what the machine would find after a power cut then. Blocks that a disk reorders are not tried
#
# The last two mount, as root in a mount namespace of their own; skipped (77) where that is not permitted.
part=${1:-} shim=$(realpath "${2:?}")
case $part in
full_disk | power_cut)
    if [ "${IN_OWN_NAMESPACE:-}" != yes ]; then
        unshare --mount --propagation private true 2>/dev/null || {
            echo "skipped: making a mount namespace is not permitted"
            exit 77
        }
        IN_OWN_NAMESPACE=yes exec unshare --mount --propagation private "$0" "$@"
    fi
    ;;
esac
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
need_shim

sed -i 's/num_layers: 2/num_layers: 1/; s/hidden_size: 32/hidden_size: 16/; s/max_steps: 20/max_steps: 4/
    s/every: 10/every: 2/; s/keep: 3/keep: 1/; s/warmup_steps: 5/warmup_steps: 1/; s/log: .*/log: {every: 2, tensorboard: true}/' recipe.yaml

newest_saved() { # FILE: the newest step that was told as saved; 0: none
    local step
    step=$(sed -n 's/^saved step \([0-9]*\) .*/\1/p' "$1" | tail -n 1)
    echo "${step:-0}"
}

# The next start: to the same end as the run WHOLE, from no earlier than the step that was told as saved.
goes_on() { # RANKS WHOLE RUN SAVED STEPS [LOSABLE]
    local from
    run_ranks "$1" 0 train recipe.yaml run_dir="$3" train.max_steps="$5"
    from=$(sed -n 's/^resuming .*: step \([0-9]*\),.*/\1/p' told)
    grep -q 'is finished' told || [ "${from:-0}" -ge "$4" ] || fail "step $4 was told as saved, step ${from:-0} is resumed"
    ! grep -q '^W-CKPT-SKIP' told || fail 'a folder with a published name is damaged'
    same_weights "$2" "$3" "$(printf '%08d' "$5")"
    cmp "$2"/final/model-*00000-of-*.h5 "$3"/final/model-*00000-of-*.h5 || fail 'the final weights differ'
    if [ -n "${6:-}" ]; then # the last step's line could not be written, and nobody trains that step again
        cp "$3/metrics.jsonl" lines
        grep -F "\"event\":\"train\",\"step\":$5," "$2/metrics.jsonl" >last
        sed "/\"event\":\"train\",\"step\":$5,/d" lines | cat - last >"$3/metrics.jsonl"
    fi
    same_losses "$2" "$3" 0
}

# ---- calls that fail ----

# Run with the shim in rank VICTIM: call AT meets FAULT; 0: none. Its calls are in the file `calls`.
struck() { # RANKS VICTIM FAULT AT RUN
    local launcher=() shimmed=("LD_PRELOAD=$shim" FAULT_DIR=faulty "FAULT_DO=$3" "FAULT_AT=$4" FAULT_LOG=calls)
    rm -rf "$5" calls
    if [ "$1" -gt 1 ]; then
        launcher=(mpirun --oversubscribe --mca mpi_yield_when_idle 1 --mca odls_base_sigkill_timeout 0 -np "$1")
        shimmed+=("FAULT_RANK=$2")
    fi
    { timeout 50 "${launcher[@]}" env "${shimmed[@]}" "$program" train recipe.yaml run_dir="$5" >out 2>told; } 2>/dev/null
    code=$?
}

right_end() { # FAULT CALL PLACE: of the run that was struck
    case $1:$code:$2 in
    kill:137:*) ;;
    kill:*) fail "a kill at $3 ($2) ended with $code" ;;
    *:74:*)
        one_line 74 'E-WRITE'
        grep -qE 'No space left|Input/output error' told || fail "the error at $3 ($2) gives no reason"
        ;;
    *:0:open*.h5) ;; # HDF5 tries twice
    # only what cleans up or tells who holds the lock may fail without ending the run
    *:0:*) grep -qE '^W-(LOCK|CKPT-CLEAN)' told || fail "the error at $3 ($2) was told to nobody" ;;
    *) fail "an error at $3 ($2) ended with $code" ;;
    esac
}

calls() { # RANKS STRIDE [FIRST]
    local ranks=$1 stride=$2 tried=0 faults=(enospc eio kill) victim count at fault call losable saved
    [ "$ranks" = 1 ] || need_mpirun
    run_ranks "$ranks" 0 train recipe.yaml run_dir=whole
    for ((victim = 0; victim < ranks; victim++)); do
        struck "$ranks" $victim '' 0 faulty
        [ $code = 0 ] || fail "a run that is only counted ended with $code"
        count=$(wc -l <calls)
        [ "$count" -gt 50 ] || fail "only $count calls of rank $victim were counted"
        for ((at = ${3:-1 + RANDOM % stride}; at <= count; at += stride)); do
            fault=${faults[RANDOM % 3]}
            struck "$ranks" "$victim" "$fault" "$at" faulty
            call=$(sed -n "s/^$at //p" calls) # two threads: not always the same one
            if [ -z "$call" ]; then # this time there were fewer
                [ $code = 0 ] || fail "an undisturbed run ended with $code"
                continue
            fi
            right_end "$fault" "$call" "call $at of rank $victim"
            saved=$(newest_saved told)
            [[ $call == write*/metrics.jsonl ]] && losable=yes || losable=
            goes_on "$ranks" whole faulty "$saved" 4 $losable
            tried=$((tried + 1))
        done
    done
    echo "$tried calls struck"
}

some() { # FEW MANY: the first; in a full sweep the second
    [ -z "${BIREME_FULL_SWEEP:-}" ] && echo "$1" || echo "$2"
}

calls_odd() {
    calls 1 "$(some 74 2)" $((1 + $(some 1 0) * 2 * (RANDOM % 37)))
}

calls_even() {
    calls 1 "$(some 74 2)" $((2 + $(some 1 0) * 2 * (RANDOM % 37)))
}

calls_2() {
    calls 2 "$(some 131 23)"
}

# ---- a disk that is too small ----

can_mount() { # ARGUMENT...
    mkdir -p disk
    trap 'umount disk 2>/dev/null; rm -rf "$folder"' EXIT
    mount "$@" disk 2>/dev/null || {
        echo "skipped: mounting is not permitted"
        exit 77
    }
}

full_disk() {
    local kib whole_kib filled=0 honest=0
    run 0 train recipe.yaml run_dir=whole
    whole_kib=$(du -sk whole | cut -f1)
    for ((kib = 8 + RANDOM % 8; kib < whole_kib + 200; kib += 1 + whole_kib / $(some 8 24))); do
        can_mount -t tmpfs -o "size=${kib}k" none
        honest=$((1 - honest)) # or the disk says that it has room enough, and it has not
        if [ $honest = 1 ]; then
            timeout 50 "$program" train recipe.yaml run_dir=disk/run >out 2>told
        else
            LD_PRELOAD=$shim FAULT_DIR=disk/run FAULT_FREE=1000000000 \
                timeout 50 "$program" train recipe.yaml run_dir=disk/run >out 2>told
        fi
        code=$?
        if [ $code != 0 ]; then
            [ $code = 74 ] || fail "a disk of $kib KiB ended the run with $code"
            one_line 74 'E-WRITE'
            grep -qE 'No space left| are free' told || fail "a disk of $kib KiB: no reason"
            filled=$((filled + 1))
        fi
        saved=$(newest_saved told)
        mount -o remount,size=64m disk
        goes_on 1 whole disk/run "$saved" 4
        umount disk
    done
    [ $filled -ge 4 ] || fail "only $filled disks were too small"
    echo "$filled disks were too small"
}

# ---- a power cut ----

# A copy of the disk as it is now; the run stands still, and two equal copies prove that nothing else wrote.
copy_disk() { # JOB NAME
    kill -STOP "$1" 2>/dev/null
    cp told "$2.told"
    local i
    for ((i = 0; i < 50; i++)); do
        cp --sparse=always image "$2"
        cmp -s image "$2" && break
    done
    kill -CONT "$1" 2>/dev/null
    [ $i -lt 50 ] || fail 'the disk never came to rest'
}

power_cut() { # BIREME_UNSYNCED=1: the program's fsync does nothing, and this must fail
    local steps=100 most cuts=0 seen=0 preload=() job i
    command -v mkfs.ext4 >/dev/null || {
        echo "skipped: no mkfs.ext4 (package e2fsprogs)"
        exit 77
    }
    [ -z "${BIREME_UNSYNCED:-}" ] || preload=("LD_PRELOAD=$shim" FAULT_DIR=disk/run FAULT_DO=unsynced)
    sed -i 's/checkpoint: {every: 2/checkpoint: {every: 5/; s/evaluate: {every: 2/evaluate: {every: 100/' recipe.yaml
    run 0 train recipe.yaml run_dir=whole train.max_steps=$steps
    most=$(some 8 24)
    truncate -s 24M image
    mkfs.ext4 -q -F image
    can_mount -o loop image
    env "${preload[@]}" "$program" train recipe.yaml run_dir=disk/run train.max_steps=$steps >out 2>told &
    job=$!
    while kill -0 $job 2>/dev/null && [ "$cuts" -lt "$most" ]; do
        if [ $((cuts % 2)) = 0 ]; then
            sleep "0.0$((RANDOM % 10))"
        else # just after the next step was told
            while kill -0 $job 2>/dev/null && [ "$(newest_saved told)" = "$seen" ]; do :; done
        fi
        kill -0 $job 2>/dev/null || break
        copy_disk $job cut-$cuts
        seen=$(newest_saved told)
        cuts=$((cuts + 1))
    done
    wait $job || fail "the run that was copied ended with $?"
    umount disk
    [ $cuts -ge 4 ] || fail "only $cuts copies were made before the run's end"
    for ((i = 0; i < cuts; i++)); do
        mount -o loop cut-$i disk || fail "copy $i is no file system"
        goes_on 1 whole disk/run "$(newest_saved cut-$i.told)" $steps
        umount disk
    done
    echo "$cuts power cuts"
}

case $part in
calls_odd | calls_even | calls_2 | full_disk | power_cut) $part ;;
*)
    echo "no such part: $part" >&2
    exit 64
    ;;
esac
echo "$part: all as it should be"
