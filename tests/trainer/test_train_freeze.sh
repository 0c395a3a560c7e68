#!/bin/bash
# train.freeze and train.freeze_layers: which weights stay to the bit, at any layout and precision, what a plan counts, and
# what is refused.
. "$(dirname "$0")/tiny_training.sh"
need_mpirun
sed -i 's/max_steps: 20/max_steps: 4/; s/warmup_steps: 5/warmup_steps: 1/; s/every: 10, batches/every: 2, batches/
    s/every: 10, keep/every: 2, keep/' recipe.yaml
run 0 train recipe.yaml run_dir=base train.max_steps=1 checkpoint.every=0

stays() { # RUN PATTERN: of the weights, exactly those with such names are what they were
    run 81 checkpoint diff base/final "$1/final" --json
    grep -o '"name": *"transformer[^"]*"' out | cut -d'"' -f4 | sort >changed
    grep -qE "$2" changed && fail "of what is frozen in $1 this changed: $(grep -E "$2" changed | tr '\n' ' ')"
    grep -vE "$2" names | cmp -s - changed || fail "of $1 this changed: $(tr '\n' ' ' <changed)"
}

# every name, from a run in which all changes
run 0 train recipe.yaml run_dir=free model.init_from=base
run 81 checkpoint diff base/final free/final --json
grep -o '"name": *"transformer[^"]*"' out | cut -d'"' -f4 | sort >names
[ "$(wc -l <names)" = 28 ] || fail "$(wc -l <names) names instead of 28"

frozen=(model.init_from=base train.freeze=embeddings train.freeze_layers=1)
run 0 train recipe.yaml run_dir=one "${frozen[@]}"
grep -q '28928 parameters, of which 12768 are trained' told || fail 'the start does not tell what is trained'
grep -q '"event":"start".*"trained_parameters":12768' one/metrics.jsonl || fail 'no trained_parameters in the start line'
stays one '\.(wte|wpe|h\.0)\.'
run_ranks 2 0 train recipe.yaml run_dir=two "${frozen[@]}" parallel.zero_stage=2
stays two '\.(wte|wpe|h\.0)\.'
same_losses one two 1e-5
run_ranks 2 0 train recipe.yaml run_dir=tensor "${frozen[@]}" parallel.tensor=2 parallel.sequence=true
stays tensor '\.(wte|wpe|h\.0)\.'
same_losses one tensor 1e-5
if grep -q bf16 told; then # as the start line says what the processor has
    run_ranks 2 0 train recipe.yaml run_dir=half "${frozen[@]}" parallel.zero_stage=1 train.precision=bf16
    stays half '\.(wte|wpe|h\.0)\.'
fi
# the whole backbone but for an output matrix of its own
run 0 train recipe.yaml run_dir=own model.tie_word_embeddings=false train.max_steps=1 checkpoint.every=0
run 0 train recipe.yaml run_dir=head model.tie_word_embeddings=false model.init_from=own train.freeze=backbone
run 81 checkpoint diff own/final head/final --json
[ "$(grep -o '"name": *"[^"]*"' out | cut -d'"' -f4)" = lm_head.weight ] || fail "not the head alone changed: $(cat out)"

# the moments of what is trained alone; a resume goes on, and none with something else frozen
run 0 plan recipe.yaml "${frozen[@]}" --json
grep -q '"trained_parameters": *12768' out && grep -q '"optimizer": *102144' out || fail "the plan is another one: $(cat out)"
cp -r one again && rm -r again/final again/checkpoints/step-00000004
run 0 train recipe.yaml run_dir=again "${frozen[@]}"
same_losses one again 0
rm -r again/final
run 80 train recipe.yaml run_dir=again model.init_from=base train.freeze=embeddings
one_line 80 'train.freeze_layers: checkpoint 1, recipe 0'
run 78 train recipe.yaml run_dir=none train.freeze=backbone
one_line 78 'freezes all parameters of the model'
run 78 plan recipe.yaml train.freeze_layers=3
one_line 78 'train.freeze_layers: 3 is greater than model.num_layers (2)'
run 78 plan recipe.yaml train.freeze=encoder
