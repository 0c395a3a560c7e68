#!/bin/bash
# scripts/manual_pairs.sh on small mock pages: questions, answers, the division into parts, rejected
# responses.
set -u
source=${BIREME_SOURCE_DIR:?}
source "$source/tests/temporary_folder.sh"
source "$source/tests/scripts/every_awk.sh"

# A mock of manual_corpus.sh: 40 commands with two options each, `ls` with all cases, and a page of
# another section.
mkdir scripts
cp "$source"/scripts/manual_{pairs.sh,library.awk} scripts/
cat >scripts/manual_corpus.sh <<'END'
#!/bin/bash
mkdir -p "$1"
for ((i = 0; i < 40; i++)); do
    {
        printf 'NAME\ntool%d, alias - do the work of \\number "%d"\n\n' $i $i
        printf 'OPTIONS\n-q, --quiet\n       Say nothing at all of %d. And more.\n\n' $i
        printf -- '-h\n       display this help and exit\n'
    } >"$1/tool$i.1.txt"
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
printf 'NAME\nopen - open and possibly create a file\n\n-a\n       not an option of a command\n' \
    >"$1/open.2.txt"
END
chmod +x scripts/manual_corpus.sh

scripts/manual_pairs.sh out 2>stderr || fail "the script ends with $?: $(cat stderr)"
cat out/sft-*.jsonl >all
expect_answer() { # QUESTION ANSWER
    grep -qF "$1\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"$2\"}]}" all ||
        fail "the answer to $1 is not $2: $(grep -F "$1" all)"
}
expect_answer 'What does `ls` do?' 'list directory contents'
expect_answer 'What does option `-a` of `ls` do?' 'do not ignore entries starting with .'
expect_answer 'What does option `--all` of `ls` do?' 'do not ignore entries starting with .'
expect_answer 'What does option `--block-size` of `ls` do?' 'with -l, scale sizes by SIZE'
expect_answer 'What does option `-l` of `ls` do?' 'use a long listing format'
expect_answer 'What does `open` do?' 'open and possibly create a file'
expect_answer 'What does `tool7` do?' 'do the work of \\number \"7\"'
expect_answer 'What does option `-q` of `tool7` do?' 'Say nothing at all of 7'

# Every second question begins with the line of the page.
line='-a, --all: do not ignore entries starting with \.'
grep -qE -- "\"content\": \"($line\\\\n\\\\nWhat does option \`-(a|-all)\`|-l: use a long)" all ||
    fail 'no question about ls begins with the line of the page'
bare=$(grep -c '"content": "What does' all) all=$(wc -l <all)
[ $((all - bare - bare)) -ge -1 ] && [ $((all - bare - bare)) -le 1 ] ||
    fail "$bare of $all questions have no line"

# An answer that is on all pages is in the training data only. All other answers are present.
help='"display this help and exit"}]}'
count=$(grep -c '`-q`' out/sft-validation.jsonl)
[ "$(grep -cF "$help" out/sft-train.jsonl)" = $((40 - count)) ] ||
    fail 'the training data lacks the help of a page'
grep -qF "$help" out/sft-validation.jsonl && fail 'the validation data has a training answer'
[ "$all" = $((126 + 40 - count)) ] || fail "$all rows instead of $((126 + 40 - count))"

[ -s out/sft-validation.jsonl ] || fail 'there are no validation rows'
print_pages() { grep -o 'tool[0-9]*\|`ls`\|`open`' "$1" | sort -u; }
[ -z "$(comm -12 <(print_pages out/sft-train.jsonl) <(print_pages out/sft-validation.jsonl))" ] ||
    fail 'a page is in both parts'
# A rejected response is the answer to a question about another page of the same part.
sed -E 's/.*"chosen": \[\{"role": "assistant", "content": "(.*)"\}\], '\
'"rejected": .*"content": "(.*)"\}\]\}/\1\t\2/' \
    out/dpo-train.jsonl >pairs
awk -F '\t' 'NF != 2 || $1 == $2 { exit 1 }' pairs || fail 'two responses are equal'
cut -f1 pairs | sort -u >chosen
cut -f2 pairs | sort -u | comm -13 chosen - | grep . &&
    fail 'a rejected response is of another part'
check_every_awk manual_pairs.sh
