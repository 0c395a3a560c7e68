#!/bin/bash
# LoRA on a tiny model: trained and saved parameters, layouts, resume, training from adapters, the
# reference of DPO, a missing or changed base model, encoder-decoders, errors.
# ctest: parts layouts objectives checkpoints dpo seq2seq
# ctest: timeout 240
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
sed -i 's/max_steps: 20/max_steps: 6/; s/warmup_steps: 5/warmup_steps: 1/
    s/every: 10, batches/every: 3, batches/; s/every: 10, keep/every: 3, keep/' recipe.yaml
run_bireme 0 train recipe.yaml run_dir=base train.max_steps=4 checkpoint.every=0
lora=(model.init_from=base adapter.type=lora adapter.rank=4
    'adapter.targets=[c_attn, c_fc, c_proj]' adapter.dropout=0.1 optimizer.learning_rate=0.01)

# print_first_loss RUN, print_last_loss RUN: print the first or last validation loss.
print_first_loss() {
    print_losses "$1" evaluate | head -1 | cut -d' ' -f2
}

print_last_loss() {
    print_losses "$1" evaluate | tail -1 | cut -d' ' -f2
}

test_layouts() {
    need_mpirun
    run_bireme 0 train recipe.yaml run_dir=one "${lora[@]}"
    grep -q '33.0 k parameters, of which 4.10 k are trained' stderr ||
        fail 'the number of trained parameters is not printed'
    run_bireme 0 inspect one/final --json
    local adapter='base_model.model.transformer.h.[01].[a-z.]*c_[a-z]*.lora_[AB].weight'
    [ "$(grep -o '"name": *"[^"]*"' out | grep -c "$adapter")" = 16 ] ||
        fail "not 16 adapter matrices: $(cat out)"
    grep -o '"name": *"transformer[^"]*"' out && fail 'the base model is in the checkpoint'
    first=$(print_losses one evaluate | head -1) last=$(print_losses one evaluate | tail -1)
    [ "${first#* }" != "${last#* }" ] || fail 'training does not change the loss'
    run_ranks 2 0 train recipe.yaml run_dir=two "${lora[@]}" parallel.zero_stage=1
    compare_losses one two 1e-5
    run_ranks 2 0 train recipe.yaml run_dir=shards "${lora[@]}" parallel.zero_stage=2 \
        train.activation_checkpointing=selective \
        batch.micro_size=6
    compare_losses one shards 1e-5
    run_ranks 2 0 train recipe.yaml run_dir=tensor "${lora[@]}" parallel.tensor=2
    compare_losses one tensor 1e-5
    run_ranks 4 0 train recipe.yaml run_dir=both "${lora[@]}" parallel.tensor=2 \
        parallel.sequence=true parallel.zero_stage=1 \
        train.activation_checkpointing=full batch.micro_size=2
    compare_losses one both 1e-5
    run_bireme 0 checkpoint diff one/final both/final --tolerance 1e-2
    if "$program" train recipe.yaml run_dir=half train.precision=bf16 train.max_steps=1 >out \
        2>stderr; then
        run_ranks 2 0 train recipe.yaml run_dir=halves "${lora[@]}" parallel.zero_stage=1 \
            train.precision=bf16
        run_bireme 0 evaluate --checkpoint halves --data 'data/validation-*.h5' --json
    fi
}

# Encoders and tasks. The head of mlm is frozen; the head of a task is trained and saved with the
# adapters.
test_objectives() {
    need_mpirun
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output pieces
    run_bireme 0 prepare --objective mlm --tokenizer pieces --input "$source/LICENSE" \
        --sequence-length 32 --validation-fraction 0.2 \
        --output mlm
    sed -e 's/clm/mlm/' -e 's/gpt2/bert/' -e 's/tokenizer: tokenizer/tokenizer: pieces/' \
        -e 's/data\//mlm\//g' recipe.yaml >bert.yaml
    run_bireme 0 train bert.yaml run_dir=encoder train.max_steps=2
    local lora=(model.init_from=encoder adapter.type=lora adapter.rank=4 adapter.rslora=true
        adapter.dropout=0.1 optimizer.learning_rate=0.01)
    run_bireme 0 train bert.yaml run_dir=masks "${lora[@]}" 'adapter.targets=[query, output.dense]'
    run_ranks 2 0 train bert.yaml run_dir=shared "${lora[@]}" \
        'adapter.targets=[query, output.dense]' parallel.tensor=2 \
        parallel.sequence=true train.activation_checkpointing=full
    compare_losses masks shared 1e-5
    run_bireme 0 fill-mask --checkpoint masks 'this [MASK] is'

    grep -oE '[a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -90 | awk '
        {
            printf "{\"text\": \"%s\", \"label\": \"%s\"}\n", $0,
                (length($1) > length($2)) ? "first" : "second"
        }' >rows.jsonl
    run_bireme 0 prepare --objective classify --tokenizer pieces --input rows.jsonl --output rows \
        --validation-fraction 0.2 \
        --sequence-length 32
    sed -e 's/mlm\//rows\//g' -e 's/mlm/classify/' -e 's/batches: 1/batches: null/' bert.yaml \
        >labels.yaml
    run_bireme 0 train labels.yaml run_dir=labels "${lora[@]}"
    grep -q 'new, at random: classifier.\*' stderr ||
        fail 'the head is not initialized at random'
    grep -q ' of which 2.15 k are trained' stderr ||
        fail 'the trained parameters are not the adapters and the head'
    run_bireme 0 inspect labels/final --json
    local trained='lora_[AB].weight|"bert.pooler.dense.(weight|bias)|"classifier.(weight|bias)'
    [ "$(grep -o '"name": *"[^"]*"' out | grep -cE "$trained")" = 12 ] ||
        fail "not 8 adapter matrices and the head: $(cat out)"
    run_ranks 2 0 train labels.yaml run_dir=sharded "${lora[@]}" parallel.zero_stage=2 \
        batch.micro_size=2
    compare_losses labels sharded 1e-5
    cp -r labels again && rm -r again/final again/checkpoints/step-00000006
    run_bireme 0 train labels.yaml run_dir=again "${lora[@]}"
    run_bireme 0 checkpoint diff labels again
    run_bireme 0 evaluate --checkpoint labels --data 'rows/validation-*.h5' --json
    [ "$(sed -E 's/.*"loss":([0-9.]{7}).*/\1/' out)" = "$(print_last_loss labels | cut -c1-7)" ] ||
        fail 'evaluate uses another head'
    echo 'any other work' >lines
    run_bireme 0 classify --checkpoint labels lines
    # A run that starts from adapters also loads their head. A run that starts from a base model
    # loads the head of the base model if it has the same shape.
    run_bireme 0 train labels.yaml run_dir=more "${lora[@]}" model.init_from=labels \
        adapter.dropout=0 train.max_steps=1
    [ "$(print_last_loss labels)" = "$(print_first_loss more)" ] ||
        fail 'the head of the adapters was not loaded'
    run_bireme 0 train labels.yaml run_dir=whole model.init_from=encoder train.max_steps=3
    run_bireme 0 train labels.yaml run_dir=from_whole "${lora[@]}" model.init_from=whole \
        train.max_steps=1
    [ "$(print_last_loss whole)" = "$(print_first_loss from_whole)" ] ||
        fail 'the head of the base model was not loaded'
    run_bireme 78 train labels.yaml run_dir=none "${lora[@]}" model.num_layers=1
    expect_error 'num_layers: 2 (command line: 1)'
}

test_checkpoints() {
    run_bireme 0 train recipe.yaml run_dir=one "${lora[@]}"
    cp -r one again && rm -r again/final again/checkpoints/step-00000006
    run_bireme 0 train recipe.yaml run_dir=again "${lora[@]}"
    compare_losses one again 0
    run_bireme 0 checkpoint diff one/final again/final
    run_bireme 0 generate --checkpoint one --prompt the --max-new-tokens 4
    # An export with merged adapters has the same loss; an export of the adapters has the format of
    # peft.
    print_loss() { # CHECKPOINT
        run_bireme 0 evaluate --checkpoint "$1" --data 'data/validation-*.h5' --json
        sed -E 's/.*"loss":([0-9.]{7}).*/\1/' out
    }
    run_bireme 0 export --checkpoint one --output merged
    run_bireme 0 import merged --output back
    [ "$(print_loss one)" = "$(print_loss back)" ] ||
        fail "the loss after a merge is $(print_loss back) instead of $(print_loss one)"
    run_bireme 0 export --checkpoint one --output adapter --adapter
    local name='base_model.model.transformer.h.[01].[a-z.]*c_[a-z]*.lora_[AB].weight'
    [ "$(grep -ao "$name" adapter/adapter_model.safetensors | wc -l)" = 16 ] &&
        grep -q '"r": 4' adapter/adapter_config.json || fail 'the export is not 16 adapter matrices'
    run_bireme 0 import adapter --output imported
    run_bireme 0 checkpoint diff one/final imported
    [ "$(print_loss one)" = "$(print_loss imported)" ] ||
        fail "the loss after an import is $(print_loss imported) instead of $(print_loss one)"
    run_bireme 64 import merged --output none --base base
    expect_error 'remove --base'
    run_bireme 64 export --checkpoint base --output none --adapter
    expect_error 'holds no adapters'
    # A run that starts from adapters continues with their loss; other settings are refused.
    run_bireme 0 train recipe.yaml run_dir=more "${lora[@]}" model.init_from=one/final \
        adapter.dropout=0.0
    [ "$(print_last_loss one)" = "$(print_first_loss more)" ] || fail 'the adapters were not loaded'
    run_bireme 78 train recipe.yaml run_dir=none "${lora[@]}" model.init_from=one/final \
        adapter.rank=2
    expect_error 'adapter.rank: 2, but .* have rank 4; set this rank'
    # The order of the targets has no effect.
    run_bireme 0 train recipe.yaml run_dir=targets "${lora[@]}" train.max_steps=1 \
        adapter.targets='[c_fc, attn.c_proj]'
    run_bireme 0 train recipe.yaml run_dir=reordered "${lora[@]}" train.max_steps=1 \
        adapter.targets='[attn.c_proj, c_fc]' model.init_from=targets/final
    run_bireme 78 train recipe.yaml run_dir=none "${lora[@]}" adapter.targets=c_fc \
        model.init_from=targets/final
    expect_error 'targets: c_fc, but .* contains adapters of c_fc, attn.c_proj; list these'
    run_bireme 78 train recipe.yaml run_dir=none model.init_from=one
    expect_error 'contains adapters only'
    run_bireme 78 train recipe.yaml run_dir=none adapter.type=lora
    expect_error 'lora requires model.init_from'
    run_bireme 78 train recipe.yaml run_dir=none model.init_from=base adapter.type=lora \
        adapter.targets=q_proj
    expect_error 'q_proj matches no matrix of a block of gpt2'
    # The base model is moved, then changed.
    mv base moved
    run_bireme 66 generate --checkpoint one --prompt the --max-new-tokens 4
    expect_error 'adapter.base: .*The base model of these adapters is expected there'
    run_bireme 0 generate --checkpoint one --prompt the --max-new-tokens 4 --set adapter.base=moved
    run_bireme 0 train recipe.yaml run_dir=base train.max_steps=5 checkpoint.every=0
    run_bireme 65 generate --checkpoint one --prompt the --max-new-tokens 4
    expect_error 'have changed since the adapters were trained'
    run_bireme 65 export --checkpoint one --output refused
    [ ! -e refused ] || fail 'a refused export left a model folder'
    rm -r again/final again/checkpoints/step-00000006
    run_bireme 80 train recipe.yaml run_dir=again "${lora[@]}"
    expect_error 'adapter.base_weights: checkpoint'
}

test_dpo() {
    make_preferences 100
    sed -i 's/1.0e-3/1.0e-2/; s/max_steps: 24/max_steps: 4/; s/every: 12/every: 2/' dpo.yaml
    print_first_train_loss() { print_losses "$1" train | head -1 | cut -d' ' -f2 | cut -c1-8; }
    run_bireme 0 train dpo.yaml run_dir=whole train.max_steps=1
    # The reference of new adapters is the base model: its log-probabilities are reused.
    run_bireme 0 train dpo.yaml run_dir=fresh adapter.type=lora
    grep -q 'log-probabilities of .* from pairs/reference-' stderr ||
        fail 'the log-probabilities of the base model were not reused'
    [ "$(print_first_train_loss fresh)" = 0.693147 ] ||
        fail "the first loss is $(print_first_train_loss fresh)"
    run_bireme 0 train dpo.yaml run_dir=shared adapter.type=lora dpo.shared_prefix=true
    run_bireme 0 train dpo.yaml run_dir=apart adapter.type=lora dpo.shared_prefix=false \
        train.activation_checkpointing=full
    compare_losses apart shared 1e-5
    # A reward model of the same pairs.
    run_bireme 0 train dpo.yaml run_dir=reward objective=reward adapter.type=lora
    grep -q 'new, at random: score.\*' stderr ||
        fail 'the reward model has no new head'
    # A run that starts from adapters has a reference with these adapters.
    run_bireme 0 train dpo.yaml run_dir=continued adapter.type=lora model.init_from=fresh
    grep -q 'computing the reference' stderr || fail 'the adapters are not part of the reference'
    [ "$(print_first_train_loss continued)" = 0.693147 ] ||
        fail "the first loss from adapters is $(print_first_train_loss continued)"
    rm -r continued/final continued/checkpoints/step-00000004 && cp -r continued again
    run_bireme 0 train dpo.yaml run_dir=continued adapter.type=lora model.init_from=fresh
    run_bireme 0 train dpo.yaml run_dir=again adapter.type=lora model.init_from=fresh --resume auto
    compare_losses continued again 0
    run_bireme 0 evaluate --checkpoint continued --data 'pairs/validation-*.h5' --json
    [ "$(sed -E 's/.*"loss":([0-9.]{7}).*/\1/' out)" = "$(print_last_loss continued | cut -c1-7)" \
        ] ||
        fail 'evaluate uses another reference'
}

# Encoder-decoders: adapters in both stacks, and in cross-attention alone. Generation reads the
# source once with the adapters, and gives the targets of the merged weights.
test_seq2seq() {
    need_mpirun
    make_pairs
    local base=("${common[@]}") name learned=0.995 # the embeddings are frozen
    run_bireme 0 "${base[@]}" run_dir=whole train.max_steps=1 schedule.warmup_steps=0
    common+=(model.init_from=whole adapter.type=lora adapter.rank=4 adapter.dropout=0.1
        optimizer.learning_rate=0.03)
    compare_layouts linear adapter.targets=all-linear
    run_bireme 0 inspect linear/final --json
    name='base_model.model.model.[a-z]*coder.layers.[01].[a-z_.0-9]*.lora_[AB].weight'
    [ "$(grep -o '"name": *"[^"]*"' out | grep -c "$name")" = 64 ] ||
        fail "not 64 adapter matrices: $(cat out)"
    compare_layouts cross 'adapter.targets=[encoder_attn.q_proj, encoder_attn.v_proj]' \
        adapter.dropout=0
    for name in linear cross; do
        run_bireme 0 export --checkpoint $name --output $name.merged
        run_bireme 0 import $name.merged --output $name.back
        run_bireme 0 export --checkpoint $name --output $name.adapter --adapter
        grep -q '"task_type": "SEQ_2_SEQ_LM"' $name.adapter/adapter_config.json ||
            fail "$name: another task_type"
        run_bireme 0 import $name.adapter --base whole --output $name.again
        run_bireme 0 checkpoint diff $name/final $name.again
        head -20 pairs.a >lines
        run_bireme 0 translate --checkpoint $name.back --num-beams 3 lines
        mv out expected
        run_bireme 0 translate --checkpoint $name --num-beams 3 lines
        cmp out expected || fail "$name: the targets differ from those of the merged weights"
    done
    run_bireme 0 translate --checkpoint whole --num-beams 3 lines
    ! cmp -s out expected || fail 'the adapters change no target'
    # T5, with the default targets.
    run_bireme 0 "${base[@]}" run_dir=t5 model.architecture=t5 model.head_dim=6 train.max_steps=1 \
        schedule.warmup_steps=0
    common+=(model.init_from=t5 model.architecture=t5 model.head_dim=6)
    compare_layouts t5_lora
    grep -q 'targets: \[q, v\]$' t5_lora/recipe.yaml || fail 'other default targets'
}

run_part "$@"
