#!/bin/bash
# scripts/manual_tasks.sh on small mock pages: the rows of each task and their division into parts.
set -u
source=${BIREME_SOURCE_DIR:?}
source "$source/tests/temporary_folder.sh"
source "$source/tests/scripts/every_awk.sh"

# A mock of manual_corpus.sh: 40 commands without options, and `ls` with all cases. Byte 2 marks
# bold characters, byte 3 italic ones.
mkdir scripts
cp "$source"/scripts/manual_{pairs.sh,tasks.sh,library.awk} scripts/
cat >scripts/manual_corpus.sh <<'END'
#!/bin/bash
mkdir -p "$1"
for ((i = 0; i < 40; i++)); do
    {
        printf 'NAME\ntool%d - do the work of number %d\n\n' $i $i
        printf 'Tool %d is the first sentence of its page. ' $i
        printf 'This one follows the first of number %d.\n' $i
    } >"$1/tool$i.1.txt"
done
printf '%s\n' $'\x02N\x02A\x02M\x02E' 'ls - list directory contents' '' \
    $'The \x03F\x03I\x03L\x03E that [\x02-\x02a] and \x02-\x02-\x02b=\x03S shows with '\
$'\x02l\x02s \\here is "listed".' \
    '' $'\x02-\x02a' '       do not ignore entries' \
    '' $'\x02-\x02b' '       with -l, scale sizes by "SIZE"' \
    '' $'\x02-\x02c' '       list entries by columns' \
    '' $'\x02-\x02d' '       list directories themselves' \
    '' $'\x02-\x02e' '       show no colors at all' >"$1/ls.1.txt"
END
chmod +x scripts/manual_corpus.sh

scripts/manual_tasks.sh out 2>stderr || fail "the script ends with $?: $(cat stderr)"
for task in sections words questions choices sentences; do
    cat out/$task-train.jsonl out/$task-validation.jsonl >$task
done
expect_row() { # TASK ROW
    grep -qxF "$2" "$1" || fail "$1 has no row $2: $(grep -F ls "$1" | head -n 5)"
}
expect_row sections '{"text": "list directory contents", "label": "1"}'
expect_row words '{"tokens": ["The", "FILE", "that", "[-a]", "and", "--b=S", "shows", "with", '\
'"ls", "\\here", "is", "\"listed\"."], "tags": ["O", "placeholder", "O", "option", "O", '\
'"option", "O", "O", "O", "O", "O", "O"]}'
expect_row sentences '{"text": "Tool 7 is the first sentence of its page.", '\
'"text_pair": "This one follows the first of number 7."}'
counts=$(wc -l sections words questions choices sentences | awk '{ print $1 }' | tr '\n' ' ')
[ "$counts" = '41 1 5 5 40 92 ' ] || fail "wrong numbers of rows: $counts"

# Each answer is at the position of its row, after its option; there are several positions.
answers='"answers": \{"text": \["(.*)"\], "answer_start": \[([0-9]+)\]\}'
sed -E 's/^\{"question": "What does option (-.) of ls do\?", "context": "(.*)", '"$answers"'\}$/'\
'\1\t\2\t\3\t\4/; s/\\"/"/g' questions |
    awk -F '\t' '
        NF != 4 || substr($2, $4 + 1, length($3)) != $3 { exit 1 }
        substr($2, $4 - 2, 3) != $1 " " { exit 1 }
        !($4 in at) { at[$4]; n++ }
        END { if (n < 3) exit 1 }' || fail "an answer is not at its position: $(cat questions)"
# The label is the number of the answer among four different ones.
declare -A expected=(['-a']='do not ignore entries' ['-b']='with -l, scale sizes by \"SIZE\"'
    ['-c']='list entries by columns' ['-d']='list directories themselves'
    ['-e']='show no colors at all')
while IFS= read -r line; do
    option=$(sed -E 's/.*option (-.) of.*/\1/' <<<"$line") label=${line##*: }
    mapfile -t choices < <(sed -E 's/.*"choices": \["(.*)"\], "label".*/\1/; s/", "/\n/g' \
        <<<"$line")
    [ "${choices[${label%\}}]}" = "${expected[$option]}" ] || fail "the label is wrong: $line"
    [ "$(printf '%s\n' "${choices[@]}" | sort -u | wc -l)" = 4 ] || fail "not four choices: $line"
done <choices

[ -s out/sections-validation.jsonl ] || fail 'there are no validation rows'
print_pages() { cat "$@" | grep -oE 'number [0-9]+|directory' | sort -u; }
print_pages out/{sections,sentences}-train.jsonl >train_pages
print_pages out/{sections,sentences}-validation.jsonl >validation_pages
[ -z "$(comm -12 train_pages validation_pages)" ] || fail 'a page is in both parts'
! LC_ALL=C sort -C out/sentences-train.jsonl || fail 'the sentences are in the order of the pages'
diff <(print_pages out/pages/*.txt) train_pages || fail 'out/pages/ are not the training pages'
check_every_awk manual_tasks.sh
