#!/bin/bash
# Tests bireme export --format gguf and bireme import FILE.gguf: a GPT-2 and a Llama model return
# bit for bit, their tokenizer encodes the same, and wrong options and files are errors.
# ctest: timeout 300
# shellcheck source=tests/trainer/tiny_training.sh
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
sed -i 's/num_layers: 2/num_layers: 1/; s/max_steps: 20/max_steps: 2/
    s/warmup_steps: 5/warmup_steps: 1/; s/every: 10/every: 2/' recipe.yaml
head -n 5 "$source/LICENSE" | cut -c1-30 >lines
mv tokenizer characters
mv data characters-data
run_bireme 0 tokenizer train --vocab-size 300 --input "$source/LICENSE" --output tokenizer
run_bireme 0 prepare --tokenizer tokenizer --input "$source/LICENSE" --output data \
    --validation-fraction 0.2

# check_return NAME SETTING...: train, export to f32, import, and compare weights and scores.
check_return() {
    local name=$1
    shift
    run_bireme 0 train recipe.yaml run_dir="$name" "$@"
    run_bireme 0 export --format gguf --checkpoint "$name" --output "$name.gguf" --type f32
    [ ! -s out ] || fail 'export wrote to standard output'
    run_bireme 0 import "$name.gguf" --output "$name-back"
    run_bireme 0 checkpoint diff "$name/final" "$name-back" --tolerance 0
    grep -q '^equal: ' out || fail 'the weights differ'
    run_bireme 0 score --checkpoint "$name/final" lines
    cp out before
    run_bireme 0 score --checkpoint "$name-back" lines
    cmp before out || fail 'the scores differ'
}

check_return gpt2
check_return llama model.architecture=llama model.num_kv_heads=1 model.tie_word_embeddings=false
[ "$(find . -maxdepth 1 -name '*gguf-*' -o -maxdepth 1 -name 'tmp-*')" = '' ] ||
    fail 'temporary files are left'

# Errors relative to the largest element: half a step of the type, in q4_0 up to a step. In q8_0
# half a step is 1/254, and the scale is rounded to f16.
for limit in f16:0.0005 bf16:0.004 q8_0:0.0042 q4_0:0.13; do
    type=${limit%:*}
    run_bireme 0 export --format gguf --checkpoint gpt2 --output "$type.gguf" --type $type
    run_bireme 0 import $type.gguf --output $type-back
    run_bireme 81 checkpoint diff gpt2/final $type-back --tolerance 0
    run_bireme 0 checkpoint diff gpt2/final $type-back --tolerance "${limit#*:}"
done
sizes=$(stat -c %s f16.gguf q8_0.gguf q4_0.gguf | tr '\n' ' ')
read -r f16 q8_0 q4_0 <<<"$sizes"
[ "$f16" -gt "$q8_0" ] && [ "$q8_0" -gt "$q4_0" ] || fail "the sizes are $sizes"

run_bireme 64 export --checkpoint gpt2 --output model.gguf
expect_error '--format gguf'
run_bireme 64 export --checkpoint gpt2 --output folder --type q8_0
expect_error '--format gguf'
run_bireme 64 export --format gguf --checkpoint gpt2 --output new.gguf --dtype bf16
expect_error '--type'
run_bireme 73 export --format gguf --checkpoint gpt2 --output gpt2.gguf
expect_error 'gpt2.gguf already exists'
run_bireme 64 export --format gguf --checkpoint gpt2 --output new.gguf --type q5_0
expect_error 'q5_0'
head -c 3000 gpt2.gguf >short.gguf
run_bireme 65 import short.gguf --output short
expect_error 'short.gguf is not a valid GGUF file'
[ ! -e short ] || fail 'a damaged file left a folder'
sed 's/gpt2/mamb/' gpt2.gguf >mamba.gguf
run_bireme 69 import mamba.gguf --output mamba
expect_error 'mamba.gguf: the architecture mamb is not supported'

# A tokenizer of characters is not exported.
run_bireme 0 train recipe.yaml run_dir=char data.tokenizer=characters \
    data.train='characters-data/train-*.h5' data.validation='characters-data/validation-*.h5'
run_bireme 0 export --format gguf --checkpoint char --output char.gguf
grep -q 'no tokenizer.*W-EXPORT' stderr || fail 'no warning about the missing tokenizer'
run_bireme 0 import char.gguf --output char-back
