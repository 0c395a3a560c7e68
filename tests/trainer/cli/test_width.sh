#!/bin/bash
# The output of the commands for a terminal has at most 79 columns. Errors, warnings, and lines with
# a text or a path of the user can be longer.
# ctest: timeout 300
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# check_width ARGUMENT...: run a command and measure its lines.
check_width() {
    run_bireme 0 "$@"
    cat out stderr >>all
    ! grep -vhE '^(error|warning): ' out stderr | grep -E '^.{80}' >wide ||
        fail "bireme $*: more than 79 columns: $(cat wide)"
}
export LC_ALL=C.UTF-8

awk 'BEGIN {
    split("good bad fine poor", word, " ")
    for (i = 0; i < 200; i++)
        printf "{\"text\": \"a %s license\", \"label\": \"%s\"}\n", word[i % 4 + 1],
            i % 2 ? "negative" : "positive"
}' >rows.jsonl
printf 'the license\nof the work\n' >lines.txt

check_width tokenizer train --vocab-size 300 --input "$source/LICENSE" --output bpe
check_width tokenizer encode --tokenizer tokenizer --tokens lines.txt
check_width prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" --output clm
check_width prepare --objective classify --tokenizer tokenizer --input rows.jsonl --output labels \
    --sequence-length 32 --validation-fraction 0.2
check_width prepare --objective classify --tokenizer tokenizer --input rows.jsonl --output short \
    --sequence-length 8
check_width plan recipe.yaml --ranks 4 parallel.tensor=2 parallel.zero_stage=1
check_width plan recipe.yaml model.architecture=bert objective=mlm model.vocab_size=100 \
    evaluate.every=0 data.validation=null \
    data.tokenizer=none data.train=none
check_width train recipe.yaml
check_width train recipe.yaml                     # the run is finished
check_width train recipe.yaml train.max_steps=30  # and goes on
check_width train recipe.yaml objective=classify 'data.train=labels/train-*.h5' \
    'data.validation=labels/validation-*.h5' run_dir=labeled log.report=false
check_width evaluate --checkpoint run --data 'data/validation-*.h5'
check_width evaluate --checkpoint labeled --data 'labels/validation-*.h5'
check_width score --checkpoint run --tokens lines.txt
check_width generate --checkpoint run --prompt 'The ' --max-new-tokens 40
check_width embed --checkpoint run --similarity lines.txt
check_width classify --checkpoint labeled lines.txt
for path in run labeled tokenizer data/train-00000-of-00001.h5 run/final; do
    check_width inspect $path
done
check_width inspect run --plot
check_width inspect run --settings
check_width inspect run --sample 3
check_width checkpoint list run
check_width checkpoint verify run
run_bireme 81 checkpoint diff run/final run/final-old
[ "$(wc -L <out)" -le 79 ] || fail 'a line of a difference has more than 79 columns'
check_width report run labeled --output page.html
check_width export --checkpoint run --output exported
check_width import exported --output imported
check_width bench step recipe.yaml --repeats 1
check_width bench comm
check_width --version
# The path of a checkpoint is no valid UTF-8.
mv run/final $'\xff'
check_width checkpoint list $'\xff'
grep -q '^?: valid, step 30' out || fail "checkpoint list: $(cat out)"
run_bireme 65 inspect $'\xff' --json
LC_ALL=C expect_error 'is not valid UTF-8 and cannot be printed as JSON'
[ "$(wc -l <all)" -gt 300 ] || fail 'little output'
