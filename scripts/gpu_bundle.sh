#!/usr/bin/env bash
# Gathers the built program with the shared libraries that it needs (Open MPI with its plugins and mpirun, HDF5,
# the CPU's matrix library, ...), the recipes and what scripts/gpu_check.sh runs into one folder of less than
# 60 MiB, for another x86-64 Linux machine that has the NVIDIA driver and CUDA 13's libraries and none of these.
#
#   scripts/gpu_bundle.sh [--build DIR] OUT_DIR
#
# OUT_DIR must not exist; DIR is the build folder (build). There: OUT_DIR/bireme ..., OUT_DIR/mpirun -np 2
# OUT_DIR/bireme ...; scripts/gpu_check.sh finds them beside it. The other machine needs this machine's glibc or
# a newer one: the folder tells which. NCCL is opened at run time where that machine has it.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd -P)

LIMIT_MIB=60

say() {
    echo "gpu_bundle: $*"
}

fail() { # CODE TEXT...
    local code=$1
    shift
    say "$@" >&2
    exit "$code"
}

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
}

build=build out=
while [ $# -gt 0 ]; do
    case $1 in
    --build) [ $# -ge 2 ] || usage; build=$2; shift 2 ;;
    -*) usage ;;
    *) [ -z "$out" ] || usage; out=$1; shift ;;
    esac
done
[ -n "$out" ] || usage
[ ! -e "$out" ] || fail 73 "$out exists: name a new folder"
program=$build/trainer/bireme
[ -x "$program" ] || fail 66 "no program $program: build first (cmake --build $build), or name --build DIR"
[ "$(uname -sm)" = "Linux x86_64" ] || fail 69 "bundles are for x86-64 Linux, this is $(uname -sm)"

# needed FILE...: the shared libraries that these load, all the way down, but for those that every such machine has:
# glibc's own (a mixture of two would not start), and the driver's and CUDA's.
needed() {
    ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|anl|nss_[^/]*)|lib(cuda|cudart|cublas|cublasLt|nccl|nvrtc|nvidia[^/]*))\.so' || true
}

missing() { # FILE...
    ldd "$@" 2>/dev/null | awk '/not found/ { print $1 }' | sort -u
}

[ -z "$(missing "$program")" ] || fail 69 "$program lacks $(missing "$program" | tr '\n' ' ')on this machine"

root=$out/root
libraries=$root/lib
mkdir -p "$libraries" "$root/bin"
strip -o "$root/bin/bireme" "$program"

# ---- Open MPI: its programs and plugins keep their places relative to its prefix (OPAL_PREFIX) ----

# kept FILE...: those whose libraries are all wanted anyway: no other network's than TCP.
kept() {
    local file wanted
    wanted=$(needed "$program" "$mpirun" $plugin_libraries && printf '%s\n' $plugin_libraries)
    for file in "$@"; do
        if [ -z "$(needed "$file" | grep -v '/libmca_common_' | grep -vxF "$wanted" || true)" ]; then
            echo "$file"
        fi
    done
}

into_prefix() { # FILE...: under root as under Open MPI's prefix
    local file
    for file in "$@"; do
        mkdir -p "$root$(dirname "${file#"$prefix"}")"
        cp -L "$file" "$root${file#"$prefix"}"
    done
}

path_of() {
    ompi_info --path "$1" --parsable | sed -n "s/^path:$1://p" | head -n 1
}

mpirun=
plugin_libraries=
if needed "$program" | grep -q '/libmpi\.so'; then
    command -v ompi_info >/dev/null && command -v mpirun >/dev/null ||
        fail 69 "$program uses Open MPI, and ompi_info or mpirun is missing: install openmpi-bin"
    prefix=$(path_of prefix) plugins=$(path_of pkglibdir) mpirun=$(readlink -f "$(command -v mpirun)")
    # Debian's Open MPI finds processes through a PMIx of its own package
    plugin_libraries=$(needed "$plugins"/*pmix*.so "$mpirun" | grep '/libpmix\.so' | sort -u || true)
    cp -L "$mpirun" "$root/bin/mpirun"
    for tool in orted prted; do
        if command -v "$tool" >/dev/null; then
            cp -L "$(command -v "$tool")" "$root/bin/$tool"
        fi
    done
    # shellcheck disable=SC2046 # names of libraries have no blanks
    into_prefix $(kept "$plugins"/*.so)
    data=$(path_of pkgdatadir)
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

# ---- what gpu_check.sh runs ----

for test in "$build"/tests/kernels/test_* "$build"/tests/simt/conformance; do
    if [ -f "$test" ] && [ -x "$test" ]; then
        mkdir -p "$root/tests"
        strip -o "$root/tests/$(basename "$test")" "$test"
    fi
done
# A build with CUDA brings the comparison of hardware and emulator, too.
nvcc=$(sed -n 's/^BIREME_NVCC:[^=]*=//p' "$build/CMakeCache.txt" 2>/dev/null || true)
if [ -x "$root/tests/test_cuda_operations" ] && [ -x "$nvcc" ] && [ -x "$root/tests/conformance" ]; then
    "$nvcc" -std=c++17 -I"$source" -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
        "$source"/tests/simt/{conformance,planted}.cu -o "$root/tests/conformance_cuda"
    "$root/tests/conformance" write "$root/tests/conformance.bin" >/dev/null
fi
mkdir -p "$out/scripts"
cp "$source"/scripts/gpu_check.sh "$source"/scripts/bench_gpu.py "$out/scripts/"
cp -R "$source/recipes" "$out/recipes"

# ---- the libraries, and what they ask of glibc ----

mapfile -t binaries < <(find "$root" -type f \( -name '*.so' -o -perm -u+x \))
for library in $(needed "${binaries[@]}") $plugin_libraries; do
    cp -Ln "$library" "$libraries/$(basename "$library")"
done
glibc=$({ find "$root" -type f -exec objdump -T {} + 2>/dev/null || true; } |
    grep -oE 'GLIBC_[0-9]+\.[0-9]+' | sort -uV | tail -n 1 | cut -d_ -f2)
tar -cf - -C "$libraries" . | gzip -1 >"$root/lib.tar.gz"
rm -rf "$libraries"

launcher() {
    sed "s/@GLIBC@/$glibc/g" <<'EOF'
#!/bin/sh
# Starts the program of the same name in root/, with the libraries that were brought along; they are unpacked
# at the first start, which must be able to write here.
here=$(cd "$(dirname "$0")" && pwd -P) || exit 71
root=$here/root

if [ ! -d "$root/lib" ]; then
    have=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
    if [ -n "$have" ] && [ "$(printf '%s\n' @GLIBC@ "$have" | sort -V | head -n 1)" != @GLIBC@ ]; then
        echo "$0: this machine has glibc $have, @GLIBC@ or newer is needed: build on an older system" >&2
        exit 69
    fi
    mkdir "$root/lib.$$" && gzip -dc "$root/lib.tar.gz" | tar -xf - -C "$root/lib.$$" || exit 73
    mv -T "$root/lib.$$" "$root/lib" 2>/dev/null || rm -rf "$root/lib.$$" # another process was first
fi

LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
OPAL_PREFIX=$root
PRTE_PREFIX=$root
PMIX_MCA_mca_base_component_path=$root/lib/pmix
export LD_LIBRARY_PATH OPAL_PREFIX PRTE_PREFIX PMIX_MCA_mca_base_component_path
# One machine needs no remote shell, which mpirun otherwise asks for.
command -v ssh >/dev/null || export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}"
exec "$root/bin/$(basename "$0")" "$@"
EOF
}

for name in bireme mpirun; do
    if [ -e "$root/bin/$name" ]; then
        launcher >"$out/$name"
        chmod 755 "$out/$name"
    fi
done
{
    echo "commit $(git -C "$source" rev-parse HEAD 2>/dev/null || echo unknown)"
    echo "glibc $glibc or newer"
    (cd "$out" && find . -type f | sort)
    tar -tzf "$root/lib.tar.gz" | sort
} >"$out/CONTENTS.txt"

mib=$(du -sm --apparent-size "$out" | cut -f1)
[ "$mib" -lt "$LIMIT_MIB" ] || fail 74 "$out has $mib MiB, $LIMIT_MIB are allowed: see $out/CONTENTS.txt"
say "$out: $mib MiB, needs glibc $glibc or newer; try $out/bireme --version"
