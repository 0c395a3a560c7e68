#!/bin/bash
# scripts/gpu_bundle.sh: a bundle works without any package of Bireme. In a root folder with only
# glibc and shell tools, the program prints its version, trains on two ranks and reports an error.
#
#   test_gpu_bundle.sh BUILD_DIR
#
# Environment: BUNDLE_ROOT is another root folder for the test, for example one of debootstrap.
set -u
build=$1
source=${BIREME_SOURCE_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=${BUNDLE_ROOT:-$folder/root}

skip() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "failed: $*" >&2
    exit 1
}

expect_error() { # CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    "$source/scripts/gpu_bundle.sh" "$@" >"$folder/output" 2>&1
    [ $? = "$code" ] && grep -q "$text" "$folder/output" ||
        fail "gpu_bundle $*: $(cat "$folder/output")"
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

"$source/scripts/gpu_bundle.sh" --build "$build" "$folder/bundle" || fail "gpu_bundle.sh failed"

if [ -z "${BUNDLE_ROOT:-}" ]; then
    mkdir -p "$root"/{bin,lib64,tmp,proc,sys,dev,etc}
    for tool in sh bash env dirname basename cut head sort mkdir mv rm cat mktemp timeout grep \
        sed awk gzip tar getconf find wc tr ls; do
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
echo "trained on two ranks"
E2
unshare --mount --pid --fork --kill-child --propagation private bash -euc '
    root=$1
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /bin/env -i HOME=/tmp TMPDIR=/tmp PATH=/usr/bin:/bin bash -u /try.sh' _ \
    "$root" >"$folder/output" 2>&1
code=$?
cat "$folder/output"
[ "$code" = 0 ] && grep -q 'trained on two ranks' "$folder/output" ||
    fail "in the bare root: code $code"
