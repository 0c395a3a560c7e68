#!/bin/bash
# Each header of C compiles alone: it includes or declares everything that it uses. The headers that
# kernels of a GPU share with the host also compile as C++, before and after gpu.cuh.
# usage: test_headers.sh COMPILER CXX_COMPILER [FLAG...]; BIREME_SOURCE_DIR is set by ctest
#
# Tests are not included, and neither are .cuh files, which need nvcc. The headers of MPI are
# skipped if FLAG does not define BIREME_MPI. The headers of kernels/cuda are skipped without the
# CUDA toolkit. CXX_COMPILER may be `none`.
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

# check_shared ROOT HEADER FUNCTION...: C++ includes the header in any order with gpu.cuh, and the
# functions have the names of C functions.
check_shared() {
    local root=$1 header=$2 order include function
    shift 2
    for order in "$header" "$header kernels/cuda/gpu.cuh" "kernels/cuda/gpu.cuh $header"; do
        {
            for include in $order; do
                echo "#include \"$include\""
            done
            for function in "$@"; do
                echo "void *get_$function() { return reinterpret_cast<void *>($function); }"
            done
        } >"$folder/shared.cc"
        "${cxx_compiler[@]}" -std=c++17 -DGPU_EMULATOR='"tests/simt/simt.h"' -Wall -Werror \
            -Wno-unused-function -Wno-unknown-pragmas -I"$root" -I"$source" -c "$folder/shared.cc" \
            -o "$folder/shared.o" || return 1
        for function in "$@"; do
            nm -u "$folder/shared.o" | grep -w "$function" >/dev/null || {
                echo "$order: $function is not a C function"
                return 1
            }
        done
    done
}

read -ra compiler <<<"$1"
read -ra cxx_compiler <<<"$2"
shift 2
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

if [ "${cxx_compiler[*]}" = none ]; then
    echo 'not checked: headers in C++, because this build has no C++ compiler'
    exit 0
fi
# A function of each header, as STEM:FUNCTION.
operations='contrastive:contrastive_loss_run control:control_decide_update head_loss:head_loss_run
preference:preference_loss_run preference_batch:preference_batch_run spike:spike_score_run'
for header in "$source"/kernels/*_terms.h; do
    stem=$(basename "$header" _terms.h)
    function=$(tr ' ' '\n' <<<"$operations" | sed -n "s/^$stem://p")
    [ -n "$function" ] || fail "no operation of $stem in the list of this test"
    check_shared "$source" "kernels/${stem}_terms.h" "$function" status_raise ||
        fail "kernels/${stem}_terms.h does not compile as C++ in any order"
done
echo '#include "base/plain.h"' >"$folder/tree/kernels/plain_terms.h"
echo 'int base_count(void);' >"$folder/tree/base/plain.h"
if check_shared "$folder/tree" kernels/plain_terms.h base_count >"$folder/out" ||
    ! grep -q 'base_count is not a C function' "$folder/out"; then
    fail 'the check did not find a header without extern "C"'
fi
