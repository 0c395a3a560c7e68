#!/bin/bash
# DPO and reward models on tiny preference pairs: files with reference log-probabilities and their
# reuse, layouts, gradient accumulation, resume, stop, errors.
# ctest: parts layouts whole_batch smoothing resume stop reward export chat errors
# ctest: timeout 300
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

make_preferences 150
run_bireme 0 train recipe.yaml run_dir=base train.max_steps=10

# print_value RUN EVENT STEP FIELD: print a number of metrics.jsonl.
print_value() {
    grep "\"event\":\"$2\",\"step\":$3," "$1/metrics.jsonl" |
        sed -E "s#.*\"$4\":([-+.eE0-9]+).*#\1#"
}

# expect_near VALUE EXPECTED TOLERANCE NAME: the difference is at most the tolerance.
expect_near() {
    awk -v a="$1" -v b="$2" -v t="$3" \
        'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && d <= t) }' ||
        fail "$4 is '$1', not $2 within $3"
}

test_layouts() {
    need_mpirun
    run_bireme 0 train dpo.yaml run_dir=one
    grep -q 'computing the reference' stderr || fail 'no reference was computed'
    [ "$(find pairs -name 'reference-*.hdf5' | wc -l)" = 2 ] ||
        fail 'not one file of reference log-probabilities per set'
    expect_near "$(print_value one train 1 loss)" 0.69314718056 1e-6 'the first loss'
    expect_near "$(print_value one evaluate 0 loss)" 0.69314718056 1e-6 'the first validation loss'
    expect_near "$(print_value one evaluate 24 'rewards/accuracies')" 1 0.35 \
        'the validation accuracy'
    for name in rewards/chosen rewards/rejected rewards/margins logps/chosen logps/rejected \
        logits/chosen logits/rejected entropy mean_token_accuracy num_tokens; do
        [ -n "$(print_value one train 24 "$name")" ] || fail "no $name"
    done
    run_bireme 0 train dpo.yaml run_dir=micro batch.micro_size=12 dpo.shared_prefix=false
    grep -q 'log-probabilities of .* from pairs/reference-' stderr ||
        fail 'the reference log-probabilities were not reused'
    compare_losses one micro 1e-5
    [ "$(print_value one train 24 num_tokens)" = "$(print_value micro train 24 num_tokens)" ] ||
        fail 'the token counts differ'
    run_bireme 0 evaluate --checkpoint one --data 'pairs/validation-*.h5' --json
    expect_near "$(sed -E 's/.*"loss":([0-9.]+).*/\1/' out)" "$(print_value one evaluate 24 loss)" \
        1e-6 'the loss of evaluate'
    grep -q '"rewards/accuracies":' out || fail 'evaluate prints no accuracy'
    [ "$(find pairs -name 'reference-*.hdf5' | wc -l)" = 2 ] ||
        fail 'evaluate wrote another file of reference log-probabilities'
    local layout ranks tensor stage
    for layout in '2 2 0' '4 2 2' '5 1 1'; do
        read -r ranks tensor stage <<<"$layout"
        rm pairs/reference-*
        run_ranks "$ranks" 0 train dpo.yaml run_dir="dpo-$ranks-$tensor" parallel.tensor="$tensor" \
            parallel.zero_stage="$stage"
        compare_losses one "dpo-$ranks-$tensor" 1e-5
    done
    # Each of these runs computes its own reference.
    check_reproducible dpo.yaml bits
}

# Losses over the whole batch do not depend on its division into micro-batches and ranks.
# print_planned LOSS: print the memory of the kernels and the objective of a large global batch.
print_planned() {
    run_bireme 0 plan dpo.yaml --json "dpo.loss_type=$1" batch.global_size=100000
    sed -nE 's/.*"kernels": ?([0-9]+).*/\1/p' out | head -n 1
}

test_whole_batch() {
    local pair_bytes=136 # a pair, its gradient and four ranked values
    need_mpirun
    [ $(($(print_planned aot) - $(print_planned sigmoid))) = $((pair_bytes * 100000)) ] ||
        fail 'plan does not contain the pairs of the global batch'
    for losses in '[sigmoid, sft]' 'aot_unpaired'; do
        rm -rf w1 w2 w3
        run_bireme 0 train dpo.yaml run_dir=w1 "dpo.loss_type=$losses" batch.micro_size=12
        run_bireme 0 train dpo.yaml run_dir=w2 "dpo.loss_type=$losses" batch.micro_size=1
        compare_losses w1 w2 1e-5
        run_ranks 3 0 train dpo.yaml run_dir=w3 "dpo.loss_type=$losses"
        compare_losses w1 w3 1e-5
    done
    expect_near "$(print_value w1 train 1 loss)" 0.69314718056 1e-6 'the first loss of aot_unpaired'
    run_ranks 4 0 train dpo.yaml run_dir=w4 dpo.loss_type=aot_unpaired parallel.tensor=2
    compare_losses w1 w4 1e-5
}

test_resume() {
    run_bireme 0 train dpo.yaml run_dir=one dpo.loss_type=aot
    cp -r one two
    rm -rf two/checkpoints/step-00000024 two/final
    run_bireme 0 train dpo.yaml run_dir=two dpo.loss_type=aot
    grep -q 'resuming' stderr || fail 'not resumed'
    compare_losses one two 0
    compare_weights one two 00000024
    # Reference log-probabilities are identified by the weights of the reference model.
    local file before
    file=$(find pairs -name 'reference-*.hdf5' | head -1)
    before=$(basename "$file")
    run_bireme 0 train recipe.yaml run_dir=other train.max_steps=11
    run_bireme 0 train dpo.yaml run_dir=three model.init_from=other/final
    [ "$(find pairs -name 'reference-*.hdf5' | wc -l)" = 4 ] ||
        fail 'another reference has no separate files'
    run_bireme 80 train dpo.yaml run_dir=two model.init_from=other/final dpo.loss_type=aot \
        train.max_steps=40
    expect_error 'was trained on other data'
    for other in pairs/reference-*.hdf5; do # replace the file by that of the other reference
        [ "${other%-*}" = "pairs/${before%-*}" ] || cp "$other" "$file"
    done
    run_bireme 65 train dpo.yaml run_dir=four
    expect_error 'does not belong to this run'
    head -c 900 "$other" >"$file"
    run_bireme 65 train dpo.yaml run_dir=four
    expect_error "$before"
}

# A signal stops the computation of the reference, and the next start continues it.
test_stop() {
    local job
    for _ in $(seq 40); do cat pairs.jsonl; done >many.jsonl
    run_bireme 0 prepare --objective dpo --tokenizer tokenizer --input many.jsonl --output many \
        --sequence-length 32
    set -- train dpo.yaml run_dir=stopped 'data.train=many/train-*.h5' data.validation=null \
        evaluate.every=0 \
        batch.micro_size=1 train.max_steps=2
    "${one_core[@]}" "$program" "$@" >out 2>stderr &
    job=$!
    while kill -0 $job 2>/dev/null && ! grep -q 'computing the reference' stderr; do
        sleep 0.01
    done
    kill -USR1 $job 2>/dev/null
    wait $job
    [ $? = 75 ] || fail 'a stop while the reference was computed did not end with 75'
    local message='stopped after the reference log-probabilities of .* pairs'
    tr -s '\n ' ' ' <stderr | grep -q "$message; they are in many/reference-" ||
        fail 'the progress of the reference is not reported'
    run_bireme 0 "$@"
    grep -qE 'computing .* of many.*, [1-9][0-9]* are done' stderr ||
        fail 'the reference was computed from the beginning'
}

# print_id KEY: print the value of a key of config.json of the export.
print_id() { sed -nE "s/^ *\"$1\": ([0-9]+).*/\1/p" exported/config.json; }

# The exported reward model has a pad token that is not the end token, because transformers reads
# the reward at the last token that is not the pad token. The tokenizer here has none.
test_export() {
    local end pad
    run_bireme 0 tokenizer train --type bpe --vocab-size 270 --input "$source/LICENSE" --output bpe
    run_bireme 0 prepare --objective dpo --tokenizer bpe --input pairs.jsonl --output tokens
    run_bireme 0 train dpo.yaml objective=reward run_dir=one model.init_from=null \
        data.tokenizer=bpe 'data.train=tokens/train-*.h5' data.validation=null \
        evaluate.every=0 train.max_steps=4 optimizer.learning_rate=1.0e-2
    printf 'the work\nthe krow\n' >lines
    run_bireme 0 score --checkpoint one lines
    cp out rewards
    run_bireme 0 export --checkpoint one --output exported
    end=$(print_id eos_token_id) pad=$(print_id pad_token_id)
    [ -n "$end" ] && [ -n "$pad" ] && [ "$end" != "$pad" ] || fail "end token $end, pad token $pad"
    [ "$(print_id vocab_size)" = $((pad + 1)) ] || fail 'the pad token is not the last one'
    grep -q '"pad_token": "<|pad|>"' exported/tokenizer_config.json || fail 'no pad_token'
    run_bireme 0 import exported --output back
    run_bireme 0 score --checkpoint back lines
    cmp rewards out || fail 'the export has other rewards'
    # The tokenizer has a pad token now: the next export is the same.
    mv exported first
    run_bireme 0 export --checkpoint back --output exported
    cmp first/model.safetensors exported/model.safetensors &&
        cmp first/tokenizer.json exported/tokenizer.json &&
        [ "$(print_id pad_token_id)" = "$pad" ] || fail 'the second export differs'
    # The end token as the pad token of the tokenizer is replaced.
    sed -i 's/"pad_token": "[^"]*"/"pad_token": {"content": "<|endoftext|>"}/' \
        first/tokenizer_config.json
    run_bireme 0 import first --output changed
    rm -r exported
    run_bireme 0 export --checkpoint changed --output exported
    [ "$(print_id pad_token_id)" = "$pad" ] || fail 'the end token is the pad token'
    # An import warns if transformers reads another token.
    sed -i -E "s/\"pad_token_id\": [0-9]+/\"pad_token_id\": $end/; /bireme_objective/d" \
        exported/config.json
    run_bireme 0 import exported --output theirs --objective reward
    grep -q 'pad_token_id is eos_token_id.*\[W-PAD-TOKEN\]$' stderr || fail 'no warning'
    run_bireme 0 score --checkpoint theirs lines
    cmp rewards out || fail 'the import has other rewards'
}

# A reward model on the same pairs: layouts, resume, scores of lines.
test_reward() {
    need_mpirun
    set -- train dpo.yaml objective=reward
    run_bireme 0 "$@" run_dir=one
    expect_near "$(print_value one evaluate 24 accuracy)" 1 0.35 'the validation accuracy'
    for name in accuracy margin mean_reward; do
        [ -n "$(print_value one train 24 $name)" ] || fail "no $name"
    done
    run_bireme 0 evaluate --checkpoint one --data 'pairs/validation-*.h5' --json
    expect_near "$(sed -E 's/.*"loss":([0-9.]+).*/\1/' out)" "$(print_value one evaluate 24 loss)" \
        1e-6 'the loss of evaluate'
    run_bireme 0 "$@" run_dir=apart batch.micro_size=12 dpo.shared_prefix=false
    compare_losses one apart 1e-5
    cp -r one two
    rm -rf two/checkpoints/step-00000024 two/final
    run_bireme 0 "$@" run_dir=two
    compare_losses one two 0
    local ranks tensor stage
    for layout in '2 2 0' '4 2 2' '3 1 1'; do
        read -r ranks tensor stage <<<"$layout"
        run_ranks "$ranks" 0 "$@" run_dir="reward-$ranks-$tensor" parallel.tensor="$tensor" \
            parallel.zero_stage="$stage"
        compare_losses one "reward-$ranks-$tensor" 1e-5
    done
    check_reproducible dpo.yaml bits objective=reward adapter.type=lora adapter.dropout=0.1
    printf 'the work\nthe krow\n' >lines
    run_bireme 0 score --checkpoint one lines
    [ "$(wc -l <out)" = 2 ] || fail 'not one reward per line'
    run_bireme 64 score --checkpoint one --start-token bos lines
    expect_error '--start-token bos: a reward model scores whole texts'
    run_bireme 65 generate --checkpoint one --prompt a
    expect_error 'was trained with objective reward'
    run_bireme 78 train dpo.yaml objective=reward model.architecture=bert
    expect_error 'set them to: architecture: gpt2 (command line: bert)'
    run_bireme 78 train dpo.yaml objective=reward model.architecture=bert model.init_from=null
    expect_error 'conflicts with model.architecture'
}

# The mean reward of `score --chat` on the conversations of the pairs equals the mean reward of
# `evaluate`, which reads the pairs from shards.
test_chat() {
    head -20 pairs.jsonl | awk -F'"' '{
        prompt = "{\"role\": \"user\", \"content\": \"" $4 "\"}"
        chosen = "{\"role\": \"assistant\", \"content\": \"" $8 "\"}"
        rejected = "{\"role\": \"assistant\", \"content\": \"" $12 "\"}"
        print "{\"prompt\": [" prompt "], \"chosen\": [" chosen "], \"rejected\": [" rejected "]}" \
            >"messages.jsonl"
        print "{\"messages\": [" prompt ", " chosen "]}" >"conversations.jsonl"
        print "{\"messages\": [" prompt ", " rejected "]}" >"conversations.jsonl"
    }'
    run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input "$source/LICENSE" \
        --special-tokens '<|im_start|>,<|im_end|>' --output bpe
    run_bireme 0 prepare --objective dpo --tokenizer bpe --chat-template chatml \
        --input messages.jsonl --output chats
    run_bireme 0 train dpo.yaml objective=reward run_dir=one model.init_from=null \
        data.tokenizer=bpe 'data.train=chats/train-*.h5' data.validation=null evaluate.every=0 \
        model.max_position_embeddings=64 train.max_steps=4 optimizer.learning_rate=1.0e-2
    run_bireme 0 evaluate --checkpoint one --data 'chats/train-*.h5' --json
    local expected mean
    expected=$(sed -E 's/.*"mean_reward":([-0-9.e]+).*/\1/' out)
    run_bireme 0 score --checkpoint one --chat conversations.jsonl
    mean=$(awk '{ sum += $1 } END { if (NR == 40) print sum / NR }' out)
    expect_near "$mean" "$expected" 1e-5 'the mean reward of the conversations'
    cp out rewards
    sed 's/"messages"/"talk"/' conversations.jsonl >talk.jsonl
    run_bireme 0 score --checkpoint one --chat --columns messages=talk talk.jsonl
    cmp rewards out || fail 'another column has other rewards'
    run_bireme 0 score --checkpoint one --chat --json conversations.jsonl
    grep -q '^{"reward":-\?[0-9.e-]*,"tokens":[0-9]*}$' out || fail "JSON: $(head -1 out)"
    run_bireme 65 score --checkpoint one --chat talk.jsonl
    expect_error "talk.jsonl:1: no field 'messages' (the row has 'talk'"
    # score encodes special tokens in a line as plain text. Its warning names --chat.
    printf '<|im_start|>user\nthe<|im_end|>\n' >lines
    run_bireme 0 score --checkpoint one lines
    grep -q 'a line contains <|im_end|>.*--chat.*\[W-PLAIN-TEXT\]$' stderr || fail 'no warning'
    run_bireme 64 score --checkpoint base --chat conversations.jsonl
    expect_error '--chat: only a reward model'
    run_bireme 0 train dpo.yaml objective=reward run_dir=plain train.max_steps=2
    run_bireme 66 score --checkpoint plain --chat conversations.jsonl
    expect_error 'has no chat template'
}

test_errors() {
    run_bireme 78 train dpo.yaml model.init_from=null
    expect_error 'model.init_from: missing; objective dpo starts'
    run_bireme 78 train dpo.yaml dpo.loss_type=exo_pair
    expect_error 'dpo.label_smoothing: 0 makes the exo_pair'
    run_bireme 78 plan dpo.yaml 'dpo.loss_type=[sigmoid, sft]' dpo.loss_weights=1.0
    expect_error '1 weight for 2 losses'
    run_bireme 78 train dpo.yaml dpo.loss_type=sigmod
    expect_error "did you mean 'sigmoid'"
    run_bireme 65 train dpo.yaml data.train='data/train-*.h5'
    expect_error "not 'preference_pairs'"
    run_bireme 65 train dpo.yaml data.sequence_length=6
    expect_error 'raise data.sequence_length'
    run_bireme 0 plan dpo.yaml 'dpo.loss_type=[sigmoid, bco_pair, sft]' \
        'dpo.loss_weights=[0.8, 0.2, 1.0]' --json
    tr -d ' \n' <out | grep -q '"loss_weights":\[0.8,0.2,1.0\]' ||
        fail 'the plan does not print the weights'
}

# train.label_smoothing_factor has no effect on preference losses: same bits, and a warning.
test_smoothing() {
    run_bireme 0 train dpo.yaml run_dir=plain train.max_steps=3 checkpoint.every=3
    run_bireme 0 train dpo.yaml run_dir=smoothed train.max_steps=3 checkpoint.every=3 \
        train.label_smoothing_factor=0.3
    tr -s '\n ' ' ' <stderr | grep -q 'settings without effect: train.label_smoothing_factor' ||
        fail 'no warning'
    compare_losses plain smoothed 0
    compare_weights plain smoothed 00000003
}

run_part "$@"
