#!/bin/bash
# scripts/manual_pairs.sh on pages made for it: which questions it asks, what it answers, how it divides and rejects.
set -u
source=${BIREME_SOURCE_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

fail() {
    echo "failed: $1" >&2
    exit 1
}

# In the place of manual_corpus.sh: 40 commands, one of which says all that is looked at.
mkdir scripts
cp "$source/scripts/manual_pairs.sh" scripts/
cat >scripts/manual_corpus.sh <<'END'
#!/bin/bash
mkdir -p "$1"
for ((i = 0; i < 40; i++)); do
    printf 'NAME\ntool%d, alias - do the work of \\number "%d"\n\nOPTIONS\n-q, --quiet\n       Say nothing at all of %d. And more.\n\n-h\n       display this help and exit\n' $i $i $i >"$1/tool$i.1.txt"
done
cat >"$1/ls.1.txt" <<'PAGE'
NAME
ls - list directory contents

DESCRIPTION
List information. -x is no option here

-a, --all
       do not ignore entries starting with .

--block-size=SIZE
       with -l, scale sizes by SIZE; see below. Then more is said.

-l use a long listing format

-z
       No.

SEE ALSO
chmod(2) - of another page
PAGE
printf 'NAME\nopen - open and possibly create a file\n\n-a\n       an option of no command at all\n' >"$1/open.2.txt"
END
chmod +x scripts/manual_corpus.sh

scripts/manual_pairs.sh out 2>told || fail "it ends with $?: $(cat told)"
cat out/sft-*.jsonl >all
answer() { # QUESTION ANSWER
    grep -qF "$1\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"$2\"}]}" all ||
        fail "$1 is not answered by $2: $(grep -F "$1" all)"
}
answer 'What does `ls` do?' 'list directory contents'
answer 'What does option `-a` of `ls` do?' 'do not ignore entries starting with .'
answer 'What does option `--all` of `ls` do?' 'do not ignore entries starting with .'
answer 'What does option `--block-size` of `ls` do?' 'with -l, scale sizes by SIZE'
answer 'What does option `-l` of `ls` do?' 'use a long listing format'
answer 'What does `open` do?' 'open and possibly create a file'
answer 'What does `tool7` do?' 'do the work of \\number \"7\"'
answer 'What does option `-q` of `tool7` do?' 'Say nothing at all of 7'

# Every second one with its page's line.
grep -qE -- '"content": "(-a, --all: do not ignore entries starting with \.\\n\\nWhat does option `-(a|-all)`|-l: use a long)' all ||
    fail 'no question of ls has its line'
bare=$(grep -c '"content": "What does' all) all=$(wc -l <all)
[ $((all - bare - bare)) -ge -1 ] && [ $((all - bare - bare)) -le 1 ] || fail "$bare of $all questions stand alone"

# An answer of all pages is trained on and not held out; every other one is there.
help='"display this help and exit"}]}'
held=$(grep -c '`-q`' out/sft-validation.jsonl)
[ "$(grep -cF "$help" out/sft-train.jsonl)" = $((40 - held)) ] || fail 'not every page trains the help'
grep -qF "$help" out/sft-validation.jsonl && fail 'an answer that is trained on is held out'
[ "$all" = $((126 + 40 - held)) ] || fail "$all rows instead of $((126 + 40 - held))"

[ -s out/sft-validation.jsonl ] || fail 'nothing is held out'
pages() { grep -o 'tool[0-9]*\|`ls`\|`open`' "$1" | sort -u; }
[ -z "$(comm -12 <(pages out/sft-train.jsonl) <(pages out/sft-validation.jsonl))" ] || fail 'a page is on both sides'
# What is rejected answers another page's question of the same part.
sed -E 's/.*"chosen": \[\{"role": "assistant", "content": "(.*)"\}\], "rejected": .*"content": "(.*)"\}\]\}/\1\t\2/' \
    out/dpo-train.jsonl >pairs
awk -F '\t' 'NF != 2 || $1 == $2 { exit 1 }' pairs || fail 'an answer equals its rival'
cut -f1 pairs | sort -u >chosen
cut -f2 pairs | sort -u | comm -13 chosen - | grep . && fail 'a rival is no answer of this part'
scripts/manual_pairs.sh again 2>told && diff -r out again || fail 'it makes other files when run again'

# Every awk of this machine makes the same files.
mkdir bin
for awk in mawk gawk original-awk 'busybox awk'; do
    $awk 'BEGIN { exit }' 2>/dev/null </dev/null || continue
    printf '#!/bin/sh\nexec %s "$@"\n' "$awk" >bin/awk
    chmod +x bin/awk
    rm -rf again
    PATH=$folder/bin:$PATH scripts/manual_pairs.sh again 2>told && diff -r out again || fail "$awk makes other files: $(cat told)"
    echo "$awk makes the same files"
done
