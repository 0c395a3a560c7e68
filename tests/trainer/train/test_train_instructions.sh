#!/bin/bash
# Instruction tuning of encoder-decoders. Shards of sft with templates equal shards of seq2seq.
# Losses equal the losses of seq2seq at any layout and after a resume. Mixtures, LoRA, conversations
# with the chat template, and errors are tested too.
# ctest: parts data layouts chat
# ctest: timeout 240
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# write_templates NAME...: print a file with a template of each name.
write_templates() {
    local name
    echo 'templates:'
    for name in "$@"; do
        echo "  - {name: \"$name\", input: \"$name: {source}\", target: \"{target}\"}"
    done
}

# prepare_sft OUTPUT OPTION...: prepare instructions for an encoder-decoder.
prepare_sft() {
    local output=$1
    shift
    run_bireme 0 prepare --objective sft --encoder-decoder --tokenizer words --output "$output" "$@"
}

# print_rows FORMAT: print the pairs as JSON Lines. FORMAT has %s for the source and the target.
print_rows() {
    paste -d'\t' pairs.a pairs.b | awk -F'\t' -v format="$1" '{ printf format "\n", $1, $2 }'
}

test_data() {
    # One template: the shards of seq2seq with the prefix, byte for byte.
    run_bireme 0 prepare --objective seq2seq --tokenizer words --source pairs.a --target pairs.b \
        --source-prefix 'Reverse: ' --output prefixed
    write_templates Reverse >one.yaml
    prepare_sft one --templates one.yaml --source pairs.a --target pairs.b
    cmp one/train-00000-of-00001.h5 prefixed/train-00000-of-00001.h5 || fail 'other tokens'
    # The same with rows of prompt and completion, and with a JSON file of templates.
    print_rows '{"prompt": "Reverse: %s", "completion": "%s"}' >plain.jsonl
    prepare_sft plain --input plain.jsonl
    cmp plain/train-00000-of-00001.h5 prefixed/train-00000-of-00001.h5 || fail 'prompts'
    print_rows '{"translation": {"en": "%s", "es": "%s"}, "n": 1}' >rows.jsonl
    cat >one.json <<'END'
{"templates": [{"name": "x", "input": "Reverse: {translation[en]}", "target": "{translation[es]}"}]}
END
    prepare_sft json --templates one.json --input rows.jsonl
    cmp json/train-00000-of-00001.h5 prefixed/train-00000-of-00001.h5 || fail 'JSON'

    # Two templates: each row gets one, with any number of workers.
    write_templates Reverse Backwards >two.yaml
    prepare_sft two --templates two.yaml --source pairs.a --target pairs.b --workers 1 --json
    reverse=$(sed -nE 's/.*"Reverse": ([0-9]+).*/\1/p' out)
    backwards=$(sed -nE 's/.*"Backwards": ([0-9]+).*/\1/p' out)
    [ $((reverse + backwards)) = 120 ] && [ "$reverse" -gt 30 ] && [ "$backwards" -gt 30 ] ||
        fail "draws: $(cat out)"
    grep -q "template Reverse: $reverse rows" stderr || fail 'the templates are not reported'
    prepare_sft three --templates two.yaml --source pairs.a --target pairs.b --workers 3
    cmp two/train-00000-of-00001.h5 three/train-00000-of-00001.h5 || fail 'workers'
    prepare_sft seed --templates two.yaml --source pairs.a --target pairs.b --seed 3
    ! cmp -s two/train-00000-of-00001.h5 seed/train-00000-of-00001.h5 || fail 'seed'
    run_bireme 0 inspect two --sample 0 --tokenizer words
    grep -qE '^(Reverse|Backwards): ' out || fail "sample: $(cat out)"
    # A decoder reads the same templates as plain prompts.
    run_bireme 0 prepare --objective sft --tokenizer words --templates two.yaml --source pairs.a \
        --target pairs.b --output decoder

    # Language tokens of mBART: plain prompts have them, a chat template is refused.
    cp -r "$source/tests/reference/tokenizer/mbart50" languages
    language=(prepare --objective sft --encoder-decoder --tokenizer languages --source-lang en_XX
        --target-lang es_XX --output languages_data)
    run_bireme 0 "${language[@]}" --input plain.jsonl
    run_bireme 0 inspect languages_data --sample 0 --tokenizer languages
    grep -q '^en_XX Reverse.*</s>$' out && grep -q '^es_XX .*</s>$' out || fail "mBART: $(cat out)"
    run_bireme 69 "${language[@]}" --chat-template alpaca --input rows.jsonl --templates one.json
    expect_error 'a chat template cannot be combined with the language tokens'

    # Bad rows and templates name both places.
    sed '2s/translation/trans/' rows.jsonl >bad.jsonl
    run_bireme 65 prepare --objective sft --encoder-decoder --tokenizer words --output bad \
        --templates one.json --input bad.jsonl
    expect_error "bad.jsonl:2: template 'x' (one.json:1): no field 'translation' (the row has 'tra"
    prepare_sft skipped --templates one.json --input bad.jsonl --skip-bad-rows --json
    grep -q '"bad_rows": 1' out && grep -q '"x": 119' out || fail "skipped: $(cat out)"
    sed 's/{source}/{source/' one.yaml >bad.yaml
    run_bireme 78 prepare --objective sft --encoder-decoder --tokenizer words --output bad \
        --templates bad.yaml --source pairs.a --target pairs.b
    expect_error "bad.yaml:2: input of template 'Reverse': a single brace"
    sed 's/target:/targets:/' one.yaml >bad.yaml
    run_bireme 78 prepare --objective sft --encoder-decoder --tokenizer words --output bad \
        --templates bad.yaml --source pairs.a --target pairs.b
    expect_error "bad.yaml:2:.*: targets: unknown key; did you mean 'target'?"
    echo 'templates: []' >bad.yaml
    run_bireme 78 prepare --objective sft --tokenizer words --output bad --templates bad.yaml \
        --input rows.jsonl
    expect_error 'templates: must be a list of templates'
    for text in 5 'one.json' '- {name: x, input: a, target: b}'; do
        echo "$text" >bad.yaml
        run_bireme 78 prepare --objective sft --tokenizer words --output bad --templates bad.yaml \
            --input rows.jsonl
        expect_error 'bad.yaml:1:1: a file of templates must be a mapping with the key templates'
    done
    echo '{"text": "a"}' >text.jsonl
    run_bireme 65 prepare --objective sft --encoder-decoder --tokenizer words --output bad \
        --input text.jsonl
    expect_error "no field 'prompt' with 'completion', 'messages', or 'instruction' with 'output'"
    run_bireme 64 prepare --objective seq2seq --tokenizer words --output bad --templates one.yaml \
        --input rows.jsonl
    expect_error 'templates can only be used with --objective sft, not seq2seq'
    run_bireme 64 prepare --objective dpo --tokenizer words --output bad --encoder-decoder \
        --input rows.jsonl
    expect_error 'encoder-decoder can only be used with --objective sft, not dpo'
}

test_layouts() {
    need_mpirun
    # Two tasks. The shards have 96 and 24 examples.
    write_templates Reverse Backwards >templates.yaml
    prepare_sft large --templates templates.yaml --source pairs.a --target pairs.b \
        --validation-fraction 0.2
    head -24 pairs.a >few.a
    tr '[:lower:]' '[:upper:]' <few.a >few.b
    write_templates Capitals >capitals.yaml
    prepare_sft small --templates capitals.yaml --source few.a --target few.b
    cat >tuning.yaml <<'END'
objective: sft
run_dir: run
seed: 7
model: {architecture: t5, num_layers: 2, hidden_size: 32, num_heads: 4, head_dim: 6,
  activation: relu, max_position_embeddings: 32, dropout: 0.1}
data:
  tokenizer: words
  train:
    - {path: large/train-*.h5}
    - {path: small/train-*.h5}
  validation: large/validation-*.h5
  mixing: examples
batch: {global_size: 12, micro_size: 3}
optimizer: {learning_rate: 3.0e-3, max_grad_norm: 1.0}
train: {max_steps: 8}
evaluate: {every: 4, batches: null}
checkpoint: {every: 4, keep: 3}
log: {every: 1}
END
    common=(train tuning.yaml)
    compare_layouts tuned
    run_ranks 4 0 "${common[@]}" run_dir=four parallel.tensor=2
    compare_losses tuned four 1e-5
    grep -q '"mean_token_accuracy"' tuned/metrics.jsonl || fail 'no accuracy'
    # The losses equal the losses of seq2seq.
    run_bireme 0 "${common[@]}" objective=seq2seq run_dir=pairs-run
    compare_losses tuned pairs-run 1e-6

    local short=(train.max_steps=1 evaluate.every=0 checkpoint.every=0)
    # Rates: proportional to 96 and 24 examples, to min(n, 48), and to the square root of n.
    run_bireme 0 train tuning.yaml run_dir=rates "${short[@]}"
    grep -q 'data.train: 80.0% of the samples from large/train-\*.h5, 96 samples' stderr ||
        fail 'proportional rates'
    run_bireme 0 train tuning.yaml run_dir=capped "${short[@]}" data.mixing_maximum=48
    grep -q 'data.train: 66.7% of the samples from large' stderr || fail 'capped rates'
    run_bireme 0 train tuning.yaml run_dir=warm "${short[@]}" data.mixing_temperature=2
    grep -q 'data.train: 66.7% of the samples from large' stderr || fail 'temperature'
    run_bireme 0 train tuning.yaml run_dir=equal "${short[@]}" data.mixing=weight
    grep -q 'data.train: 50.0% of the samples from large' stderr || fail 'weights'
    run_bireme 78 train tuning.yaml run_dir=bad data.mixing_temperature=0.001
    expect_error 'data.mixing_temperature 0.001 is too small: the rate of source 1 is inf'
    run_bireme 78 bench data tuning.yaml data.mixing_temperature=0.001
    expect_error 'data.mixing_temperature 0.001 is too small: the rate of source 1 is inf'
    run_bireme 80 train tuning.yaml run_dir=tuned data.mixing_maximum=48
    expect_error 'data.mixing_maximum: checkpoint null, recipe 48'

    # LoRA, and scores of generated answers.
    run_bireme 0 "${common[@]}" run_dir=lora model.init_from=tuned adapter.type=lora \
        adapter.rank=4 optimizer.learning_rate=1e-2 evaluate.generate=true \
        evaluate.generation_max_length=12
    print_losses lora evaluate | awk 'NR == 1 { a = $2 } END { exit !($2 < a) }' ||
        fail "LoRA learns nothing: $(print_losses lora evaluate)"
    grep -q '"bleu":' lora/metrics.jsonl || fail 'no scores'
    run_bireme 0 export --checkpoint lora --adapter --output exported
    grep -q '"task_type": *"SEQ_2_SEQ_LM"' exported/adapter_config.json || fail 'task_type'
    run_bireme 0 export --checkpoint tuned --output model
    grep -q T5ForConditionalGeneration model/config.json || fail 'class'

    # Settings and shards of decoders are refused.
    while IFS='|' read -r setting message; do
        run_bireme 78 "${common[@]}" run_dir=bad "$setting"
        expect_error "$message"
    done <<'END'
sft.packing=bfd|sft.packing: bfd conflicts with model.architecture (t5)
sft.completion_only_loss=false|the decoder predicts the answer only
sft.join_encoding=true|source and target are encoded separately
sft.max_length=16|it limits the source and the target
generate.prompt=a|generate.prompt: .* conflicts with model.architecture (t5)
objective=dpo|marian, bart, mbart and t5 require seq2seq, denoise or sft
END
    print_rows '{"prompt": "%s", "completion": "%s"}' >plain.jsonl
    run_bireme 0 prepare --objective sft --tokenizer words --input plain.jsonl --output decoder
    run_bireme 65 train tuning.yaml run_dir=bad 'data.train=decoder/train-*.h5'
    expect_error "decoder/train-.*'sft', not 'seq2seq'.* with --encoder-decoder for sft"
    run_bireme 66 train tuning.yaml run_dir=bad 'data.train=none/train-*.h5'
    expect_error 'prepare --objective sft --encoder-decoder --tokenizer words --input FILE... --out'
}

test_chat() {
    # Messages: the source is the conversation, the target is the last answer. The model learns to
    # write capital letters.
    write_pairs 120 8 capitals
    rm -r words
    run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input pairs.a pairs.b --output words
    local user='{"role": "user", "content": "%s"}' answer='{"role": "assistant", "content": "%s"}'
    print_rows "{\"messages\": [$user, $answer]}" >messages.jsonl
    run_bireme 65 prepare --objective sft --encoder-decoder --tokenizer words --output chat \
        --input messages.jsonl
    expect_error 'messages need a chat template'
    prepare_sft chat --chat-template "$source/recipes/manual_template.json" --input messages.jsonl
    run_bireme 0 inspect chat --sample 0 --tokenizer words
    grep -q '^Question: ' out && grep -q '^Answer:' out || fail "sample: $(cat out)"
    # The ids are the same as in seq2seq for the text of the conversation.
    print_rows '{"source": "Question: %s@Answer:", "target": "%s"}' | sed 's/@/\\n/' >text.jsonl
    run_bireme 0 prepare --objective seq2seq --tokenizer words --input text.jsonl --output text
    cmp chat/train-00000-of-00001.h5 text/train-00000-of-00001.h5 || fail 'other ids'
    # Templates give messages if the tokenizer has a chat template.
    echo 'templates: [{name: a, input: "{source}", target: "{target}"}]' >templates.yaml
    prepare_sft rendered --templates templates.yaml --source pairs.a --target pairs.b
    cmp chat/train-00000-of-00001.h5 rendered/train-00000-of-00001.h5 || fail 'rendered messages'
    run_bireme 0 train recipe.yaml objective=sft data.tokenizer=words \
        'data.train=chat/train-*.h5' data.validation=null evaluate.every=0 \
        model.architecture=marian model.activation=relu model.num_layers=1 model.hidden_size=64 \
        model.dropout=0 optimizer.learning_rate=2e-3 train.max_steps=300 checkpoint.every=300 \
        model.max_position_embeddings=64 data.sequence_length=64 run_dir=model
    grep -q 'bireme chat --checkpoint model/final' stderr || fail 'next commands'
    run_bireme 0 generate --checkpoint model --chat --prompt-file pairs.a --json
    sed -E 's/.*"text": ?"([^"]*)".*/\1/' out >answers
    paste -d'|' answers pairs.b |
        awk -F'|' '$1 == $2 { n++ } END { exit !(NR == 120 && n > 100) }' ||
        fail "learned: $(paste -d'|' answers pairs.b | head)"
    # Without the template, the source has other ids.
    run_bireme 0 generate --checkpoint model --prompt-file pairs.a --json
    sed -E 's/.*"text": ?"([^"]*)".*/\1/' out >plain
    ! cmp -s plain answers || fail 'the template has no effect'
    # chat gives the same answer to a first message.
    for line in 1 7; do
        sed -n ${line}p pairs.a >message
        run_bireme 0 chat --checkpoint model --temperature 0 <message
        [ "$(cat out)" = "$(sed -n ${line}p answers)" ] || fail "chat: $(cat out)"
    done
    # Bad conversations.
    while IFS='|' read -r row message; do
        echo "$row" >bad.jsonl
        run_bireme 65 prepare --objective sft --encoder-decoder --tokenizer words --output bad \
            --input bad.jsonl
        expect_error "bad.jsonl:1: $message"
    done <<END
{"messages": [${answer/\%s/a}]}|the field 'messages' has one message
{"messages": [${user/\%s/a}, ${user/\%s/b}]}|the last message is a user message
{"prompt": [${user/\%s/a}], "completion": [${answer/\%s/ }]}|the assistant message is empty
{"prompt": "a", "completion": ""}|the field 'completion' is empty
END
}

make_pairs
run_part "$@"
