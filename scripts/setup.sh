#!/usr/bin/env bash
# Installs what building, running and testing Bireme needs and this machine lacks, by apt package names.
#
#   scripts/setup.sh            check, install what is missing
#   scripts/setup.sh --check    check only; exit 1 and name the packages where something is missing
#
# What counts is whether the compiler, pkg-config and the shell find a thing, not whether a package is
# installed: libraries built by hand are fine. No root is needed, and nothing is fetched, when
# nothing is missing. NVIDIA's CUDA and NCCL are not installed and not needed.
set -euo pipefail

missing=()

# need PACKAGE COMMAND...: the package is missing unless the command succeeds.
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
    need g++ has g++ # tests of the CUDA kernels
    need libc6-dev header stdio.h
    need pkg-config has pkg-config
    need cmake cmake_is_new_enough
    need ninja-build has ninja
    need openmpi-bin has mpirun
    need libopenmpi-dev has mpicc
    need libhdf5-dev library hdf5
    need libdnnl-dev header dnnl.h
    need ocl-icd-opencl-dev header CL/cl.h # Debian's oneDNN names OpenCL among its dependencies
    need libyaml-dev library yaml-0.1
    need libjansson-dev library jansson
    need libpcre2-dev library libpcre2-8
    need libutf8proc-dev library libutf8proc
    need libssl-dev library libcrypto
    need libprotobuf-c-dev library libprotobuf-c
    need protobuf-c-compiler has protoc-c
    need libisal-dev library libisal
    need groff-base has groff
    need procps has pgrep # some tests look for processes that were left behind
}

say() {
    echo "setup: $*" >&2
}

# run_apt ARGUMENTS...: apt-get as root, its noise in $log.
run_apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}

fail() {
    say "$1"
    if [ -s "$log" ]; then
        say "the end of apt's output:"
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
    say "this machine has no apt-get; install what these Debian packages hold: ${missing[*]}"
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! has sudo >/dev/null; then
        say "root is needed once; as root run: apt-get install ${missing[*]}"
        exit 1
    fi
    as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "installing ${missing[*]}"
say "this takes a minute or more; apt's output is shown only if it fails"
run_apt update || fail "apt-get update failed"
run_apt install --no-install-recommends "${missing[@]}" || fail "apt-get install failed"
find_missing
[ ${#missing[@]} -eq 0 ] || fail "installed, and still not found: ${missing[*]}"
say "done in $SECONDS s"
