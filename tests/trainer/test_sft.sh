#!/bin/bash
# Fine-tuning from JSON Lines to a conversation, on a tiny model folder of Hugging Face's.
#
#   test_sft.sh trl | packing | layouts | chat
#
#   trl          three steps have the losses and metrics that TRL's SFTTrainer logged (scripts/make_reference.py sft)
#   packing      packed or not, accumulated or not: the same losses; a stream without boundaries has others
#   layouts      two ranks that share the model, or its gradients, with dropout; and going on from a checkpoint
#   chat         answers on standard output, /reset, /save, Ctrl-C; what is missing is told
part=${1:-}
# shellcheck source=tests/trainer/tiny_training.sh
. "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
readonly reference=$source/tests/reference/sft

# prepare_rows NAME FLAG...: NAME.jsonl into shards in NAME/, with a tokenizer's folder of its own.
prepare_rows() {
    local name=$1
    shift
    mkdir -p "tokenizer_$name"
    cp "$reference/tokenizer.json" "tokenizer_$name/"
    run 0 prepare --objective sft --tokenizer "tokenizer_$name" --input "$reference/$name.jsonl" --output "$name" "$@"
}

# recipe NAME ROWS: NAME.yaml for shards in NAME/, all rows in a step.
recipe() {
    {
        cat <<EOF
objective: sft
run_dir: run_$1
data: {tokenizer: tokenizer_$1, train: $1/train-*.h5, sequence_length: 128}
batch: {global_size: $2, micro_size: $2}
optimizer: {learning_rate: 0.01, beta2: 0.999, weight_decay: 0.0}
schedule: {name: constant}
train: {max_steps: 3}
checkpoint: {every: 0}
log: {every: 1}
EOF
        cat section
    } >"$1.yaml"
}

# told RUN: loss, accuracy, entropy, tokens and gradient's norm of each step, a line each.
told_steps() {
    grep '"event":"train"' "$1/metrics.jsonl" | sed -E 's/.*"loss":([^,]+),.*"grad_norm":([^,]+),.*"num_tokens":([^,]+),'\
'"mean_token_accuracy":([^,]+),"entropy":([^,}]+).*/\1 \4 \5 \3 \2/'
}

# near FILE FILE TOLERANCE: all numbers of both, and there are some.
near() {
    paste -d' ' "$1" "$2" | awk -v tolerance="$3" '
        { n = NF / 2; for (i = 1; i <= n; i++) { d = $i - $(n + i); if (!(d * d <= tolerance * tolerance * (1 + $i * $i))) bad = 1 } }
        NF < 2 || NF % 2 { bad = 1 }
        END { exit bad || NR == 0 }' || fail "$1 and $2 differ: $(paste -d'|' "$1" "$2")"
}

begin() {
    cp -r "$reference" theirs
    run 0 import theirs --output ours
    cp out section
    prepare_rows pairs
    recipe pairs 8
}

trl() {
    begin
    prepare_rows messages --chat-template chatml
    recipe messages 4
    run 0 train pairs.yaml
    run 0 train messages.yaml sft.assistant_only_loss=true
    for name in pairs messages; do
        told_steps run_$name >ours.txt
        sed -n "s/^$name //p" "$reference/expected.txt" >theirs.txt
        [ "$(wc -l <ours.txt)" = 3 ] || fail "steps of $name"
        near ours.txt theirs.txt 1e-5
    done
}

packing() {
    begin
    run 0 train pairs.yaml
    told_steps run_pairs | cut -d' ' -f1-4 >plain.txt
    for kind in bfd bfd_split; do # the 8 rows fill two sequences of 128 tokens
        run 0 train pairs.yaml sft.packing=$kind batch.global_size=2 batch.micro_size=1 run_dir=$kind
        grep -q '8 examples in 2 sequences' told || fail "$kind packs otherwise"
        told_steps $kind | cut -d' ' -f1-4 >packed.txt
        near plain.txt packed.txt 1e-5
    done
    run 0 train pairs.yaml batch.micro_size=1 run_dir=accumulated
    told_steps accumulated | cut -d' ' -f1-4 >packed.txt
    near plain.txt packed.txt 1e-5
    # The first step's loss where each row sees what stands before it in the stream: another one.
    run 0 train pairs.yaml sft.packing=wrapped batch.global_size=2 batch.micro_size=2 run_dir=wrapped
    paste <(losses run_pairs train | head -n 1) <(losses wrapped train | head -n 1) |
        awk '{ d = $2 - $4; exit !(d * d > 1e-6) }' || fail 'a stream sees no further than a row'
    run 0 evaluate --checkpoint run_pairs --data 'pairs/train-*.h5' --json
    grep -o '"[a-z_]*": *[0-9.e-]*' out | cut -d: -f2 >a
    run 0 evaluate --checkpoint run_pairs --data 'pairs/train-*.h5' --json --set sft.packing=bfd batch.micro_size=1
    grep -o '"[a-z_]*": *[0-9.e-]*' out | cut -d: -f2 >b
    near a b 1e-5

    run 0 train pairs.yaml sft.max_length=16 run_dir=short
    grep -q 'W-SFT-CUT: data.train: [0-9]* examples are longer than sft.max_length, 16' told || fail 'nothing cut'
    run 65 train pairs.yaml sft.max_length=12 sft.skip_empty=false run_dir=empty && one_line 65 'the loss includes none of its first'
    run 78 train pairs.yaml sft.max_length=129 && one_line 78 'greater than data.sequence_length (128)'
    run 65 train pairs.yaml sft.assistant_only_loss=true run_dir=none && one_line 65 'and all later examples'
    run 65 train pairs.yaml objective=clm run_dir=clm && one_line 65 "of the kind 'sft'"
}

layouts() {
    need_mpirun
    begin
    dropout='model.dropout=0.1'
    packed='sft.packing=bfd data.sequence_length=48 batch.global_size=4'
    # shellcheck disable=SC2086 # settings, one a word
    {
        run 0 train pairs.yaml $dropout $packed batch.micro_size=4 run_dir=one
        run_ranks 2 0 train pairs.yaml $dropout $packed batch.micro_size=1 parallel.tensor=2 run_dir=tensor
        run_ranks 2 0 train pairs.yaml $dropout $packed batch.micro_size=1 parallel.zero_stage=2 run_dir=zero
        run 0 train pairs.yaml $dropout $packed batch.micro_size=4 train.max_steps=2 checkpoint.every=1 run_dir=two
        run 0 train pairs.yaml $dropout $packed batch.micro_size=4 checkpoint.every=1 run_dir=two
    }
    told_steps one >one.txt
    for name in tensor zero; do
        told_steps $name >other.txt
        near one.txt other.txt 1e-4
    done
    told_steps two | cmp - one.txt || fail 'going on is not exact'
    # shellcheck disable=SC2086
    reproduced pairs.yaml bits $dropout $packed batch.micro_size=1
}

chat() {
    begin
    prepare_rows messages --chat-template chatml
    recipe messages 4
    run 0 train messages.yaml sft.assistant_only_loss=true train.max_steps=60
    printf '%s\n' 'What does ls do?' '/save one.jsonl' 'What does cat do?' '/save two.jsonl' '/reset' '' '/nonsense' \
        'What does ls do?' '/save again.jsonl' '/save' '/reset' 'What does\' 'ls\' 'do?' '/save lines.jsonl' '/quit' \
        'not heard' >talk
    timeout 50 "$program" chat --checkpoint run_messages --system 'Be brief.' --temperature 0 --max-new-tokens 20 \
        <talk >out 2>told || fail "chat ended with $?"
    cmp one.jsonl again.jsonl || fail '/reset has not forgotten'
    [ "$(grep -o '"role"' two.jsonl | wc -l)" = 5 ] || fail 'no history'
    grep -qF '"What does\nls\ndo?"' lines.jsonl || fail 'lines that go on are no message'
    grep -q '^E-USAGE .*save needs a file name' told || fail 'a wrong command is not told'
    grep -q '/reset drops the conversation' told || fail 'no help'
    # An answer ends at the end of turn, which is not shown: what is learned is said.
    sed -n 1p out | grep -q 'It lists files\.$' || fail "the answer is $(sed -n 1p out)"
    sed -n 1p out >answer
    ! grep -q 'im_end' out one.jsonl || fail 'the end of turn is shown'
    run 0 prepare --objective sft --tokenizer tokenizer_messages --input two.jsonl --output saved # a row again

    # What one is asked at once, from a file, is answered in the same words, each without what went before.
    printf '%s\n' 'What does ls do?' 'What does ls do?' >questions.txt
    run 0 generate --checkpoint run_messages --chat --system 'Be brief.' --prompt-file questions.txt --temperature 0 \
        --max-new-tokens 20
    [ "$(grep -cxF -e "$(cat answer)" out)" = 2 ] || fail "generate --chat says: $(cat out)"
    run 64 generate --checkpoint run_messages --system 'Be brief.' --prompt ls && one_line 64 'can only be used with --chat'

    # A conversation that outgrows the model's 128 positions goes on; a message that does so alone is told.
    for _ in 1 2 3 4 5 6 7 8; do
        echo 'What does ls do?'
    done >talk
    printf 'What%.0s' {1..200} >>talk
    printf '\n%s\n' '/save long.jsonl' >>talk
    timeout 50 "$program" chat --checkpoint run_messages --temperature 0 --max-new-tokens 20 <talk >out 2>told ||
        fail "chat ended with $?"
    grep -q 'the oldest messages are dropped: the model has 128 positions' told || fail 'nothing is forgotten'
    grep -q '^E-USAGE .*this message results in' told || fail 'a message that is too long is not told'
    [ "$(wc -l <out)" = 8 ] || fail "$(wc -l <out) answers instead of 8"
    ! grep -q WhatWhat long.jsonl || fail 'a message that was not heard is kept'
    [ "$(grep -o '"role"' long.jsonl | wc -l)" -ge 4 ] || fail 'what was said before is forgotten for it'

    run 0 train messages.yaml model.max_position_embeddings=60000 model.init_from=null train.max_steps=1 run_dir=long
    mkfifo questions
    "$program" chat --checkpoint long --temperature 0 --max-new-tokens 50000 <questions >out 2>told &
    local pid=$!
    exec 9>questions
    echo 'What?' >&9
    for ((i = 0; i < 400 && $(stat -c %s out) < 200; i++)); do
        sleep 0.05
    done
    kill -INT $pid
    printf '%s\n' '/save stopped.jsonl' >&9
    exec 9>&-
    wait $pid || fail "Ctrl-C ended it with $?"
    grep -q '"role":"assistant"' stopped.jsonl || fail 'what was said is not kept'

    run 0 export --checkpoint run_messages --output exported
    grep -q "<|im_start|>user" exported/chat_template.jinja || fail 'the chat template is not exported'
    grep -q '"eos_token_id"' exported/generation_config.json || fail 'the end of a turn does not end a text'

    run 66 chat --checkpoint run_pairs </dev/null && one_line 66 'no checkpoint'
    run 0 train pairs.yaml
    run 66 chat --checkpoint run_pairs </dev/null && one_line 66 'has no chat template'
    run 66 generate --checkpoint run_pairs --chat --prompt ls && one_line 66 'has no chat template'
}

case $part in
trl | packing | layouts | chat) "$part" ;;
*) fail "no such part: $part" ;;
esac
