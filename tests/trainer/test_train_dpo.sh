#!/bin/bash
# DPO as a whole on tiny pairs: prepare, the reference's side file and its reuse, layouts, accumulation, resuming, what is
# refused, a stop, reward models, and that the chosen answers win.
# usage: test_train_dpo.sh PART
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"

# Words of the licence as prompts; the chosen answer is the next word, the rejected one the same with its letters turned.
rows() {
    grep -oE '[a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -150 | sort -u |
        awk '{ turned = ""; for (i = length($2); i > 0; i--) turned = turned substr($2, i, 1)
            if (turned != $2) printf "{\"prompt\": \"%s \", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", $1, $2, turned }'
}

rows >pairs.jsonl
run 0 prepare --objective dpo --tokenizer tokenizer --input pairs.jsonl --output pairs --validation-fraction 0.2 \
    --sequence-length 32
run 0 train recipe.yaml run_dir=base train.max_steps=10
cat >dpo.yaml <<END
objective: dpo
run_dir: dpo
seed: 7
model: {num_layers: 2, hidden_size: 32, num_heads: 2, max_position_embeddings: 32, init_from: base/final}
data: {tokenizer: tokenizer, train: pairs/train-*.h5, validation: pairs/validation-*.h5}
batch: {global_size: 12, micro_size: 3}
optimizer: {learning_rate: 1.0e-3, beta2: 0.999, weight_decay: 0.0}
schedule: {name: linear, min_ratio: 0.0}
train: {max_steps: 24}
evaluate: {every: 12, batches: null}
checkpoint: {every: 12}
log: {every: 1}
END

value() { # RUN EVENT STEP FIELD
    grep "\"event\":\"$2\",\"step\":$3," "$1/metrics.jsonl" | sed -E "s#.*\"$4\":([-+.eE0-9]+).*#\1#"
}

near() { # VALUE EXPECTED TOLERANCE WHAT
    awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && d <= t) }' ||
        fail "$4 is '$1', not $2 within $3"
}

layouts() {
    need_mpirun
    run 0 train dpo.yaml run_dir=one
    grep -q 'computing the reference' told || fail 'no reference was computed'
    [ "$(find pairs -name 'reference-*.hdf5' | wc -l)" = 2 ] || fail 'not a side file for each set'
    near "$(value one train 1 loss)" 0.69314718056 1e-6 'the first loss'
    near "$(value one evaluate 0 loss)" 0.69314718056 1e-6 'the first held-out loss'
    near "$(value one evaluate 24 'rewards/accuracies')" 1 0.35 "the held-out accuracy"
    for name in rewards/chosen rewards/rejected rewards/margins logps/chosen logps/rejected logits/chosen \
        logits/rejected entropy mean_token_accuracy num_tokens; do
        [ -n "$(value one train 24 "$name")" ] || fail "no $name"
    done
    run 0 train dpo.yaml run_dir=micro batch.micro_size=12 dpo.shared_prefix=false
    grep -q 'log-probabilities of .* from pairs/reference-' told || fail 'the side file was not used again'
    same_losses one micro 1e-5
    [ "$(value one train 24 num_tokens)" = "$(value micro train 24 num_tokens)" ] || fail 'tokens are counted otherwise'
    run 0 evaluate --checkpoint one --data 'pairs/validation-*.h5' --json
    near "$(sed -E 's/.*"loss":([0-9.]+).*/\1/' out)" "$(value one evaluate 24 loss)" 1e-6 'what evaluate says'
    grep -q '"rewards/accuracies":' out || fail 'evaluate tells no accuracy'
    [ "$(find pairs -name 'reference-*.hdf5' | wc -l)" = 2 ] || fail 'evaluate made another side file'
    local layout ranks tensor stage
    for layout in '2 2 0' '4 2 2' '5 1 1'; do
        read -r ranks tensor stage <<<"$layout"
        rm pairs/reference-*
        run_ranks "$ranks" 0 train dpo.yaml run_dir="dpo-$ranks-$tensor" parallel.tensor="$tensor" \
            parallel.zero_stage="$stage"
        same_losses one "dpo-$ranks-$tensor" 1e-5
    done
    # with references that each run computes itself
    reproduced dpo.yaml bits
}

# Losses that look at the whole batch do not depend on how it is divided.
whole() {
    need_mpirun
    for losses in '[sigmoid, sft]' 'aot_unpaired'; do
        rm -rf w1 w2 w3
        run 0 train dpo.yaml run_dir=w1 "dpo.loss_type=$losses" batch.micro_size=12
        run 0 train dpo.yaml run_dir=w2 "dpo.loss_type=$losses" batch.micro_size=1
        same_losses w1 w2 1e-5
        run_ranks 3 0 train dpo.yaml run_dir=w3 "dpo.loss_type=$losses"
        same_losses w1 w3 1e-5
    done
    near "$(value w1 train 1 loss)" 0.69314718056 1e-6 'the first loss of aot_unpaired'
    run_ranks 4 0 train dpo.yaml run_dir=w4 dpo.loss_type=aot_unpaired parallel.tensor=2
    same_losses w1 w4 1e-5
}

resume() {
    run 0 train dpo.yaml run_dir=one dpo.loss_type=aot
    cp -r one two
    rm -rf two/checkpoints/step-00000024 two/final
    run 0 train dpo.yaml run_dir=two dpo.loss_type=aot
    grep -q 'resuming' told || fail 'not resumed'
    same_losses one two 0
    same_weights one two 00000024
    # A side file that is half done is gone on with; the reference is told by its weights.
    local file before
    file=$(find pairs -name 'reference-*.hdf5' | head -1)
    before=$(basename "$file")
    run 0 train recipe.yaml run_dir=other train.max_steps=11
    run 0 train dpo.yaml run_dir=three model.init_from=other/final
    [ "$(find pairs -name 'reference-*.hdf5' | wc -l)" = 4 ] || fail 'another reference has no side file of its own'
    run 80 train dpo.yaml run_dir=two model.init_from=other/final dpo.loss_type=aot train.max_steps=40
    one_line - 'was trained on other data'
    for other in pairs/reference-*.hdf5; do # as if it were this one's
        [ "${other%-*}" = "pairs/${before%-*}" ] || cp "$other" "$file"
    done
    run 65 train dpo.yaml run_dir=four
    one_line - 'does not belong to this run'
    head -c 900 "$other" >"$file"
    run 65 train dpo.yaml run_dir=four
    one_line - "$before"
}

# A stop is heard while the reference is computed; what is done of it is gone on with.
stop() {
    local job
    for _ in $(seq 40); do cat pairs.jsonl; done >many.jsonl
    run 0 prepare --objective dpo --tokenizer tokenizer --input many.jsonl --output many --sequence-length 32
    set -- train dpo.yaml run_dir=stopped 'data.train=many/train-*.h5' data.validation=null evaluate.every=0 \
        batch.micro_size=1 train.max_steps=2
    "${one_core[@]}" "$program" "$@" >out 2>told &
    job=$!
    while kill -0 $job 2>/dev/null && ! grep -q 'computing the reference' told; do
        sleep 0.01
    done
    kill -USR1 $job 2>/dev/null
    wait $job
    [ $? = 75 ] || fail 'a stop while the reference was computed did not end with 75'
    grep -q "stopped after the reference log-probabilities of .* pairs; they are in many/reference-" told ||
        fail 'it is not told how far the reference is'
    run 0 "$@"
    grep -qE 'computing .* of many.*, [1-9][0-9]* are done' told || fail 'the reference was begun anew'
}

# A reward model on the same pairs: layouts, a resume, what it says of lines.
reward() {
    need_mpirun
    set -- train dpo.yaml objective=reward
    run 0 "$@" run_dir=one
    near "$(value one evaluate 24 accuracy)" 1 0.35 "the held-out accuracy"
    for name in accuracy margin mean_reward; do
        [ -n "$(value one train 24 $name)" ] || fail "no $name"
    done
    run 0 evaluate --checkpoint one --data 'pairs/validation-*.h5' --json
    near "$(sed -E 's/.*"loss":([0-9.]+).*/\1/' out)" "$(value one evaluate 24 loss)" 1e-6 'what evaluate says'
    run 0 "$@" run_dir=apart batch.micro_size=12 dpo.shared_prefix=false
    same_losses one apart 1e-5
    cp -r one two
    rm -rf two/checkpoints/step-00000024 two/final
    run 0 "$@" run_dir=two
    same_losses one two 0
    local ranks tensor stage
    for layout in '2 2 0' '4 2 2' '3 1 1'; do
        read -r ranks tensor stage <<<"$layout"
        run_ranks "$ranks" 0 "$@" run_dir="reward-$ranks-$tensor" parallel.tensor="$tensor" \
            parallel.zero_stage="$stage"
        same_losses one "reward-$ranks-$tensor" 1e-5
    done
    reproduced dpo.yaml bits objective=reward adapter.type=lora adapter.dropout=0.1
    printf 'the work\nthe krow\n' >lines
    run 0 score --checkpoint one lines
    [ "$(wc -l <out)" = 2 ] || fail 'not a reward for each line'
    run 65 generate --checkpoint one --prompt a
    one_line - 'was trained with objective reward'
    run 78 train dpo.yaml objective=reward model.architecture=bert
    one_line - 'conflicts with model.architecture'
}

errors() {
    run 78 train dpo.yaml model.init_from=null
    one_line - 'model.init_from: missing; objective dpo starts'
    run 78 train dpo.yaml dpo.loss_type=exo_pair
    one_line - 'dpo.label_smoothing: 0 makes the exo_pair'
    run 78 plan dpo.yaml 'dpo.loss_type=[sigmoid, sft]' dpo.loss_weights=1.0
    one_line - '1 weight for 2 losses'
    run 78 train dpo.yaml dpo.loss_type=sigmod
    one_line - "did you mean 'sigmoid'"
    run 65 train dpo.yaml data.train='data/train-*.h5'
    one_line - "not 'preference_pairs'"
    run 65 train dpo.yaml data.sequence_length=6
    one_line - 'raise data.sequence_length'
    run 0 plan dpo.yaml 'dpo.loss_type=[sigmoid, bco_pair, sft]' 'dpo.loss_weights=[0.8, 0.2, 1.0]' --json
    tr -d ' \n' <out | grep -q '"loss_weights":\[0.8,0.2,1.0\]' || fail 'the plan does not tell the weights'
}

"$1"
