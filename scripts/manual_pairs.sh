#!/usr/bin/env bash
# Writes questions and answers from man pages, for fine-tuning (sft) and preferences (dpo).
#
#   scripts/manual_pairs.sh OUT_DIR [PAGES_DIR...]
#
# The answer to "What does `ls` do?" is the NAME section of the page. The answer to "What does
# option `-a` of `ls` do?" is the first sentence after the option, up to a ; : or bracket, in at
# most 80 characters. There is a question for each spelling of an option. Every second question
# begins with the line of the page that contains the answer, shortened to 100 characters; the other
# questions require knowledge. The pages are the output of manual_corpus.sh for the commands of
# common Debian packages (it downloads missing packages, about 40 MB) and the pages in the
# PAGES_DIRs.
#
# The name of a page selects its part: one page in ten belongs to the validation data. Some answers
# occur on many pages ("display this help and exit"). A validation question is omitted, and counted,
# if its answer is also in the training data.
#
# OUT_DIR gets sft-train.jsonl and sft-validation.jsonl with rows {"prompt", "completion"}, and
# dpo-train.jsonl and dpo-validation.jsonl with rows {"prompt", "chosen", "rejected"}. The rejected
# response is the answer to a question of the same kind from another page of the same part. The same
# pages give the same files.
set -euo pipefail

library=$(cat "$(dirname "$0")/manual_library.awk")
readonly library
readonly commands=(coreutils util-linux bsdextrautils findutils grep sed gawk tar gzip bzip2
    xz-utils diffutils procps psmisc binutils git-man openssh-client wget less e2fsprogs iproute2
    login passwd mount debianutils make patch file man-db dpkg apt cpio rsync)
readonly others=( # manual_tasks.sh does not use these
    systemd udev openssl curl gpg gpgsm gpg-agent dirmngr dpkg-dev devscripts debhelper lvm2
    btrfs-progs xfsprogs cryptsetup-bin sysstat tcpdump iptables sqlite3 poppler-utils ffmpeg parted
    strace zip unzip bind9-dnsutils bind9-utils network-manager alsa-utils cups-client
    x11-xserver-utils x11-utils tmux nano sudo dosfstools hdparm smartmontools mdadm smbclient
    samba-common-bin subversion mercurial-common zstd gettext bison flex m4 autoconf automake perl
    libxml2-utils xsltproc jq socat qemu-utils krb5-user ldap-utils debconf-utils reprepro moreutils
    psutils libtiff-tools)

# print_rows FILE...: print one line per fact of these pages, with fields separated by tabs: kind,
# page, question, answer, other spellings of the option, and the line of the page with the answer.
print_rows() {
    LC_ALL=C awk "$library"'
        function first_sentence(text,    end) {
            text = clean(text)
            end = match(text, /\. [A-Z]/)
            return end > 0 ? substr(text, 1, end) : text
        }
        # Returns the first sentence; "" if it is too short or too long.
        function answer_of(text) {
            text = first_sentence(text)
            if (text ~ /[A-Za-z0-9)"][.:;,]+$/) sub(/[.:;,]+$/, "", text)
            return length(text) >= 12 && length(text) <= 160 && text ~ /[a-z] [a-z]/ ? text : ""
        }
        function print_row(kind, question, answer, spellings, line) {
            if (answer != "" && !((question, page) in printed)) {
                printed[question, page] = 1
                printf "%s\t%s\t%s\t%s\t%s\t%s\n", kind, page, question, answer, spellings, line
            }
        }
        # Returns the line that is written before a question.
        function line_of(name, separator, text) {
            text = first_sentence(text)
            if (length(text) > 100) {
                text = substr(text, 1, 100)
                sub(/ [^ ]*$/, " ...", text)
            }
            return substr(clean(name), 1, 80) separator text
        }
        function is_option(name) { return name ~ /^--?[A-Za-z0-9][A-Za-z0-9-]*$/ }
        function print_option(tag, text,    i, count, name, spellings) {
            count = split(clean(tag), name, /, */)
            for (i = 1; i <= count; i++) {
                sub(/[ =<[].*$/, "", name[i])
                if (i > 1 && is_option(name[i])) spellings = spellings " " name[i]
            }
            if (section ~ /^[18]/ && is_option(name[1]))
                print_row("option", "What does option `" name[1] "` of `" command "` do?",
                    answer_of(text), substr(spellings, 2), line_of(tag, ": ", text))
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
            print_row("name", "What does `" command "` do?", answer_of(text), "",
                line_of(command, " - ", text))
            heading = ""
        }
        tag != "" && /^ +[^ -]/ { print_option(tag, $0); tag = ""; next }
        { tag = "" }
        # A short option with its text on the same line.
        /^-[A-Za-z0-9] [A-Z]?[a-z]+ [a-z]/ { print_option($1, substr($0, 4)); next }
        /^--?[A-Za-z0-9]/ { tag = $0 }' "$@"
}

# print_questions: convert lines of print_rows to questions: kind, page, question, answer, line of
# the page. There is one question per spelling of an option. The answer is the first clause of the
# sentence; questions without a suitable answer are omitted.
print_questions() {
    LC_ALL=C awk -F '\t' '
        function clause(text,    end) {
            end = match(text, /; |: | \(| -- /)
            if (end > 0) text = substr(text, 1, end - 1)
            if (text ~ /[A-Za-z0-9)"][.:;,]+$/) sub(/[.:;,]+$/, "", text)
            return length(text) >= 10 && length(text) <= 80 && text ~ /[a-z] [a-z]/ ? text : ""
        }
        function print_question(question) {
            if (!((question, $2) in printed))
                printf "%s\t%s\t%s\t%s\t%s\n", $1, $2, question, answer, $6
            printed[question, $2] = 1
        }
        (answer = clause($4)) != "" {
            print_question($3)
            count = split($5, spelling, " ")
            split($3, part, "`")
            for (i = 1; i <= count; i++)
                print_question(part[1] "`" spelling[i] "`" part[3] "`" part[4] "`" part[5])
        }'
}

# print_unseen TRAIN: print those questions of standard input that have an answer that is not in the
# file TRAIN, without regard to case.
print_unseen() {
    LC_ALL=C awk -F '\t' 'FNR == NR { seen[tolower($4)] = 1; next } !(tolower($4) in seen)' "$1" -
}

# print_json TYPE: convert questions to rows of type sft or dpo. Every second prompt begins with the
# line of the page.
print_json() {
    LC_ALL=C awk -F '\t' -v type="$1" "$library"'
        function message(role, text) {
            return "[{\"role\": \"" role "\", \"content\": " quoted(text) "}]"
        }
        function print_row(question, i, other) {
            printf "{\"prompt\": %s", message("user", question)
            if (type == "sft") {
                print ", \"completion\": " message("assistant", answer[i]) "}"
                return
            }
            print ", \"chosen\": " message("assistant", answer[i]) \
                ", \"rejected\": " message("assistant", answer[other]) "}"
        }
        {
            kind[NR] = $1
            page[NR] = $2
            question[NR] = $3
            answer[NR] = $4
            line[NR] = $5
            of[$1, ++count[$1]] = NR
        }
        END {
            for (i = 1; i <= NR; i++) {
                n = count[kind[i]] # search for another page, from a different start for each row
                for (tries = 1; tries <= 50; tries++) {
                    other = of[kind[i], (i * 7919 + tries * 104729) % n + 1]
                    if (page[other] != page[i] && tolower(answer[other]) != tolower(answer[i]))
                        break
                }
                if (type == "dpo" && tries > 50) continue
                print_row(i % 2 == 0 ? line[i] "\001\001" question[i] : question[i], i, other)
            }
        }'
}

# split_pages TRAIN VALIDATION: divide the lines of standard input by a sum over the page name (the
# second field).
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
    xargs -d '\n' -n 2000 "$0" --rows <"$work/list" | print_questions >"$work/questions"
    split_pages "$work/train" "$work/all_validation" <"$work/questions"
    print_unseen "$work/train" <"$work/all_validation" >"$work/validation"
    for part in train validation; do
        print_json sft <"$work/$part" >"$out/.sft-$part.partial"
        print_json dpo <"$work/$part" >"$out/.dpo-$part.partial"
        mv "$out/.sft-$part.partial" "$out/sft-$part.jsonl"
        mv "$out/.dpo-$part.partial" "$out/dpo-$part.jsonl"
    done
    local omitted=$(($(wc -l <"$work/all_validation") - $(wc -l <"$work/validation")))
    echo "manual_pairs: wrote $(wc -l <"$work/train") training questions and" \
        "$(wc -l <"$work/validation") validation questions to $out; omitted $omitted validation" \
        "questions with an answer of the training data" >&2
}

if [ "${1:-}" = --rows ] && [ $# -ge 2 ]; then
    shift
    print_rows "$@"
elif [ "${1:-}" = --split ] && [ $# = 3 ]; then # manual_tasks.sh uses --split and --packages
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
