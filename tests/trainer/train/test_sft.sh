#!/bin/bash
# Supervised fine-tuning from JSON Lines to a conversation, with a tiny Hugging Face model folder.
# Parts:
#
#   trl          losses and metrics of three steps are the same as in TRL's SFTTrainer
#                (scripts/reference/make_reference.py sft)
#   trl_qwen3    the same of a Qwen3
#   packing      packing and gradient accumulation do not change the losses; a stream without
#                boundaries does
#   layouts      tensor parallelism and ZeRO on two ranks, with dropout; resume from a checkpoint
#   chat         answers on standard output, /reset, /save, Ctrl-C, error messages
# ctest: parts trl trl_qwen3 packing layouts chat
# ctest: timeout 600
# shellcheck source=tests/trainer/tiny_training.sh
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
readonly reference=$source/tests/reference/sft

# prepare_rows NAME FLAG...: write shards of NAME.jsonl to NAME/, with the tokenizer in
# tokenizer_NAME/.
prepare_rows() {
    local name=$1
    shift
    mkdir -p "tokenizer_$name"
    cp "$reference/tokenizer.json" "tokenizer_$name/"
    run_bireme 0 prepare --objective sft --tokenizer "tokenizer_$name" \
        --input "$reference/$name.jsonl" --output "$name" "$@"
}

# write_recipe NAME ROWS: write NAME.yaml for the shards in NAME/, with all rows in each step.
write_recipe() {
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

# print_steps RUN: print loss, accuracy, entropy, tokens and gradient norm of each step.
print_steps() {
    grep '"event":"train"' "$1/metrics.jsonl" |
        sed -E 's/.*"loss":([^,]+),.*"grad_norm":([^,]+),.*"num_tokens":([^,]+),'\
'"mean_token_accuracy":([^,]+),"entropy":([^,}]+).*/\1 \4 \5 \3 \2/'
}

# compare_numbers FILE FILE TOLERANCE: the files contain equal numbers, at least one.
compare_numbers() {
    paste -d' ' "$1" "$2" | awk -v tolerance="$3" '
        {
            n = NF / 2
            for (i = 1; i <= n; i++) {
                d = $i - $(n + i)
                if (!(d * d <= tolerance * tolerance * (1 + $i * $i))) bad = 1
            }
        }
        NF < 2 || NF % 2 { bad = 1 }
        END { exit bad || NR == 0 }' || fail "$1 and $2 differ: $(paste -d'|' "$1" "$2")"
}

# import_model [FOLDER]: import the model folder and write the shards and the recipe `pairs`.
import_model() {
    cp -r "${1:-$reference}" theirs
    cp "$reference/tokenizer.json" theirs/
    run_bireme 0 import theirs --output ours
    cp out section
    prepare_rows pairs
    write_recipe pairs 8
}

test_trl() {
    import_model
    prepare_rows messages --chat-template chatml
    write_recipe messages 4
    run_bireme 0 train pairs.yaml
    run_bireme 0 train messages.yaml sft.assistant_only_loss=true
    for name in pairs messages; do
        print_steps run_$name >ours.txt
        sed -n "s/^$name //p" "$reference/expected.txt" >theirs.txt
        [ "$(wc -l <ours.txt)" = 3 ] || fail "$name: $(wc -l <ours.txt) steps instead of 3"
        compare_numbers ours.txt theirs.txt 3e-7 # sees 1 - beta2, 0.001, rounded in f32: 1.8e-6
    done
}

test_trl_qwen3() {
    import_model "$source/tests/reference/sft_qwen3"
    grep -q 'architecture: "qwen3"' pairs.yaml || fail 'the recipe is not that of a Qwen3'
    run_bireme 0 train pairs.yaml
    print_steps run_pairs >ours.txt
    sed 's/^pairs //' "$source/tests/reference/sft_qwen3/expected.txt" >theirs.txt
    [ "$(wc -l <ours.txt)" = 3 ] || fail "$(wc -l <ours.txt) steps instead of 3"
    compare_numbers ours.txt theirs.txt 3e-7
}

test_packing() {
    import_model
    run_bireme 0 train pairs.yaml
    print_steps run_pairs | cut -d' ' -f1-4 >plain.txt
    for kind in bfd bfd_split; do # the 8 rows fill two sequences of 128 tokens
        run_bireme 0 train pairs.yaml sft.packing=$kind batch.global_size=2 batch.micro_size=1 \
            run_dir=$kind
        grep -q '8 examples in 2 sequences' stderr || fail "$kind: not 8 examples in 2 sequences"
        print_steps $kind | cut -d' ' -f1-4 >packed.txt
        compare_numbers plain.txt packed.txt 1e-5
    done
    run_bireme 0 train pairs.yaml batch.micro_size=1 run_dir=accumulated
    print_steps accumulated | cut -d' ' -f1-4 >packed.txt
    compare_numbers plain.txt packed.txt 1e-5
    # In a stream each row attends to the rows before it, which changes the loss of the first step.
    run_bireme 0 train pairs.yaml sft.packing=wrapped batch.global_size=2 batch.micro_size=2 \
        run_dir=wrapped
    paste <(print_losses run_pairs train | head -n 1) <(print_losses wrapped train | head -n 1) |
        awk '{ d = $2 - $4; exit !(d * d > 1e-6) }' || fail 'packing as a stream changes nothing'
    run_bireme 0 evaluate --checkpoint run_pairs --data 'pairs/train-*.h5' --json
    grep -o '"[a-z_]*": *[0-9.e-]*' out | cut -d: -f2 >a
    run_bireme 0 evaluate --checkpoint run_pairs --data 'pairs/train-*.h5' --json \
        --set sft.packing=bfd batch.micro_size=1
    grep -o '"[a-z_]*": *[0-9.e-]*' out | cut -d: -f2 >b
    compare_numbers a b 1e-5

    run_bireme 0 train pairs.yaml sft.max_length=16 run_dir=short
    grep -q 'data.train: [0-9]* examples are longer than sft.max_length, 16.*W-SFT-CUT]$' stderr ||
        fail 'no example is truncated'
    run_bireme 65 train pairs.yaml sft.max_length=12 sft.skip_empty=false run_dir=empty &&
        expect_error 'the loss includes none of its first'
    run_bireme 78 train pairs.yaml sft.max_length=129 &&
        expect_error 'greater than data.sequence_length (128)'
    run_bireme 65 train pairs.yaml sft.assistant_only_loss=true run_dir=none &&
        expect_error 'and all later examples'
    run_bireme 65 train pairs.yaml objective=clm run_dir=clm && expect_error "of the kind 'sft'"

    # sft.join_encoding refuses shards of the other encoding.
    local joined=(train pairs.yaml 'data.train=joined/train-*.h5' train.max_steps=1)
    run_bireme 0 prepare --objective sft --tokenizer tokenizer_pairs --output joined \
        --input "$reference/pairs.jsonl" --join-encoding
    run_bireme 0 inspect joined/train-00000-of-00001.h5
    grep -q 'prompt and completion as one text' out || fail 'inspect does not print the encoding'
    run_bireme 0 "${joined[@]}" run_dir=joined_auto
    run_bireme 0 "${joined[@]}" run_dir=joined_true sft.join_encoding=true
    run_bireme 65 "${joined[@]}" run_dir=none sft.join_encoding=false
    expect_error 'encoded together, but sft.join_encoding is false'
    run_bireme 0 train pairs.yaml train.max_steps=1 run_dir=apart sft.join_encoding=false
    run_bireme 65 train pairs.yaml train.max_steps=1 run_dir=none sft.join_encoding=true
    expect_error 'encoded separately, but sft.join_encoding is true'
    run_bireme 64 prepare --objective dpo --tokenizer tokenizer_pairs --output none \
        --input "$reference/pairs.jsonl" --join-encoding
    expect_error 'can only be used with --objective sft'
}

test_layouts() {
    need_mpirun
    import_model
    dropout='model.dropout=0.1'
    packed='sft.packing=bfd data.sequence_length=48 batch.global_size=4'
    # shellcheck disable=SC2086 # one setting per word
    {
        run_bireme 0 train pairs.yaml $dropout $packed batch.micro_size=4 run_dir=one
        run_ranks 2 0 train pairs.yaml $dropout $packed batch.micro_size=1 parallel.tensor=2 \
            run_dir=tensor
        run_ranks 2 0 train pairs.yaml $dropout $packed batch.micro_size=1 parallel.zero_stage=2 \
            run_dir=zero
        run_bireme 0 train pairs.yaml $dropout $packed batch.micro_size=4 train.max_steps=2 \
            checkpoint.every=1 run_dir=two
        run_bireme 0 train pairs.yaml $dropout $packed batch.micro_size=4 checkpoint.every=1 \
            run_dir=two
    }
    print_steps one >one.txt
    for name in tensor zero; do
        print_steps $name >other.txt
        compare_numbers one.txt other.txt 1e-4
    done
    print_steps two | cmp - one.txt || fail 'a resumed run differs'
    # shellcheck disable=SC2086
    check_reproducible pairs.yaml bits $dropout $packed batch.micro_size=1
}

test_chat() {
    import_model
    prepare_rows messages --chat-template chatml
    write_recipe messages 4
    run_bireme 0 train messages.yaml sft.assistant_only_loss=true train.max_steps=60
    grep -qx '  bireme chat --checkpoint run_messages/final' stderr || fail 'chat is not proposed'
    printf '{"messages":[]}' >both.jsonl # without a newline
    printf '%s\n' 'What does ls do?' '/save one.jsonl' 'What does cat do?' '/save two.jsonl' \
        '/reset' '' '/nonsense' \
        'What does ls do?' '/save again.jsonl' '/save both.jsonl' '/save' '/reset' \
        'What does\' 'ls\' 'do?' \
        '/save lines.jsonl' '/quit' \
        'not heard' >talk
    timeout 50 "$program" chat --checkpoint run_messages --system 'Be brief.' --temperature 0 \
        --max-new-tokens 20 \
        <talk >out 2>stderr
    [ $? = 64 ] || fail 'a failed /save of a script does not change the exit code'
    { echo '{"messages":[]}' && cat one.jsonl; } | cmp - both.jsonl || fail '/save does not append'
    cmp one.jsonl again.jsonl || fail '/reset does not clear the conversation'
    [ "$(grep -o '"role"' two.jsonl | wc -l)" = 5 ] || fail 'the history is not kept'
    grep -qF '"What does\nls\ndo?"' lines.jsonl || fail 'continued lines are not one message'
    grep -q 'save needs a file name.*\[E-USAGE\]$' stderr || fail 'a usage error is not reported'
    grep -q '/reset drops the conversation' stderr || fail 'the help is not printed'
    # The answer is the learned one. It ends at the end of turn, which is not printed.
    sed -n 1p out | grep -q 'It lists files\.$' || fail "the answer is $(sed -n 1p out)"
    sed -n 1p out >answer
    ! grep -q 'im_end' out one.jsonl || fail 'the end of turn is printed'
    # A saved conversation is a valid row.
    run_bireme 0 prepare --objective sft --tokenizer tokenizer_messages --input two.jsonl \
        --output saved

    # Prompts of a file are answered independently of each other, with the same text.
    printf '%s\n' 'What does ls do?' 'What does ls do?' >questions.txt
    run_bireme 0 generate --checkpoint run_messages --chat --system 'Be brief.' \
        --prompt-file questions.txt --temperature 0 \
        --max-new-tokens 20
    [ "$(grep -cxF -e "$(cat answer)" out)" = 2 ] || fail "generate --chat prints: $(cat out)"
    run_bireme 64 generate --checkpoint run_messages --system 'Be brief.' --prompt ls &&
        expect_error 'can only be used with --chat'

    # A conversation that exceeds the 128 positions of the model continues without its oldest
    # messages. A single message that does so is an error.
    for _ in 1 2 3 4 5 6 7 8; do
        echo 'What does ls do?'
    done >talk
    printf 'What%.0s' {1..200} >>talk
    printf '\n%s\n' '/save long.jsonl' >>talk
    timeout 50 "$program" chat --checkpoint run_messages --temperature 0 --max-new-tokens 20 <talk \
        >out 2>stderr
    [ $? = 64 ] || fail 'a message without a response does not change the exit code'
    grep -q 'the oldest messages no longer fit into the 128 positions of the model' stderr ||
        fail 'no message is left out'
    grep -q 'this message has .* tokens, but the model.*\[E-USAGE\]$' stderr ||
        fail 'too long a message is not refused'
    [ "$(wc -l <out)" = 8 ] || fail "$(wc -l <out) answers instead of 8"
    ! grep -q WhatWhat long.jsonl || fail 'a refused message is part of the conversation'
    [ "$(grep -o '"role"' long.jsonl | wc -l)" = 16 ] || fail '/save does not keep all messages'
    # By default at most a quarter of the positions is reserved: a short message stays.
    printf '%s\n' 'What does ls do?' 'What does ls do?' >talk
    timeout 50 "$program" chat --checkpoint run_messages --temperature 0 <talk >out 2>stderr ||
        fail "chat ended with $?"
    ! grep -q 'no longer fit' stderr || fail 'all positions are reserved for the response'

    run_bireme 0 train messages.yaml model.max_position_embeddings=60000 model.init_from=null \
        train.max_steps=1 run_dir=long
    mkfifo questions
    "$program" chat --checkpoint long --temperature 0 --max-new-tokens 50000 <questions >out \
        2>stderr &
    local pid=$!
    exec 9>questions
    echo 'What?' >&9
    for ((i = 0; i < 400 && $(stat -c %s out) < 200; i++)); do
        sleep 0.05
    done
    kill -INT $pid
    printf '%s\n' '/save stopped.jsonl' >&9
    exec 9>&-
    wait $pid || fail "after Ctrl-C, chat ended with $?"
    grep -q '"role":"assistant"' stopped.jsonl || fail 'an interrupted answer is not kept'

    run_bireme 0 export --checkpoint run_messages --output exported
    grep -q "<|im_start|>user" exported/chat_template.jinja ||
        fail 'the chat template is not exported'
    grep -q '"eos_token_id"' exported/generation_config.json ||
        fail 'the end of a turn is not exported as end token'

    # An imported folder uses its own template if it is a known one, and names another one.
    run_bireme 0 import exported --output imported
    grep -q "the chat template of exported is 'chatml'" stderr || fail 'the template is not named'
    cmp imported/tokenizer/chat_template.json run_messages/final/tokenizer/chat_template.json ||
        fail 'the imported chat template differs'
    sed -i 's/user/human/' exported/chat_template.jinja
    run_bireme 0 import exported --output renamed
    grep -q 'the chat template of exported is not one of chatml.*\[W-CHAT-TEMPLATE\]$' stderr ||
        fail 'an unknown template is not named'
    [ ! -e renamed/tokenizer/chat_template.json ] || fail 'an unknown template was installed'

    run_bireme 66 chat --checkpoint run_pairs </dev/null && expect_error 'no checkpoint'
    run_bireme 0 train pairs.yaml
    run_bireme 66 chat --checkpoint run_pairs </dev/null && expect_error 'has no chat template'
    run_bireme 66 generate --checkpoint run_pairs --chat --prompt ls &&
        expect_error 'has no chat template'
}

run_part "$@"
