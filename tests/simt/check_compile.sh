#!/usr/bin/env bash
# Checks that nvcc compiles a file of CUDA kernels for sm_80 and sm_90a without warnings, and that
# ptxas reports no more registers, spilled bytes and stack than registers.txt allows, no serialized
# wgmma, and no static shared memory next to swizzled tiles.
#
#   tests/simt/check_compile.sh FILE.cu
#
# Environment: BIREME_NVCC, BIREME_SOURCE_DIR; BIREME_LONG=1 (otherwise the test is skipped).
set -euo pipefail
cd "$BIREME_SOURCE_DIR"

skip() {
    echo "skipped: $*"
    exit 77
}

readonly file=$1
stem=$(basename "$file" .cu)
[ -x "${BIREME_NVCC:-}" ] || skip "no nvcc on this machine"
[ "${BIREME_LONG:-0}" = 1 ] ||
    skip "nvcc takes seconds to minutes for each file; set BIREME_LONG=1 to run this test"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# read_usage LOG: print the largest registers, spilled bytes and stack of all kernels in the output
# of ptxas.
read_usage() {
    awk '/bytes stack frame/ { if ($1 > stack) stack = $1; if ($5 > spilled) spilled = $5 }
         /Used [0-9]+ registers/ {
             for (i = 1; i < NF; i++) if ($i == "Used" && $(i + 1) > most) most = $(i + 1)
         }
         END { print most + 0, spilled + 0, stack + 0 }' "$1"
}

# check_usage ARCHITECTURE: compare the usage with the limits in registers.txt.
check_usage() {
    local kernels="$stem, sm_$1" registers spilled stack max_registers max_spilled max_stack
    read -r registers spilled stack <<<"$(read_usage "$work/$1")"
    if ! read -r max_registers max_spilled max_stack < <(awk -v file="$stem" -v sm="$1" \
        '$1 == file && $2 == sm { print $3, $4, $5 }' tests/simt/registers.txt); then
        echo "$kernels: no line in registers.txt; ptxas reports $registers $spilled $stack"
        failed=1
        return
    fi
    echo "$kernels: $registers of $max_registers registers, $spilled of $max_spilled bytes" \
        "spilled, $stack of $max_stack bytes of stack"
    if [ "$registers" -gt "$max_registers" ] || [ "$spilled" -gt "$max_spilled" ] ||
        [ "$stack" -gt "$max_stack" ]; then
        failed=1
    fi
}

for architecture in 80 90a; do
    "$BIREME_NVCC" -std=c++17 -I. -arch="sm_$architecture" --cubin -Xptxas -v \
        -Xcompiler -Wall,-Wextra -Werror all-warnings "$file" -o "$work/cubin" \
        >"$work/$architecture" 2>&1 || {
        cat "$work/$architecture"
        exit 1
    }
    # ptxas serialized wgmma instructions, or ignored a limit of registers.
    if grep -E 'serialized|setmaxnreg' "$work/$architecture"; then
        failed=1
    fi
    # Static shared memory could move swizzled tiles (gpu_require_swizzle_base).
    if [[ $stem == attention_wgmma* ]] && grep 'bytes smem' "$work/$architecture"; then
        echo "$stem, sm_$architecture: static shared memory next to swizzled tiles"
        failed=1
    fi
    check_usage "$architecture"
done
exit $failed
