#!/bin/bash
# scripts/manual_tasks.sh on pages made for it: the rows of each task, and how they are divided.
set -u
source=${BIREME_SOURCE_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

fail() {
    echo "failed: $1" >&2
    exit 1
}

# In the place of manual_corpus.sh: 40 commands, one of which says all that is looked at. Byte 2 is bold, byte 3 slanted.
mkdir scripts
cp "$source"/scripts/manual_{pairs,tasks}.sh scripts/
cat >scripts/manual_corpus.sh <<'END'
#!/bin/bash
mkdir -p "$1"
for ((i = 0; i < 40; i++)); do
    printf 'NAME\ntool%d - do the work of number %d\n\nTool %d is the first sentence of its page. This one follows the first of number %d.\n' $i $i $i $i >"$1/tool$i.1.txt"
done
printf '%s\n' $'\x02N\x02A\x02M\x02E' 'ls - list directory contents' '' $'The \x03F\x03I\x03L\x03E that [\x02-\x02a] and \x02-\x02-\x02b=\x03S shows with \x02l\x02s \\here is "listed".' \
    '' $'\x02-\x02a' '       do not ignore entries' '' $'\x02-\x02b' '       with -l, scale sizes by "SIZE"' '' $'\x02-\x02c' '       list entries by columns' \
    '' $'\x02-\x02d' '       list directories themselves' '' $'\x02-\x02e' '       show no colours at all' >"$1/ls.1.txt"
END
chmod +x scripts/manual_corpus.sh

scripts/manual_tasks.sh out 2>told || fail "it ends with $?: $(cat told)"
for task in sections words questions choices sentences; do
    cat out/$task-train.jsonl out/$task-validation.jsonl >$task
done
row() { # TASK ROW
    grep -qxF "$2" "$1" || fail "$1 has no row $2: $(grep -F ls "$1" | head -n 5)"
}
row sections '{"text": "list directory contents", "label": "1"}'
row words '{"tokens": ["The", "FILE", "that", "[-a]", "and", "--b=S", "shows", "with", "ls", "\\here", "is", "\"listed\"."], "tags": ["O", "placeholder", "O", "option", "O", "option", "O", "O", "O", "O", "O", "O"]}'
row sentences '{"text": "Tool 7 is the first sentence of its page.", "text_pair": "This one follows the first of number 7."}'
[ "$(wc -l <sections) $(wc -l <words) $(wc -l <questions) $(wc -l <choices) $(wc -l <sentences)" = '41 1 5 5 40' ] ||
    fail "other numbers of rows: $(wc -l sections words questions choices sentences)"

# each answer stands in its context where the row says, behind its option, at different places
sed -E 's/^\{"question": "What does option (-.) of ls do\?", "context": "(.*)", "answers": \{"text": \["(.*)"\], "answer_start": \[([0-9]+)\]\}\}$/\1\t\2\t\3\t\4/; s/\\"/"/g' \
    questions | awk -F '\t' 'NF != 4 || substr($2, $4 + 1, length($3)) != $3 || substr($2, $4 - 2, 3) != $1 " " { exit 1 } !($4 in at) { at[$4]; n++ }
        END { if (n < 3) exit 1 }' || fail "an answer is not where its row says: $(cat questions)"
# the label names the answer among four different ones
declare -A answers=(['-a']='do not ignore entries' ['-b']='with -l, scale sizes by \"SIZE\"' ['-c']='list entries by columns'
    ['-d']='list directories themselves' ['-e']='show no colours at all')
while IFS= read -r line; do
    option=$(sed -E 's/.*option (-.) of.*/\1/' <<<"$line") label=${line##*: }
    mapfile -t said < <(sed -E 's/.*"choices": \["(.*)"\], "label".*/\1/; s/", "/\n/g' <<<"$line")
    [ "${said[${label%\}}]}" = "${answers[$option]}" ] || fail "the label is wrong: $line"
    [ "$(printf '%s\n' "${said[@]}" | sort -u | wc -l)" = 4 ] || fail "not four choices: $line"
done <choices

[ -s out/sections-validation.jsonl ] || fail 'nothing is held out'
pages() { cat "$@" | grep -oE 'number [0-9]+|directory' | sort -u; }
[ -z "$(comm -12 <(pages out/{sections,sentences}-train.jsonl) <(pages out/{sections,sentences}-validation.jsonl))" ] || fail 'a page is on both sides'
! LC_ALL=C sort -C out/sentences-train.jsonl || fail 'sentences stand in the order of the pages'
diff <(pages out/pages/*.txt) <(pages out/{sections,sentences}-train.jsonl) || fail 'pages has others than those that are not held out'
scripts/manual_tasks.sh again 2>told && diff -r out again || fail 'it makes other files when run again'

# Every awk of this machine makes the same files.
mkdir bin
for awk in mawk gawk original-awk 'busybox awk'; do
    $awk 'BEGIN { exit }' 2>/dev/null </dev/null || continue
    printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >bin/awk
    chmod +x bin/awk
    rm -rf again
    PATH=$folder/bin:$PATH scripts/manual_tasks.sh again 2>told && diff -r out again || fail "$awk makes other files: $(cat told)"
    echo "$awk makes the same files"
done
