#!/usr/bin/env bash
# Builds the packages of a release.
#
#   scripts/package.sh deb|tarball|wheel [FOLDER]
#
#   deb       Debian package for the Debian release of this machine, with MPI; dpkg-shlibdeps
#             finds the packages that it depends on
#   tarball   bireme-VERSION-linux-x86_64.tar.gz: program, library, headers and all libraries that
#             they need, for glibc 2.36 and newer; may be unpacked anywhere. Without MPI: one rank
#   wheel     the Python package (scripts/python) with the same libraries; needs setuptools, wheel
#
# FOLDER receives the package (default: build-package). Build on Debian 12, so that the packages run
# with its glibc. BIREME_CUDA=ON in the environment adds the CUDA back-end.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly kind=${1:-}
output=${2:-build-package}
readonly glibc=2.36 # the newest version of symbols in a tarball or wheel

fail() {
    echo "package: $*" >&2
    exit 1
}

# build FOLDER OPTION...: configure and build the program, the library and the manual.
build() {
    local folder=$1
    shift
    if command -v ccache >/dev/null; then
        set -- "$@" -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
    fi
    cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBIREME_TESTS=OFF \
        -DBIREME_WERROR=ON \
        -DBIREME_CUDA="${BIREME_CUDA:-OFF}" --log-level=WARNING "$@"
    cmake --build "$folder"
}

make_deb() {
    build build-deb -DCMAKE_INSTALL_PREFIX=/usr \
        -DBIREME_ZSH_COMPLETIONS=share/zsh/vendor-completions
    (cd build-deb && cpack -G DEB -B "$output")
}

# list_libraries FILE...: print the paths of the libraries that the files need, without the
# libraries of glibc.
list_libraries() {
    ldd "$@" | awk '
        /not found/ { print "missing: " $1 > "/dev/stderr"; bad = 1 }
        $1 ~ /^(libc|libm|libdl|librt|libpthread|libresolv)\.so/ { next }
        $2 == "=>" && $3 ~ /^\// { print $3 }
        END { exit bad }' | sort -u
}

# copy_licenses FOLDER LIBRARY...: copy the copyright files of the libraries' packages.
copy_licenses() {
    local folder=$1 library name
    shift
    mkdir -p "$folder"
    for library in "$@"; do
        library=$(realpath "$library")
        name=$(dpkg -S "$library" "${library#/usr}" 2>/dev/null | sed 's/:.*//;q') || true
        cp -L "/usr/share/doc/${name:?$library belongs to no package}/copyright" "$folder/$name"
    done
}

# check_glibc FOLDER: fail if a file needs a newer glibc than $glibc.
check_glibc() {
    local newest
    newest=$(find "$1" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec objdump -T {} + \
        2>/dev/null | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
    [ -n "$newest" ] && [ "$(printf '%s\n' "$newest" $glibc | sort -V | tail -n 1)" = $glibc ] ||
        fail "a file needs glibc $newest; build on Debian 12, which has $glibc"
}

# stage_tree FOLDER: install into this folder and add the libraries.
stage_tree() {
    local folder=$1 libraries
    # shellcheck disable=SC2016 # the loader expands $ORIGIN
    build build-bundle -DBIREME_MPI=OFF -DCMAKE_INSTALL_PREFIX=/usr/local \
        -DCMAKE_INSTALL_LIBDIR=lib '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib/bireme:$ORIGIN/bireme' \
        -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
        -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--disable-new-dtags
    rm -rf "$folder"
    cmake --install build-bundle --prefix "$folder" --strip >/dev/null
    mkdir "$folder/lib/bireme"
    libraries=$(list_libraries build-bundle/trainer/bireme \
        build-bundle/trainer/library/libbireme.so | grep -v '/libbireme\.so')
    # shellcheck disable=SC2086 # one word for each library
    cp -L $libraries "$folder/lib/bireme/"
    # shellcheck disable=SC2086
    copy_licenses "$folder/share/doc/bireme/licenses" $libraries
    check_glibc "$folder"
}

make_tarball() {
    local version name
    stage_tree "$output/tree"
    version=$("$output/tree/bin/bireme" --version | sed -n 's/^bireme //p')
    name=bireme-$version-linux-x86_64
    rm -rf "${output:?}/$name"
    mv "$output/tree" "$output/$name"
    tar -C "$output" --owner=0 --group=0 --sort=name -czf "$output/$name.tar.gz" "$name"
    rm -r "${output:?}/$name"
    echo "$output/$name.tar.gz"
}

make_wheel() {
    local version native=$output/wheel/bireme/_native
    stage_tree "$output/tree"
    version=$("$output/tree/bin/bireme" --version | sed -n 's/^bireme //p')
    rm -rf "$output/wheel"
    cp -r scripts/python "$output/wheel"
    sed -i "s/@VERSION@/$version/" "$output/wheel/pyproject.toml"
    mkdir -p "$native/lib"
    cp -r "$output/tree/bin" "$native/"
    cp -L "$output/tree/lib/libbireme.so.${version%%.*}" "$native/lib/"
    cp -r "$output/tree/lib/bireme" "$native/lib/"
    cp -r "$output/tree/share/doc/bireme/licenses" "$output/tree/share/doc/bireme/LICENSE" \
        "$output/tree/share/bireme/recipes" "$native/"
    python3 -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$output" \
        "$output/wheel"
    rm -r "$output/tree" "$output/wheel"
    ls "$output"/bireme-"$version"-*.whl
}

case $kind in
deb | tarball | wheel)
    mkdir -p "$output"
    output=$(cd "$output" && pwd)
    "make_$kind"
    ;;
*)
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
    ;;
esac
