#!/usr/bin/env bash
# Checks who includes whom: docs/architecture.md's table, and one vendor, one room.
#
#   scripts/check_includes.sh [--self-test] [ROOT]
#
# Prints `file:line: rule` for each violation and exits 1. --self-test plants one violation of each
# rule in a temporary tree and fails unless every one is found.
set -euo pipefail
set -f # the patterns below are for `case`, not for the names of files here

# allowed FILE HEADER: whether this file may include this header of the house. The first line that fits the
# file decides, so narrow rows stand above wide ones; the right side is a list of patterns.
allowed() {
    local file=$1 header=$2 patterns pattern
    case $file in
    tests/*) return 0 ;;
    base/*) patterns="base/*" ;;
    datasets/*) patterns="base/* datasets/*" ;;
    kernels/*) patterns="base/* kernels/*" ;;
    comm/*) patterns="base/* comm/*" ;;
    trainer/model/*) patterns="base/* kernels/kernels.h comm/comm.h trainer/model/*" ;;
    trainer/objective/*)
        patterns="base/* kernels/kernels.h datasets/loader/batch.h comm/comm.h trainer/objective/*"
        ;;
    trainer/optimizer/schedule*) patterns="base/* trainer/recipe/recipe.h trainer/optimizer/*" ;;
    trainer/optimizer/*) patterns="base/* kernels/kernels.h trainer/optimizer/*" ;;
    trainer/recipe*) patterns="base/* trainer/recipe*" ;;
    trainer/metrics* | trainer/tensorboard*)
        patterns="base/* trainer/metrics* trainer/tensorboard*"
        ;;
    trainer/checkpoint* | trainer/manifest* | trainer/run_lock*)
        patterns="base/* comm/comm.h comm/partition.h datasets/shard/h5file.h"
        patterns+=" trainer/checkpoint* trainer/manifest* trainer/run_lock*"
        ;;
    trainer/library/*) patterns="base/* kernels/kernels.h comm/comm.h datasets/* trainer/*" ;;
    trainer/*) patterns="base/* kernels/kernels.h comm/* datasets/* trainer/*" ;;
    *) return 0 ;;
    esac
    for pattern in $patterns; do
        # shellcheck disable=SC2254 # the pattern is meant to be one
        case $header in
        $pattern) return 0 ;;
        esac
    done
    return 1
}

# vendor_allowed FILE HEADER: whether this file may include this header of a vendor; other system headers pass.
vendor_allowed() {
    local file=$1
    case $2 in
    mpi.h | mpi-ext.h)
        case $file in comm/comm_mpi*.c | comm/comm_mpi*_impl.h) return 0 ;; esac
        ;;
    nccl.h)
        case $file in comm/comm_nccl*.c) return 0 ;; esac
        ;;
    cuda* | cublas* | nvtx* | cub/* | cutlass/*)
        case $file in kernels/cuda/* | comm/comm_nccl*.c) return 0 ;; esac
        ;;
    hdf5* | H5*)
        case $file in
        datasets/h5file.[ch] | datasets/shard*.[ch] | datasets/prepare*.c) return 0 ;;
        trainer/checkpoint*.[ch]) return 0 ;;
        esac
        ;;
    dnnl* | oneapi/* | cblas* | mkl* | openblas* | lapack*)
        case $file in kernels/cpu/matmul*) return 0 ;; esac
        ;;
    yaml*)
        case $file in trainer/recipe*.c) return 0 ;; esac
        ;;
    jansson*)
        case $file in datasets/* | trainer/*) return 0 ;; esac
        ;;
    pcre2* | utf8proc*)
        case $file in datasets/tokenizer/*.c) return 0 ;; esac
        ;;
    openssl/*)
        case $file in base/hash.c) return 0 ;; esac
        ;;
    protobuf-c/* | isa-l*)
        case $file in trainer/logging/tensorboard.c) return 0 ;; esac
        ;;
    *) return 0 ;;
    esac
    return 1
}

# check_line FILE LINE TEXT: one #include.
check_line() {
    local file=$1 line=$2 text=$3 header
    case $text in
    *\"*\"*)
        header=${text#*\"}
        header=${header%%\"*}
        case $header in
        tests/*)
            case $file in tests/*) ;; *) echo "$file:$line: nothing includes tests ($header)" ;; esac
            ;;
        base/* | datasets/* | kernels/* | comm/* | trainer/*)
            if ! allowed "$file" "$header"; then
                echo "$file:$line: this room may not include $header (docs/architecture.md)"
            fi
            ;;
        build_info.h) ;; # made by CMake in the build folder
        *.pb-c.h)
            case $file in
            trainer/logging/tensorboard.c | tests/*) ;;
            *) echo "$file:$line: $header belongs to trainer/logging/tensorboard.c" ;;
            esac
            ;;
        *) echo "$file:$line: write \"$header\" from the repository's root" ;;
        esac
        case $header in
        *_impl.h | *.cuh)
            case $file in
            tests/* | "${header%/*}"/*) ;;
            *) echo "$file:$line: $header stays in its folder" ;;
            esac
            ;;
        esac
        ;;
    *\<*\>*)
        header=${text#*<}
        header=${header%%>*}
        if ! vendor_allowed "$file" "$header"; then
            case $file in
            tests/*) ;; # a test may look behind every interface
            *) echo "$file:$line: <$header> belongs to another room (one vendor, one room)" ;;
            esac
        fi
        ;;
    esac
}

# check_tree ROOT: every #include of every room.
check_tree() {
    local found file line text
    found=$(cd "$1" && grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.[ch]' --include='*.cu' \
        --include='*.cuh' base datasets kernels comm trainer tests 2>/dev/null |
        while IFS=: read -r file line text; do check_line "$file" "$line" "$text"; done)
    if [ -n "$found" ]; then
        echo "$found"
        return 1
    fi
}

# The planted violations: file and the line that must be told.
planted="base/a.c|#include \"comm/comm.h\"
base/b.c|#include <hdf5.h>
datasets/a.c|#include \"kernels/kernels.h\"
kernels/a.c|#include \"datasets/loader/batch.h\"
kernels/cpu/norm.c|#include <dnnl.h>
comm/a.c|#include \"kernels/kernels.h\"
comm/mesh.c|#include <mpi.h>
trainer/train/loop.c|#  include <mpi.h>
trainer/model/a.c|#include \"datasets/loader/batch.h\"
trainer/objective/a.c|#include \"trainer/model/model.h\"
trainer/optimizer/a.c|#include \"comm/comm.h\"
trainer/recipe_a.c|#include \"trainer/train/loop.h\"
trainer/logging/metrics.c|#include \"trainer/recipe/recipe.h\"
trainer/checkpoint_a.c|#include \"trainer/model/model.h\"
trainer/checkpoint/manifest.c|#include \"trainer/recipe/recipe.h\"
trainer/train/step.c|#include \"kernels/cpu/cpu_impl.h\"
trainer/logging/tensorboard.c|#include \"trainer/recipe/recipe.h\"
trainer/logging/metrics.c|#include \"tensorboard.pb-c.h\"
trainer/logging/metrics.c|#include <isa-l/crc.h>
trainer/train/loop.c|#include <yaml.h>
trainer/main.c|#include \"tests/check.h\"
comm/b.c|#include \"bucket.h\"
datasets/b.c|#include <openssl/evp.h>
trainer/command/a.c|#include <cuda_runtime.h>
trainer/library/a.c|#include \"comm/bucket.h\""

self_test() {
    local root file text found missed=0
    root=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder's name is known now
    trap "rm -rf '$root'" EXIT
    while IFS='|' read -r file text; do
        mkdir -p "$root/$(dirname "$file")"
        printf '#include <stdint.h>\n#include "base/status.h"\n%s\n' "$text" >"$root/$file"
        found=$(check_tree "$root" || true)
        case $found in
        "$file:3: "*) ;;
        *)
            echo "self-test: not told: $file: $text"
            missed=1
            ;;
        esac
        rm "$root/$file"
    done <<<"$planted"
    mkdir -p "$root/trainer"
    printf '#include "comm/comm.h"\n#include <stdio.h>\n' >"$root/trainer/loop.c"
    if ! check_tree "$root"; then
        echo "self-test: a clean tree was refused"
        missed=1
    fi
    return $missed
}

if [ "${1:-}" = --self-test ]; then
    self_test
    echo "check_includes: every planted violation was found"
    exit 0
fi
if ! check_tree "${1:-$(dirname "$0")/..}"; then
    echo "check_includes: the lines above break docs/architecture.md" >&2
    exit 1
fi
echo "check_includes: clean"
