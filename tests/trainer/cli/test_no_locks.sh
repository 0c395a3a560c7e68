#!/bin/bash
# Folders on a file system without file locks.
# usage: test_no_locks.sh PART SHIM; SHIM is the library of tests/shim/fault_shim.c
# ctest: parts prepare train
# ctest: targets test_fault_shim
shim=$(realpath "${2:?}")
. "$(dirname "$0")/../tiny_training.sh"
need_shim

# without_locks ERROR CODE ARGUMENT...: run the program, for which every flock fails with ERROR.
without_locks() {
    local error=$1 expected=$2 code
    shift 2
    LD_PRELOAD=$shim FAULT_LOCKS=$error "$program" "$@" </dev/null >out 2>stderr
    code=$?
    [ $code = "$expected" ] || fail "$error: $1 ended with $code instead of $expected"
}

# expect_warnings COUNT TEXT: check that the last command printed COUNT warnings with this reason.
expect_warnings() {
    [ "$(grep -c 'does not support locks ('"$2"').*\[W-LOCK\]$' stderr)" = "$1" ] ||
        fail "not $1 warnings about locks ($2)"
}

# Without a lock, a filled temporary folder can belong to another preparation, so it remains.
test_prepare() {
    local prepare=(prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE"
        --output shards) error reason
    for error in ENOLCK EOPNOTSUPP ENOSYS EBADF; do
        case $error in
        ENOLCK) reason='No locks available' ;;
        EOPNOTSUPP) reason='Operation not supported' ;;
        EBADF) reason='Bad file descriptor' ;;
        ENOSYS) reason='Function not implemented' ;;
        esac
        rm -rf shards
        without_locks $error 0 "${prepare[@]}"
        expect_warnings 1 "$reason"
        run_bireme 0 inspect shards
        mkdir shards/.unfinished
        without_locks $error 0 "${prepare[@]}" # the folder is empty
        [ ! -e shards/.unfinished ] || fail 'the temporary folder is left'
        mkdir shards/.unfinished
        echo other >shards/.unfinished/part-000000.h5
        find shards -type f -exec sha256sum {} + | sort >before
        without_locks $error 73 "${prepare[@]}"
        expect_error 'shards/.unfinished has files; remove it if no other `bireme prepare` writes'
        expect_warnings 1 "$reason"
        find shards -type f -exec sha256sum {} + | sort | cmp - before ||
            fail 'a refused preparation changed the output folder'
        run_bireme 0 "${prepare[@]}" # the lock shows that no other preparation uses the folder
        [ ! -e shards/.unfinished ] || fail 'the filled folder is left'
        run_bireme 0 inspect shards
    done
}

test_train() {
    local error
    for error in ENOLCK EOPNOTSUPP ENOSYS; do
        rm -rf run
        without_locks $error 0 train recipe.yaml
        grep -q 'run/LOCK: this file system does not support locks .*\[W-LOCK\]$' stderr ||
            fail "$error: no warning"
        run_bireme 0 checkpoint verify run
    done
}

run_part "$@"
