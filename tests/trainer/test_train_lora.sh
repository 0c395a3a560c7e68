#!/bin/bash
# LoRA as a whole on a tiny model: what is trained and saved, any layout, resuming, adapters that are carried on, the
# reference of dpo, a base that is gone or changed, what is refused.
# usage: test_train_lora.sh PART
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
sed -i 's/max_steps: 20/max_steps: 6/; s/warmup_steps: 5/warmup_steps: 1/; s/every: 10, batches/every: 3, batches/
    s/every: 10, keep/every: 3, keep/' recipe.yaml
run 0 train recipe.yaml run_dir=base train.max_steps=4 checkpoint.every=0
lora=(model.init_from=base adapter.type=lora adapter.rank=4 'adapter.targets=[c_attn, c_fc, c_proj]' adapter.dropout=0.1
    optimizer.learning_rate=0.01)

layouts() {
    need_mpirun
    run 0 train recipe.yaml run_dir=one "${lora[@]}"
    grep -q '33024 parameters, of which 4096 are trained' told || fail 'the start does not tell what is trained'
    run 0 inspect one/final --json
    [ "$(grep -o '"name": *"[^"]*"' out | grep -c 'base_model.model.transformer.h.[01].[a-z.]*c_[a-z]*.lora_[AB].weight')" = 16 ] ||
        fail "not 16 adapters' matrices alone: $(cat out)"
    grep -o '"name": *"transformer[^"]*"' out && fail 'the base is in the checkpoint'
    first=$(losses one evaluate | head -1) last=$(losses one evaluate | tail -1)
    [ "${first#* }" != "${last#* }" ] || fail 'nothing was learnt'
    run_ranks 2 0 train recipe.yaml run_dir=two "${lora[@]}" parallel.zero_stage=1
    same_losses one two 1e-5
    run_ranks 2 0 train recipe.yaml run_dir=shards "${lora[@]}" parallel.zero_stage=2 train.activation_checkpointing=selective \
        batch.micro_size=6
    same_losses one shards 1e-5
    run_ranks 2 0 train recipe.yaml run_dir=tensor "${lora[@]}" parallel.tensor=2
    same_losses one tensor 1e-5
    run_ranks 4 0 train recipe.yaml run_dir=both "${lora[@]}" parallel.tensor=2 parallel.sequence=true parallel.zero_stage=1 \
        train.activation_checkpointing=full batch.micro_size=2
    same_losses one both 1e-5
    run 0 checkpoint diff one/final both/final --tolerance 1e-2
    if "$program" train recipe.yaml run_dir=half train.precision=bf16 train.max_steps=1 >out 2>told; then
        run_ranks 2 0 train recipe.yaml run_dir=halves "${lora[@]}" parallel.zero_stage=1 train.precision=bf16
        run 0 evaluate --checkpoint halves --data 'data/validation-*.h5' --json
    fi
}

# Encoders and tasks: mlm with its head as it is; a task's head is trained in full, and saved with the adapters.
objectives() {
    need_mpirun
    run 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" --output pieces
    run 0 prepare --objective mlm --tokenizer pieces --input "$source/LICENSE" --sequence-length 32 --validation-fraction 0.2 \
        --output mlm
    sed -e 's/clm/mlm/' -e 's/gpt2/bert/' -e 's/tokenizer: tokenizer/tokenizer: pieces/' -e 's/data\//mlm\//g' recipe.yaml >bert.yaml
    run 0 train bert.yaml run_dir=encoder train.max_steps=2
    local lora=(model.init_from=encoder adapter.type=lora adapter.rank=4 adapter.rslora=true adapter.dropout=0.1
        optimizer.learning_rate=0.01)
    run 0 train bert.yaml run_dir=masks "${lora[@]}" 'adapter.targets=[query, output.dense]'
    run_ranks 2 0 train bert.yaml run_dir=shared "${lora[@]}" 'adapter.targets=[query, output.dense]' parallel.tensor=2 \
        parallel.sequence=true train.activation_checkpointing=full
    same_losses masks shared 1e-5
    run 0 fill-mask --checkpoint masks 'this [MASK] is'

    grep -oE '[a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -90 | awk '{ printf "{\"text\": \"%s\", \"label\": \"%s\"}\n", $0,
        (length($1) > length($2)) ? "first" : "second" }' >rows.jsonl
    run 0 prepare --objective classify --tokenizer pieces --input rows.jsonl --output rows --validation-fraction 0.2 \
        --sequence-length 32
    sed -e 's/mlm\//rows\//g' -e 's/mlm/classify/' -e 's/batches: 1/batches: null/' bert.yaml >labels.yaml
    run 0 train labels.yaml run_dir=labels "${lora[@]}"
    grep -q 'classifier.weight is initialized at random' told || fail 'the head is not new'
    grep -q ' of which 2146 are trained' told || fail 'not the adapters and the head are trained'
    run 0 inspect labels/final --json
    [ "$(grep -o '"name": *"[^"]*"' out | grep -cE 'lora_[AB].weight|"bert.pooler.dense.(weight|bias)|"classifier.(weight|bias)')" = 12 ] ||
        fail "not 8 adapters' matrices and the head: $(cat out)"
    run_ranks 2 0 train labels.yaml run_dir=sharded "${lora[@]}" parallel.zero_stage=2 batch.micro_size=2
    same_losses labels sharded 1e-5
    cp -r labels again && rm -r again/final again/checkpoints/step-00000006
    run 0 train labels.yaml run_dir=again "${lora[@]}"
    run 0 checkpoint diff labels again
    run 0 evaluate --checkpoint labels --data 'rows/validation-*.h5' --json
    [ "$(sed -E 's/.*"loss":([0-9.]{7}).*/\1/' out)" = "$(losses labels evaluate | tail -1 | cut -d' ' -f2 | cut -c1-7)" ] ||
        fail 'evaluate has another head'
    echo 'any other work' >lines
    run 0 classify --checkpoint labels lines
    # carried on, the head is too; of the base, a head of the same shape
    run 0 train labels.yaml run_dir=more "${lora[@]}" model.init_from=labels adapter.dropout=0 train.max_steps=1
    [ "$(losses labels evaluate | tail -1 | cut -d' ' -f2)" = "$(losses more evaluate | head -1 | cut -d' ' -f2)" ] ||
        fail 'the head was not carried on'
    run 0 train labels.yaml run_dir=whole model.init_from=encoder train.max_steps=3
    run 0 train labels.yaml run_dir=beside "${lora[@]}" model.init_from=whole train.max_steps=1
    [ "$(losses whole evaluate | tail -1 | cut -d' ' -f2)" = "$(losses beside evaluate | head -1 | cut -d' ' -f2)" ] ||
        fail "the base's head was not taken"
    run 80 train labels.yaml run_dir=none "${lora[@]}" model.num_layers=1
    one_line 80 "which this run's model does not have"
}

checkpoints() {
    run 0 train recipe.yaml run_dir=one "${lora[@]}"
    cp -r one again && rm -r again/final again/checkpoints/step-00000006
    run 0 train recipe.yaml run_dir=again "${lora[@]}"
    same_losses one again 0
    run 0 checkpoint diff one/final again/final
    run 0 generate --checkpoint one --prompt the --max-new-tokens 4
    # merged, the model says the same; alone, they are what peft reads
    loss() { # CHECKPOINT
        run 0 evaluate --checkpoint "$1" --data 'data/validation-*.h5' --json
        sed -E 's/.*"loss":([0-9.]{7}).*/\1/' out
    }
    run 0 export --checkpoint one --output merged
    run 0 import merged --output back
    [ "$(loss one)" = "$(loss back)" ] || fail "merged, the loss is $(loss back) instead of $(loss one)"
    run 0 export --checkpoint one --output adapter --adapter
    [ "$(grep -ao 'base_model.model.transformer.h.[01].[a-z.]*c_[a-z]*.lora_[AB].weight' adapter/adapter_model.safetensors |
        wc -l)" = 16 ] && grep -q '"r": 4' adapter/adapter_config.json || fail 'not the adapters alone'
    run 0 import adapter --output imported
    run 0 checkpoint diff one/final imported
    [ "$(loss one)" = "$(loss imported)" ] || fail "imported, the loss is $(loss imported) instead of $(loss one)"
    run 64 import merged --output none --base base
    one_line 64 'remove --base'
    run 64 export --checkpoint base --output none --adapter
    one_line 64 'holds no adapters'
    # carried on: the first held-out loss is the last one of before; with other settings, refused
    run 0 train recipe.yaml run_dir=more "${lora[@]}" model.init_from=one/final adapter.dropout=0.0
    [ "$(losses one evaluate | tail -1 | cut -d' ' -f2)" = "$(losses more evaluate | head -1 | cut -d' ' -f2)" ] ||
        fail 'the adapters were not carried on'
    run 78 train recipe.yaml run_dir=none "${lora[@]}" model.init_from=one/final adapter.rank=2
    one_line 78 'adapter.rank: 2, but .* have rank 4'
    run 78 train recipe.yaml run_dir=none model.init_from=one
    one_line 78 'contains adapters only'
    run 78 train recipe.yaml run_dir=none adapter.type=lora
    one_line 78 'lora requires model.init_from'
    run 78 train recipe.yaml run_dir=none model.init_from=base adapter.type=lora adapter.targets=q_proj
    one_line 78 'q_proj matches no matrix of a block of gpt2'
    # the base is moved, then changed, then gone
    mv base moved
    run 66 generate --checkpoint one --prompt the --max-new-tokens 4
    one_line 66 'adapter.base: .*The base model of these adapters is expected there'
    run 0 generate --checkpoint one --prompt the --max-new-tokens 4 --set adapter.base=moved
    run 0 train recipe.yaml run_dir=base train.max_steps=5 checkpoint.every=0
    run 65 generate --checkpoint one --prompt the --max-new-tokens 4
    one_line 65 'have changed since the adapters were trained'
    run 65 export --checkpoint one --output refused
    [ ! -e refused ] || fail 'a merged model of another base was left'
    rm -r again/final again/checkpoints/step-00000006
    run 80 train recipe.yaml run_dir=again "${lora[@]}"
    one_line 80 'adapter.base_weights: checkpoint'
}

dpo() {
    grep -oE '[a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -100 | sort -u |
        awk '{ turned = ""; for (i = length($2); i > 0; i--) turned = turned substr($2, i, 1)
            if (turned != $2) printf "{\"prompt\": \"%s \", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", $1, $2, turned }' \
            >pairs.jsonl
    run 0 prepare --objective dpo --tokenizer tokenizer --input pairs.jsonl --output pairs --validation-fraction 0.2 \
        --sequence-length 32
    cat >dpo.yaml <<END
objective: dpo
seed: 7
model: {num_layers: 2, hidden_size: 32, num_heads: 2, max_position_embeddings: 32, init_from: base/final}
data: {tokenizer: tokenizer, train: pairs/train-*.h5, validation: pairs/validation-*.h5}
batch: {global_size: 12, micro_size: 3}
optimizer: {learning_rate: 1.0e-2, beta2: 0.999, weight_decay: 0.0}
schedule: {name: linear, min_ratio: 0.0}
train: {max_steps: 4}
evaluate: {every: 2, batches: null}
checkpoint: {every: 2}
log: {every: 1}
END
    first() { losses "$1" train | head -1 | cut -d' ' -f2 | cut -c1-8; }
    run 0 train dpo.yaml run_dir=whole train.max_steps=1
    # fresh adapters: the reference is the base, whose side file serves
    run 0 train dpo.yaml run_dir=fresh adapter.type=lora
    grep -q 'log-probabilities of .* from pairs/reference-' told || fail "the base's side file was not used"
    [ "$(first fresh)" = 0.693147 ] || fail "the first loss is $(first fresh)"
    run 0 train dpo.yaml run_dir=behind adapter.type=lora dpo.shared_prefix=true
    run 0 train dpo.yaml run_dir=apart adapter.type=lora dpo.shared_prefix=false train.activation_checkpointing=full
    same_losses apart behind 1e-5
    # a reward model of the same pairs
    run 0 train dpo.yaml run_dir=reward objective=reward adapter.type=lora
    grep -q 'score.weight is initialized at random' told || fail 'the reward model has no new head'
    # carried on: the reference has them too
    run 0 train dpo.yaml run_dir=carried adapter.type=lora model.init_from=fresh
    grep -q 'computing the reference' told || fail 'the adapters are not part of the reference'
    [ "$(first carried)" = 0.693147 ] || fail "the first loss of adapters that were carried on is $(first carried)"
    rm -r carried/final carried/checkpoints/step-00000004 && cp -r carried again
    run 0 train dpo.yaml run_dir=carried adapter.type=lora model.init_from=fresh
    run 0 train dpo.yaml run_dir=again adapter.type=lora model.init_from=fresh --resume auto
    same_losses carried again 0
    run 0 evaluate --checkpoint carried --data 'pairs/validation-*.h5' --json
    [ "$(sed -E 's/.*"loss":([0-9.]{7}).*/\1/' out)" = "$(losses carried evaluate | tail -1 | cut -d' ' -f2 | cut -c1-7)" ] ||
        fail 'evaluate has another reference'
}

"$1"
