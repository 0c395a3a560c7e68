#!/bin/bash
# The pairs of scripts/summary_corpus.sh from the text of pages: aligned, shortened, each text once.
# The three parts share no summary and no text.
set -eu
source "${BIREME_SOURCE_DIR:=$PWD}/tests/temporary_folder.sh"
mkdir pages
# write_page NAME SUMMARY WORD: a page with a description of 60 words.
write_page() {
    printf 'NAME\n%s - %s\n\nSYNOPSIS\n%s [option]\n\nDESCRIPTION\n' "$1" "$2" "$1" \
        >"pages/$1.1.txt"
    seq -s ' ' -f "$3%g" 0 59 >>"pages/$1.1.txt"
    printf '\n\nOPTIONS\n-x not in the text\n' >>"pages/$1.1.txt"
}
write_page first 'print the first lines' word
write_page second 'print the last lines' line
write_page copy 'another summary of the same text' word
write_page unnamed 'x' text
printf 'NAME\nshort - a page without a body\n\nDESCRIPTION\nA few words.\n' >pages/short.1.txt
printf 'NAME\nlist, lists - two names\n\nFILES\n%s\n' "$(seq -s ' ' 60)" >pages/list.1.txt
LENGTH=80 "${BIREME_SOURCE_DIR:?}/scripts/summary_corpus.sh" out "$folder/pages" 2>log ||
    fail "summary_corpus.sh ended with $?"
paste -d'|' <(cat out/*.text) <(cat out/*.summary) | LC_ALL=C sort >pairs
grep -q '^second - line0 line1 .* line[0-9]*|print the last lines$' pairs
grep -q '^list - 1 2 3 .*|two names$' pairs
[ "$(grep -c 'word0' pairs)" = 1 ] || { cat pairs; exit 1; }
[ "$(wc -l <pairs)" = 3 ]
! grep -E 'SYNOPSIS|option|NAME|not in the text' pairs
awk -F'|' 'length($1) > 89 { exit 1 }' pairs # 80, a name and a dash

# Pages with the same summary, up to capitals and punctuation, are in the same part.
rm -r pages out
mkdir pages
words=(alpha bravo charlie delta echo foxtrot golf hotel india juliet)
for ((i = 0; i < 100; i++)); do
    summary="print ${words[i % 10]} ${words[i / 10]}"
    write_page "a$i" "$summary" "a${i}x"
    write_page "b$i" "${summary^}." "b${i}x"
done
"$BIREME_SOURCE_DIR/scripts/summary_corpus.sh" out "$folder/pages" 2>log || {
    cat log
    exit 1
}
for part in train validation test; do
    [ -s out/$part.summary ] || { echo "the part $part is empty"; exit 1; }
    sed -E 's/[^A-Za-z]//g; s/.*/\L&/' out/$part.summary | sort -u >$part.keys
done
[ "$(cat out/*.summary | wc -l)" = 200 ]
[ "$(cat out/*.text | sort -u | wc -l)" = 200 ]
[ "$(cat ./*.keys | wc -l)" = 100 ] && [ "$(sort ./*.keys | uniq -d | wc -l)" = 0 ]
