#!/bin/bash
# `prepare --objective seq2seq` on the files that people have: other names of the columns, and pairs
# that are invalid.
. "$(dirname "$0")/../tiny_training.sh"

run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input "$source/LICENSE" --output words

prepare() { # CODE OPTION...
    local code=$1
    shift
    run_bireme "$code" prepare --objective seq2seq --tokenizer words --sequence-length 32 \
        --output pairs "$@"
}

printf '%s\n' 'the license' 'the user' 'a "form", of' >good.en
printf '%s\n' 'la licencia' 'el usuario' 'una "forma", de' >good.es
prepare 0 --source good.en --target good.es
cp pairs/train-00000-of-00001.h5 expected.h5

# --columns selects the columns of a table and the fields of JSON Lines.
printf '%s\n' number,text_en,text_es '1,the license,la licencia' '2,the user,el usuario' \
    '3,"a ""form"", of","una ""forma"", de"' >pairs.csv
printf '%s\t%s\n' text_en text_es 'the license' 'la licencia' 'the user' 'el usuario' \
    'a "form", of' 'una "forma", de' >pairs.tsv
printf '%s\n' '{"text_en": "the license", "text_es": "la licencia"}' \
    '{"text_en": "the user", "text_es": "el usuario"}' \
    '{"text_en": "a \"form\", of", "text_es": "una \"forma\", de"}' >pairs.jsonl
for file in pairs.csv pairs.tsv pairs.jsonl; do
    prepare 0 --input $file --columns source=text_en,target=text_es
    cmp pairs/train-00000-of-00001.h5 expected.h5 || fail "$file: other pairs"
    prepare 0 --input $file --columns source=text_es,target=text_en
    ! cmp -s pairs/train-00000-of-00001.h5 expected.h5 || fail "$file: sides are not exchanged"
done
prepare 65 --input pairs.csv --columns source=text_en
expect_error "pairs.csv:2: no field 'target' (the row has 'number', 'text_en', 'text_es', "
prepare 65 --input pairs.csv
expect_error "pairs.csv:2: no field 'source' with 'target', or 'translation'"
prepare 64 --source good.en --target good.es --columns source=text_en,target=text_es
expect_error '--columns'

# expect_bad COUNT PLACE TEXT OPTION...: `prepare` ends with exit code 65 and names the place and
# the reason. With --skip-bad-rows it counts COUNT invalid pairs, and the others remain.
expect_bad() {
    local count=$1 place=$2 text=$3
    shift 3
    rm -rf pairs
    prepare 65 "$@"
    expect_error "$place: .*$text"
    [ ! -e pairs ] || fail "$place: there are shards after an error"
    prepare 0 "$@" --skip-bad-rows --json
    grep -q "\"bad_rows\": *$count[,}]" out || fail "$place: $(cat out)"
    cmp pairs/train-00000-of-00001.h5 expected.h5 || fail "$place: other pairs"
}

# write_files: write the files a and b with the three valid pairs and another one at line 2.
write_files() { # SOURCE TARGET
    { head -n 1 good.en; printf '%s\n' "$1"; tail -n +2 good.en; } >a
    { head -n 1 good.es; printf '%s\n' "$2"; tail -n +2 good.es; } >b
    {
        printf 'source\ttarget\n'
        paste a b
    } >rows.tsv
    awk -F'\t' '{ gsub(/"/, "\\\"")
        printf "{\"source\": \"%s\", \"target\": \"%s\"}\n", $1, $2 }' <(paste a b) >rows.jsonl
}

# Invalid pairs in aligned files, tables and JSON Lines: an empty side, and more than 32 tokens.
long=$(printf '~%.0s' {1..40})
while IFS='|' read -r pair_source pair_target aligned text; do
    write_files "$pair_source" "$pair_target"
    expect_bad 1 "${aligned%%:*}:2" "${aligned#*:}" --source a --target b
    expect_bad 1 rows.tsv:3 "$text" --input rows.tsv
    expect_bad 1 rows.jsonl:2 "$text" --input rows.jsonl
done <<END
|la lista|a:the line is empty|'source' is empty
the list||b:the line is empty|'target' is empty
$long|la lista|a:the source has 41 tokens, more than 32|the source has 41 tokens, more than 32
the list|$long|a:the target has 41 tokens, more than 32|the target has 41 tokens, more than 32
END

# Lines that do not align: a file has two lines more than the other one.
{ cat good.en; printf '%s\n' 'no counterpart' 'none'; } >more.en
{ cat good.es; printf '%s\n' 'sin par' 'nada'; } >more.es
expect_bad 2 more.en:4 'good.es has no line 4, but more.en has one' --source more.en \
    --target good.es
expect_bad 2 good.en:4 'good.en has no line 4, but more.es has one' --source good.en \
    --target more.es
# Validation files are checked in the same way.
prepare 65 --source good.en --target good.es --validation-source more.en --validation-target good.es
expect_error 'more.en:4: good.es has no line 4'
