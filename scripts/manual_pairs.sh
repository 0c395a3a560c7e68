#!/usr/bin/env bash
# Questions and answers from the machine's own manual, for fine-tuning (sft) and for preferences (dpo).
#
#   scripts/manual_pairs.sh OUT_DIR [PAGES_DIR...]
#
# "What does `ls` do?" is answered by the NAME section of the page, "What does option `-a` of `ls` do?" by the first
# sentence behind the option. Pages are those of manual_corpus.sh: of the commands of usual Debian packages, which it
# fetches where the machine has not got them, and of the folders named behind. One page in ten is held out, by its
# name: no page is in both parts. OUT_DIR gets sft-train.jsonl and sft-validation.jsonl, a row {"prompt", "completion"}
# of messages each, and dpo-train.jsonl and dpo-validation.jsonl, {"prompt", "chosen", "rejected"}, where what is
# rejected is the description of another command, or of another option, of the same part. Run again, it makes the same
# files.
set -euo pipefail

readonly commands=(coreutils util-linux bsdextrautils findutils grep sed gawk tar gzip bzip2 xz-utils diffutils
    procps psmisc binutils git-man openssh-client wget less e2fsprogs iproute2 login passwd mount debianutils make
    patch file man-db dpkg apt cpio rsync)

# rows FILE...: what the pages say, a line each: kind, page, question, answer; separated by tabs.
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
        # The first sentence, where it says something and is not too long.
        function sentence(text,    end) {
            text = clean(text)
            end = match(text, /\. [A-Z]/)
            if (end > 0) text = substr(text, 1, end)
            if (text ~ /[A-Za-z0-9)"][.:;,]+$/) sub(/[.:;,]+$/, "", text)
            return length(text) >= 12 && length(text) <= 160 && text ~ /[a-z] [a-z]/ ? text : ""
        }
        function tell(kind, question, answer) {
            if (answer != "" && !((question, page) in asked)) {
                asked[question, page] = 1
                printf "%s\t%s\t%s\t%s\n", kind, page, question, answer
            }
        }
        function option(tag, text,    name) {
            name = tag
            sub(/^ +/, "", name)
            sub(/[ ,=<[].*$/, "", name)
            if (section ~ /^[18]/ && name ~ /^--?[A-Za-z0-9][A-Za-z0-9-]*$/)
                tell("option", "What does option `" name "` of `" command "` do?", sentence(text))
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
            tell("name", "What does `" command "` do?", sentence(substr($0, at + 3)))
            heading = ""
        }
        tag != "" && /^ +[^ -]/ { option(tag, $0); tag = ""; next }
        { tag = "" }
        /^-[A-Za-z0-9] [A-Z]?[a-z]+ [a-z]/ { option($1, substr($0, 4)); next } # a short one, its text on the same line
        /^--?[A-Za-z0-9]/ { tag = $0 }' "$@"
}

# json TYPE: rows of the kind sft or dpo from lines of rows().
json() {
    LC_ALL=C awk -F '\t' -v type="$1" '
        function text(t) {
            gsub(/\\/, "\\\\\\\\", t) # two of them, to every awk
            gsub(/"/, "\\\"", t)
            return "\"" t "\""
        }
        function message(role, t) { return "[{\"role\": \"" role "\", \"content\": " text(t) "}]" }
        { kind[NR] = $1; page[NR] = $2; question[NR] = $3; answer[NR] = $4; of[$1, ++count[$1]] = NR }
        END {
            for (i = 1; i <= NR; i++) {
                row = "{\"prompt\": " message("user", question[i])
                if (type == "sft") {
                    print row ", \"completion\": " message("assistant", answer[i]) "}"
                    continue
                }
                n = count[kind[i]] # another page, from a place that moves through all of them
                for (tries = 1; tries <= 50; tries++) {
                    other = of[kind[i], (i * 7919 + tries * 104729) % n + 1]
                    if (page[other] != page[i] && answer[other] != answer[i]) break
                }
                if (tries <= 50)
                    print row ", \"chosen\": " message("assistant", answer[i]) \
                        ", \"rejected\": " message("assistant", answer[other]) "}"
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
    local out=$1 part
    shift
    mkdir -p "$out"
    "$(dirname "$0")/manual_corpus.sh" "$work/commands" "${commands[@]}"
    find "$work/commands" "$@" -name '*.txt' | LC_ALL=C sort >"$work/list"
    xargs -d '\n' -n 2000 "$0" --rows <"$work/list" >"$work/rows"
    split_pages "$work/train" "$work/validation" <"$work/rows"
    for part in train validation; do
        json sft <"$work/$part" >"$out/.sft-$part.partial"
        json dpo <"$work/$part" >"$out/.dpo-$part.partial"
        mv "$out/.sft-$part.partial" "$out/sft-$part.jsonl"
        mv "$out/.dpo-$part.partial" "$out/dpo-$part.jsonl"
    done
    echo "manual_pairs: $(wc -l <"$work/train") rows to train on, $(wc -l <"$work/validation") held out, in $out" >&2
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
