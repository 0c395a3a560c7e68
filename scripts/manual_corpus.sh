#!/usr/bin/env bash
# Writes the English man pages as plain text: one file per page, one paragraph per line, about
# 6 MB in total.
#
#   scripts/manual_corpus.sh OUT_DIR [PACKAGE...]
#
# The pages come from the given Debian packages (default: manpages and manpages-dev). They are read
# from this machine if it has them; otherwise the packages are downloaded with apt and unpacked,
# which does not need root. Pages that only refer to another page and tables of character sets are
# omitted. With MANUAL_MARKS=1 in the environment, a byte 2 is written before each bold character
# and a byte 3 before each italic one. Needs groff (package groff-base) but not man-db. The same
# packages give the same files.
set -euo pipefail

packages=(manpages manpages-dev) min_pages=500
readonly tables='/(armscii|ascii|cp12|iso_8859|koi8)[^/]*\.7(\.gz)?$'

# clean_page: convert the output of groff on standard input to plain text. The header and footer of
# the page (its first and last line), frames of tables and the common indentation are removed.
# Several blanks inside a line become one.
clean_page() {
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

# write_marks: replace overstrikes, with which groff prints bold and italic characters, by a mark
# before the character.
write_marks() {
    sed -E $'s/_\b(.)/\003\\1/g; s/(.)\b\\1/\002\\1/g'
}

# write_pages OUT FILE...: write the text of each page to OUT/PAGE.txt.
write_pages() {
    local out=$1 file name over=-P-cbou
    [ -z "${MANUAL_MARKS:-}" ] || over=-P-c
    shift
    for file in "$@"; do
        name=$(basename "$file" .gz)
        gzip -cdf "$file" | groff -K utf8 -t -man -Tutf8 "$over" -rLL=20000n -rHY=0 2>/dev/null |
            LC_ALL=C.UTF-8 write_marks | LC_ALL=C.UTF-8 clean_page >"$out/.$name.partial"
        if [ ! -s "$out/.$name.partial" ]; then
            echo "manual_corpus: groff prints no text for $file" >&2
            rm -f "$out/.$name.partial"
            return 1
        fi
        mv "$out/.$name.partial" "$out/$name.txt"
    done
}

# list_installed: print the paths of the installed pages of the packages.
list_installed() {
    local file
    { dpkg -L "${packages[@]}" 2>/dev/null || true; } | grep -E '^/usr/share/man/man[0-9]/' |
        while IFS= read -r file; do
            if [ -f "$file" ] && [ ! -L "$file" ]; then
                echo "$file"
            fi
        done || true
}

# download_packages FOLDER: download the packages and unpack their pages into the folder.
download_packages() (
    cd "$1"
    if ! apt-get download "${packages[@]}" >apt.log 2>&1; then
        if [ "$(id -u)" -ne 0 ] || ! apt-get update >>apt.log 2>&1 ||
            ! apt-get download "${packages[@]}" >>apt.log 2>&1; then
            tail -n 5 apt.log >&2
            echo "manual_corpus: cannot download ${packages[*]}; run 'apt-get update' as root" \
                "or install these packages" >&2
            return 1
        fi
    fi
    local package
    for package in *.deb; do
        dpkg-deb -x "$package" root
    done
)

# select_pages: print the paths of standard input, each with a NUL at the end, without pages that
# only refer to another page. Such pages are a few bytes long.
select_pages() {
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
        echo "manual_corpus: groff was not found: run apt-get install groff-base" >&2
        return 69
    fi
    mkdir -p "$out"
    work=$(mktemp -d)
    list=$work/list
    list_installed >"$list"
    if [ "$(wc -l <"$list")" -lt $min_pages ]; then
        echo "manual_corpus: downloading ${packages[*]}" >&2
        download_packages "$work"
        find "$work/root/usr/share/man" -path '*/man[0-9]/*' -type f >"$list"
    fi
    LC_ALL=C sort "$list" | grep -vE "$tables" | select_pages >"$list.selected"
    xargs -0 -r -n 16 -P "$(nproc)" "$0" --pages "$out" <"$list.selected"
    echo "manual_corpus: wrote $(tr -cd '\0' <"$list.selected" | wc -c) pages to $out" >&2
}

if [ "${1:-}" = --pages ] && [ $# -ge 3 ]; then
    shift
    write_pages "$@"
elif [ $# -ge 1 ] && [ "${1#-}" = "$1" ]; then
    if [ $# -gt 1 ]; then
        packages=("${@:2}") min_pages=$(($# * 5))
    fi
    work=
    trap 'rm -rf "$work"' EXIT
    main "$1"
else
    echo "usage: scripts/manual_corpus.sh OUT_DIR [PACKAGE...]" >&2
    exit 64
fi
