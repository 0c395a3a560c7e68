#!/bin/bash
# scripts/gpu_bundle.sh: a bundle works without any package of Bireme. In a root folder with only
# glibc and shell tools, every program starts, bireme trains on two ranks and reports an error, and
# gpu_check.sh runs with a driver that has no GPU.
#
#   test_gpu_bundle.sh BUILD_DIR
#
# With a build with CUDA, gpu_rebuild.sh also compiles a changed kernel. With BIREME_LONG=1 and nvcc
# the bundle is such a build, which gpu_bundle.sh makes in build-gpu/.
#
# Environment: BUNDLE_ROOT is another root folder for the test, for example one of debootstrap.
set -u
build=$1
source=${BIREME_SOURCE_DIR:?}
export XZ_OPT=-0 # the default level takes a minute
source "$source/tests/temporary_folder.sh"
root=${BUNDLE_ROOT:-$folder/root}

skip() {
    echo "skipped: $*"
    exit 77
}

expect_error() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    "$source/scripts/gpu_bundle.sh" "$@" >"$folder/output" 2>&1
    [ $? = "$code" ] && grep -q "$text" "$folder/output" ||
        fail "gpu_bundle.sh $* did not end with $code and '$text'"
}

expect_error 64 'gpu_bundle.sh \[--build DIR\] OUT_DIR'
expect_error 64 'OUT_DIR must not exist' --what
expect_error 73 'name a new folder' "$folder"
expect_error 66 'build first' --build "$folder" "$folder/out"

[ -z "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ] ||
    skip "a program with a sanitizer is too large for a bundle"
[ "$(uname -m)" = x86_64 ] || skip "bundles are for x86-64"
[ "$(id -u)" = 0 ] || skip "changing the root folder needs root"
unshare --mount --pid --fork true 2>/dev/null || skip "mounting is not permitted"

options=(--build "$build")
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [ "${BIREME_LONG:-0}" = 1 ] && [ -n "$nvcc" ]; then
    options=()
fi
"$source/scripts/gpu_bundle.sh" ${options[@]+"${options[@]}"} "$folder/bundle" \
    >"$folder/output" 2>&1 ||
    fail "gpu_bundle.sh ended with $?"
if command -v python3 >/dev/null; then
    (cd "$folder/bundle/scripts/bench" && python3 -c 'import bench_gpu') ||
        fail "the bundle lacks a module of bench_gpu.py"
    rm -rf "$folder/bundle/scripts/bench/__pycache__"
fi

# ---- gpu_rebuild.sh ----

# rebuild CODE TEXT: run the bundle's gpu_rebuild.sh, which must end with this code and text.
rebuild() {
    local code=$1 text=$2
    "$folder/bundle/scripts/gpu/gpu_rebuild.sh" "$folder/bundle" >"$folder/output" 2>&1
    [ $? = "$code" ] && grep -q "$text" "$folder/output" ||
        fail "gpu_rebuild.sh: not code $code with '$text'"
}

expect_usage() { # CODE ARGUMENT...
    local code=$1
    shift
    "$source/scripts/gpu/gpu_rebuild.sh" "$@" >"$folder/output" 2>&1
    [ $? = "$code" ] || fail "gpu_rebuild.sh $* did not end with $code"
}

expect_usage 64
expect_usage 64 --what
expect_usage 66 "$folder"
cuda=false
if ! grep -q 'objects/cuda/' "$folder/bundle/CONTENTS.txt"; then
    echo "not checked: gpu_rebuild.sh, because $build has no CUDA; set BIREME_LONG=1 with nvcc"
elif [ -z "$nvcc" ]; then
    fail "$build has CUDA, but nvcc was not found"
else
    cuda=true
    kernel=$folder/bundle/kernels/cuda/convert.cu
    NVCC=/nowhere expect_usage 69 "$folder/bundle"
    rebuild 0 'gpu_rebuild: 0 of .* files'
    cp "$kernel" "$folder/kernel"
    echo 'extern "C" { extern const char rebuilt_mark[]; const char rebuilt_mark[] = "rebuilt"; }' \
        >>"$kernel"
    rebuild 0 'gpu_rebuild: 1 of .* files'
    for program in bin/bireme tests/test_cuda_operations; do
        grep -q rebuilt_mark "$folder/bundle/root/$program" || fail "$program is not linked again"
    done
    echo 'broken' >>"$kernel"
    rebuild 1 'a file cannot be compiled'
    grep -q rebuilt_mark "$folder/bundle/root/bin/bireme" || fail "the program is not kept"
    cp "$folder/kernel" "$kernel"
    rebuild 0 'gpu_rebuild: 1 of .* files'
    rm -rf "$folder/bundle/root/lib" # the first start unpacks it again
fi

if [ -z "${BUNDLE_ROOT:-}" ]; then
    mkdir -p "$root"/{bin,lib64,tmp,proc,sys,dev,etc,usr}
    ln -s ../bin "$root/usr/bin"
    for tool in sh bash env dirname basename cut head sort mkdir mv rm cat mktemp timeout grep \
        sed awk gzip tar getconf find wc tr ls date tail tee paste od readlink uname chmod cp \
        sleep xz; do
        cp -L "$(command -v "$tool")" "$root/bin/$tool"
    done
    # The libraries of the tools, at the paths of a system.
    ldd "$root"/bin/* | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | while read -r library; do
        mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
    done
    for library in libm libdl libpthread librt libutil libnss_files libresolv; do
        cp -L /lib/x86_64-linux-gnu/$library.so.? "$root/lib/x86_64-linux-gnu/"
    done
    echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
    touch "$root/dev/null" "$root/dev/urandom"
fi
# A driver without a GPU: every function of libcuda returns CUDA_ERROR_NO_DEVICE.
cc -shared -fPIC -x c - -o "$root/lib/x86_64-linux-gnu/libcuda.so.1" <<'E2' || fail "no stand-in"
#include <string.h>
static int refuse(void) { return 100; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, long long flags, int *found)
{
    (void)version, (void)flags;
    *function = strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion
                : strcmp(name, "cuGetProcAddress") == 0 ? (void *)cuGetProcAddress_v2
                                                        : (void *)refuse;
    if (found != 0) {
        *found = 0;
    }
    return 0;
}
E2
mkdir -p "$root/bireme/tests/trainer"
rm -rf "${root:?}/bundle"
cp -R "$folder/bundle" "$root/"
cp "$source/LICENSE" "$root/bireme/"
cp "$source/tests/trainer/tiny_training.sh" "$root/bireme/tests/trainer/"
cat >"$root/try.sh" <<'E2'
set -u
export BIREME_SOURCE_DIR=/bireme BIREME_PROGRAM=/bundle/bireme PATH=/bundle:$PATH
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
for name in mpi hdf5 dnnl yaml; do
    [ -z "$(find / -xdev -name "lib$name*" -not -path '/bundle/*')" ] ||
        { echo "the root folder contains lib$name"; exit 1; }
done
bireme --version || exit 1
. /bireme/tests/trainer/tiny_training.sh
run_ranks 2 0 train recipe.yaml
print_losses run evaluate
[ "$(print_losses run train | wc -l)" = 20 ] || fail "not 20 steps"
run_bireme 78 train recipe.yaml model.num_head=3
expect_error num_heads
mpirun --version | head -n 1 || exit 1

# start CODE TEXT PROGRAM ARGUMENT...: run a program of the bundle's tests.
start() {
    local code=$1 text=$2
    shift 2
    LD_LIBRARY_PATH=/bundle/root/lib "/bundle/root/tests/$@" >out 2>&1
    [ $? = "$code" ] && { [ -z "$text" ] || grep -q "$text" out; } ||
        fail "$*: not code $code with '$text': $(cat out)"
}
start 0 '' conformance write /tmp/conformance.bin
cmp() { [ "$(od -A n -t x1 "$1")" = "$(od -A n -t x1 "$2")" ]; }
if [ "$CUDA" = true ]; then
    cmp /tmp/conformance.bin /bundle/root/tests/conformance.bin || fail "another conformance.bin"
    start 0 '^attention wgmma$' test_cuda_operations --list
    start 77 'no CUDA-capable device' test_cuda_operations norm
    start 2 'no CUDA-capable device' conformance_cuda compare /bundle/root/tests/conformance.bin
    run_bireme 69 bench step train.device=cuda
    expect_error 'no CUDA-capable device'
fi

# The driver has no GPU, but nvidia-smi lists one: no gate may be skipped.
printf '#!/bin/sh\necho "GPU 0: a mock"\n' >nvidia-smi && chmod +x nvidia-smi
PATH=$PWD:$PATH /bundle/scripts/gpu_check.sh --only versions,conformance,kernels check >out 2>&1
grep -qE '^versions +measured' out || fail "versions: $(cat out)"
state='not in this version .*no kernel tests'
[ "$CUDA" = false ] || state='failed .*all skipped: .*no usable GPU: no CUDA-capable device'
grep -qE "^kernels +$state" out || fail "kernels is not '$state': $(cat out)"
tar -tzf check/results.tgz | grep -q '^items/kernels/log' || fail "results.tgz is not complete"
# Without nvidia-smi, each gate is skipped.
/bundle/scripts/gpu_check.sh --only conformance,kernels check >out 2>&1 || fail "$(cat out)"
[ "$(grep -cE '^(conformance|kernels) +skipped .*no GPU' out)" = 2 ] || fail "$(cat out)"
echo "trained on two ranks"
E2
unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    root=$1
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /bin/env -i CUDA="$2" HOME=/tmp TMPDIR=/tmp PATH=/usr/bin:/bin \
        bash -u /try.sh' _ "$root" "$cuda" >"$folder/output" 2>&1
code=$?
cat "$folder/output"
[ "$code" = 0 ] && grep -q 'trained on two ranks' "$folder/output" ||
    fail "in the bare root: code $code"
