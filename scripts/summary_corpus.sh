#!/usr/bin/env bash
# Writes texts and their summaries, one per line in aligned files: train.text and train.summary,
# validation.*, test.*. A text is the body of an English man page, its summary the line of the
# section NAME: "search for files in a directory hierarchy" for find(1).
#
#   scripts/summary_corpus.sh OUT_DIR [PACKAGE...]
#
# The pages come from Debian packages: manpages, manpages-dev and the packages below, or the
# packages on the command line. scripts/manual_corpus.sh reads them from this machine or downloads
# them with apt, and unpacks them without installing them. A PACKAGE can also be a folder of
# manual_corpus.sh.
#
# The body begins with the section DESCRIPTION, or after the synopsis if there is none. It ends
# after LENGTH characters (environment, default 900) at the end of a word. The name of the page and
# a dash precede it. Pages without a body of 100 characters, without a summary, or with the text of
# an earlier page are omitted. All pages with the same summary are in the same part: about one of 20
# in the validation part and one of 20 in the test part. The same packages give the same files.
set -euo pipefail

here=$(dirname "$0")
packages=(apt bash bsdutils bzip2 coreutils cpio cron curl debianutils diffutils dpkg dpkg-dev
    e2fsprogs fdisk file findutils gawk gettext git-man gnupg grep groff groff-base gzip hostname
    iproute2 iptables kmod less login lvm2 man-db manpages manpages-dev mount nano net-tools
    openssh-client openssl passwd patch procps psmisc rsync sed strace subversion sudo systemd tar
    tcpdump util-linux vim-common wget x11-utils xz-utils)

# print_pairs: read the text files that standard input lists, print "text TAB summary" of each page.
print_pairs() {
    awk -v limit="${LENGTH:-900}" '
        function clean(s) {
            gsub(/[\001-\037]/, " ", s); gsub(/ +/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s)
            return s
        }
        function shorten(s) {
            if (length(s) <= limit) return s
            s = substr(s, 1, limit + 1); sub(/ [^ ]*$/, "", s)
            return s
        }
        function read_page(file,    line, section, name, body, rest, at) {
            section = name = body = rest = ""
            while ((getline line < file) > 0) {
                if (line ~ /^[A-Z][A-Z ]+$/) { section = line; continue }
                if (section == "NAME") name = name " " line
                else if (section == "DESCRIPTION") body = body " " line
                else if (section != "SYNOPSIS" && section != "") rest = rest " " line
            }
            close(file)
            name = clean(name); at = index(name, " - ")
            body = clean(body != "" ? body : rest)
            if (at == 0 || length(body) < 100) return
            rest = clean(substr(name, at + 3)); name = substr(name, 1, at - 1)
            sub(/,.*/, "", name)
            if (rest !~ /[A-Za-z][a-z]/ || length(rest) > 200 || index(rest, " - ") > 0) return
            print name " - " shorten(body) "\t" rest
        }
        { read_page($0) }'
}

# split_pairs OUT: write the pairs of standard input to the files of the three parts. Each text
# occurs once.
split_pairs() {
    awk -F'\t' -v out="$1" '
        BEGIN { for (i = 1; i < 128; i++) code[sprintf("%c", i)] = i }
        function get_body(text) { sub(/^[^ ]* - /, "", text); return text }
        !(get_body($1) in seen) {
            seen[get_body($1)] = 1
            key = tolower($2); gsub(/[^a-z]/, "", key); h = 17
            for (i = 1; i <= length(key); i++) h = (h * 31 + code[substr(key, i, 1)]) % 1000003
            part = h % 20 == 0 ? "test" : h % 20 == 1 ? "validation" : "train"
            print $1 >(out "/" part ".text"); print $2 >(out "/" part ".summary")
        }'
}

# list_known PACKAGE...: print the packages that this version of Debian has.
list_known() {
    { apt-cache pkgnames 2>/dev/null || true; } | LC_ALL=C sort >"$work/names"
    printf '%s\n' "$@" | LC_ALL=C sort -u | LC_ALL=C comm -12 - "$work/names"
}

# copy_folders PACKAGE...: copy the pages of those that are folders.
copy_folders() {
    local package
    for package in "$@"; do
        [ ! -d "$package" ] || cp "$package"/*.txt "$work/pages"
    done
}

main() {
    local out=$1 part
    shift
    [ $# = 0 ] || packages=("$@")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$out"
    for part in train validation test; do
        : >"$out/$part.text"
        : >"$out/$part.summary"
    done
    mkdir -p "$work/pages"
    copy_folders "${packages[@]}"
    mapfile -t packages < <(list_known "${packages[@]}")
    [ "${#packages[@]}" = 0 ] || "$here/manual_corpus.sh" "$work/pages" "${packages[@]}"
    find "$work/pages" -name '*.txt' | LC_ALL=C sort | LC_ALL=C print_pairs >"$work/pairs"
    LC_ALL=C.UTF-8 grep -ax '.*' "$work/pairs" | LC_ALL=C split_pairs "$out"
    [ -s "$out/train.text" ] || {
        echo "summary_corpus: these packages have no man pages with a section NAME" >&2
        return 65
    }
    echo "summary_corpus: $(find "$work/pages" -name '*.txt' | wc -l) pages:" \
        "train $(wc -l <"$out/train.text"), validation $(wc -l <"$out/validation.text")," \
        "test $(wc -l <"$out/test.text")" >&2
}

[ $# -gt 0 ] || {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
main "$@"
