#!/usr/bin/env bash
# Compiles the CUDA kernels again on a GPU machine and links the programs of a bundle with them:
# bireme, the kernel tests and the comparison with the emulator. After a change of one kernel this
# takes as long as the compilation of its file.
#
#   scripts/gpu/gpu_rebuild.sh [--record] BUNDLE_DIR
#
# BUNDLE_DIR is the output of scripts/gpu_bundle.sh, of a build with CUDA. The sources are
# *.cu and *.c of kernels/cuda in the tree that contains this script: the repository, or the bundle,
# which has a copy of them. It compiles the files that differ from the bundle's files, or all files
# if any header differs. All cores compile at the same time, for sm_90a only. All other code comes
# from the static libraries in BUNDLE_DIR/root/objects.
#
# --record compiles nothing. It stores the checksum of the source of each object in
# BUNDLE_DIR/root/objects/cuda. gpu_bundle.sh uses it.
#
# Needs nvcc of CUDA 13, gcc and g++, and no header of another library.
#
# Environment:
#   NVCC   the compiler (default: nvcc of the PATH or of /usr/local/cuda)
#   JOBS   files compiled at the same time (default: the number of cores)
#
# Exit codes: 0; 1 if a file cannot be compiled or linked; 64, 66 or 69 as for bireme.
set -euo pipefail
export LC_ALL=C # the order of the headers in a checksum
source=$(cd "$(dirname "$0")/../.." && pwd -P)
nvcc_flags=(-std=c++17 -gencode 'arch=compute_90a,code=sm_90a' -Xcompiler=-fPIC)
c_flags=(-std=c11 -fPIC -fno-math-errno -ffp-contract=off)
common_flags=(-O3 -DNDEBUG -D_DEFAULT_SOURCE -D_POSIX_C_SOURCE=200809L)

fail() {
    local code=$1
    shift
    echo "gpu_rebuild: $*" >&2
    exit "$code"
}

# print_sum FILE: print the checksum of a source file and of all headers.
print_sum() {
    local headers
    mapfile -t headers < <(find "$source/kernels/cuda" -name '*.h' -o -name '*.cuh' | sort)
    cat "$1" "$source"/base/{,device/}*.h "$source"/kernels/*.h "${headers[@]}" \
        "$source"/tests/simt/planted.h | sha256sum | cut -d' ' -f1
}

# compile_file FILE: write FILE's object and its checksum to $objects/cuda.
compile_file() {
    local object compiler
    object=$objects/cuda/$(basename "$1").o
    case $1 in
    *.cu) compiler=("$NVCC" "${nvcc_flags[@]}") ;;
    *) compiler=(gcc "${c_flags[@]}" -isystem "$cuda/include") ;;
    esac
    rm -f "$object.sum"
    "${compiler[@]}" "${common_flags[@]}" -I"$source" -c "$1" -o "$object" || return 1
    print_sum "$1" >"$object.sum"
    echo "gpu_rebuild: $(basename "$1"): $SECONDS s"
}

if [ "${1:-}" = --compile ]; then # for xargs
    compile_file "$2"
    exit
fi

record=false
if [ "${1:-}" = --record ]; then
    record=true
    shift
fi
[ $# = 1 ] && [[ $1 != -* ]] || fail 64 'usage: scripts/gpu/gpu_rebuild.sh [--record] BUNDLE_DIR'
bundle=$1
"$bundle/bireme" --version >/dev/null 2>&1 || true # the first start unpacks the objects
[ -d "$bundle/root/objects/cuda" ] ||
    fail 66 "$bundle/root/objects/cuda does not exist: make the bundle of a build with CUDA"
bundle=$(cd "$bundle" && pwd -P)
objects=$bundle/root/objects tests=$bundle/root/tests
mapfile -t kernels < <(find "$source/kernels/cuda" -name '*.cu' -o -name '*.c' | sort)
files=("${kernels[@]}" "$source"/tests/simt/{conformance,planted}.cu)

if [ "$record" = true ]; then
    for file in "${files[@]}"; do
        object=$objects/cuda/$(basename "$file").o
        [ ! -e "$object" ] || print_sum "$file" >"$object.sum"
    done
    exit 0
fi

NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$NVCC" ] || fail 69 "no nvcc: install CUDA 13, or set NVCC to its path"
cuda=$(cd "$(dirname "$(readlink -f "$NVCC")")/.." && pwd -P)
export NVCC cuda objects

# ---- the changed files ----

changed=()
for file in "${files[@]}"; do
    object=$objects/cuda/$(basename "$file").o
    [ "$(cat "$object.sum" 2>/dev/null)" = "$(print_sum "$file")" ] || changed+=("$file")
done
echo "gpu_rebuild: ${#changed[@]} of ${#files[@]} files to compile"
if [ "${#changed[@]}" -gt 0 ]; then
    printf '%s\0' "${changed[@]}" |
        xargs -0 -n 1 -P "${JOBS:-$(nproc)}" bash "$0" --compile ||
        fail 1 "a file cannot be compiled: see the errors above"
fi

# ---- the programs ----

# link_program PROGRAM OBJECT...: link objects and the libraries in $objects/PROGRAM.libraries.
link_program() {
    local program=$1 library shared=()
    shift
    while read -r library; do
        shared+=("$bundle/root/lib/$library")
    done <"$objects/$(basename "$program").libraries"
    # The shared libraries of the bundle use each other; the launchers set their path.
    g++ "$@" ${shared[@]+"${shared[@]}"} -L"$cuda/lib64" -L"$cuda/targets/x86_64-linux/lib" \
        -lcudart_static -lpthread -ldl -lrt -lm -Wl,--allow-shlib-undefined -o "$program.new" ||
        fail 1 "$program cannot be linked: see the errors above"
    mv "$program.new" "$program"
}

[ -d "$bundle/root/lib" ] ||
    fail 66 "$bundle/root/lib does not exist: $bundle/bireme cannot unpack it"
backend=()
for file in "${kernels[@]}"; do
    backend+=("$objects/cuda/$(basename "$file").o")
done
link_program "$bundle/root/bin/bireme" "$objects/main.o" "${backend[@]}" -Wl,--start-group \
    "$objects"/lib{trainer,datasets,comm,kernels,base}.a -Wl,--end-group
link_program "$tests/test_cuda_operations" "$objects"/tests/*.o "${backend[@]}" \
    -Wl,--start-group "$objects"/lib{oracle,kernels,base}.a -Wl,--end-group
link_program "$tests/conformance_cuda" "$objects"/cuda/{conformance,planted}.cu.o
"$bundle/bireme" --version >/dev/null || fail 1 "$bundle/bireme does not start"
echo "gpu_rebuild: linked the programs of $bundle, $SECONDS s"
