#!/usr/bin/env bash
# Questions and answers from the machine's own manual, for fine-tuning (sft) and for preferences (dpo).
#
#   scripts/manual_pairs.sh OUT_DIR [PAGES_DIR...]
#
# "What does `ls` do?" is answered by the NAME section of the page, "What does option `-a` of `ls` do?" by what the first
# sentence behind the option says up to a ; : or bracket, in at most 80 characters; each spelling of an option is asked for.
# In front of every second question stands the page's line that holds the answer, shortened to 100 characters: it is to be
# read there; the others are to be known. Pages are those of manual_corpus.sh: of the commands of usual
# Debian packages, which it fetches where the machine has not got them (40 MB), and of the folders named behind.
#
# One page in ten is held out, by its name: no page is in both parts. Pages repeat each other ("display this help and exit"):
# what is held out and has an answer that is trained on is left out, and counted. OUT_DIR gets sft-train.jsonl and
# sft-validation.jsonl, a row {"prompt", "completion"} of messages each, and dpo-train.jsonl and dpo-validation.jsonl,
# {"prompt", "chosen", "rejected"}, where what is rejected is the description of another command, or of another option, of
# another page of the same part. Run again, it makes the same files.
set -euo pipefail

readonly commands=(coreutils util-linux bsdextrautils findutils grep sed gawk tar gzip bzip2 xz-utils diffutils
    procps psmisc binutils git-man openssh-client wget less e2fsprogs iproute2 login passwd mount debianutils make
    patch file man-db dpkg apt cpio rsync)
readonly others=( # not for manual_tasks.sh
    systemd udev openssl curl gpg gpgsm gpg-agent dirmngr dpkg-dev devscripts
    debhelper lvm2 btrfs-progs xfsprogs cryptsetup-bin sysstat tcpdump iptables sqlite3 poppler-utils ffmpeg parted
    strace zip unzip bind9-dnsutils bind9-utils network-manager alsa-utils cups-client x11-xserver-utils x11-utils tmux
    nano sudo dosfstools hdparm smartmontools mdadm smbclient samba-common-bin subversion mercurial-common zstd gettext
    bison flex m4 autoconf automake perl libxml2-utils xsltproc jq socat qemu-utils krb5-user ldap-utils debconf-utils
    reprepro moreutils psutils libtiff-tools)

# rows FILE...: what the pages say, a line each: kind, page, question, answer, other spellings of the option, and the line
# of the page that holds the answer; separated by tabs.
rows() {
    LC_ALL=C awk '
        function clean(text) {
            gsub(/[\t\r]/, " ", text)
            gsub(/[^ -~]/, "", text)
            gsub(/  +/, " ", text)
            sub(/^ +/, "", text)
            sub(/ +$/, "", text)
            return text
        }
        function first_sentence(text,    end) {
            text = clean(text)
            end = match(text, /\. [A-Z]/)
            return end > 0 ? substr(text, 1, end) : text
        }
        # The same, where it says something and is not too long.
        function sentence(text) {
            text = first_sentence(text)
            if (text ~ /[A-Za-z0-9)"][.:;,]+$/) sub(/[.:;,]+$/, "", text)
            return length(text) >= 12 && length(text) <= 160 && text ~ /[a-z] [a-z]/ ? text : ""
        }
        function tell(kind, question, answer, spellings, line) {
            if (answer != "" && !((question, page) in asked)) {
                asked[question, page] = 1
                printf "%s\t%s\t%s\t%s\t%s\t%s\n", kind, page, question, answer, spellings, line
            }
        }
        # The line as it stands in front of a question.
        function line_of(name, separator, text) {
            text = first_sentence(text)
            if (length(text) > 100) {
                text = substr(text, 1, 100)
                sub(/ [^ ]*$/, " ...", text)
            }
            return substr(clean(name), 1, 80) separator text
        }
        function is_option(name) { return name ~ /^--?[A-Za-z0-9][A-Za-z0-9-]*$/ }
        function option(tag, text,    i, count, name, spellings) {
            count = split(clean(tag), name, /, */)
            for (i = 1; i <= count; i++) {
                sub(/[ =<[].*$/, "", name[i])
                if (i > 1 && is_option(name[i])) spellings = spellings " " name[i]
            }
            if (section ~ /^[18]/ && is_option(name[1]))
                tell("option", "What does option `" name[1] "` of `" command "` do?", sentence(text), substr(spellings, 2),
                    line_of(tag, ": ", text))
        }
        FNR == 1 {
            page = FILENAME
            sub(/.*\//, "", page)
            sub(/\.txt$/, "", page)
            command = page
            sub(/\.[0-9][a-z]*$/, "", command)
            section = page
            sub(/.*\./, "", section)
            heading = tag = ""
        }
        /^[A-Z][A-Z ]+$/ { heading = $0; tag = ""; next }
        heading == "NAME" && / - / {
            at = index($0, " - ")
            text = substr($0, at + 3)
            tell("name", "What does `" command "` do?", sentence(text), "", line_of(command, " - ", text))
            heading = ""
        }
        tag != "" && /^ +[^ -]/ { option(tag, $0); tag = ""; next }
        { tag = "" }
        /^-[A-Za-z0-9] [A-Z]?[a-z]+ [a-z]/ { option($1, substr($0, 4)); next } # a short one, its text on the same line
        /^--?[A-Za-z0-9]/ { tag = $0 }' "$@"
}

# questions: rows() as kind, page, question, answer, line of the page: one for each spelling of an option, answered by what
# the sentence says first, where that is something and not too long.
questions() {
    LC_ALL=C awk -F '\t' '
        function clause(text,    end) {
            end = match(text, /; |: | \(| -- /)
            if (end > 0) text = substr(text, 1, end - 1)
            if (text ~ /[A-Za-z0-9)"][.:;,]+$/) sub(/[.:;,]+$/, "", text)
            return length(text) >= 10 && length(text) <= 80 && text ~ /[a-z] [a-z]/ ? text : ""
        }
        function tell(question) {
            if (!((question, $2) in asked)) printf "%s\t%s\t%s\t%s\t%s\n", $1, $2, question, answer, $6
            asked[question, $2] = 1
        }
        (answer = clause($4)) != "" {
            tell($3)
            count = split($5, spelling, " ")
            split($3, part, "`")
            for (i = 1; i <= count; i++) tell(part[1] "`" spelling[i] "`" part[3] "`" part[4] "`" part[5])
        }'
}

# unseen TRAIN: the lines of questions() whose answer is none of TRAIN, in capitals or small letters.
unseen() {
    LC_ALL=C awk -F '\t' 'FNR == NR { seen[tolower($4)] = 1; next } !(tolower($4) in seen)' "$1" -
}

# json TYPE: rows of the kind sft or dpo from lines of questions(), every second one with the page's line in front of it.
json() {
    LC_ALL=C awk -F '\t' -v type="$1" '
        # t as a JSON string, byte 1 as a line break. Awks differ in what gsub() makes of a backslash, so it
        # is not used here.
        function text(t,    out, mark) {
            out = "\""
            while (match(t, /["\\\001]/)) {
                mark = substr(t, RSTART, 1)
                out = out substr(t, 1, RSTART - 1) "\\" (mark == "\001" ? "n" : mark)
                t = substr(t, RSTART + 1)
            }
            return out t "\""
        }
        function message(role, t) { return "[{\"role\": \"" role "\", \"content\": " text(t) "}]" }
        function row(question, i, other) {
            printf "{\"prompt\": %s", message("user", question)
            if (type == "sft") {
                print ", \"completion\": " message("assistant", answer[i]) "}"
                return
            }
            print ", \"chosen\": " message("assistant", answer[i]) \
                ", \"rejected\": " message("assistant", answer[other]) "}"
        }
        { kind[NR] = $1; page[NR] = $2; question[NR] = $3; answer[NR] = $4; line[NR] = $5; of[$1, ++count[$1]] = NR }
        END {
            for (i = 1; i <= NR; i++) {
                n = count[kind[i]] # another page, from a place that moves through all of them
                for (tries = 1; tries <= 50; tries++) {
                    other = of[kind[i], (i * 7919 + tries * 104729) % n + 1]
                    if (page[other] != page[i] && tolower(answer[other]) != tolower(answer[i])) break
                }
                if (type == "dpo" && tries > 50) continue
                row(i % 2 == 0 ? line[i] "\001\001" question[i] : question[i], i, other)
            }
        }'
}

# part NAME: whether a page is held out, by a sum over its name.
split_pages() {
    LC_ALL=C awk -F '\t' -v train="$1" -v validation="$2" '
        BEGIN { for (i = 32; i < 127; i++) code[sprintf("%c", i)] = i }
        {
            sum = 0
            for (i = 1; i <= length($2); i++) sum = (sum * 31 + code[substr($2, i, 1)]) % 1000003
            print > (sum % 10 == 0 ? validation : train)
        }'
}

main() {
    local out=$1 folder part
    shift
    mkdir -p "$out"
    "$(dirname "$0")/manual_corpus.sh" "$work/commands" "${commands[@]}" "${others[@]}"
    for folder in "$@" "$work/commands"; do
        find "$folder" -name '*.txt' | LC_ALL=C sort
    done >"$work/list"
    xargs -d '\n' -n 2000 "$0" --rows <"$work/list" | questions >"$work/questions"
    split_pages "$work/train" "$work/held" <"$work/questions"
    unseen "$work/train" <"$work/held" >"$work/validation"
    for part in train validation; do
        json sft <"$work/$part" >"$out/.sft-$part.partial"
        json dpo <"$work/$part" >"$out/.dpo-$part.partial"
        mv "$out/.sft-$part.partial" "$out/sft-$part.jsonl"
        mv "$out/.dpo-$part.partial" "$out/dpo-$part.jsonl"
    done
    echo "manual_pairs: $(wc -l <"$work/train") questions to train on, $(wc -l <"$work/validation") held out" \
        "(of $(wc -l <"$work/held"): the others have an answer that is trained on), in $out" >&2
}

if [ "${1:-}" = --rows ] && [ $# -ge 2 ]; then
    shift
    rows "$@"
elif [ "${1:-}" = --split ] && [ $# = 3 ]; then # for manual_tasks.sh, and so is the next
    split_pages "$2" "$3"
elif [ "${1:-}" = --packages ]; then
    printf '%s\n' "${commands[@]}"
elif [ $# -ge 1 ] && [ "${1#-}" = "$1" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    main "$@"
else
    echo "usage: scripts/manual_pairs.sh OUT_DIR [PAGES_DIR...]" >&2
    exit 64
fi
