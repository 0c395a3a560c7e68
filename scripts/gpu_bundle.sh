#!/usr/bin/env bash
# Copies the built program, its shared libraries (Open MPI with its plugins and mpirun, HDF5,
# oneDNN, ...), the recipes, the programs of scripts/gpu_check.sh and the objects for
# scripts/gpu/gpu_rebuild.sh to one folder of less than 36 MiB. Together with the repository it has
# less than 64 MiB. The folder is for another x86-64 Linux machine that has the NVIDIA driver, the
# libraries of CUDA 13 and xz.
#
#   scripts/gpu_bundle.sh [--build DIR] OUT_DIR
#
# OUT_DIR must not exist. DIR is a build folder. Without --build, the script configures and builds
# build-gpu/ with CUDA for sm_90a only (H100, H200), which takes some minutes. On the other machine,
# run OUT_DIR/bireme ... or OUT_DIR/mpirun -np 2 OUT_DIR/bireme ...; OUT_DIR/scripts/gpu_check.sh
# uses these programs, and OUT_DIR/scripts/gpu/gpu_rebuild.sh compiles changed kernels. The other
# machine needs the glibc version that CONTENTS.txt names, or a newer one. The program loads NCCL at
# run time if the machine has it.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd -P)

LIMIT_MIB=36

print_message() {
    echo "gpu_bundle: $*"
}

# fail CODE TEXT...: print an error and exit.
fail() {
    local code=$1
    shift
    print_message "$@" >&2
    exit "$code"
}

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
}

command -v xz >/dev/null || fail 69 "xz is missing: install xz-utils"
build= out=
while [ $# -gt 0 ]; do
    case $1 in
    --build) [ $# -ge 2 ] || usage; build=$2; shift 2 ;;
    -*) usage ;;
    *) [ -z "$out" ] || usage; out=$1; shift ;;
    esac
done
[ -n "$out" ] || usage
[ ! -e "$out" ] || fail 73 "$out exists: name a new folder"
[ "$(uname -sm)" = "Linux x86_64" ] ||
    fail 69 "bundles are only made on x86-64 Linux; this machine is $(uname -sm)"

# build_for_gpu: build the programs of a bundle in $source/build-gpu.
build_for_gpu() {
    build=$source/build-gpu
    local generator=()
    if [ ! -e "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    nice cmake -S "$source" -B "$build" ${generator[@]+"${generator[@]}"} --log-level=WARNING \
        -DCMAKE_BUILD_TYPE=Release -DBIREME_CUDA=ON -DBIREME_CUDA_ARCHITECTURES=90a-real ||
        fail 69 "cmake cannot configure $build with CUDA: see the errors above"
    nice cmake --build "$build" -j "$(nproc)" --target bireme test_program_cuda conformance ||
        fail 1 "$build cannot be built: see the errors above"
}

[ -n "$build" ] || build_for_gpu
program=$build/trainer/bireme
[ -x "$program" ] ||
    fail 66 "$program does not exist: build first (cmake --build $build), or omit --build"

# Libraries that are not copied. Two versions of glibc cannot be mixed. The other machine has the
# libraries of the NVIDIA driver and of CUDA.
readonly glibc_libraries='ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|anl|nss_[^/]*)'
readonly cuda_libraries='lib(cuda|cudart|cublas|cublasLt|nccl|nvrtc|nvidia[^/]*)'

# list_libraries FILE...: print the shared libraries that these files load, directly or indirectly.
list_libraries() {
    ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE "/($glibc_libraries|$cuda_libraries)\.so" || true
}

# list_missing FILE...: print the shared libraries of these files that this machine does not have.
list_missing() {
    ldd "$@" 2>/dev/null | awk '/not found/ { print $1 }' | sort -u
}

[ -z "$(list_missing "$program")" ] ||
    fail 69 "libraries of $program are missing on this machine:" \
        "$(list_missing "$program" | tr '\n' ' ')"

root=$out/root
libraries=$root/lib
mkdir -p "$libraries" "$root/bin"
strip -o "$root/bin/bireme" "$program"

# ---- Open MPI: its programs and plugins keep their paths relative to its prefix (OPAL_PREFIX) ----

# list_plugins FILE...: print the plugins that need no further library. The others are for
# networks other than TCP.
list_plugins() {
    local file wanted further
    wanted=$(list_libraries "$program" "$mpirun" $plugin_libraries &&
        printf '%s\n' $plugin_libraries)
    for file in "$@"; do
        further=$(list_libraries "$file" | grep -v '/libmca_common_' | grep -vxF "$wanted" || true)
        if [ -z "$further" ]; then
            echo "$file"
        fi
    done
}

# copy_from_prefix FILE...: copy files of Open MPI's prefix to the same relative path in $root.
copy_from_prefix() {
    local file
    for file in "$@"; do
        mkdir -p "$root$(dirname "${file#"$prefix"}")"
        cp -L "$file" "$root${file#"$prefix"}"
    done
}

# print_path NAME: print a path of the Open MPI installation.
print_path() {
    ompi_info --path "$1" --parsable | sed -n "s/^path:$1://p" | head -n 1
}

mpirun=
plugin_libraries=
if list_libraries "$program" | grep -q '/libmpi\.so'; then
    command -v ompi_info >/dev/null && command -v mpirun >/dev/null ||
        fail 69 "$program uses Open MPI, but ompi_info or mpirun is missing: install openmpi-bin"
    prefix=$(print_path prefix) plugins=$(print_path pkglibdir)
    mpirun=$(readlink -f "$(command -v mpirun)")
    # Debian's Open MPI loads PMIx from a separate package.
    plugin_libraries=$(list_libraries "$plugins"/*pmix*.so "$mpirun" | grep '/libpmix\.so' |
        sort -u || true)
    cp -L "$mpirun" "$root/bin/mpirun"
    for tool in orted prted; do
        if command -v "$tool" >/dev/null; then
            cp -L "$(command -v "$tool")" "$root/bin/$tool"
        fi
    done
    # shellcheck disable=SC2046 # the paths of libraries contain no blanks
    copy_from_prefix $(list_plugins "$plugins"/*.so)
    data=$(print_path pkgdatadir)
    if [ -d "$data" ]; then
        mkdir -p "$root${data#"$prefix"}"
        cp -RL "$data/." "$root${data#"$prefix"}"
    fi
    for folder in $(dirname "$(readlink -f "${plugin_libraries:-/none}")")/pmix; do
        if [ -d "$folder" ]; then
            mkdir -p "$libraries/pmix"
            cp -L "$folder"/*.so "$libraries/pmix/"
        fi
    done
fi

# ---- the programs of gpu_check.sh ----

for test in "$build/tests/kernels/test_cuda_operations" "$build/tests/simt/conformance"; do
    if [ -f "$test" ] && [ -x "$test" ]; then
        mkdir -p "$root/tests"
        strip -o "$root/tests/$(basename "$test")" "$test"
    fi
done
mkdir -p "$out/scripts/bench" "$out/scripts/gpu"
cp "$source/scripts/gpu_check.sh" "$out/scripts/"
cp "$source"/scripts/gpu/*.sh "$out/scripts/gpu/"
cp "$source"/scripts/bench/{bench_gpu,bench_peers}.py "$out/scripts/bench/"
cp -R "$source/recipes" "$source/LICENSE" "$out/"
mkdir -p "$out/tests/simt" "$out/tests/trainer"
cp "$source/tests/temporary_folder.sh" "$out/tests/"
cp "$source"/tests/simt/{test_train,devices}.sh "$out/tests/simt/"
cp "$source/tests/trainer/tiny_training.sh" "$out/tests/trainer/"

# ---- a build with CUDA: the comparison with the emulator, and the parts for gpu_rebuild.sh ----

# list_needed FILE: print the names of the libraries that this file itself needs.
list_needed() {
    objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }' |
        grep -vE "^($glibc_libraries|$cuda_libraries)\.so" || true
}

# copy_sources: copy the sources of the kernels, and the headers that they include.
copy_sources() {
    local folder
    for folder in base base/device kernels tests/simt; do
        mkdir -p "$out/$folder"
        cp "$source/$folder"/*.h "$out/$folder/"
    done
    cp -R "$source/kernels/cuda" "$out/kernels/"
    cp "$source"/tests/simt/{conformance,planted}.cu "$out/tests/simt/"
}

# copy_objects: copy the static libraries and objects to $objects, and compile the comparison.
copy_objects() {
    local object
    mkdir -p "$objects/cuda" "$objects/tests"
    cp "$build"/{base/libbase,kernels/libkernels,comm/libcomm,datasets/libdatasets}.a \
        "$build"/{trainer/libtrainer,tests/kernels/liboracle}.a "$objects/"
    cp "$build/trainer/CMakeFiles/bireme.dir/main.c.o" "$objects/main.o"
    (cd "$build/tests/kernels/CMakeFiles" &&
        cp cuda_test_*.dir/*.o test_program_cuda.dir/o*.cc.o "$objects/tests/")
    (cd "$objects/cuda" && ar x "$build/kernels/libcuda_backend.a" &&
        ar x "$build/kernels/libkernels.a" workspace.c.o)
    list_needed "$program" >"$objects/bireme.libraries"
    list_needed "$root/tests/test_cuda_operations" >"$objects/test_cuda_operations.libraries"
    : >"$objects/conformance_cuda.libraries"
    for object in conformance planted; do
        "$nvcc" -O3 -DNDEBUG -std=c++17 -I"$source" "${architectures[@]}" -Xcompiler=-fPIC \
            -c "$source/tests/simt/$object.cu" -o "$objects/cuda/$object.cu.o"
    done
    "$nvcc" "${architectures[@]}" "$objects"/cuda/{conformance,planted}.cu.o \
        -o "$root/tests/conformance_cuda"
    "$source/scripts/gpu/gpu_rebuild.sh" --record "$out"
}

nvcc=$(sed -n 's/^BIREME_NVCC:[^=]*=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
if [ -x "$root/tests/test_cuda_operations" ] && [ -x "$nvcc" ] &&
    [ -x "$root/tests/conformance" ]; then
    architectures=(-gencode 'arch=compute_90a,code=sm_90a')
    if grep -q '^BIREME_CUDA_ARCHITECTURES:.*80' "$build/CMakeCache.txt"; then
        architectures+=(-gencode 'arch=compute_80,code=sm_80')
    fi
    build=$(cd "$build" && pwd -P)
    mkdir -p "$root/objects"
    objects=$(cd "$root/objects" && pwd -P)
    copy_sources
    copy_objects
    "$root/tests/conformance" write "$root/tests/conformance.bin" >/dev/null
fi

# ---- the libraries, and the version of glibc that they need ----

mapfile -t binaries < <(find "$root" -type f \( -name '*.so' -o -perm -u+x \))
for library in $(list_libraries "${binaries[@]}") $plugin_libraries; do
    cp -Ln "$library" "$libraries/$(basename "$library")"
done
# libicudata has 30 MiB of tables that convert character sets in XML. libarchive loads it for a
# format that Bireme does not read. Therefore an empty library with the same symbol replaces it.
for library in "$libraries"/libicudata.so.*; do
    if [ -e "$library" ]; then
        echo "const char icudt${library##*.}_dat[64] __attribute__((aligned(16))) = {0};" |
            cc -shared -nostdlib -Wl,-soname,"$(basename "$library")" -x c - -o "$library"
    fi
done
glibc=$({ find "$root" -type f -exec objdump -T {} + 2>/dev/null || true; } |
    grep -oE 'GLIBC_[0-9]+\.[0-9]+' | sort -uV | tail -n 1 | cut -d_ -f2)

# write_launcher: print the script that starts a program of root/bin.
write_launcher() {
    sed "s/@GLIBC@/$glibc/g" <<'EOF'
#!/bin/sh
# Starts the program of the same name in root/bin with the libraries of this folder. The first start
# unpacks the programs, libraries and objects, for which it needs permission to write here.
here=$(cd "$(dirname "$0")" && pwd -P) || exit 71
root=$here/root

if [ ! -d "$root/lib" ]; then
    have=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
    oldest=$(printf '%s\n' @GLIBC@ "$have" | sort -V | head -n 1)
    if [ -n "$have" ] && [ "$oldest" != @GLIBC@ ]; then
        echo "$0: glibc $have is too old, @GLIBC@ is needed: build on an older system" >&2
        exit 69
    fi
    new=$root/new.$$
    command -v xz >/dev/null || { echo "$0: xz is missing: install xz-utils" >&2 && exit 69; }
    mkdir "$new" && xz -dc "$root/files.tar.xz" | tar -xf - -C "$new" || exit 73
    # A move fails if another process has unpacked the files. lib is last: it marks the end.
    for folder in bin tests objects lib; do
        mv -T "$new/$folder" "$root/$folder" 2>/dev/null || true
    done
    rm -rf "$new"
fi

LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
OPAL_PREFIX=$root
PRTE_PREFIX=$root
PMIX_MCA_mca_base_component_path=$root/lib/pmix
export LD_LIBRARY_PATH OPAL_PREFIX PRTE_PREFIX PMIX_MCA_mca_base_component_path
# mpirun needs ssh unless this is set. Jobs on one machine run without it.
command -v ssh >/dev/null || export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}"
exec "$root/bin/$(basename "$0")" "$@"
EOF
}

for name in bireme mpirun; do
    if [ -e "$root/bin/$name" ]; then
        write_launcher >"$out/$name"
        chmod 755 "$out/$name"
    fi
done
mkdir -p "$root/tests" "$root/objects"
tar -cf - -C "$root" lib bin tests objects | xz -T0 >"$root/files.tar.xz"
rm -rf "$libraries" "$root"/{bin,tests,objects}
{
    echo "commit $(git -C "$source" rev-parse HEAD 2>/dev/null || echo unknown)"
    echo "glibc $glibc or newer"
    (cd "$out" && find . -type f | sort)
    tar -tJf "$root/files.tar.xz" | sort
} >"$out/CONTENTS.txt"

mib=$(du -sm --apparent-size "$out" | cut -f1)
[ "$mib" -lt "$LIMIT_MIB" ] ||
    fail 74 "$out has $mib MiB, which must be less than $LIMIT_MIB: see $out/CONTENTS.txt"
print_message "$out: $mib MiB, needs glibc $glibc or newer; test it with $out/bireme --version"
