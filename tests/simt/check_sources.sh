#!/usr/bin/env bash
# Checks the kernel sources. Every wrapper of gpu.cuh exists in the emulator and is used in
# conformance.cu, kernels use no instruction without a wrapper, and no operation allocates, waits,
# prints or exits.
#
#   tests/simt/check_sources.sh OBJECT...     the object files of the kernels
#
# Environment: BIREME_SOURCE_DIR
set -euo pipefail
cd "$BIREME_SOURCE_DIR"
failed=0

report() {
    echo "$*"
    failed=1
}

# The wrappers for nvcc are in the part of gpu.cuh before GPU_INLINE is defined for other compilers.
wrappers=$(sed '/^#ifndef GPU_INLINE/,$d' kernels/cuda/gpu.cuh |
    grep -E '^(GPU_INLINE|template.*GPU_INLINE|static inline) ' |
    grep -oE '\bgpu_[a-z0-9_]+\(' | tr -d '(' | sort -u)
[ "$(wc -w <<<"$wrappers")" -ge 25 ] || report "gpu.cuh has too few wrappers: $wrappers"
# The functions of gpu.cuh for all compilers call wrappers; conformance.cu tests these functions.
tested=$(cat tests/simt/conformance.cu tests/simt/planted.cu &&
    sed -n '/^#ifndef GPU_INLINE/,$p' kernels/cuda/gpu.cuh)
for wrapper in $wrappers; do
    grep -qE "\b$wrapper\(" tests/simt/simt.h || report "$wrapper is not in simt.h"
    grep -qE "\b$wrapper(<[^>]*>)?\(" <<<"$tested" || report "$wrapper is not in conformance.cu"
done

# The built-in functions of CUDA C++ that kernels call must be tested too.
mapfile -t sources < <(find kernels/cuda -name '*.cu' -o -name '*.cuh' | sort)
[ "${#sources[@]}" -ge 30 ] || report "only ${#sources[@]} sources of kernels"
pattern='shfl|ballot|syncwarp|syncthreads|any|all|match|reduce|activemask|umulhi|threadfence|popc'
builtins=$(grep -hoE "\b__($pattern)[a-z_]*\(" "${sources[@]}" | tr -d '(' | sort -u)
for builtin in $builtins; do
    grep -qE "\b$builtin\(" tests/simt/conformance.cu tests/simt/planted.cu ||
        report "$builtin is not in conformance.cu"
done
pattern='\basm\b|__shared__|<<<|cooperative_groups|\bprintf|\bassert\(|__trap'
if grep -nE "$pattern" "${sources[@]}" | grep -v '^kernels/cuda/gpu.cuh:'; then
    report "kernels use an instruction without a wrapper"
fi

# Registers of wgmma are tied before each fence, so that the compiler moves no write after it.
if awk 'FNR == 1 { before = "" }
        /^ *gpu_wgmma_fence\(\);/ && before !~ /gpu_wgmma_order\(/ {
            print FILENAME ":" FNR
            found = 1
        }
        { before = $0 }
        END { exit !found }' "${sources[@]}" tests/simt/conformance.cu; then
    report "gpu_wgmma_order does not precede this gpu_wgmma_fence"
fi

# An operation calls only the back-end, attention_bucket and mathematical functions: no allocation,
# wait, print or exit. The queue of the emulator calls new and delete.
readonly project='_ZN4simt|_ZNK4simt|_Z[0-9]+(gpu|attention)_|cuda_|arena_|status_'
readonly compiler='_GLOBAL_OFFSET_TABLE_|_Unwind_Resume|_Znwm|_ZdlPvm?|__gxx_personality_v0'
readonly support='getenv|strcmp|_ZTVN10__cxxabi.*|__stack_chk_fail|__gcov.*|__cxa_.*'
readonly functions='attention_bucket|erfcf|exp(2f|f)?|fma(f|xf?)|fminf?|log(1p|f)?|sqrtf?|tanhf'
for object in "$@"; do
    forbidden=$(nm -u "$object" | awk '{ print $2 }' |
        grep -vE "^($project|__asan_|__tsan_|__ubsan_)" |
        grep -vE "^($compiler|$support)\$" |
        grep -vE "^($functions|mem(cpy|set|cmp|move))\$" || true)
    [ -z "$forbidden" ] || report "$(basename "$object") calls" $forbidden
done
exit $failed
