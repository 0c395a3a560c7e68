#!/bin/bash
# train.freeze and train.freeze_layers: frozen weights keep their bits at any layout and precision;
# the memory of a plan; errors.
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun
sed -i 's/max_steps: 20/max_steps: 4/; s/warmup_steps: 5/warmup_steps: 1/
    s/every: 10, batches/every: 2, batches/; s/every: 10, keep/every: 2, keep/' recipe.yaml
run_bireme 0 train recipe.yaml run_dir=base train.max_steps=1 checkpoint.every=0

# check_frozen RUN PATTERN: exactly the weights with matching names are unchanged.
check_frozen() {
    run_bireme 81 checkpoint diff base/final "$1/final" --json
    grep -o '"name": *"transformer[^"]*"' out | cut -d'"' -f4 | sort >changed
    grep -qE "$2" changed && fail \
        "frozen weights of $1 changed: $(grep -E "$2" changed | tr '\n' ' ')"
    grep -vE "$2" names | cmp -s - changed ||
        fail "not all trained weights of $1 changed, only: $(tr '\n' ' ' <changed)"
}

# All names, from a run in which all weights change.
run_bireme 0 train recipe.yaml run_dir=free model.init_from=base
run_bireme 81 checkpoint diff base/final free/final --json
grep -o '"name": *"transformer[^"]*"' out | cut -d'"' -f4 | sort >names
[ "$(wc -l <names)" = 28 ] || fail "$(wc -l <names) names instead of 28"

frozen=(model.init_from=base train.freeze=embeddings train.freeze_layers=1)
run_bireme 0 train recipe.yaml run_dir=one "${frozen[@]}"
grep -q '28.9 k parameters, of which 12.8 k are trained' stderr ||
    fail 'the number of trained parameters is not printed'
grep -q '"event":"start".*"trained_parameters":12768' one/metrics.jsonl ||
    fail 'no trained_parameters in the start line'
check_frozen one '\.(wte|wpe|h\.0)\.'
run_ranks 2 0 train recipe.yaml run_dir=two "${frozen[@]}" parallel.zero_stage=2
check_frozen two '\.(wte|wpe|h\.0)\.'
compare_losses one two 1e-5
run_ranks 2 0 train recipe.yaml run_dir=tensor "${frozen[@]}" parallel.tensor=2 \
    parallel.sequence=true
check_frozen tensor '\.(wte|wpe|h\.0)\.'
compare_losses one tensor 1e-5
if grep -q bf16 stderr; then # the start line lists the features of the processor
    run_ranks 2 0 train recipe.yaml run_dir=half "${frozen[@]}" parallel.zero_stage=1 \
        train.precision=bf16
    check_frozen half '\.(wte|wpe|h\.0)\.'
fi
# The whole backbone is frozen, the separate output matrix is trained.
run_bireme 0 train recipe.yaml run_dir=own model.tie_word_embeddings=false train.max_steps=1 \
    checkpoint.every=0
run_bireme 0 train recipe.yaml run_dir=head model.tie_word_embeddings=false model.init_from=own \
    train.freeze=backbone
run_bireme 81 checkpoint diff own/final head/final --json
[ "$(grep -o '"name": *"[^"]*"' out | cut -d'"' -f4)" = lm_head.weight ] ||
    fail "weights other than the head changed: $(cat out)"

# Moments exist for trained parameters only. A resume requires the same frozen parameters.
run_bireme 0 plan recipe.yaml "${frozen[@]}" --json
grep -q '"trained_parameters": *12768' out && grep -q '"optimizer": *102144' out ||
    fail "wrong plan: $(cat out)"
cp -r one again && rm -r again/final again/checkpoints/step-00000004
run_bireme 0 train recipe.yaml run_dir=again "${frozen[@]}"
compare_losses one again 0
rm -r again/final
run_bireme 80 train recipe.yaml run_dir=again model.init_from=base train.freeze=embeddings
expect_error 'train.freeze_layers: checkpoint 1, recipe 0'
run_bireme 78 train recipe.yaml run_dir=none train.freeze=backbone
expect_error 'freezes all parameters of the model'
run_bireme 78 plan recipe.yaml train.freeze_layers=3
expect_error 'train.freeze_layers: 3 is greater than model.num_layers (2)'
run_bireme 78 plan recipe.yaml train.freeze=encoder
