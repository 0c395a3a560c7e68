#!/bin/bash
# Tests encoder-decoders with a vocabulary of sources and one of targets: shards, training, equal
# losses at any layout and after a resume, translation, export and import, and combinations
# that are refused.
# ctest: timeout 300
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
need_mpirun

# make_two NAME SOURCES TARGETS: write a tokenizer with a vocabulary of each size.
make_two() {
    run_bireme 0 tokenizer train --type bpe --vocab-size "$2" --input pairs.a --output "$1"
    run_bireme 0 tokenizer train --type bpe --vocab-size "$3" --input pairs.b --output target
    cp target/tokenizer.json "$1/target_tokenizer.json"
}

make_pairs
make_two two 300 280
run_bireme 0 inspect two
grep -q 'vocabulary  300' out && grep -q 'targets     280' out || fail "inspect: $(cat out)"
run_bireme 0 prepare --objective seq2seq --tokenizer two --source pairs.a --target pairs.b \
    --output both --validation-fraction 0.2
two=("${common[@]}" data.tokenizer=two 'data.train=both/train-*.h5'
    'data.validation=both/validation-*.h5' model.share_encoder_decoder_embeddings=false
    model.decoder_vocab_size=280)

# The parts of a sample are decoded with their own vocabularies.
shard=$(echo both/train-*.h5)
run_bireme 0 inspect "$shard" --sample 0 --tokenizer two
print_part() { sed -n "/^\\[$1/{n;p}" out | sed 's/<|endoftext|>$//'; }
print_part source | grep -qxF -f pairs.a || fail "source: $(cat out)"
print_part target | grep -qxF -f pairs.b || fail "target: $(cat out)"

run_bireme 0 plan "${two[@]:1}"
run_bireme 0 "${two[@]}" run_dir=one
print_losses one evaluate | awk 'NR == 1 { first = $2 } END { exit !($2 < 0.95 * first) }' ||
    fail "nothing is learned: $(print_losses one evaluate)"
while read -r ranks more; do
    # shellcheck disable=SC2086
    run_ranks "$ranks" 0 "${two[@]}" run_dir=more $more
    compare_losses one more 1e-5
    rm -rf more
done <<END
3 parallel.zero_stage=2
2 parallel.tensor=2
4 parallel.tensor=2 parallel.sequence=true parallel.zero_stage=2 train.activation_checkpointing=full
END
run_bireme 0 "${two[@]}" run_dir=half
rm -rf half/checkpoints/step-00000008 half/final
run_bireme 0 "${two[@]}" run_dir=half
compare_losses one half 0
compare_weights one half 00000008

# Translation, and the same after an export and an import, with one and with two ranks.
head -5 pairs.a >some
for command in 'translate --max-new-tokens 9' 'translate --max-new-tokens 9 --num-beams 3'; do
    # shellcheck disable=SC2086
    run_bireme 0 $command --checkpoint one some --json
    cp out expected
    rm -rf folder again
    run_bireme 0 export --checkpoint one --output folder
    run_bireme 0 import folder --output again
    # shellcheck disable=SC2086
    run_bireme 0 $command --checkpoint again some --json
    cmp -s out expected || fail "after an import: $(cat out), expected $(cat expected)"
done
grep -q '"vocab_size": 300' folder/config.json && grep -q '"decoder_vocab_size": 280' \
    folder/config.json || fail "config.json: $(cat folder/config.json)"

# Layers that transformers skips in training cause a warning.
! grep -q LAYERDROP stderr || fail 'a warning without a cause'
sed -i 's/^{/{ "decoder_layerdrop": 0.25, "encoder_layerdrop": 0.0,/' folder/config.json
run_bireme 0 import folder --output dropped
grep -q 'decoder_layerdrop is 0.25, but Bireme skips no layers in training .W-LAYERDROP' stderr ||
    fail 'no warning about skipped layers'
! grep -q encoder_layerdrop stderr || fail 'a warning about a rate of 0'

run_bireme 0 evaluate --checkpoint one --data 'both/validation-*.h5' --metrics bleu --json
run_bireme 0 "${two[@]}" run_dir=tuned model.init_from=again train.max_steps=1 \
    schedule.warmup_steps=0 checkpoint.every=1 data.tokenizer=again/tokenizer

# Adapters. The base model has the vocabulary of the sources, and scores need that of the targets.
lora=("${two[@]}" model.init_from=again adapter.type=lora adapter.rank=4 evaluate.generate=true
    evaluate.generation_max_length=6 evaluate.generation_num_beams=3)
run_bireme 0 "${lora[@]}" run_dir=lora
run_ranks 2 0 "${lora[@]}" run_dir=more parallel.tensor=2
compare_losses lora more 1e-5
rm -rf more
run_bireme 0 translate --checkpoint lora some

# The initial weights have other tokens of targets.
mkdir other && cp two/tokenizer.json other/
run_bireme 0 tokenizer train --type bpe --vocab-size 270 --input pairs.a --output target
cp target/tokenizer.json other/target_tokenizer.json
run_bireme 0 prepare --objective seq2seq --tokenizer other --source pairs.a --target pairs.a \
    --output else --validation-fraction 0.2
run_bireme 78 "${two[@]}" run_dir=bad model.init_from=again data.tokenizer=other \
    'data.train=else/train-*.h5' 'data.validation=else/validation-*.h5'
expect_error 'not the tokenizer of the initial weights, .*: id 2[0-9]* is '

# Ids are compared with the vocabulary of their side, also without a tokenizer.
make_two swapped 280 300
run_bireme 0 prepare --objective seq2seq --tokenizer swapped --source pairs.a --target pairs.b \
    --output reverse --validation-fraction 0.2
bad=("${two[@]}" run_dir=bad evaluate.every=0 data.validation=null)
run_bireme 65 "${bad[@]}" data.tokenizer=null model.vocab_size=300 \
    model.decoder_start_token_id=0 'data.train=reverse/train-*.h5'
expect_error 'reverse/train-.*the target has the id 2.*, but the vocabulary of targets has 280 ids'
run_bireme 65 "${bad[@]}" 'data.train=pairs/train-*.h5'
expect_error 'pairs/train-'

run_bireme 78 "${two[@]}" run_dir=bad model.decoder_vocab_size=279
expect_error 'model.decoder_vocab_size.* 279 is smaller than the 280 ids of the targets'
run_bireme 78 "${common[@]}" run_dir=bad data.tokenizer=two
expect_error 'data.tokenizer.* two vocabularies.* model.decoder_vocab_size to 280'
run_bireme 69 "${two[@]}" run_dir=bad objective=denoise
expect_error 'the tokenizer has two vocabularies'
