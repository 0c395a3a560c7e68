#!/bin/bash
# The Debian package of cpack: its name, its control files, and what Debian's policy demands of its
# content. The program and the library of the unpacked package work.
# usage: test_debian_package.sh CPACK BUILD_FOLDER
source "${BIREME_SOURCE_DIR:=$PWD}/tests/temporary_folder.sh"
cpack=$1 build=$2

for tool in dpkg-deb dpkg-shlibdeps file; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: no $tool"
        exit 77
    fi
done
if [ ! -e "$build/manual/bireme" ] || [ -n "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then
    echo "skipped: the man pages are not built, or the build has a sanitizer"
    exit 77
fi

"$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$PWD/out" >log 2>&1 ||
    fail "cpack: $(tail -n 20 log)"
version=$("$build/trainer/bireme" --version | sed -n 's/^bireme //p')
revision=$(. /etc/os-release && echo "1+$ID${VERSION_ID:-}")
package=out/bireme_$version-${revision}_$(dpkg --print-architecture).deb
[ -f "$package" ] || fail "the package has another name: $(ls out), not $package"

# check_field NAME REGULAR_EXPRESSION: a field of the package matches this.
check_field() {
    dpkg-deb --field "$package" "$1" | grep -qE "$2" ||
        fail "$1: $(dpkg-deb --field "$package" "$1")"
}
check_field Package '^bireme$'
check_field Version "^$version-"
check_field Maintainer '^[^<]+ <[^@ ]+@[^@ ]+\.[a-z]+>$'
check_field Depends '(^|, )libc6 \(.*(^|, )libhdf5-'

dpkg-deb --control "$package" control
grep -qx 'activate-noawait ldconfig' control/triggers || fail 'no trigger runs ldconfig'
grep -qE "^libbireme ${version%%.*} bireme " control/shlibs || fail "shlibs: $(cat control/shlibs)"

dpkg-deb --extract "$package" root
(cd root && md5sum --quiet --check ../control/md5sums) || fail 'a file has another sum'
[ -z "$(find root -type f ! -path 'root/usr/*')" ] || fail 'files outside of /usr'
documentation=root/usr/share/doc/bireme
grep -q common-licenses/Apache-2.0 "$documentation/copyright" || fail 'no copyright file'
zcat "$documentation/changelog.Debian.gz" | grep -qF "bireme ($version-$revision)" ||
    fail "changelog: $(zcat "$documentation/changelog.Debian.gz")"
[ -z "$(find root/usr/share/man -type f ! -name '*.gz')" ] || fail 'uncompressed man pages'
zcat root/usr/share/man/man1/bireme-train.1.gz | grep -q '^\.TH' || fail 'no page of train'
[ -f root/usr/share/bash-completion/completions/bireme ] || fail 'no completion'

[ "$(root/usr/bin/bireme --version | sed -n 's/^bireme //p')" = "$version" ] ||
    fail 'the program of the package does not start'
readelf --sections --wide root/usr/bin/bireme | grep -q '\.symtab' && fail 'symbols are not removed'
readelf --dynamic root/usr/bin/bireme | grep -qE 'R(UN)?PATH' && fail 'the program has a run path'

if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error "$package" >log 2>&1 || fail "lintian: $(cat log)"
fi
