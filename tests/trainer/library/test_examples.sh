#!/bin/bash
# The installed example programs compile with a C and a C++ compiler. They print the same texts,
# responses, labels, numbers, labels of words, masked words, answers and targets as the commands.
# usage: test_examples.sh CMAKE BUILD_FOLDER C_COMPILER C++_COMPILER
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
# shellcheck source=tests/trainer/library/small_models.sh
source "$source/tests/trainer/library/small_models.sh"
cmake=$1 build=$2 cxx=$4
read -ra cc <<<"$3"
prefix=$folder/prefix
"$cmake" --install "$build" --prefix "$prefix" >stderr 2>&1 || fail 'cmake --install failed'
libraries=$(dirname "$(find "$prefix" -name libbireme.so)")
export PKG_CONFIG_PATH=$libraries/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs bireme)"
for example in generate chat predict translate; do
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

make_models
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
printf 'list files\nls\n' >lines
timeout 50 "${one_core[@]}" "$program" chat --checkpoint messages-run --temperature 0 \
    --max-new-tokens 12 <lines >out 2>stderr || fail 'bireme chat failed'
run_example 0 chat messages-run 12 <lines
expect_output

# Targets of an encoder-decoder. Results that it does not have are refused.
mapfile -t sources < <(head -4 pairs.a)
for beams in 1 3; do
    head -4 pairs.a >four
    run_bireme 0 translate --checkpoint pairs-run --num-beams $beams four
    run_example 0 translate pairs-run $beams "${sources[@]}"
    expect_output
done
run_example 64 translate pairs-run 0 the
grep -q 'num_beams is 0; it must be from 1 to 256' stderr || fail 'another reason'
run_example 65 translate run 1 the
grep -q 'run has the architecture gpt2, which is not an encoder-decoder' stderr ||
    fail 'another reason'
run_example 69 predict labels pairs-run 'a text'
grep -q 'pairs-run is an encoder-decoder (t5), which has no labels here' stderr ||
    fail 'another reason'

# Predictions of encoders.
text='the [MASK] of a [MASK]'
run_bireme 0 fill-mask --checkpoint mlm-run "$text"
run_example 0 predict masks mlm-run "$text"
expect_output
run_example 65 predict masks mlm-run 'no such token'
grep -q 'the text has no mask token; write \[MASK\]' stderr || fail 'another reason'
run_example 65 predict labels mlm-run 'a text'
grep -q 'mlm-run was trained with objective mlm; classify needs' stderr || fail 'another reason'

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
grep -q 'was trained on pairs of texts' stderr || fail 'another reason'
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
