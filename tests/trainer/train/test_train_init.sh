#!/bin/bash
# model.init_from: the sizes that the recipe leaves open come from the checkpoint, contradictions
# are listed in one message, and plan refuses what train refuses.
# ctest: timeout 120
. "$(dirname "$0")/../tiny_training.sh"

# write_recipe FILE MODEL: a recipe on the same data with this model section.
write_recipe() {
    cat >"$1" <<END
objective: clm
run_dir: fine
model:
$2
  init_from: base
data: {tokenizer: tokenizer, train: data/train-*.h5}
batch: {global_size: 4}
train: {max_steps: 2}
checkpoint: {every: 1}
END
}

# refuse CODE TEXT RECIPE SETTING...: plan and train end with this code and contain this text.
refuse() {
    local code=$1 text=$2
    shift 2
    run_bireme "$code" plan "$@"
    expect_error "$text"
    run_bireme "$code" train "$@"
    expect_error "$text"
    [ ! -e fine ] || fail "a refused start has left the run folder"
}

run_bireme 0 train recipe.yaml run_dir=base model.activation=gelu_erf train.max_steps=6

# No size at all: plan and train use the sizes of the checkpoint, and the run stores them.
write_recipe fine.yaml '  dropout: 0.0'
run_bireme 0 inspect base/final --json
parameters=$(sed -nE 's/.*"parameters": ([0-9]+).*/\1/p' out)
run_bireme 0 plan fine.yaml --json
grep -q "\"parameters\": $parameters," out || fail "plan: $(grep parameters out)"
run_bireme 0 train fine.yaml
for line in 'hidden_size: 32' 'num_layers: 2' 'num_heads: 2' 'activation: gelu_erf' \
    'max_position_embeddings: 32' 'dropout: 0.0'; do
    grep -q "^  $line$" fine/recipe.yaml || fail "the run does not store $line"
done

# A resumed run takes them from its own checkpoint, because the checkpoint of init_from may be gone.
mv base gone
run_bireme 0 train fine.yaml train.max_steps=3
run_bireme 66 train fine.yaml --resume never
expect_error 'fine.yaml:5:3: model.init_from: there is no checkpoint at base'
run_bireme 66 plan fine.yaml run_dir=new
mv gone base
rm -r fine

# One message with all contradictions, their lines and the values of the checkpoint.
write_recipe wrong.yaml '  hidden_size: 64
  num_heads: 4
  max_position_embeddings: 16'
list='num_layers: 2 (command line: 3), hidden_size: 32 (line 4: 64), num_heads: 2 (line 5: 4)'
list="$list, max_position_embeddings: 32 (line 6: 16)"
refuse 78 "wrong.yaml:7:3: model.init_from: .* base/final .*: $list" wrong.yaml model.num_layers=3
run_bireme 0 plan fine.yaml model.activation=gelu_tanh
grep -q 'activation: gelu_erf (command line: gelu_tanh).*\[W-INIT-SETTINGS\]$' stderr ||
    fail 'another activation is not reported'

# A pattern of the recipe takes the place of a list of the checkpoint. One group of layers for each
# layer is the same model as no groups, so the run resumes.
free=(model.architecture=transformer_decoder model.position_embedding_type=rotary
    model.sliding_window=8 'model.layer_types=[full_attention, sliding_attention]')
run_bireme 0 train recipe.yaml run_dir=lists "${free[@]}" train.max_steps=6
run_bireme 0 plan fine.yaml model.init_from=lists model.sliding_window_pattern=2
types='layer_types: .full_attention, sliding_attention. (command line: .sliding_attention, full_'
grep -q "$types.*\[W-INIT-SETTINGS\]\$" stderr || fail 'another list of layers is not reported'
run_bireme 0 train recipe.yaml run_dir=lists "${free[@]}" model.num_hidden_groups=2 \
    train.max_steps=7
rm -r lists

# Another vocabulary, and a folder that is not a checkpoint.
run_bireme 0 tokenizer train --vocab-size 300 --input "$source/LICENSE" --output bytes
run_bireme 0 prepare --tokenizer bytes --input "$source/LICENSE" --output other
refuse 78 '300 token ids, but the model in base/final has [0-9]*; use .*: base/final/tokenizer' \
    fine.yaml data.tokenizer=bytes 'data.train=other/train-*.h5'

# Without weights for single positions, the checkpoint accepts another number of positions.
texts=(objective=denoise data.tokenizer=bytes 'data.train=other/train-*.h5')
for architecture in t5 marian; do
    run_bireme 0 train recipe.yaml "${texts[@]}" run_dir=$architecture data.validation=null \
        evaluate.every=0 model.architecture=$architecture model.activation=relu \
        model.vocab_size=320 train.max_steps=5 checkpoint.every=5
    run_bireme 0 train fine.yaml "${texts[@]}" model.init_from=$architecture \
        model.max_position_embeddings=64 data.sequence_length=64
    grep -q '^  max_position_embeddings: 64$' fine/recipe.yaml ||
        fail "$architecture does not have the number of positions of the recipe"
    rm -r fine
done

mkdir folder
echo '{}' >folder/config.json
refuse 80 'folder is a Hugging Face model folder, .* `bireme import folder --output DIR`' \
    fine.yaml model.init_from=folder

# Values of init_from in nanoGPT.
refuse 78 "'resume' is not a folder; remove this setting: train resumes the run in run_dir by" \
    fine.yaml model.init_from=resume
refuse 78 "'scratch' is not a folder; .* the initial weights are then random" \
    fine.yaml model.init_from=scratch model.vocab_size=300

run_bireme 66 train fine.yaml model.init_from=gpt2-xl
expect_error 'no checkpoint at gpt2-xl; .*`bireme import FOLDER --output DIR`'

# Moments that the checkpoint does not have, and a model that does not fit into memory.
refuse 80 'base/final: optimizer-.* no tensor exp_avg' fine.yaml model.init_from=base/final \
    optimizer.init_from=base/final
huge=(model.hidden_size=131072 model.num_layers=20 model.num_heads=512)
refuse 78 'does not fit: a rank needs .* but this machine has ' recipe.yaml run_dir=fine \
    train.device=cpu "${huge[@]}"
run_bireme 78 train recipe.yaml run_dir=fine "${huge[@]}"
run_bireme 0 plan recipe.yaml run_dir=fine "${huge[@]}"
grep -q 'W-MEMORY' stderr || fail 'plan does not warn about the memory'

# A run folder with a checkpoint of another recipe.
run_bireme 0 plan recipe.yaml run_dir=base model.activation=gelu_erf
! grep -q 'W-RUN-DIR' stderr || fail 'the same recipe is reported'
run_bireme 0 plan recipe.yaml run_dir=base model.activation=gelu_erf \
    optimizer.learning_rate=0.5
grep 'W-RUN-DIR' stderr | grep -q 'optimizer.learning_rate: checkpoint 0.01, recipe 0.5' ||
    fail 'a checkpoint of another recipe is not reported'

# A setting without effect is reported by plan and at the start of a run, but not on each resume.
run_bireme 0 plan recipe.yaml run_dir=unused schedule.power=2.0
grep -q 'schedule.power (used if schedule.name is polynomial.*\[W-UNUSED-SETTING\]$' stderr ||
    fail 'plan does not report a setting without effect'
run_bireme 0 train recipe.yaml run_dir=unused schedule.power=2.0 train.max_steps=6
grep -q 'W-UNUSED-SETTING' unused/log.txt || fail 'train does not report a setting without effect'
run_bireme 0 train recipe.yaml run_dir=unused schedule.power=2.0 train.max_steps=8
! grep -q 'W-UNUSED-SETTING' stderr || fail 'a resume repeats the warning'
run_bireme 0 plan unused/recipe.yaml schedule.power=1.0
! grep -q 'W-UNUSED-SETTING' stderr || fail 'plan reports settings of a resolved recipe'
rm -r unused

# An imported model works the same.
run_bireme 0 export --checkpoint base --output exported
run_bireme 0 import exported --output imported
run_bireme 0 train fine.yaml model.init_from=imported
rm -r fine

# Several ranks agree on the settings, and report a contradiction once.
need_mpirun
run_ranks 2 78 train wrong.yaml model.num_layers=3
expect_error "$list"
run_ranks 2 66 train fine.yaml model.init_from=nowhere
expect_error 'there is no checkpoint at nowhere'
run_ranks 2 0 train fine.yaml parallel.tensor=2
grep -q '^  hidden_size: 32$' fine/recipe.yaml || fail 'two ranks do not store the sizes'
