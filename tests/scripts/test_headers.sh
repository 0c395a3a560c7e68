#!/bin/bash
# Each header of C compiles alone: it includes or declares everything that it uses.
# usage: test_headers.sh COMPILER [FLAG...]; BIREME_SOURCE_DIR is set by ctest
#
# Tests are not included, and neither are .cuh files, which need nvcc. The headers of MPI are
# skipped if FLAG does not define BIREME_MPI. The headers of kernels/cuda are skipped without the
# CUDA toolkit.
set -euo pipefail
source=${BIREME_SOURCE_DIR:?}
source "$source/tests/temporary_folder.sh"

# compile_header ROOT HEADER FLAG...: compile a file that contains only this header.
# CPU_VARIANT is the instruction set in the names of kernels/cpu.
compile_header() {
    local root=$1 header=$2
    shift 2
    echo "#include \"$header\"" | "${compiler[@]}" -std=c11 -D_POSIX_C_SOURCE=200809L \
        -D_DEFAULT_SOURCE -DCPU_VARIANT=header -Wall -Wextra -Wno-unused-function -Werror \
        -fsyntax-only -I"$root" "$@" -x c -
}

# check_headers ROOT FLAG...: print the errors of each header that does not compile alone, then
# their number.
check_headers() {
    local root=$1 header count=0 broken=0
    shift
    while IFS= read -r header; do
        if [ "$header" = comm/host/mpi_impl.h ] && [[ " $* " != *" -DBIREME_MPI "* ]]; then
            continue
        fi
        if [[ $header = kernels/cuda/* ]] && ! $has_cuda; then
            continue
        fi
        count=$((count + 1))
        if ! compile_header "$root" "$header" "$@" 2>"$folder/errors"; then
            echo "$header does not compile alone:"
            sed -n 1,4p "$folder/errors"
            broken=$((broken + 1))
        fi
    done < <(cd "$root" && find base comm kernels datasets trainer -name '*.h' | sort)
    echo "test_headers: $count headers, $broken broken"
    [ "$count" -gt 0 ] && [ "$broken" = 0 ]
}

read -ra compiler <<<"$1"
shift
has_cuda=true
echo '#include <cublasLt.h>' | "${compiler[@]}" -fsyntax-only -x c - 2>/dev/null || {
    has_cuda=false
    echo 'not checked: kernels/cuda, because this machine has no CUDA toolkit'
}
check_headers "$source" "$@"

# The check can fail: in this tree one header uses int64_t without its include.
mkdir -p "$folder/tree"/{base,comm,kernels,datasets,trainer}
echo '#include <stdint.h>' >"$folder/tree/base/complete.h"
echo 'int64_t base_count(void);' >"$folder/tree/base/incomplete.h"
if check_headers "$folder/tree" >"$folder/out" ||
    ! grep -q '^base/incomplete.h does not compile alone' "$folder/out" ||
    ! grep -q '2 headers, 1 broken' "$folder/out"; then
    fail 'the check did not find a header without its include'
fi
