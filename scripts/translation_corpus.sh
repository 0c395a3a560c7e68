#!/usr/bin/env bash
# Writes pairs of English sentences and their translations, one per line in aligned files:
# train.en and train.es, validation.*, test.*.
#
#   scripts/translation_corpus.sh OUT_DIR [LANGUAGE [PACKAGE...]]
#
# LANGUAGE is a code such as es (the default), de or fr. The pairs come from Debian packages, which
# are downloaded with apt and unpacked, not installed:
#   - gettext catalogs, LC_MESSAGES/*.mo, of the packages below or those on the command line,
#     which can also be folders with unpacked packages;
#   - translated man pages (manpages-LANGUAGE) and the English pages of the same packages, or the
#     pages of the packages on the command line. Their paragraphs are aligned if both pages have
#     the same sequence of paragraphs.
#
# Pairs are cleaned: markers of keys (_File, Com_pact) and line ends are removed; pairs without
# words, with equal sides, with more than 400 characters, or with very different lengths are
# omitted. Each source occurs once. All sources with the same letters are in the same part: about
# one of 50 in the validation part and one of 50 in the test part. Needs msgunfmt (package
# gettext).
set -euo pipefail

catalogs=(abiword-common apt aptitude-common audacity-data bash binutils-common coreutils
    debconf-i18n diffutils dpkg e2fsprogs-l10n evince-common evolution-common filezilla-common
    findutils gawk gcc-12-locales gcc-14-locales gedit-common gettext gimp-data git
    gnome-control-center-data gnucash-common gnumeric-common gnupg-l10n grep iso-codes
    libc-l10n libglib2.0-data libgtk-3-common libgtk2.0-common login lynx-common make mutt nano
    nautilus-data parted passwd pidgin-data poedit-common psmisc sed subversion synaptic tar
    totem-common util-linux-locales vlc-l10n wget xkb-data)
pages=(apt bash coreutils dpkg findutils grep groff-base gzip login man-db manpages manpages-dev
    mount passwd procps psmisc sed tar util-linux wget)

# download_packages FOLDER PACKAGE...: download and unpack the packages that this version of Debian
# has.
download_packages() {
    local folder=$1 package known=()
    shift
    mkdir -p "$folder"
    for package in "$@"; do
        if [ -d "$package" ]; then
            mkdir -p "$folder/root" && cp -r "$package/." "$folder/root"
        elif grep -qxF "$package" "$work/names"; then
            known+=("$package")
        else
            echo "translation_corpus: $package is not in this version of Debian" >&2
        fi
    done
    [ "${#known[@]}" -gt 0 ] || return 0
    if ! (cd "$folder" && apt-get download "${known[@]}" >apt.log 2>&1); then
        tail -n 5 "$folder/apt.log" >&2
        echo "translation_corpus: cannot download; run 'apt-get update' as root" >&2
        return 1
    fi
    for package in "$folder"/*.deb; do
        dpkg-deb -x "$package" "$folder/root"
    done
}

# print_catalog FILE: print "msgid TAB msgstr" of each entry of a .mo file. Both sides keep the
# escapes of a PO file. The first of several plural forms is printed.
print_catalog() {
    msgunfmt "$1" 2>/dev/null | msgconv --no-wrap -t UTF-8 2>/dev/null | awk '
        function text(line) { sub(/^[^"]*"/, "", line); sub(/"$/, "", line); return line }
        function flush() {
            if (id != "" && str != "" && id !~ /\t/ && str !~ /\t/) print id "\t" str
            id = str = ""; part = ""
        }
        /^msgctxt/ { flush(); part = "context"; next }
        /^msgid_plural/ { part = "plural"; next }
        /^msgid/ { if (part != "context") flush(); part = "id"; id = text($0); next }
        /^msgstr(\[0\])? / { part = "str"; str = text($0); next }
        /^msgstr/ { part = "other"; next }
        /^"/ { if (part == "id") id = id text($0); else if (part == "str") str = str text($0) }
        END { flush() }'
}

# print_paragraphs FILE: print the paragraphs of a page in roff, one per line, without markup. Lines
# that begin with a byte 1 are the macros between them.
print_paragraphs() {
    gzip -cdf "$1" | awk '
        function flush() { if (text != "") print text; text = "" }
        /^\.\\"/ || /^'"'"'/ { next }
        /^\.(SH|SS|PP|P|LP|TP|TQ|IP|HP|RS|RE|nf|fi|EX|EE|TH|in|sp|br|TS|TE|de|\.)( |$)/ {
            flush(); print "\001" $1; next }
        /^\.(B|I|BR|BI|IR|RB|RI|IB|SM|SB) / {
            sub(/^\.[A-Z]+ +/, ""); gsub(/" "/, ""); gsub(/"/, "")
            text = text (text == "" ? "" : " ") $0; next }
        /^\./ { next }
        { text = text (text == "" ? "" : " ") $0 }
        END { flush() }' |
        sed -E 's/\\f(\[[^]]*\]|\(..|.)//g; s/\\m\[[^]]*\]//g; s/\\s[-+]?[0-9]//g; s/\\-/-/g
            s/\\[&|^:,\/%c]//g; s/\\\((aq|cq|oq)/'"'"'/g; s/\\\((lq|rq|dq)/\\"/g; s/\\\((em|en)/-/g
            s/\\\(co/(c)/g; s/\\e/\\\\/g; s/\\[ ~0]/ /g; s/\\\(bu/*/g; s/\\\[[^]]*\]//g'
}

# print_pages ENGLISH TRANSLATED: print the aligned paragraphs of two pages, "english TAB other".
print_pages() {
    print_paragraphs "$1" >"$work/page.a"
    print_paragraphs "$2" >"$work/page.b"
    if diff -q <(sed 's/^[^\x01].*/text/' "$work/page.a") \
        <(sed 's/^[^\x01].*/text/' "$work/page.b") >/dev/null; then
        paste "$work/page.a" "$work/page.b" | grep -v $'^\001' || true
    fi
}

# clean_pairs: read "source TAB target" with the escapes of PO files, print clean pairs. Each source
# occurs once.
clean_pairs() {
    awk -F'\t' '
        function clean(s) {
            gsub(/\\n|\\t|\\r/, " ", s); gsub(/\\"/, "\"", s); gsub(/\\\\/, "\\", s)
            gsub(/_[A-Za-z\xc3]/, "\001&", s); gsub(/\001_/, "", s)
            gsub(/<[^<>]*>/, " ", s); gsub(/ +/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s)
            return s
        }
        function find_word(s) {
            return match(s, /[A-Za-z0-9]*_[A-Za-z0-9]*/) ? substr(s, RSTART, RLENGTH) : ""
        }
        # Whether the underscore within a word of a label marks a key (Com_pact). Other such words
        # are names (key_id, LC_ALL): there are several, or the translation has the same word.
        function marks_key(a, b,  s, t) {
            s = a; t = b
            return a ~ /^[A-Z]/ && a !~ /[.:]$/ && gsub(/_/, "_", s) == 1 &&
                gsub(/_/, "_", t) <= 1 && find_word(a) ~ /^[A-Za-z]+_[a-z]+$/ &&
                find_word(a) != find_word(b)
        }
        NF == 2 {
            if ($1 ~ /[A-Za-z]_[A-Za-z]/ && !marks_key($1, $2)) {
                a = $1; b = $2; gsub(/_/, "\002", a); gsub(/_/, "\002", b)
                a = clean(a); b = clean(b); gsub(/\002/, "_", a); gsub(/\002/, "_", b)
            } else { a = clean($1); b = clean($2) }
            m = length(a); n = length(b)
            if (a == b || m > 400 || n > 400 || a !~ /[A-Za-z][A-Za-z]/ || b !~ /[a-z]/) next
            if (n > 3 * m + 20 || m > 3 * n + 20 || a ~ /[\001-\037]/ || b ~ /[\001-\037]/) next
            if (!(a in seen)) { seen[a] = 1; print a "\t" b }
        }'
}

# split_pairs OUT LANGUAGE: write the pairs of standard input to the files of the three parts.
split_pairs() {
    awk -F'\t' -v out="$1" -v language="$2" '
        BEGIN { for (i = 1; i < 128; i++) code[sprintf("%c", i)] = i }
        {
            key = tolower($1); gsub(/[^a-z]/, "", key); h = 17
            for (i = 1; i <= length(key); i++) h = (h * 31 + code[substr(key, i, 1)]) % 1000003
            part = h % 50 == 0 ? "test" : h % 50 == 1 ? "validation" : "train"
            print $1 >(out "/" part ".en"); print $2 >(out "/" part "." language)
        }'
}

main() {
    local out=$1 language=${2:-es} file name page_packages=pages
    shift $(($# > 2 ? 2 : $#))
    [ $# = 0 ] || catalogs=("$@") pages=() page_packages=catalogs
    if ! command -v msgunfmt >/dev/null; then
        echo "translation_corpus: msgunfmt was not found: run apt-get install gettext" >&2
        return 69
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$out"
    apt-cache pkgnames >"$work/names"
    echo "translation_corpus: downloading ${#catalogs[@]} packages" >&2
    download_packages "$work/catalogs" "${catalogs[@]}"
    [ "${#pages[@]}" = 0 ] || download_packages "$work/pages" "${pages[@]}" "manpages-$language"
    {
        find "$work/catalogs/root" -path "*/$language/LC_MESSAGES/*.mo" | LC_ALL=C sort |
            while IFS= read -r file; do
                print_catalog "$file"
            done
        find "$work/$page_packages/root" -path "*/man/$language/*.gz" 2>/dev/null | LC_ALL=C sort |
            while IFS= read -r file; do
                name=${file/\/man\/$language\//\/man\/}
                [ ! -f "$name" ] || print_pages "$name" "$file"
            done || true
    } >"$work/raw"
    LC_ALL=C.UTF-8 grep -ax '.*' "$work/raw" | LC_ALL=C clean_pairs >"$work/clean"
    LC_ALL=C split_pairs "$out" "$language" <"$work/clean"
    [ -s "$out/train.en" ] || {
        echo "translation_corpus: no translations to $language; check the code of the language" >&2
        return 65
    }
    echo "translation_corpus: $(wc -l <"$work/clean") of $(wc -l <"$work/raw") pairs:" \
        "train $(wc -l <"$out/train.en"), validation $(wc -l <"$out/validation.en")," \
        "test $(wc -l <"$out/test.en")" >&2
}

[ $# -gt 0 ] || {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
main "$@"
