#!/usr/bin/env bash
# Labelled data for fine-tuning, from the manual that every Debian machine has.
#
#   scripts/manual_tasks.sh OUT_DIR
#
# Pages are those of manual_corpus.sh: of manpages and manpages-dev, and of the usual commands of manual_pairs.sh. OUT_DIR gets
# TASK-train.jsonl and TASK-validation.jsonl, a row a line:
#
#   sections   {"text", "label"}: a page's one-line description, and the number of the manual's section that it stands in
#   words      {"tokens", "tags"}: the words of a line, and what the page's bold and slanted type says of each: option (bold,
#              with a dash), placeholder (slanted), or O
#   questions  {"question", "context", "answers"}, as SQuAD has it: what an option of a command does, to be found in a part of the
#              page that has up to three other options
#   choices    {"text", "choices", "label"}: the same question, and four answers from the page
#   sentences  {"text", "text_pair"}: two sentences that follow each other; in an order that is drawn, as a batch's sentences
#              are each other's wrong answers and shall be of many pages in evaluations as they are in training
#
# One page in ten is held out, by its name, of all tasks alike. The text of the others is in OUT_DIR/pages, a file a page, to
# pretrain on: what is held out was never seen. Run again, it makes the same files.
set -euo pipefail
here=$(dirname "$0")
readonly here tasks=(sections words questions choices sentences)

# What all the awk programs below have. A row is told as task, page, JSON, separated by tabs.
readonly library='
    function clean(text) {
        gsub(/[\001-\003]/, "", text)
        gsub(/[\t\r]/, " ", text)
        gsub(/[^ -~]/, "", text)
        gsub(/  +/, " ", text)
        sub(/^ +/, "", text)
        sub(/ +$/, "", text)
        return text
    }
    # text as a JSON string. Awks differ in what gsub() makes of a backslash, so it is not used here.
    function quoted(text,    out) {
        out = "\""
        while (match(text, /["\\]/)) {
            out = out substr(text, 1, RSTART - 1) "\\" substr(text, RSTART, 1)
            text = substr(text, RSTART + 1)
        }
        return out text "\""
    }
    function page_of(file) {
        sub(/.*\//, "", file)
        sub(/\.txt$/, "", file)
        return file
    }
    function tell(task, page, json) { printf "%s\t%s\t{%s}\n", task, page, json }'

# asked: rows of sections, questions and choices from what manual_pairs.sh --rows says.
asked() {
    LC_ALL=C awk -F '\t' "$library"'
        # The options of a page, numbered from 1: name, question, answer.
        function context_of(i, own,    text, first, j) {
            text = ""
            first = i - (i * 7 + length(page)) % 4 # where the right one stands among the four moves
            if (first > count - 3) first = count - 3
            if (first < 1) first = 1
            for (j = first; j < first + 4 && j <= count; j++) {
                text = text (j > first ? " " : "") name[j] " "
                if (j == i) start = length(text)
                text = text answer[j] "."
            }
            return text
        }
        function choices_of(i,    text, j, k, other) {
            label = (i * 5 + length(page)) % 4
            text = ""
            for (j = k = 0; k < 4; k++) {
                other = answer[i]
                while (k != label) {
                    other = answer[(i + j++) % count + 1]
                    if (other != answer[i] && index(text, quoted(other)) == 0) break
                    if (j > count) return ""
                }
                text = text (k > 0 ? ", " : "") quoted(other)
            }
            return text
        }
        function end_page(    i, context, choices) {
            for (i = 1; i <= count; i++) {
                context = context_of(i)
                if (count > 1) tell("questions", page, "\"question\": " quoted(question[i]) ", \"context\": " quoted(context) \
                    ", \"answers\": {\"text\": [" quoted(answer[i]) "], \"answer_start\": [" start "]}")
                choices = count > 3 ? choices_of(i) : ""
                if (choices != "") tell("choices", page, "\"text\": " quoted(question[i]) ", \"choices\": [" choices \
                    "], \"label\": " label)
            }
            count = 0
        }
        $2 != page { end_page(); page = $2 }
        $1 == "name" {
            section = page
            sub(/.*\./, "", section)
            section = substr(section, 1, 1)
            if (section != 6) tell("sections", page, "\"text\": " quoted($4) ", \"label\": \"" section "\"")
        }
        $1 == "option" && length($4) <= 110 {
            count++
            name[count] = $3
            sub(/^[^`]*`/, "", name[count])
            sub(/`.*/, "", name[count])
            question[count] = $3
            gsub(/`/, "", question[count])
            answer[count] = $4
        }
        END { end_page() }'
}

# words FILE...: rows of lines with marks.
words() {
    LC_ALL=C awk "$library"'
        # The mark of a word is that of its first letter, digit or dash.
        function tag_of(word, text,    at, mark) {
            at = match(word, /[-A-Za-z0-9]/)
            mark = at > 1 ? substr(word, at - 1, 1) : ""
            if (mark == "\002" && text ~ /^[^A-Za-z0-9]*--?[A-Za-z0-9]/) return "option"
            return mark == "\003" && text ~ /[A-Za-z]/ ? "placeholder" : "O"
        }
        FNR == 1 { told = 0; page = page_of(FILENAME) }
        told < 12 && /[\002\003]/ {
            n = split($0, word, / +/)
            tokens = tags = ""
            kept = marked = 0
            for (i = 1; i <= n && kept < 40; i++) {
                text = clean(word[i])
                if (text == "") continue
                tag = tag_of(word[i], text)
                marked += tag != "O"
                tokens = tokens (kept > 0 ? ", " : "") quoted(text)
                tags = tags (kept++ > 0 ? ", " : "") "\"" tag "\""
            }
            if (kept >= 8 && marked > 0) {
                tell("words", page, "\"tokens\": [" tokens "], \"tags\": [" tags "]")
                told++
            }
        }' "$@"
}

# sentences FILE...: rows of neighbours in a paragraph.
sentences() {
    LC_ALL=C awk "$library"'
        FNR == 1 { told = 0; page = page_of(FILENAME) }
        told < 12 && /\. +[A-Z]/ {
            rest = clean($0)
            last = ""
            while (rest != "" && told < 12) {
                end = match(rest, /[a-z0-9)]\. [A-Z]/)
                one = end > 0 ? substr(rest, 1, end + 1) : rest
                rest = end > 0 ? substr(rest, end + 3) : ""
                fits = length(one) >= 30 && length(one) <= 180
                if (last != "" && fits) {
                    tell("sentences", page, "\"text\": " quoted(last) ", \"text_pair\": " quoted(one))
                    told++
                }
                last = fits ? one : ""
            }
        }' "$@"
}

# gather FOLDER: the pages, with marks in FOLDER/marked and without in FOLDER/plain.
gather() {
    local packages file
    mapfile -t packages < <("$here/manual_pairs.sh" --packages)
    MANUAL_MARKS=1 "$here/manual_corpus.sh" "$1/marked"
    MANUAL_MARKS=1 "$here/manual_corpus.sh" "$1/marked" "${packages[@]}"
    mkdir "$1/plain"
    for file in "$1/marked"/*.txt; do
        tr -d '\002\003' <"$file" >"$1/plain/${file##*/}"
    done
}

# pages OUT: of the files in plain.list those that are not held out.
pages() {
    mkdir -p "$1"
    awk -F / '{ name = $NF; sub(/\.txt$/, "", name); print $0 "\t" name }' "$work/plain.list" |
        "$here/manual_pairs.sh" --split "$work/shown" "$work/hidden"
    cut -f 1 "$work/shown" | xargs -d '\n' cp -t "$1"
    echo "manual_tasks: pages: $(wc -l <"$work/shown") to pretrain on" >&2
}

main() {
    local out=$1 task part rows
    mkdir -p "$out"
    gather "$work"
    find "$work/plain" -name '*.txt' | LC_ALL=C sort >"$work/plain.list"
    find "$work/marked" -name '*.txt' | LC_ALL=C sort >"$work/marked.list"
    pages "$out/pages"
    {
        xargs -d '\n' "$here/manual_pairs.sh" --rows <"$work/plain.list" | asked
        xargs -d '\n' "$0" --words <"$work/marked.list"
        xargs -d '\n' "$0" --sentences <"$work/plain.list"
    } | "$here/manual_pairs.sh" --split "$work/train" "$work/validation"
    for task in "${tasks[@]}"; do
        for part in train validation; do
            rows=$out/.$task-$part.partial
            awk -F '\t' -v task="$task" '$1 == task { print substr($0, length($1) + length($2) + 3) }' "$work/$part" >"$rows"
            [ "$task" != sentences ] || shuf --random-source="$rows" -o "$rows" "$rows"
            mv "$rows" "$out/$task-$part.jsonl"
        done
        echo "manual_tasks: $task: $(wc -l <"$out/$task-train.jsonl") rows to train on," \
            "$(wc -l <"$out/$task-validation.jsonl") held out" >&2
    done
}

if [ "${1:-}" = --words ] && [ $# -ge 2 ]; then
    shift
    words "$@"
elif [ "${1:-}" = --sentences ] && [ $# -ge 2 ]; then
    shift
    sentences "$@"
elif [ $# = 1 ] && [ "${1#-}" = "$1" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    main "$1"
else
    echo "usage: scripts/manual_tasks.sh OUT_DIR" >&2
    exit 64
fi
