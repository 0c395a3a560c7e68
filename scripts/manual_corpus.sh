#!/usr/bin/env bash
# The English manual pages as clean text: one file a page, a paragraph a line, about 6 MB in all.
#
#   scripts/manual_corpus.sh OUT_DIR [PACKAGE...]
#
# The pages are those of the Debian packages, where none is named manpages and manpages-dev: from this machine where it has them,
# else fetched with apt and unpacked, for which no root is needed. Pages that only point to another one, and
# tables of character sets, are left out. With MANUAL_MARKS=1 in the environment a byte 2 stands before each bold character and
# a byte 3 before each slanted one. Needs groff (package groff-base); man-db is not needed. Run again, it makes the same files.
set -euo pipefail

packages=(manpages manpages-dev) pages_least=500
readonly tables='/(armscii|ascii|cp12|iso_8859|koi8)[^/]*\.7(\.gz)?$'

# plain: a page as groff prints it, to text. The first and the last line are the page's header and footer;
# frames of tables go, runs of blanks inside a line become one, and what all pages indent does not.
plain() {
    sed -E '
        s/[‐‑−]/-/g; s/[‘’]/'\''/g; s/[“”]/"/g; s/\xc2\xa0/ /g
        s/[─━│┃┌┐└┘├┤┬┴┼═║╒╓╔╕╖╗╘╙╚╛╜╝╞╟╠╡╢╣╤╥╦╧╨╩╪╫╬]+/ /g
        s/^ {7}//
        :runs
        s/([^ ]) {2,}([^ ])/\1 \2/
        t runs
        s/ +$//' |
        awk '
            NF == 0 { blank = 1; next }
            !begun { begun = 1; blank = 0; next } # the header
            { if (held != "") { printf "%s%s\n", gap, held; shown = 1 }
              held = $0; gap = blank && shown ? "\n" : ""; blank = 0 }'
}

# marks: what groff prints over itself, a character over itself or over a line, as a mark before the character.
marks() {
    sed -E $'s/_\b(.)/\003\\1/g; s/(.)\b\\1/\002\\1/g'
}

# pages OUT FILE...: each page into a file of its own.
pages() {
    local out=$1 file name over=-P-cbou
    [ -z "${MANUAL_MARKS:-}" ] || over=-P-c
    shift
    for file in "$@"; do
        name=$(basename "$file" .gz)
        gzip -cdf "$file" | groff -K utf8 -t -man -Tutf8 "$over" -rLL=20000n -rHY=0 2>/dev/null |
            LC_ALL=C.UTF-8 marks | LC_ALL=C.UTF-8 plain >"$out/.$name.partial"
        if [ ! -s "$out/.$name.partial" ]; then
            echo "manual_corpus: $file gives no text" >&2
            rm -f "$out/.$name.partial"
            return 1
        fi
        mv "$out/.$name.partial" "$out/$name.txt"
    done
}

# installed: the packages' pages on this machine.
installed() {
    local file
    { dpkg -L "${packages[@]}" 2>/dev/null || true; } | grep -E '^/usr/share/man/man[0-9]/' |
        while IFS= read -r file; do
            if [ -f "$file" ] && [ ! -L "$file" ]; then
                echo "$file"
            fi
        done || true
}

# fetch FOLDER: download the packages and unpack their pages there.
fetch() (
    cd "$1"
    if ! apt-get download "${packages[@]}" >apt.log 2>&1; then
        if [ "$(id -u)" -ne 0 ] || ! apt-get update >>apt.log 2>&1 ||
            ! apt-get download "${packages[@]}" >>apt.log 2>&1; then
            tail -n 5 apt.log >&2
            echo "manual_corpus: cannot fetch ${packages[*]}; run 'apt-get update' as root, or install them" >&2
            return 1
        fi
    fi
    local package
    for package in *.deb; do
        dpkg-deb -x "$package" root
    done
)

# own_pages: of the files named on standard input, those with a text of their own, each ended by a NUL. What
# only names another page is a few bytes.
own_pages() {
    local file
    while IFS= read -r file; do
        if [ "$(stat -c %s "$file")" -gt 300 ] || ! gzip -cdf "$file" | grep -q '^\.so '; then
            printf '%s\0' "$file"
        fi
    done
}

main() {
    local out=$1 list
    if ! command -v groff >/dev/null; then
        echo "manual_corpus: groff is missing: apt-get install groff-base" >&2
        return 69
    fi
    mkdir -p "$out"
    work=$(mktemp -d)
    list=$work/list
    installed >"$list"
    if [ "$(wc -l <"$list")" -lt $pages_least ]; then
        echo "manual_corpus: fetching ${packages[*]}" >&2
        fetch "$work"
        find "$work/root/usr/share/man" -path '*/man[0-9]/*' -type f >"$list"
    fi
    LC_ALL=C sort "$list" | grep -vE "$tables" | own_pages >"$list.own"
    xargs -0 -r -n 16 -P "$(nproc)" "$0" --pages "$out" <"$list.own"
    echo "manual_corpus: $(tr -cd '\0' <"$list.own" | wc -c) pages in $out" >&2
}

if [ "${1:-}" = --pages ] && [ $# -ge 3 ]; then
    shift
    pages "$@"
elif [ $# -ge 1 ] && [ "${1#-}" = "$1" ]; then
    if [ $# -gt 1 ]; then
        packages=("${@:2}") pages_least=$(($# * 5))
    fi
    work=
    trap 'rm -rf "$work"' EXIT
    main "$1"
else
    echo "usage: scripts/manual_corpus.sh OUT_DIR [PACKAGE...]" >&2
    exit 64
fi
