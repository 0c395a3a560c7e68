#!/bin/bash
# Commands that ask a model about lines of text.
#
#   test_asking.sh embed
#
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
    one_line 65 'long:2: a text of [0-9]* tokens with \[CLS\] and \[SEP\], the model has 32 positions'
    run 0 embed --checkpoint bert --truncate long
    unit_vectors 2
    grep -q '1 text was cut' told || fail 'nobody tells of the text that was cut'

    run 0 train recipe.yaml model.hidden_size=16 train.max_steps=5
    run 0 embed --checkpoint run three
    unit_vectors 3
    echo >empty
    run 65 embed --checkpoint run empty
    one_line 65 'empty:1: a text without a token'
    run 64 embed --checkpoint bert --query x --similarity three
    run 66 embed --checkpoint bert nowhere
    one_line 66 'nowhere'
}

case ${1:-} in
embed) "$1" ;;
*) echo "usage: test_asking.sh embed" >&2 && exit 64 ;;
esac
