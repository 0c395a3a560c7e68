#!/bin/bash
# Commands that ask a model about lines of text.
#
#   test_asking.sh embed | classify | answer
#
#   answer    its spans are as often right as evaluate counts, in whole texts and in windows
#   classify  what it says of the held-out rows is what evaluate counts: labels, numbers, labels of words, choices
#   embed     vectors of unit length, the same alone and in a batch; cosines; long texts; a causal model; wrong use
. "$(dirname "$0")/tiny_training.sh"

run 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" --output tok
run 0 prepare --objective mlm --tokenizer tok --input "$source/LICENSE" --sequence-length 32 --output pairs
cat >bert.yaml <<'YAML'
objective: mlm
model: {architecture: bert, num_layers: 2, hidden_size: 16, num_heads: 2, max_position_embeddings: 32}
data: {tokenizer: tok, train: pairs/train-*.h5}
batch: {global_size: 4, micro_size: 2}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 3}
checkpoint: {every: 0}
evaluate: {every: 0}
YAML

unit_vectors() { # LINES: so many vectors of 16 numbers of length 1
    awk -v n="$1" '{ s = 0; for (i = 1; i <= NF; i++) s += $i * $i; d = s - 1; if (NF != 16 || !(d * d <= 1e-10)) bad = 1 }
        END { exit bad || NR != n }' out || fail "not $1 vectors of unit length"
}

embed() {
    run 0 train bert.yaml run_dir=bert
    grep . "$source/LICENSE" | cut -c1-20 | head -n 70 | sed 's/^ *//' >lines
    run 0 embed --checkpoint bert lines
    unit_vectors 70
    mv out all
    timeout 50 "$program" embed --checkpoint bert - <lines >out 2>told || fail 'standard input'
    cmp all out || fail 'standard input differs from the file'
    sed -n 41p lines >one
    run 0 embed --checkpoint bert one
    paste -d' ' out <(sed -n 41p all) | awk '{ for (i = 1; i <= 16; i++) { d = $i - $(i + 16); if (!(d * d <= 1e-11)) bad = 1 } }
        END { exit bad || NF != 32 }' || fail 'a line alone has another vector than among others'

    printf '%s\n' 'the licence' 'any other work' 'the licence' >three
    run 0 embed --checkpoint bert --similarity three
    awk -F'\t' '{ for (i = 1; i <= 3; i++) m[NR, i] = $i } END { exit !(NR == 3 && m[1, 1] == 1 && m[1, 3] == 1 && m[1, 2] == m[2, 1] &&
        m[1, 2] < 1 && m[1, 2] >= -1) }' out || fail 'the cosines are not those of three texts, two of them equal'
    run 0 embed --checkpoint bert --query 'any other work' --top-k 2 three
    [ "$(wc -l <out)" = 2 ] && head -n 1 out | grep -q '^1.0000.any other work$' || fail 'the text itself is not the nearest'
    run 0 embed --checkpoint bert --json three
    [ "$(grep -c '^{"text": *"[^"]*", *"embedding": *\[.*\]}$' out)" = 3 ] || fail 'not three JSON objects'
    run 0 embed --checkpoint bert --query the --json three
    [ "$(grep -c '"similarity"' out)" = 3 ] || fail 'not three JSON objects'

    { echo short; head -c 600 "$source/LICENSE" | tr '\n' ' '; } >long
    run 65 embed --checkpoint bert long
    one_line 65 'long:2: the text has [0-9]* tokens including \[CLS\] and \[SEP\], but the model has 32 positions'
    run 0 embed --checkpoint bert --truncate long
    unit_vectors 2
    grep -q 'truncated 1 text to the 32 positions' told || fail 'nobody tells of the text that was cut'

    run 0 train recipe.yaml model.hidden_size=16 train.max_steps=5
    run 0 embed --checkpoint run three
    unit_vectors 3
    echo >empty
    run 65 embed --checkpoint run empty
    one_line 65 'empty:1: the text has no tokens'
    run 64 embed --checkpoint bert --query x --similarity three
    printf 'good\nnot \377 good\n' >bytes
    run 65 embed --checkpoint bert --json bytes
    one_line 65 'bytes:2: the text is not valid UTF-8'
    run 65 embed --checkpoint bert --query $'\377' three
    one_line 65 'the text is not valid UTF-8'
    printf 'a\0b\n' >bytes
    run 65 embed --checkpoint bert bytes
    one_line 65 'bytes:1: byte 2 is NUL'
    run 0 embed --checkpoint bert three
    mv out plain
    sed 's/$/\r/' three >windows
    run 0 embed --checkpoint bert windows
    cmp out plain || fail "the ends of Windows' lines are a part of the text"
    run 66 embed --checkpoint bert nowhere
    one_line 66 'nowhere'
}

# Rows of each task, and their texts as classify reads them: NAME.jsonl, NAME.lines, NAME.right.
make_rows() {
    awk 'BEGIN { split("the list of files and user system answer license work source object form", w, " "); x = 7
        for (i = 0; i < 60; i++) {
            text = words = tags = right = ""
            for (j = 0; j < 4 + i % 5; j++) {
                x = (x * 1103 + 12345) % 65536
                text = text (j ? " " : "") w[x % 13 + 1]
                words = words (j ? ", " : "") "\"" w[x % 13 + 1] "\""
                tags = tags (j ? ", " : "") (x % 3 == 1 ? "\"B\"" : "\"A\"")
                right = right (j ? "\n" : "") (x % 3 == 1 ? "B" : "A")
            }
            pair = i % 3 == 0 ? w[i % 13 + 1] " and " w[i % 7 + 1] : ""
            printf "{\"text\": \"%s\", \"text_pair\": %s, \"label\": \"%s\"}\n", text, pair != "" ? "\"" pair "\"" : "null", x % 3 ? "yes" : "no" > "classify.jsonl"
            print text (pair != "" ? "\t" pair : "") > "classify.lines"
            print x % 3 ? "yes" : "no" > "classify.right"
            printf "{\"text\": \"%s\", \"label\": %s}\n", text, x % 7 / 2 > "regress.jsonl"
            print text > "regress.lines"
            print x % 7 / 2 > "regress.right"
            printf "{\"tokens\": [%s], \"tags\": [%s]}\n", words, tags > "classify_tokens.jsonl"
            print text > "classify_tokens.lines"
            print right "\n" > "classify_tokens.right"
            a = w[x % 13 + 1]; b = w[(x + 5) % 13 + 1] " " w[i % 13 + 1]; c = "form " i
            printf "{\"text\": \"%s\", \"choices\": [\"%s\", \"%s\", \"%s\"], \"label\": %d}\n", text, a, b, c, i % 3 > "choose.jsonl"
            print text "\t" a "\t" b "\t" c > "choose.lines"
            print i % 3 > "choose.right"
        } }'
}

train_task() { # TASK MODEL...: on all rows, which are held out too
    local task=$1
    shift
    run 0 prepare --objective "$task" --tokenizer tok --input "$task.jsonl" --validation-input "$task.jsonl" --sequence-length 32 --output "$task"
    run 0 train bert.yaml objective="$task" run_dir="$task-run" 'data.train='"$task/train-*.h5" "$@"
    run 0 evaluate --checkpoint "$task-run" --data "$task/validation-*.h5"
    mv out told_by_evaluate
    run 0 classify --checkpoint "$task-run" "$task.lines"
}

# The share of lines whose first field is right, blank ones left out, as evaluate tells it.
accuracy_is_evaluates() { # TASK COLUMN
    paste <(cut -f"$2" out) "$1.right" | awk -F'\t' '$2 != "" { n++; right += $1 == $2 } END { print right / n }' >share
    awk '$1 == "accuracy" { print $2 }' told_by_evaluate | paste share - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-10 && $1 > 0 && $1 < 1) }' || fail "$1: classify has $(cat share), evaluate $(cat told_by_evaluate)"
}

classify() {
    make_rows
    run 0 tokenizer train --type wordpiece --vocab-size 120 --input classify.jsonl --output tok
    train_task classify
    accuracy_is_evaluates classify 1
    # F1 of the label "no" from what classify said
    paste <(cut -f1 out) classify.right | awk '{ p += $1 == "no"; l += $2 == "no"; r += $1 == "no" && $2 == "no" } END { print p + l ? 2 * r / (p + l) : 0 }' >f1
    awk '$1 == "f1.no" { print $2 }' told_by_evaluate | paste f1 - | awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-10) }' ||
        fail "the F1 of a label: $(cat f1) and $(cat told_by_evaluate)"
    [ "$(wc -l <out)" = 60 ] || fail 'not a line for each line'
    run 0 classify --checkpoint classify-run --json --top-k 2 classify.lines
    [ "$(grep -cE '"labels":\[\{"label":"(yes|no)","probability":[0-9.e-]+\},\{"label":"(yes|no)"' out)" = 60 ] || fail "JSON: $(head -n 1 out)"
    train_task regress
    paste out regress.right | awk '{ d = $1 - $2; s += d < 0 ? -d : d } END { print s / NR }' >share
    awk '$1 == "mean_absolute_error" { print $2 }' told_by_evaluate | paste share - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-8) }' || fail "regress: $(cat share) and $(cat told_by_evaluate)"
    train_task classify_tokens
    accuracy_is_evaluates classify_tokens 2
    train_task choose
    accuracy_is_evaluates choose 1
    # a causal model's head reads the last token
    train_task classify model.architecture=gpt2 run_dir=causal
    run 0 evaluate --checkpoint causal --data 'classify/validation-*.h5'
    mv out told_by_evaluate
    run 0 classify --checkpoint causal classify.lines
    accuracy_is_evaluates classify 1
    run 0 train recipe.yaml run_dir=words
    run 65 classify --checkpoint words classify.lines
    one_line 65 'words was trained with objective clm'
    echo 'no choice' >one
    run 65 classify --checkpoint choose-run one
    one_line 65 'one:1: the line has 0 choices'
}

answer() {
    awk 'BEGIN { n = split("the list of files and user system answer license work source object form", w, " "); x = 7
        for (i = 0; i < 80; i++) {
            text = ""
            for (j = 0; j < 9; j++) { x = (x * 1103 + 12345) % 65536; word[j] = w[x % n + 1] (x % 4 == 0 ? "," : ""); text = text (j ? " " : "") word[j] }
            at = x % 8
            right = word[at] " " word[at + 1]
            start = 0
            for (j = 0; j < at; j++) start += length(word[j]) + 1
            question = "what of " word[at]
            printf "{\"question\": \"%s\", \"context\": \"%s\", \"answer\": \"%s\", \"answer_start\": %d}\n", question, text, right, start > "answer.jsonl"
            print question "\t" text > "answer.lines"
            print right > "answer.right"
        } }'
    run 0 tokenizer train --type wordpiece --vocab-size 70 --input answer.lines --output tok
    run 0 prepare --objective answer --tokenizer tok --input answer.jsonl --validation-input answer.jsonl --sequence-length 21 --output answers
    run 0 train bert.yaml objective=answer run_dir=reads 'data.train=answers/train-*.h5' 'data.validation=answers/validation-*.h5' \
        answer.no_answer_threshold=1e9 model.max_position_embeddings=64 data.sequence_length=21 train.max_steps=60 evaluate.every=60 evaluate.batches=null evaluate.metric=exact_match checkpoint.keep_best=true
    grep -q '"event":"evaluate","step":60.*"exact_match":0\.' reads/metrics.jsonl || fail 'no exact matches in the metrics'
    run 0 evaluate --checkpoint reads --data 'answers/validation-*.h5' --set answer.no_answer_threshold=-1e9
    awk '$1 == "exact_match" { exit !($2 <= 0.05) }' out || fail 'questions have answers, whatever the threshold' # "the" is no word
    run 0 evaluate --checkpoint reads --data 'answers/validation-*.h5'
    mv out told_by_evaluate
    run 0 answer --checkpoint reads answer.lines
    [ "$(wc -l <out)" = 80 ] || fail 'not an answer for each line'
    normal() { tr -d ',' | sed -E 's/(^| )the( |$)/\1\2/g; s/ +/ /g; s/^ | $//g'; }
    paste <(cut -f1 out | normal) <(normal <answer.right) | awk -F'\t' '{ right += $1 == $2 } END { print right / NR }' >share
    awk '$1 == "exact_match" { print $2 }' told_by_evaluate | paste share - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-10 && $1 > 0 && $1 < 1) }' || fail "answer has $(cat share), evaluate $(cat told_by_evaluate)"
    [ "$(awk '$1 == "examples" { print $2 }' told_by_evaluate)" -gt 90 ] || fail 'no text has two windows'
    awk '$1 == "exact_match" { e = $2 } $1 == "f1" { exit !($2 >= e && $2 < 1) }' told_by_evaluate || fail 'F1 is below the exact matches'
    # one question for a long text, in windows: what is told stands where it is said to
    { tr '\n' ' ' <answer.right | sed 's/form/f\xc3\xb6rm/g' && echo; } >long
    run 0 answer --checkpoint reads --question 'what of user' --json long
    said=$(grep -o '"answer": *"[^"]*"' out | cut -d'"' -f4) begin=$(grep -o '"begin": *[0-9]*' out | grep -o '[0-9]*')
    (LC_ALL=C.UTF-8 line=$(<long) && [ -n "$said" ] && [ "${line:begin:${#said}}" = "$said" ]) ||
        fail "the answer is not where it is told to be: $(cat out)"
    echo 'no tab here' >one
    run 65 answer --checkpoint reads one
    one_line 65 'one:1: the line has no tab'
    run 0 train recipe.yaml run_dir=words
    run 65 answer --checkpoint words answer.lines
    one_line 65 'words was trained with objective clm'
}

case ${1:-} in
embed | classify | answer) "$1" ;;
*) echo "usage: test_asking.sh embed | classify | answer" >&2 && exit 64 ;;
esac
