#!/usr/bin/env bash
# What no test of a kernel would notice: a wrapper of gpu.cuh that the emulator has and conformance does not ask the GPU
# for, an instruction past the wrappers, an operation that allocates, waits, prints or ends the program.
#
#   tests/simt/test_sources.sh OBJECT...     the kernels' object files
#
# Environment: BIREME_SOURCE_DIR
set -euo pipefail
cd "$BIREME_SOURCE_DIR"
failed=0

say() {
    echo "$*"
    failed=1
}

# Wrappers are what nvcc is given: up to where GPU_INLINE is made for other compilers.
wrappers=$(sed '/^#ifndef GPU_INLINE/,$d' kernels/cuda/gpu.cuh |
    grep -E '^(GPU_INLINE|template.*GPU_INLINE|static inline) ' | grep -oE '\bgpu_[a-z0-9_]+\(' | tr -d '(' | sort -u)
[ "$(wc -w <<<"$wrappers")" -ge 25 ] || say "only these wrappers were found in gpu.cuh: $wrappers"
# What both compilers have in gpu.cuh is made of wrappers, and conformance asks for it.
asked=$(cat tests/simt/conformance.cu tests/simt/planted.cu && sed -n '/^#ifndef GPU_INLINE/,$p' kernels/cuda/gpu.cuh)
for wrapper in $wrappers; do
    grep -qE "\b$wrapper\(" tests/simt/simt.h || say "$wrapper has no twin in simt.h"
    grep -qE "\b$wrapper(<[^>]*>)?\(" <<<"$asked" || say "$wrapper is not in conformance.cu"
done

# What CUDA C++ has itself is asked for too, where kernels use it.
sources=(kernels/cuda/*.cu kernels/cuda/*.cuh)
builtins=$(grep -hoE '\b__(shfl|ballot|syncwarp|syncthreads|any|all|match|reduce|activemask|umulhi|threadfence)[a-z_]*\(' \
    "${sources[@]}" | tr -d '(' | sort -u)
for builtin in $builtins; do
    grep -qE "\b$builtin\(" tests/simt/conformance.cu tests/simt/planted.cu || say "$builtin is not in conformance.cu"
done
if grep -nE '\basm\b|__shared__|<<<|cooperative_groups|\bprintf|\bassert\(|__trap' "${sources[@]}" | grep -v '^kernels/cuda/gpu.cuh:'; then
    say "kernels use what has no wrapper"
fi

# An operation calls the back-end's own, and mathematics: no allocation, wait, print or exit. new and delete are the
# emulator's queue.
for object in "$@"; do
    strange=$(nm -u "$object" | awk '{ print $2 }' | grep -vE '^(_ZN4simt|_ZNK4simt|_Z[0-9]+(gpu|attention)_|cuda_|arena_|status_|__asan_|__tsan_|__ubsan_)' |
        grep -vE '^(_GLOBAL_OFFSET_TABLE_|_Unwind_Resume|_Znwm|_ZdlPvm?|__gxx_personality_v0|_ZTVN10__cxxabi.*|__stack_chk_fail|__gcov.*|__cxa_.*)$' |
        grep -vE '^(erfcf|exp2f|expf|fmaxf|fminf|logf|sqrtf|tanhf|getenv|strcmp|mem(cpy|set|cmp|move))$' || true)
    [ -z "$strange" ] || say "$(basename "$object") calls" $strange
done
exit $failed
