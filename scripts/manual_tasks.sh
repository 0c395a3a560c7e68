#!/usr/bin/env bash
# Writes labeled data for fine-tuning from man pages.
#
#   scripts/manual_tasks.sh OUT_DIR
#
# The pages are the output of manual_corpus.sh for manpages and manpages-dev, and for the common
# commands of manual_pairs.sh. OUT_DIR gets TASK-train.jsonl and TASK-validation.jsonl with one row
# per line:
#
#   sections   {"text", "label"}: the one-line description of a page and the number of its section
#   words      {"tokens", "tags"}: the words of a line, and a tag for each word from the type of the
#              page: option (bold with a dash), placeholder (italic), or O
#   questions  {"question", "context", "answers"}, as in SQuAD: a question about an option of a
#              command, and a part of the page with this option and up to three others
#   choices    {"text", "choices", "label"}: the same question and four answers from the page
#   sentences  {"text", "text_pair"}: two consecutive sentences. The rows are shuffled, because all
#              sentences of a batch are negatives of each other and should be from different pages
#
# The name of a page selects its part for all tasks: one page in ten belongs to the validation data.
# OUT_DIR/pages gets the text of the other pages, one file per page, for pretraining without the
# validation data. The same pages give the same files.
set -euo pipefail
here=$(dirname "$0")
readonly here tasks=(sections words questions choices sentences)

# Functions of the awk programs below. A row is printed as task, page and JSON, separated by tabs.
library=$(cat "$here/manual_library.awk")'
    function page_of(file) {
        sub(/.*\//, "", file)
        sub(/\.txt$/, "", file)
        return file
    }
    function print_row(task, page, json) { printf "%s\t%s\t{%s}\n", task, page, json }'
readonly library

# print_option_rows: convert the output of manual_pairs.sh --rows to rows of sections, questions and
# choices.
print_option_rows() {
    LC_ALL=C awk -F '\t' "$library"'
        # The options of a page, numbered from 1: name, question, answer.
        function context_of(i, own,    text, first, j) {
            text = ""
            first = i - (i * 7 + length(page)) % 4 # varies the position of the right option
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
                if (count > 1)
                    print_row("questions", page, "\"question\": " quoted(question[i]) \
                        ", \"context\": " quoted(context) ", \"answers\": {\"text\": [" \
                        quoted(answer[i]) "], \"answer_start\": [" start "]}")
                choices = count > 3 ? choices_of(i) : ""
                if (choices != "")
                    print_row("choices", page, "\"text\": " quoted(question[i]) \
                        ", \"choices\": [" choices "], \"label\": " label)
            }
            count = 0
        }
        $2 != page { end_page(); page = $2 }
        $1 == "name" {
            section = page
            sub(/.*\./, "", section)
            section = substr(section, 1, 1)
            if (section != 6)
                print_row("sections", page,
                    "\"text\": " quoted($4) ", \"label\": \"" section "\"")
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

# print_word_rows FILE...: print rows of the task words from lines with marks.
print_word_rows() {
    LC_ALL=C awk "$library"'
        # The mark of a word is the mark of its first letter, digit or dash.
        function tag_of(word, text,    at, mark) {
            at = match(word, /[-A-Za-z0-9]/)
            mark = at > 1 ? substr(word, at - 1, 1) : ""
            if (mark == "\002" && text ~ /^[^A-Za-z0-9]*--?[A-Za-z0-9]/) return "option"
            return mark == "\003" && text ~ /[A-Za-z]/ ? "placeholder" : "O"
        }
        FNR == 1 { rows = 0; page = page_of(FILENAME) }
        rows < 12 && /[\002\003]/ {
            n = split($0, word, / +/)
            tokens = tags = ""
            token_count = marked = 0
            for (i = 1; i <= n && token_count < 40; i++) {
                text = clean(word[i])
                if (text == "") continue
                tag = tag_of(word[i], text)
                marked += tag != "O"
                tokens = tokens (token_count > 0 ? ", " : "") quoted(text)
                tags = tags (token_count++ > 0 ? ", " : "") "\"" tag "\""
            }
            if (token_count >= 8 && marked > 0) {
                print_row("words", page, "\"tokens\": [" tokens "], \"tags\": [" tags "]")
                rows++
            }
        }' "$@"
}

# print_sentence_rows FILE...: print rows of consecutive sentences of a paragraph.
print_sentence_rows() {
    LC_ALL=C awk "$library"'
        FNR == 1 { rows = 0; page = page_of(FILENAME) }
        rows < 12 && /\. +[A-Z]/ {
            rest = clean($0)
            last = ""
            while (rest != "" && rows < 12) {
                end = match(rest, /[a-z0-9)]\. [A-Z]/)
                one = end > 0 ? substr(rest, 1, end + 1) : rest
                rest = end > 0 ? substr(rest, end + 3) : ""
                fits = length(one) >= 30 && length(one) <= 180
                if (last != "" && fits) {
                    print_row("sentences", page,
                        "\"text\": " quoted(last) ", \"text_pair\": " quoted(one))
                    rows++
                }
                last = fits ? one : ""
            }
        }' "$@"
}

# write_pages FOLDER: write the pages with marks to FOLDER/marked and without to FOLDER/plain.
write_pages() {
    local packages file
    mapfile -t packages < <("$here/manual_pairs.sh" --packages)
    MANUAL_MARKS=1 "$here/manual_corpus.sh" "$1/marked"
    MANUAL_MARKS=1 "$here/manual_corpus.sh" "$1/marked" "${packages[@]}"
    mkdir "$1/plain"
    for file in "$1/marked"/*.txt; do
        tr -d '\002\003' <"$file" >"$1/plain/${file##*/}"
    done
}

# copy_training_pages OUT: copy the pages in plain.list that are not validation data.
copy_training_pages() {
    mkdir -p "$1"
    awk -F / '{ name = $NF; sub(/\.txt$/, "", name); print $0 "\t" name }' "$work/plain.list" |
        "$here/manual_pairs.sh" --split "$work/train_pages" "$work/validation_pages"
    cut -f 1 "$work/train_pages" | xargs -d '\n' cp -t "$1"
    echo "manual_tasks: pages: $(wc -l <"$work/train_pages") for pretraining" >&2
}

main() {
    local out=$1 task part rows
    mkdir -p "$out"
    write_pages "$work"
    find "$work/plain" -name '*.txt' | LC_ALL=C sort >"$work/plain.list"
    find "$work/marked" -name '*.txt' | LC_ALL=C sort >"$work/marked.list"
    copy_training_pages "$out/pages"
    {
        xargs -d '\n' "$here/manual_pairs.sh" --rows <"$work/plain.list" | print_option_rows
        xargs -d '\n' "$0" --words <"$work/marked.list"
        xargs -d '\n' "$0" --sentences <"$work/plain.list"
    } | "$here/manual_pairs.sh" --split "$work/train" "$work/validation"
    for task in "${tasks[@]}"; do
        for part in train validation; do
            rows=$out/.$task-$part.partial
            awk -F '\t' -v task="$task" '
                $1 == task { print substr($0, length($1) + length($2) + 3) }' \
                "$work/$part" >"$rows"
            [ "$task" != sentences ] || shuf --random-source="$rows" -o "$rows" "$rows"
            mv "$rows" "$out/$task-$part.jsonl"
        done
        echo "manual_tasks: $task: $(wc -l <"$out/$task-train.jsonl") training rows," \
            "$(wc -l <"$out/$task-validation.jsonl") validation rows" >&2
    done
}

if [ "${1:-}" = --words ] && [ $# -ge 2 ]; then
    shift
    print_word_rows "$@"
elif [ "${1:-}" = --sentences ] && [ $# -ge 2 ]; then
    shift
    print_sentence_rows "$@"
elif [ $# = 1 ] && [ "${1#-}" = "$1" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    main "$1"
else
    echo "usage: scripts/manual_tasks.sh OUT_DIR" >&2
    exit 64
fi
