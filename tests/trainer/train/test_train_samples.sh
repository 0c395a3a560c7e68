#!/bin/bash
# generate.prompt: the samples are the same as in `bireme generate`, at every layout, and do not
# change the training. Also tested: metrics.jsonl, report.html, plan, and prompts that are refused.
# ctest: timeout 300
. "$(dirname "$0")/../tiny_training.sh"
samples=(generate.prompt=License generate.max_new_tokens=20)

# print_samples RUN: step and text of each sample.
print_samples() {
    grep '"event":"sample"' "$1/metrics.jsonl" |
        sed -E 's/.*"step":([0-9]+).*"prompt":"License","text":"(([^"\\]|\\.)*)".*/\1 \2/'
}

run_bireme 0 train recipe.yaml run_dir=off
run_bireme 0 train recipe.yaml run_dir=on "${samples[@]}"
compare_losses off on 0
compare_weights off on 00000020
! grep -q '"event":"sample"' off/metrics.jsonl || fail 'samples without a prompt'
print_samples on >samples
[ "$(cut -d' ' -f1 samples | tr '\n' ' ')" = '0 10 20 ' ] || fail "samples: $(cat samples)"
run_bireme 0 generate --checkpoint on/final --prompt License --max-new-tokens 20 --temperature 0 \
    --json
[ "$(sed -n '3s/^20 //p' samples)" = "$(sed -E 's/.*"text":"(([^"\\]|\\.)*)".*/\1/' out)" ] ||
    fail "another text than that of generate: $(cat samples out)"
grep -q '<h2>Samples</h2>' on/report.html && grep -q 'step 20.*License' on/report.html ||
    fail 'the report has no samples'

# A sample ends at data.sequence_length; without validation data the samples are at both ends.
run_bireme 0 train recipe.yaml run_dir=ends "${samples[@]}" generate.max_new_tokens=500 \
    generate.temperature=1 data.validation=null evaluate.every=0
print_samples ends >ends.samples
[ "$(cut -d' ' -f1 ends.samples | tr '\n' ' ')" = '0 20 ' ] || fail "$(cat ends.samples)"

# A resumed run writes the missing sample of its first step.
for session in 1 2; do
    run_bireme 0 train recipe.yaml run_dir=again "${samples[@]}" checkpoint.every=10
    print_samples again | cmp - samples || fail "session $session: other samples"
    rm -r again/checkpoints/step-00000020
    sed -i '/"event":"sample","step":10,/d' again/metrics.jsonl
done

# The plan counts the memory, and plan and train refuse the same prompts.
run_bireme 0 plan recipe.yaml "${samples[@]}" --json
[ "$(sed -n 's/.*"samples": *\([0-9]*\).*/\1/p' out)" -ge $((2 * 2 * 32 * 32 * 4)) ] ||
    fail "the plan does not count the samples: $(grep samples out)"
for command in plan train; do
    run_bireme 78 $command recipe.yaml run_dir=no \
        generate.prompt='more than 32 tokens of one character'
    expect_error 'generate.prompt: 36 tokens leave no room'
    run_bireme 78 $command recipe.yaml run_dir=no generate.prompt=x objective=reward
    expect_error 'generate.prompt.*conflicts with objective'
done

# Every layout, with small micro-batches: equal training with and without samples.
need_mpirun
compare_layout() { # NAME RANKS SETTING...
    local name=$1 ranks=$2
    shift 2
    run_ranks "$ranks" 0 train recipe.yaml run_dir="off-$name" "$@"
    run_ranks "$ranks" 0 train recipe.yaml run_dir="on-$name" "${samples[@]}" "$@"
    compare_losses "off-$name" "on-$name" 0
    compare_weights "off-$name" "on-$name" 00000020
    [ "$(print_samples "on-$name" | wc -l)" = 3 ] || fail "$name: no samples"
}
compare_layout tensor 2 parallel.tensor=2
print_samples on-tensor | cmp - samples || fail 'two ranks of a model generate another text'
compare_layout sequence 2 parallel.tensor=2 parallel.sequence=true batch.micro_size=1
compare_layout zero 2 parallel.zero_stage=2 train.activation_checkpointing=full
compare_layout both 4 parallel.tensor=2 parallel.zero_stage=1
if has_bf16 recipe.yaml; then
    compare_layout bf16 2 parallel.zero_stage=1 train.precision=bf16
    compare_layout lora 2 parallel.tensor=2 train.precision=bf16 model.init_from=off/final \
        adapter.type=lora
fi
