#!/usr/bin/env bash
# Installs the Debian packages that are needed to build, run and test Bireme and that are missing.
#
#   scripts/setup.sh            check, then install the missing packages
#   scripts/setup.sh --check    check only; print the missing packages and exit with code 1
#   scripts/setup.sh --fuzz     also install clang and libFuzzer, which only scripts/fuzz.sh needs
#   scripts/setup.sh --clients  also install Chromium and zsh, which only the tests serve_page,
#                               attention_page and manual need
#
# A dependency is present if the compiler, pkg-config or the shell finds it, so that libraries
# installed without a package count too. If nothing is missing, the script needs neither root nor
# the network. It does not install NVIDIA's CUDA and NCCL, which Bireme does not need.
set -euo pipefail

option=${1:-}
missing=()

# add_if_missing PACKAGE COMMAND...: add the package to `missing` unless the command succeeds.
add_if_missing() {
    local package=$1
    shift
    if ! "$@" >/dev/null 2>&1; then
        missing+=("$package")
    fi
}

has_command() {
    command -v "$1"
}

# has_system_command NAME: has_command with the folders that are only in root's PATH.
has_system_command() {
    PATH=$PATH:/usr/sbin:/sbin command -v "$1"
}

has_header() {
    echo "#include <$1>" | gcc -E -
}

has_library() {
    pkg-config --exists "$@"
}

cmake_is_new_enough() {
    local version
    version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
    [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

has_libfuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n == 1; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null
}

find_missing() {
    missing=()
    if [ "$option" = --clients ]; then
        add_if_missing chromium has_command chromium
        add_if_missing zsh has_command zsh
    fi
    if [ "$option" = --fuzz ]; then
        add_if_missing clang has_command clang
        add_if_missing libclang-rt-dev has_libfuzzer
    fi
    add_if_missing gcc has_command gcc
    add_if_missing g++ has_command g++ # compiles the tests of the CUDA kernels
    add_if_missing libc6-dev has_header stdio.h
    add_if_missing pkg-config has_command pkg-config
    add_if_missing cmake cmake_is_new_enough
    add_if_missing ninja-build has_command ninja
    add_if_missing openmpi-bin has_command mpirun
    add_if_missing libopenmpi-dev has_command mpicc
    add_if_missing libhdf5-dev has_library hdf5
    add_if_missing zlib1g-dev has_library zlib
    add_if_missing libdnnl-dev has_header dnnl.h
    add_if_missing ocl-icd-opencl-dev has_header CL/cl.h # Debian's oneDNN depends on OpenCL
    add_if_missing libyaml-dev has_library yaml-0.1
    add_if_missing libjansson-dev has_library jansson
    add_if_missing libpcre2-dev has_library libpcre2-8
    add_if_missing libutf8proc-dev has_library libutf8proc
    add_if_missing libssl-dev has_library libcrypto
    add_if_missing libprotobuf-c-dev has_library libprotobuf-c
    add_if_missing protobuf-c-compiler has_command protoc-c
    add_if_missing libisal-dev has_library libisal
    add_if_missing libarchive-dev has_library libarchive
    add_if_missing libmicrohttpd-dev has_library libmicrohttpd
    add_if_missing groff-base has_command groff
    add_if_missing curl has_command curl # tests of the server
    add_if_missing procps has_command pgrep # some tests search for processes that did not end
    add_if_missing xfsprogs has_system_command mkfs.xfs # a test cuts the power of a file system
}

print_message() {
    echo "setup: $*" >&2
}

# run_apt ARGUMENTS...: run apt-get as root; its output goes to $log.
run_apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}

fail() {
    print_message "$1"
    if [ -s "$log" ]; then
        print_message "the last lines of apt-get's output:"
        tail -n 20 "$log" >&2
    fi
    exit 1
}

find_missing
if [ ${#missing[@]} -eq 0 ]; then
    print_message "nothing is missing"
    exit 0
fi
if [ "$option" = --check ]; then
    print_message "missing: ${missing[*]}"
    exit 1
fi
if ! has_command apt-get >/dev/null; then
    print_message "apt-get was not found; install the contents of these Debian packages:" \
        "${missing[*]}"
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! has_command sudo >/dev/null; then
        print_message "sudo was not found; run this as root: apt-get install ${missing[*]}"
        exit 1
    fi
    as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
print_message "installing ${missing[*]}"
print_message "this takes a minute or more; the output of apt-get is shown only if it fails"
run_apt update || fail "apt-get update failed"
run_apt install --no-install-recommends "${missing[@]}" || fail "apt-get install failed"
find_missing
[ ${#missing[@]} -eq 0 ] || fail "still not found after the installation: ${missing[*]}"
print_message "done in $SECONDS s"
