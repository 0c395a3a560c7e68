#!/bin/bash
# Tests the commands that run a model on lines of text.
# Parts:
#
#   embed     vectors have unit length and do not depend on the batch; cosines; long texts; a causal
#             model; usage errors
#   attention rows of the printed weights, a page that loads nothing, two texts, refused outputs
#   classify  the outputs for the validation rows have the accuracy that `bireme evaluate` computes:
#             labels, numbers, labels of words, choices
#   answer    the spans have the exact match that `bireme evaluate` computes, in whole texts and in
#             windows
# ctest: parts embed attention classify answer
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
    --output tok
run_bireme 0 prepare --objective mlm --tokenizer tok --input "$source/LICENSE" \
    --sequence-length 32 --output pairs
cat >bert.yaml <<'YAML'
objective: mlm
model: {architecture: bert, num_layers: 2, hidden_size: 16, num_heads: 2,
  max_position_embeddings: 32}
data: {tokenizer: tok, train: pairs/train-*.h5}
batch: {global_size: 4, micro_size: 2}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 3}
checkpoint: {every: 0}
evaluate: {every: 0}
YAML

# check_damaged RUN COMMAND [ARGUMENT...]: with damaged weights no output is finite. The command
# ends with 79 and prints no result.
check_damaged() {
    damage_weights "$1"
    shift
    run_bireme 79 "$@" --checkpoint damaged
    expect_error 'the weights are damaged'
    [ ! -s out ] || fail "a result of damaged weights: $(head -n 1 out)"
}

# expect_unit_vectors LINES: the output has LINES vectors of 16 numbers, each with length 1.
expect_unit_vectors() {
    awk -v n="$1" '
        {
            s = 0
            for (i = 1; i <= NF; i++) s += $i * $i
            d = s - 1
            if (NF != 16 || !(d * d <= 1e-10)) bad = 1
        }
        END { exit bad || NR != n }' out || fail "not $1 vectors of unit length"
}

test_embed() {
    run_bireme 0 train bert.yaml run_dir=bert
    grep . "$source/LICENSE" | cut -c1-20 | head -n 70 | sed 's/^ *//' >lines
    run_bireme 0 embed --checkpoint bert lines
    expect_unit_vectors 70
    mv out all
    timeout 50 "$program" embed --checkpoint bert - <lines >out 2>stderr ||
        fail 'embed fails on standard input'
    cmp all out || fail 'standard input and the file give different vectors'
    sed -n 41p lines >one
    run_bireme 0 embed --checkpoint bert one
    paste -d' ' out <(sed -n 41p all) | awk '
        { for (i = 1; i <= 16; i++) { d = $i - $(i + 16); if (!(d * d <= 1e-11)) bad = 1 } }
        END { exit bad || NF != 32 }' || fail 'the vector of a line depends on the other lines'

    printf '%s\n' 'the license' 'any other work' 'the license' >three
    run_bireme 0 embed --checkpoint bert --similarity three
    awk -F'\t' '{ for (i = 1; i <= 3; i++) m[NR, i] = $i }
        END { exit !(NR == 3 && m[1, 1] == 1 && m[1, 3] == 1 && m[1, 2] == m[2, 1] &&
            m[1, 2] < 1 && m[1, 2] >= -1) }' out ||
        fail 'the cosines are not those of three texts, two of them equal'
    run_bireme 0 embed --checkpoint bert --query 'any other work' --top-k 2 three
    [ "$(wc -l <out)" = 2 ] && head -n 1 out | grep -q '^1.0000.any other work$' ||
        fail 'the nearest text is not the query itself'
    run_bireme 0 embed --checkpoint bert --json three
    [ "$(grep -c '^{"text": *"[^"]*", *"embedding": *\[.*\]}$' out)" = 3 ] ||
        fail 'not three JSON objects'
    check_damaged bert embed three
    run_bireme 0 embed --checkpoint bert --query the --json three
    [ "$(grep -c '"similarity"' out)" = 3 ] || fail 'not three JSON objects'

    { echo short; head -c 600 "$source/LICENSE" | tr '\n' ' '; } >long
    run_bireme 65 embed --checkpoint bert long
    expect_error 'long:2: the text with \[CLS\] and \[SEP\] has [0-9]* tokens, but the model'\
' has 32 positions'
    run_bireme 0 embed --checkpoint bert --truncate long
    expect_unit_vectors 2
    grep -q 'truncated 1 text to the 32 positions' stderr || fail 'the truncation is not reported'

    run_bireme 0 train recipe.yaml model.hidden_size=16 train.max_steps=5
    run_bireme 0 embed --checkpoint run three
    expect_unit_vectors 3
    echo >empty
    run_bireme 65 embed --checkpoint run empty
    expect_error 'empty:1: the text has no tokens'
    run_bireme 64 embed --checkpoint bert --query x --similarity three
    printf 'good\nnot \377 good\n' >bytes
    run_bireme 65 embed --checkpoint bert --json bytes
    expect_error 'bytes:2: the text is not valid UTF-8; convert .* `iconv -f latin1'
    run_bireme 65 embed --checkpoint bert --query $'\377' three
    expect_error 'the text is not valid UTF-8'
    printf 'a\0b\n' >bytes
    run_bireme 65 embed --checkpoint bert bytes
    expect_error 'bytes:1: byte 2 is NUL'
    run_bireme 0 embed --checkpoint bert three
    mv out plain
    sed 's/$/\r/' three >windows
    run_bireme 0 embed --checkpoint bert windows
    cmp out plain || fail 'a carriage return at the end of a line is a part of the text'
    run_bireme 66 embed --checkpoint bert nowhere
    expect_error 'nowhere'
    test_columns
}

# expect_warning COUNT: the last command printed COUNT warnings about plain text.
expect_warning() {
    [ "$(grep -c W-PLAIN-TEXT stderr)" = "$1" ] || fail "not $1 warnings about plain text"
}

# Columns of tables and JSON Lines; a warning if they are read as lines.
test_columns() {
    awk 'BEGIN { print "stars,review" } { print NR ",\"" $0 "\"" }' three >three.csv
    awk '{ printf "{\"review\": \"%s\"}\n", $0 }' three >three.jsonl
    cp three.jsonl three.txt
    run_bireme 0 embed --checkpoint bert three
    expect_warning 0
    cp out plain
    for file in three.csv three.jsonl; do
        run_bireme 0 embed --checkpoint bert --columns text=review $file
        cmp out plain || fail "$file: the vectors are not those of the lines"
        expect_warning 0
    done
    for file in three.csv three.jsonl three.txt; do
        run_bireme 0 embed --checkpoint bert $file
        expect_warning 1
        grep -q -- '--columns text=' stderr || fail 'the remedy is missing'
    done
    timeout 50 "$program" embed --checkpoint bert --columns text=review <three.jsonl >out \
        2>stderr || fail 'no columns of standard input'
    cmp out plain || fail 'other vectors of standard input'
    run_bireme 65 embed --checkpoint bert --columns text=name three.csv
    expect_error "three.csv:2: no field 'name' (the row has 'stars', 'review'"
    echo '{"review": "a\u0000b"}' >>three.jsonl
    run_bireme 65 embed --checkpoint bert --columns text=review three.jsonl
    expect_error "three.jsonl:4: the field 'text' contains a NUL"
    run_bireme 64 embed --checkpoint bert --columns txt=review three.csv
    expect_error "did you mean 'text'"
    run_bireme 0 score --checkpoint run three
    cp out plain
    run_bireme 0 score --checkpoint run --columns text=review three.csv
    cmp out plain || fail 'other scores of a table'
    run_bireme 0 score --checkpoint run three.csv
    expect_warning 1
    local generate=(generate --checkpoint run --temperature 0 --max-new-tokens 3)
    run_bireme 0 "${generate[@]}" --prompt-file three
    cp out plain
    run_bireme 0 "${generate[@]}" --prompt-file three.csv --columns prompt=review
    cmp out plain || fail 'other texts of a table'
    run_bireme 0 "${generate[@]}" --prompt-file three.csv
    expect_warning 1
    run_bireme 64 "${generate[@]}" --prompt a --columns prompt=review
    expect_error '--columns can only be used with --prompt-file'
}

# expect_attention TOKENS: the output has 2 layers x 2 heads x TOKENS rows of TOKENS weights. The
# sum of each row is 1.
expect_attention() {
    sed 's/.*"attentions": *\[*//; s/\]\]*, *\[*/\n/g; s/\]*}$//' out | awk -F', *' -v n="$1" '
        {
            sum = 0
            for (i = 1; i <= NF; i++) { sum += $i; bad = bad || $i < 0 }
            bad = bad || NF != n || (sum - 1)^2 > 1e-10
        }
        END { exit bad || NR != 4 * n }' || fail "not 4 x $1 rows of $1 weights with the sum 1"
}

test_attention() {
    run_bireme 0 train bert.yaml run_dir=bert
    run_bireme 0 attention --checkpoint bert 'a [MASK] a' --json
    grep -q '"tokens": *\["\[CLS\]", *"a", *"\[MASK\]", *"a", *"\[SEP\]"\]' out ||
        fail 'the tokens are wrong'
    expect_attention 5
    run_bireme 0 attention --checkpoint bert 'a' 'a </script>' --output page.html --json
    grep -q '"tokens": *\["\[CLS\]", *"a", *"\[SEP\]", *"a",.*"\[SEP\]"\]' out ||
        fail 'the second text is missing'
    head -n 1 page.html | grep -q '^<!doctype html>' || fail 'the page is no HTML'
    grep -q "default-src 'none'" page.html || fail 'the page may load other files'
    [ "$(grep -c '</script>' page.html)" = 2 ] || fail 'a token ends the data of the page'
    grep -qE 'https?://' page.html && fail 'the page refers to the network'
    run_bireme 0 attention --checkpoint bert 'another text' --output page.html
    run_bireme 73 attention --checkpoint bert 'a' --output bert.yaml
    expect_error 'bert.yaml exists and is not a report'
    run_bireme 64 attention --checkpoint bert 'a' --output page.png
    expect_error 'page.png: the output is an HTML page; give the file a name that ends with .html'
    [ ! -e page.png ] || fail 'page.png was written'
    run_bireme 64 attention --checkpoint bert 'a'
    expect_error 'attention has no output; add --output FILE.html or --json'
    check_damaged bert attention --json 'a [MASK]'
    check_damaged bert fill-mask 'a [MASK]'
    run_bireme 65 attention --checkpoint bert --json "$(head -c 600 "$source/LICENSE")"
    expect_error 'but the model has 32 positions'

    run_bireme 0 train recipe.yaml train.max_steps=5 model.num_layers=2 model.num_heads=2
    run_bireme 0 attention --checkpoint run --json 'x'
    [ "$(sed 's/.*"attentions": *//' out)" = '[[[[1.0]],[[1.0]]],[[[1.0]],[[1.0]]]]}' ] ||
        fail 'the first token does not attend to itself alone'
    run_bireme 64 attention --checkpoint run 'a' 'b' --json
    expect_error 'two texts need an encoder'
}

# make_rows: for each task write its rows to NAME.jsonl, the lines that classify reads to NAME.lines
# and the expected outputs to NAME.right.
make_rows() {
    awk 'BEGIN {
        split("the list of files and user system answer license work source object form", w, " ")
        x = 7
        for (i = 0; i < 60; i++) {
            text = words = tags = right = ""
            for (j = 0; j < 4 + i % 5; j++) {
                x = (x * 1103 + 12345) % 65536
                text = text (j ? " " : "") w[x % 13 + 1]
                words = words (j ? ", " : "") "\"" w[x % 13 + 1] "\""
                tags = tags (j ? ", " : "") (x % 3 == 1 ? "\"B\"" : "\"A\"")
                right = right (j ? "\n" : "") (x % 3 == 1 ? "B" : "A")
            }
            pair = w[i % 13 + 1] " and " w[i % 7 + 1]
            printf "{\"text\": \"%s\", \"text_pair\": \"%s\", \"label\": \"%s\"}\n", text,
                pair, x % 3 ? "yes" : "no" > "classify.jsonl"
            print text "\t" pair > "classify.lines"
            print x % 3 ? "yes" : "no" > "classify.right"
            printf "{\"text\": \"%s\", \"label\": %s}\n", text, x % 7 / 2 > "regress.jsonl"
            print text > "regress.lines"
            print x % 7 / 2 > "regress.right"
            printf "{\"tokens\": [%s], \"tags\": [%s]}\n", words, tags > "classify_tokens.jsonl"
            print text > "classify_tokens.lines"
            print right "\n" > "classify_tokens.right"
            a = w[x % 13 + 1]; b = w[(x + 5) % 13 + 1] " " w[i % 13 + 1]; c = "form " i
            printf "{\"text\": \"%s\", \"choices\": [\"%s\", \"%s\", \"%s\"], \"label\": %d}\n",
                text, a, b, c, i % 3 > "choose.jsonl"
            print text "\t" a "\t" b "\t" c > "choose.lines"
            print i % 3 > "choose.right"
        } }'
}

# train_task TASK SETTING...: train on all rows, also validate on them, evaluate and classify.
train_task() {
    local task=$1
    shift
    run_bireme 0 prepare --objective "$task" --tokenizer tok --input "$task.jsonl" \
        --validation-input "$task.jsonl" --sequence-length 32 --output "$task"
    run_bireme 0 train bert.yaml objective="$task" run_dir="$task-run" \
        'data.train='"$task/train-*.h5" "$@"
    run_bireme 0 evaluate --checkpoint "$task-run" --data "$task/validation-*.h5"
    mv out evaluated
    run_bireme 0 classify --checkpoint "$task-run" "$task.lines"
}

# check_accuracy TASK COLUMN: this column has the expected text in a share of the lines that equals
# the accuracy that evaluate printed. Blank lines are not counted.
check_accuracy() {
    paste <(cut -f"$2" out) "$1.right" |
        awk -F'\t' '$2 != "" { n++; right += $1 == $2 } END { print right / n }' >share
    awk '$1 == "accuracy" { print $2 }' evaluated | paste share - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-10 && $1 > 0 && $1 < 1) }' ||
        fail "$1: the accuracy of classify is $(cat share), evaluate printed $(cat evaluated)"
}

test_classify() {
    make_rows
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 120 --input classify.jsonl \
        --output tok
    train_task classify
    check_accuracy classify 1
    # F1 of the label "no", computed from the output of classify.
    paste <(cut -f1 out) classify.right | awk '
        { p += $1 == "no"; l += $2 == "no"; r += $1 == "no" && $2 == "no" }
        END { print p + l ? 2 * r / (p + l) : 0 }' >f1
    awk '$1 == "f1.no" { print $2 }' evaluated | paste f1 - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-10) }' ||
        fail "the F1 of a label is $(cat f1), evaluate printed $(cat evaluated)"
    [ "$(wc -l <out)" = 60 ] || fail 'not one output line per input line'
    run_bireme 0 classify --checkpoint classify-run --json --top-k 2 classify.lines
    local label='\{"label":"(yes|no)"'
    [ "$(grep -cE "\"labels\":\[$label,\"probability\":[0-9.e-]+\},$label" out)" = 60 ] ||
        fail "JSON: $(head -n 1 out)"
    run_bireme 0 classify --checkpoint classify-run classify.lines
    cp out plain
    run_bireme 0 classify --checkpoint classify-run --columns text=text classify.jsonl
    cmp out plain || fail 'other labels of JSON Lines'
    { printf 'a\tb\n' && cat classify.lines; } >classify.tsv
    run_bireme 0 classify --checkpoint classify-run --columns text=a,text_pair=b classify.tsv
    cmp out plain || fail 'other labels of a table'
    run_bireme 0 classify --checkpoint classify-run classify.tsv
    expect_warning 0 # pairs of texts are separated by tabs
    run_bireme 65 classify --checkpoint classify-run --columns text=a classify.tsv
    expect_error 'classify.tsv:2: the row has no second text'
    check_damaged classify-run classify classify.lines
    check_damaged classify-run classify --json classify.lines
    train_task regress
    paste out regress.right | awk '{ d = $1 - $2; s += d < 0 ? -d : d } END { print s / NR }' >share
    awk '$1 == "mean_absolute_error" { print $2 }' evaluated | paste share - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-8) }' ||
        fail "regress: the error is $(cat share), evaluate printed $(cat evaluated)"
    train_task classify_tokens
    check_accuracy classify_tokens 2
    train_task choose
    check_accuracy choose 1
    # The head of a causal model reads the last token.
    train_task classify model.architecture=gpt2 run_dir=causal
    run_bireme 0 evaluate --checkpoint causal --data 'classify/validation-*.h5'
    mv out evaluated
    run_bireme 0 classify --checkpoint causal classify.lines
    check_accuracy classify 1
    run_bireme 0 train recipe.yaml run_dir=words
    run_bireme 65 classify --checkpoint words classify.lines
    expect_error 'words was trained with objective clm'
    run_bireme 0 classify --checkpoint choose-run choose.lines
    cp out plain
    run_bireme 0 classify --checkpoint choose-run --columns text=text choose.jsonl
    cmp out plain || fail 'other choices of JSON Lines'
    { printf 'a\tb\tc\td\n' && cat choose.lines; } >choose.tsv
    run_bireme 0 classify --checkpoint choose-run --columns text=a,choices=b,choices=c,choices=d \
        choose.tsv
    cmp out plain || fail 'other choices of a table'
    run_bireme 65 classify --checkpoint choose-run --columns text=a choose.tsv
    expect_error "choose.tsv:2: no field 'choices' (the row has 'a'"
    run_bireme 65 classify --checkpoint choose-run --columns text=a,choices=b choose.tsv
    expect_error 'if each text has a column, write --columns choices=A,choices=B'
    echo '{"text": "a", "choices": ["b", "c\u0000d"]}' >nul.jsonl
    run_bireme 65 classify --checkpoint choose-run --columns text=text nul.jsonl
    expect_error "nul.jsonl:1: the field 'choices': element 1 .* contains a NUL character"
    echo 'no choice' >one
    run_bireme 65 classify --checkpoint choose-run one
    expect_error 'one:1: the line has 0 choices'
}

test_answer() {
    awk 'BEGIN {
        words = "the list of files and user system answer license work source object form"
        n = split(words, w, " ")
        x = 7
        for (i = 0; i < 80; i++) {
            text = ""
            for (j = 0; j < 9; j++) {
                x = (x * 1103 + 12345) % 65536
                word[j] = w[x % n + 1] (x % 4 == 0 ? "," : "")
                text = text (j ? " " : "") word[j]
            }
            at = x % 8
            right = word[at] " " word[at + 1]
            start = 0
            for (j = 0; j < at; j++) start += length(word[j]) + 1
            question = "what of " word[at]
            printf "{\"question\": \"%s\", \"context\": \"%s\", ", question, text > "answer.jsonl"
            printf "\"answer\": \"%s\", \"answer_start\": %d}\n", right, start > "answer.jsonl"
            print question "\t" text > "answer.lines"
            print right > "answer.right"
        } }'
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 70 --input answer.lines --output tok
    run_bireme 0 prepare --objective answer --tokenizer tok --input answer.jsonl \
        --validation-input answer.jsonl --sequence-length 21 --output answers
    run_bireme 0 train bert.yaml objective=answer run_dir=reads 'data.train=answers/train-*.h5' \
        'data.validation=answers/validation-*.h5' \
        answer.no_answer_threshold=1e9 model.max_position_embeddings=64 data.sequence_length=21 \
        train.max_steps=60 evaluate.every=60 evaluate.batches=null evaluate.metric=exact_match \
        checkpoint.keep_best=true
    grep -q '"event":"evaluate","step":60.*"exact_match":0\.' reads/metrics.jsonl ||
        fail 'no exact matches in the metrics'
    run_bireme 0 evaluate --checkpoint reads --data 'answers/validation-*.h5' \
        --set answer.no_answer_threshold=-1e9
    awk '$1 == "exact_match" { exit !($2 <= 0.05) }' out ||
        fail 'there are answers in spite of the threshold' # "the" normalizes to ""
    run_bireme 0 evaluate --checkpoint reads --data 'answers/validation-*.h5'
    mv out evaluated
    check_damaged reads answer answer.lines
    run_bireme 0 answer --checkpoint reads answer.lines
    [ "$(wc -l <out)" = 80 ] || fail 'not one answer per line'
    normalize_answers() { tr -d ',' | sed -E 's/(^| )the( |$)/\1\2/g; s/ +/ /g; s/^ | $//g'; }
    paste <(cut -f1 out | normalize_answers) <(normalize_answers <answer.right) |
        awk -F'\t' '{ right += $1 == $2 } END { print right / NR }' >share
    awk '$1 == "exact_match" { print $2 }' evaluated | paste share - |
        awk '{ d = $1 - $2; exit !(NF == 2 && d * d <= 1e-10 && $1 > 0 && $1 < 1) }' ||
        fail "the exact match of answer is $(cat share), evaluate printed $(cat evaluated)"
    [ "$(awk '$1 == "examples" { print $2 }' evaluated)" -gt 90 ] || fail 'no text has two windows'
    awk '$1 == "exact_match" { e = $2 } $1 == "f1" { exit !($2 >= e && $2 < 1) }' evaluated ||
        fail 'F1 is below the exact match'
    run_bireme 0 answer --checkpoint reads answer.lines
    cp out plain
    run_bireme 0 answer --checkpoint reads --columns context=context answer.jsonl
    cmp out plain || fail 'other answers of JSON Lines'
    run_bireme 0 answer --checkpoint reads --columns context=context --question 'what of user' \
        answer.jsonl
    sed 's/"question"/"other"/' answer.jsonl >other.jsonl
    run_bireme 65 answer --checkpoint reads --columns context=context other.jsonl
    expect_error "other.jsonl:1: no field 'question'; give --columns question=COLUMN"
    # One question for a long text, in windows: the answer is at the printed position.
    { tr '\n' ' ' <answer.right | sed 's/form/f\xc3\xb6rm/g' && echo; } >long
    run_bireme 0 answer --checkpoint reads --question 'what of user' --json long
    span=$(grep -o '"answer": *"[^"]*"' out | cut -d'"' -f4)
    begin=$(grep -o '"begin": *[0-9]*' out | grep -o '[0-9]*')
    (LC_ALL=C.UTF-8 line=$(<long) && [ -n "$span" ] && [ "${line:begin:${#span}}" = "$span" ]) ||
        fail "the answer is not at the printed position: $(cat out)"
    echo 'no tab here' >one
    run_bireme 65 answer --checkpoint reads one
    expect_error 'one:1: the line has no tab'
    run_bireme 0 train recipe.yaml run_dir=words
    run_bireme 65 answer --checkpoint words answer.lines
    expect_error 'words was trained with objective clm'
}

run_part "$@"
