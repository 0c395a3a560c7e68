#!/bin/bash
# Tests training on two ranks with /dev/shm of 4 KiB to 64 MiB. The run trains at each size with the
# default limits of time, and the losses are the same. If /dev/shm is too small, the run logs one
# warning with the bytes needed and found.
#
# A mount namespace is needed to replace /dev/shm.
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/mount_namespace.sh"
enter_mount_namespace "$0" "$@"
export TMPDIR=/tmp # not in the folder that the test replaces
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

# This model needs between 40 and 64 MiB of shared memory on two ranks.
settings=(model.num_layers=4 model.hidden_size=384 train.max_steps=2 schedule.warmup_steps=0
    evaluate.every=0 checkpoint.every=0 data.validation=null)
run_bireme 0 plan recipe.yaml "${settings[@]}" --ranks 2 --json
needed=$(grep -o '"shared_memory_bytes": *[0-9]*' out | grep -o '[0-9]*$')
[ "${needed:-0}" -gt $((40 << 20)) ] && [ "$needed" -lt $((64 << 20)) ] ||
    fail "the model needs $needed bytes of shared memory"

warning='/dev/shm has [0-9]* bytes free, but [0-9]* bytes are needed.*\[W-SHARED-MEMORY\]$'
for kib in 65536 40960 1024 4; do
    mount -t tmpfs -o "size=${kib}k,mode=1777" none /dev/shm 2>/dev/null || {
        echo 'skipped: mounting is not permitted'
        exit 77
    }
    start=$SECONDS
    run_ranks 2 0 train recipe.yaml "${settings[@]}" run_dir="run-$kib"
    seconds=$((SECONDS - start))
    umount /dev/shm
    # The run trains within 30 s, on a slow machine within about three times its usual time.
    [ $kib != 65536 ] || enough=$seconds
    limit=$((3 * enough + 10))
    [ $limit -ge 30 ] || limit=30
    echo "$kib KiB: $seconds s of at most $limit s"
    [ $seconds -le $limit ] || fail "$kib KiB: the run took $seconds s"
    [ "$(grep -c 'SHARED-MEMORY' stderr)" = "$(grep -c "$warning" stderr)" ] ||
        fail 'the warning lacks the bytes needed and found'
    [ "$(grep -c "$warning" stderr)" = $((kib < needed >> 10)) ] ||
        fail "$kib KiB: a warning is missing or superfluous"
    sed -n 's|.*/dev/shm has \([0-9]*\) bytes free, but \([0-9]*\) .*|\1 \2|p' stderr |
        while read -r found bytes; do
            [ "$found" -le $((kib << 10)) ] && [ "$bytes" -gt "$found" ] ||
                fail "$kib KiB: $bytes bytes needed, $found found"
        done || exit 1
    print_losses "run-$kib" train >"losses-$kib"
    [ "$(wc -l <"losses-$kib")" = 2 ] && cmp losses-65536 "losses-$kib" ||
        fail "$kib KiB: the losses differ: $(cat losses-65536 "losses-$kib")"
done
