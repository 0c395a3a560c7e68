#!/usr/bin/env bash
# Installs the Debian packages that are needed to build, run and test Bireme and that are missing.
#
#   scripts/setup.sh            check, then install the missing packages
#   scripts/setup.sh --check    check only; print the missing packages and exit with code 1
#
# A dependency is present if the compiler, pkg-config or the shell finds it, so that libraries
# installed without a package count too. If nothing is missing, the script needs neither root nor
# the network. It does not install NVIDIA's CUDA and NCCL, which Bireme does not need.
set -euo pipefail

missing=()

# need PACKAGE COMMAND...: add the package to `missing` unless the command succeeds.
need() {
    local package=$1
    shift
    if ! "$@" >/dev/null 2>&1; then
        missing+=("$package")
    fi
}

has() {
    command -v "$1"
}

header() {
    echo "#include <$1>" | gcc -E -
}

library() {
    pkg-config --exists "$@"
}

cmake_is_new_enough() {
    local version
    version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
    [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

find_missing() {
    missing=()
    need gcc has gcc
    need g++ has g++ # compiles the tests of the CUDA kernels
    need libc6-dev header stdio.h
    need pkg-config has pkg-config
    need cmake cmake_is_new_enough
    need ninja-build has ninja
    need openmpi-bin has mpirun
    need libopenmpi-dev has mpicc
    need libhdf5-dev library hdf5
    need libdnnl-dev header dnnl.h
    need ocl-icd-opencl-dev header CL/cl.h # Debian's oneDNN depends on OpenCL
    need libyaml-dev library yaml-0.1
    need libjansson-dev library jansson
    need libpcre2-dev library libpcre2-8
    need libutf8proc-dev library libutf8proc
    need libssl-dev library libcrypto
    need libprotobuf-c-dev library libprotobuf-c
    need protobuf-c-compiler has protoc-c
    need libisal-dev library libisal
    need groff-base has groff
    need procps has pgrep # some tests search for processes that did not end
}

say() {
    echo "setup: $*" >&2
}

# run_apt ARGUMENTS...: run apt-get as root; its output goes to $log.
run_apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}

fail() {
    say "$1"
    if [ -s "$log" ]; then
        say "the last lines of apt-get's output:"
        tail -n 20 "$log" >&2
    fi
    exit 1
}

find_missing
if [ ${#missing[@]} -eq 0 ]; then
    say "nothing is missing"
    exit 0
fi
if [ "${1:-}" = --check ]; then
    say "missing: ${missing[*]}"
    exit 1
fi
if ! has apt-get >/dev/null; then
    say "apt-get was not found; install the contents of these Debian packages: ${missing[*]}"
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! has sudo >/dev/null; then
        say "sudo was not found; run this as root: apt-get install ${missing[*]}"
        exit 1
    fi
    as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "installing ${missing[*]}"
say "this takes a minute or more; the output of apt-get is shown only if it fails"
run_apt update || fail "apt-get update failed"
run_apt install --no-install-recommends "${missing[@]}" || fail "apt-get install failed"
find_missing
[ ${#missing[@]} -eq 0 ] || fail "still not found after the installation: ${missing[*]}"
say "done in $SECONDS s"
