#!/bin/bash
# The installed example programs compile with a C and a C++ compiler. They print the same texts,
# responses, labels, numbers, labels of words, masked words and answers as the commands.
# usage: test_examples.sh CMAKE BUILD_FOLDER C_COMPILER C++_COMPILER
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
cmake=$1 build=$2 cxx=$4
read -ra cc <<<"$3"
prefix=$folder/prefix
"$cmake" --install "$build" --prefix "$prefix" >stderr 2>&1 || fail 'cmake --install failed'
libraries=$(dirname "$(find "$prefix" -name libbireme.so)")
export PKG_CONFIG_PATH=$libraries/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs bireme)"
for example in generate chat predict; do
    file=$prefix/share/bireme/examples/$example.c
    "${cc[@]}" -Wall -Wextra -Werror -pedantic -o "$example" "$file" "${flags[@]}" -lm \
        -Wl,-rpath,"$libraries" 2>stderr || fail "$example.c is not valid C"
    [ -z "$cxx" ] || "$cxx" -x c++ -Wall -Wextra -Werror -pedantic -fsyntax-only "${flags[0]}" \
        "$file" 2>stderr || fail "$example.c is not valid C++"
done

# run_example CODE PROGRAM ARGUMENT...: run an example, which must end with this code.
run_example() {
    local expected=$1
    shift
    timeout 50 "${one_core[@]}" "./$@" >example 2>stderr
    local code=$?
    [ "$code" = "$expected" ] || fail "$* ended with $code instead of $expected"
}

# expect_output: the example printed what the command printed.
expect_output() {
    [ -s out ] && cmp out example || fail "another output: $(cat out example)"
}

run_bireme 0 train recipe.yaml
run_bireme 0 generate --checkpoint run --prompt License --temperature 0 --max-new-tokens 40 \
    --no-echo
run_example 0 generate run License
head -n -1 example >text
cmp out text || fail "another text: $(cat out example)"
echo License >line
run_bireme 0 score --checkpoint run line
awk -F'\t' '{ printf "%.6f ", exp(-$1 / 6) }' out >perplexity
tail -n 1 example | sed 's/^perplexity of the prompt: //' >>perplexity
awk '{ d = $1 - $2; exit !(NF == 2 && d * d < 1e-6) }' perplexity ||
    fail "perplexity: $(cat perplexity)"
run_example 66 generate nowhere License
run_example 66 chat run <<<hello # its tokenizer has no template
grep -q '^chat: .*chat_template.json' stderr || fail 'another reason'

# A conversation of two messages.
readonly reference=$source/tests/reference/sft
mkdir tokenizer_messages
cp "$reference/tokenizer.json" tokenizer_messages/
run_bireme 0 prepare --objective sft --tokenizer tokenizer_messages --chat-template chatml \
    --input "$reference/messages.jsonl" --output messages
cat >messages.yaml <<'YAML'
objective: sft
run_dir: messages-run
model: {architecture: gpt2, num_layers: 2, hidden_size: 32, num_heads: 2,
  max_position_embeddings: 128}
data: {tokenizer: tokenizer_messages, train: messages/train-*.h5, sequence_length: 128}
batch: {global_size: 4, micro_size: 4}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 40}
checkpoint: {every: 0}
YAML
run_bireme 0 train messages.yaml
printf 'list files\nls\n' >lines
timeout 50 "${one_core[@]}" "$program" chat --checkpoint messages-run --temperature 0 \
    --max-new-tokens 12 <lines >out 2>stderr || fail 'bireme chat failed'
run_example 0 chat messages-run 12 <lines
expect_output

# Predictions of encoders.
run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
    --output words
cat >bert.yaml <<'YAML'
objective: mlm
model: {architecture: bert, num_layers: 1, hidden_size: 16, num_heads: 2,
  max_position_embeddings: 32}
data: {tokenizer: words}
batch: {global_size: 4, micro_size: 2}
optimizer: {learning_rate: 1.0e-2}
train: {max_steps: 3}
checkpoint: {every: 0}
evaluate: {every: 0}
YAML
cat >classify.jsonl <<'END'
{"text": "a free license", "label": "yes"}
{"text": "the files of work", "label": "no"}
END
cat >regress.jsonl <<'END'
{"text": "a free license", "text_pair": "of files", "label": 0.5}
{"text": "the files", "text_pair": "a work", "label": -1}
END
cat >classify_tokens.jsonl <<'END'
{"tokens": ["a", "free", "license"], "tags": ["O", "O", "B"]}
{"tokens": ["the", "files"], "tags": ["O", "B"]}
END
cat >answer.jsonl <<'END'
{"question": "which files", "context": "the files of work", "answer": "of work", "answer_start": 10}
{"question": "a license", "context": "a free license", "answer": "free", "answer_start": 2}
END
# train_task TASK INPUT: train TASK-run on the rows of this file.
train_task() {
    run_bireme 0 prepare --objective "$1" --tokenizer words --input "$2" --sequence-length 32 \
        --output "$1"
    run_bireme 0 train bert.yaml objective="$1" run_dir="$1-run" "data.train=$1/train-*.h5"
}

train_task mlm "$source/LICENSE"
text='the [MASK] of a [MASK]'
run_bireme 0 fill-mask --checkpoint mlm-run "$text"
run_example 0 predict masks mlm-run "$text"
expect_output
run_example 65 predict masks mlm-run 'no such token'
grep -q 'the text has no mask token; write \[MASK\]' stderr || fail 'another reason'
run_example 65 predict labels mlm-run 'a text'
grep -q 'mlm-run was trained with objective mlm; classify needs' stderr || fail 'another reason'

for task in classify regress classify_tokens answer; do
    train_task $task $task.jsonl
done
echo 'a license of files' >line
run_bireme 0 classify --checkpoint classify-run line
run_example 0 predict labels classify-run 'a license of files'
sed 's/^/a license of files\t/' -i out
expect_output
run_bireme 0 classify --checkpoint classify_tokens-run line
sed '/^$/d' -i out
run_example 0 predict labels classify_tokens-run 'a license of files'
cut -f1,2 example >words.tsv
cp words.tsv example
expect_output
printf 'the work\ta license\n' >line
run_bireme 0 classify --checkpoint regress-run line
awk '{ printf "the work\t\t%.4f\n", $1 }' out >number && cp number out
run_example 0 predict labels regress-run 'the work' 'a license'
expect_output
run_example 65 predict labels regress-run 'the work'
grep -q 'no second text' stderr || fail 'another reason'
run_example 65 predict labels classify-run $'not \377 valid'
grep -q 'not valid UTF-8' stderr || fail 'another reason'
printf 'which files\tthe license, and the files of a free work\n' >line
run_bireme 0 answer --checkpoint answer-run line
run_example 0 predict answer answer-run 'which files' 'the license, and the files of a free work'
expect_output
run_example 65 predict answer classify-run 'which files' 'the files'
grep -q 'classify-run was trained with objective classify; answer needs' stderr ||
    fail 'another reason'
# Damaged weights give no label.
damage_weights classify-run
run_example 79 predict labels damaged 'a license'
