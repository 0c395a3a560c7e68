#!/usr/bin/env bash
# Builds Bireme for arm64 and runs the tests of the kernels under emulation (qemu-user). Needs
# Debian with debootstrap, qemu-user and g++-aarch64-linux-gnu, and the network for the libraries.
#
#   scripts/check_arm64.sh FOLDER          download arm64 libraries to FOLDER/root, build in
#                                          FOLDER/build, run all kernel tests and a short training
#   scripts/check_arm64.sh FOLDER TEST...  the same with these tests only, for example: math norm
#
# FOLDER can be used again; the libraries are then not downloaded. MPI and CUDA are not built. The
# tests of many threads omit their largest shapes, because qemu emulates each instruction. All tests
# take about three minutes of CPU time.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mkdir -p "${1:?usage: scripts/check_arm64.sh FOLDER [TEST...]}" && cd "$1" && pwd)
shift
export ARM64_ROOT=$folder/root BIREME_SOURCE_DIR=$source BIREME_EMULATED_CPU=1
libraries=libc6-dev,libgomp1,libstdc++-12-dev,libhdf5-dev,zlib1g-dev,libarchive-dev,libyaml-dev
libraries+=,libjansson-dev,libpcre2-dev,libutf8proc-dev,libssl-dev,libprotobuf-c-dev,libdnnl-dev
libraries+=,libisal-dev,libmicrohttpd-dev

# The packages are unpacked but not configured: their scripts would need an arm64 machine.
if [ ! -e "$ARM64_ROOT/unpacked" ]; then
    PATH=$PATH:/usr/sbin debootstrap --foreign --arch=arm64 --variant=minbase \
        --include="$libraries" bookworm "$ARM64_ROOT"
    for package in "$ARM64_ROOT"/var/cache/apt/archives/*.deb; do
        dpkg -x "$package" "$ARM64_ROOT"
    done
    ln -sf hdf5-serial.pc "$ARM64_ROOT/usr/lib/aarch64-linux-gnu/pkgconfig/hdf5.pc"
    touch "$ARM64_ROOT/unpacked"
fi

cat >"$folder/toolchain.cmake" <<'END'
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT $ENV{ARM64_ROOT})
set(CMAKE_FIND_ROOT_PATH $ENV{ARM64_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $ENV{ARM64_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} $ENV{ARM64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
END

tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
    for file in "$source"/tests/kernels/test_*.c; do
        test=${file##*/test_}
        tests+=("${test%.c}")
    done
fi
cmake -S "$source" -B "$folder/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
    -DBIREME_MPI=OFF -DBIREME_CUDA=OFF -DBIREME_WERROR=ON
cmake --build "$folder/build" --target bireme "${tests[@]/#/test_program_}"

failed=0
for test in "${tests[@]}"; do
    seconds=$SECONDS code=0
    qemu-aarch64 -L "$ARM64_ROOT" "$folder/build/tests/kernels/test_$test" \
        >"$folder/$test.log" 2>&1 || code=$?
    case $code in
    0) echo "$test: passed in $((SECONDS - seconds)) s" ;;
    77) echo "$test: $(grep '^skipped: ' "$folder/$test.log")" ;;
    *)
        echo "$test: failed; see $folder/$test.log"
        failed=1
        ;;
    esac
done
qemu-aarch64 -L "$ARM64_ROOT" "$folder/build/trainer/bireme" bench step --no-roofline --repeats 3 \
    model.num_layers=2 model.hidden_size=64 model.num_heads=4 model.vocab_size=200 \
    data.sequence_length=32 batch.global_size=4 parallel.threads=2 train.device=cpu || failed=1
exit $failed
