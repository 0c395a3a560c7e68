#!/bin/bash
# Generation from a tiny model: with and without the cache, in batches, with stop strings and past
# the positions of the model; evaluate; score.
# ctest: timeout 300
. "$(dirname "$0")/../tiny_training.sh"

run_bireme 0 train recipe.yaml
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 \
    --json
cp out cached
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 \
    --json --no-cache
cmp out cached || fail 'the cache changes the text'
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 \
    --json --num-beams 1 \
    --num-samples 2
[ "$(sed 's/"sample":[0-9]*//' out | uniq | wc -l)" = 1 ] || fail 'greedy samples differ'
printf 'License\n\nthe\n\n' >prompts
run_bireme 0 generate --checkpoint run --prompt-file - --num-samples 2 --temperature 0 <prompts
[ "$(grep -c '^----- prompt [12] of 2, sample [12] of 2 -----$' out)" = 4 ] ||
    fail 'the texts have no separators'
grep -q 'warning: standard input:2: skipped 2 empty lines.*\[W-EMPTY-PROMPT\]$' stderr ||
    fail 'empty lines are not reported'
printf 'License\nthe\nany other\n' >prompts
run_bireme 0 generate --checkpoint run --prompt-file prompts --temperature 0 \
    --max-new-tokens 20 --json
head -n 1 out | cmp - cached || fail 'a batch changes the text'
# Past the 32 positions the model reads the last 16 tokens as a new text, with and without the
# cache, in a batch and in a stream. Every character is a token.
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 90
[ "$(grep -c '^a text that becomes longer than the 32 positions of the model' stderr)" = 1 ] ||
    fail 'the end of the positions is not reported once'
tr '\n' ' ' <stderr | grep -q 'as context; --no-slide ends it there' || fail 'no remedy'
# The note precedes the text, so that it does not appear inside a streamed one.
"$program" generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 90 \
    >together 2>&1
head -n 1 together | grep -q 'the 32 positions of the model' || fail "first: $(head -n 1 together)"
tail -n +3 together | cmp - out || fail 'the note is inside the text'
tr '\n' '|' <out | sed 's/|$//' >long
[ "$(wc -m <long)" = 97 ] || fail "$(wc -m <long) characters instead of 97"
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 90 \
    --no-cache
tr '\n' '|' <out | sed 's/|$//' | cmp - long || fail 'the cache changes a long text'
for first in 17 34; do # the windows begin after 33 and 50 tokens
    run_bireme 0 generate --checkpoint run --temperature 0 --max-new-tokens 10 --prompt \
        "$(cut -c$((first + 1))-$((first + 16)) long | tr '|' '\n')"
    [ "$(tr '\n' '|' <out | cut -c1-26)" = "$(cut -c$((first + 1))-$((first + 26)) long)" ] ||
        fail 'the window of a long text is not that of its last 16 tokens'
done
run_bireme 0 generate --checkpoint run --prompt 'License' --max-new-tokens 90 --no-slide --json
grep -q '^warning: at most 25 new tokens.*\[W-LENGTH\]$' stderr ||
    fail 'the end of the text is not reported'
printf 'License\nthe License is granted to You\n' >prompts
run_bireme 0 generate --checkpoint run --prompt-file prompts --temperature 0 \
    --max-new-tokens 90 --json
cp out together
run_bireme 0 generate --checkpoint run --prompt-file prompts --temperature 0 \
    --max-new-tokens 90 --json --batch-size 1
cmp out together || fail 'long texts depend on --batch-size'
# A streamed text has the bytes of one that is printed at its end, also where they are random.
run_bireme 0 tokenizer train --vocab-size 257 --input "$source/LICENSE" --output bytes
run_bireme 0 prepare --tokenizer bytes --input "$source/LICENSE" --output bytes
run_bireme 0 train recipe.yaml run_dir=random data.tokenizer=bytes train.max_steps=1 \
    'data.train=bytes/train-*.h5' data.validation=null evaluate.every=0 schedule.warmup_steps=0
run_bireme 0 generate --checkpoint random --prompt 'License' --seed 3
{ echo '----- sample 1 of 2 -----' && cat out; } >streamed
run_bireme 0 generate --checkpoint random --prompt 'License' --seed 3 --num-samples 2
head -c "$(stat -c %s streamed)" out | cmp - streamed || fail 'streaming changes the bytes'
! iconv -f UTF-8 -t UTF-8 streamed >utf8 2>stderr || fail 'all bytes are valid UTF-8'
# The second prompt leaves 3 of 32 positions.
printf 'License\nthe License is granted to You\nthe\nthe\n' >prompts
run_bireme 0 generate --checkpoint run --prompt-file prompts --temperature 0 \
    --max-new-tokens 20 --json
head -n 1 out | cmp - cached || fail 'a longer prompt in the batch truncates the text'
run_bireme 0 generate --checkpoint run --prompt-file prompts --max-new-tokens 20 --json --seed 5
cp out together
run_bireme 0 generate --checkpoint run --prompt-file prompts --max-new-tokens 20 --json \
    --seed 5 --batch-size 1
cmp out together || fail 'the texts depend on --batch-size'
[ "$(tail -n 2 out | uniq | wc -l)" = 2 ] || fail 'two equal prompts sample the same text'
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 1e-200 \
    --max-new-tokens 20 --json
cmp out cached || fail 'a tiny temperature is not greedy'
run_bireme 64 generate --checkpoint run --prompt License --prompt-file prompts
printf 'the\nthe License is granted to You under the License\n' >prompts
run_bireme 64 generate --checkpoint run --prompt-file prompts --batch-size 1
expect_error 'prompt 2 has 47 tokens, but the model has 32 positions'
[ ! -s out ] || fail 'texts were printed before all prompts were checked'
printf 'the\0other\n' >prompts
run_bireme 65 generate --checkpoint run --prompt-file prompts
expect_error 'prompts:1: .*NUL byte'
printf 'the\r\nLicense\n' >prompts
run_bireme 0 generate --checkpoint run --prompt-file prompts --temperature 0 --json
head -n 1 out | grep -q '"prompt":"the",' || fail 'a carriage return is a part of the prompt'
run_bireme 0 generate --checkpoint run --prompt 'the' --seed 3 --top-k 5 --top-p 0.9 \
    --repetition-penalty 1.2
cp out first
run_bireme 0 generate --checkpoint run --prompt 'the' --seed 3 --top-k 5 --top-p 0.9 \
    --repetition-penalty 1.2
cmp out first || fail 'the same seed gives another text'
for name in generate chat; do
    run_bireme 64 $name --checkpoint run --repetition-penalty 1e-4
    expect_error '--repetition-penalty 1e-4: must be between 0.001 and 1000'
done
run_bireme 0 generate --checkpoint run --prompt 'the' --num-beams 3 --max-new-tokens 10 --json
grep -q '"log_probability":-' out || fail 'beams have no log-probability'
sed 's/,"log_probability".*//' out >beams
run_bireme 0 generate --checkpoint run --prompt 'the' --num-beams 3 --max-new-tokens 10 \
    --json --no-cache
sed 's/,"log_probability".*//' out | cmp - beams || fail 'the cache changes the beams'
run_bireme 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 \
    --stop e --no-echo
! grep -q e out || fail 'the stop string is printed'
run_bireme 0 evaluate --checkpoint run --data 'data/validation-*.h5' --json
grep -q '"loss":' out || fail 'evaluate prints no loss'
printf '{"context":"the Lic","choices":["ense","zzzz"],"label":0}\n' >task.jsonl
run_bireme 0 evaluate --checkpoint run --task task.jsonl --json
grep -q '"accuracy":1.0' out || fail 'the accuracy of the task is not 1'
mv out accuracy
printf '{"ind":1,"ctx":"the Lic","endings":["ense","zzzz"],"label":"0"}\n' >hellaswag.jsonl
run_bireme 0 evaluate --checkpoint run --task hellaswag.jsonl --json
cmp out accuracy || fail 'the key names of HellaSwag give another result'
printf '{"ctx":"the Lic","endings":["ense","zzzz"],"label":""}\n' >hellaswag.jsonl
run_bireme 65 evaluate --checkpoint run --task hellaswag.jsonl
expect_error "hellaswag.jsonl:1: no 'label' that is a number"
run_bireme 0 help train
grep -q -e --resume out || fail '`bireme help train` does not list --resume'
printf 'the License\nxqxqxq\n' >lines
run_bireme 0 score --checkpoint run lines
awk '{ v[NR] = $1 / $2 } END { exit !(v[1] > v[2]) }' out ||
    fail 'an unlikely text scores higher'
cp out sums
run_bireme 0 score --checkpoint run --tokens lines
grep -v $'^\t' out | cmp - sums || fail '--tokens changes the lines of score'
awk -F '\t' '$1 != "" { if (NR > 1 && (n != 0 || d > 1e-4 || d < -1e-4)) bad = 1; d = $1; n = $2 }
    $1 == "" { d -= $2; n-- } END { exit bad || n != 0 || d > 1e-4 || d < -1e-4 }' out ||
    fail 'the scores of the tokens are not those of the line'
[ "$(grep $'^\t' out | head -n 2 | cut -f4 | tr -d '"\n')" = he ] || # not the first character
    fail "the tokens are $(head -n 4 out)"
run_bireme 0 score --checkpoint run --tokens --json lines
grep -q '"token_scores":\[{"id":[0-9]*,"token":"h","log_probability":-' out ||
    fail 'the JSON has no scores of the tokens'
run_bireme 0 tokenizer encode --tokenizer tokenizer lines
tr ' ' '\n' <out >ids
run_bireme 0 tokenizer encode --tokenizer tokenizer --tokens lines
[ "$(cut -f1 out | grep .)" = "$(cat ids)" ] || fail '--tokens changes the ids'
[ "$(sed -n 4p out | cut -f2)" = '" "' ] || fail "the token of a space is $(sed -n 4p out)"
run_bireme 65 score --checkpoint run <<<$'\x01'
head -c 40 "$source/LICENSE" | tr '\n' ' ' >lines
run_bireme 65 score --checkpoint run lines
expect_error 'lines:1: .* 32 positions'
printf 'the License\n\nt\nthe\n\x01\n' >holes
run_bireme 65 score --checkpoint run holes
expect_error 'holes:5: .*\[E-DATA\]$'
[ "$(wc -l <out)" = 4 ] || fail 'not one output line per input line'
[ "$(sed -n 2,3p out | sort -u)" = $'0.000000\t0' ] || fail 'an empty line is not 0 of 0 tokens'
run_bireme 65 score --checkpoint run --json <holes
expect_error 'standard input:5: '
grep -q '"tokens":0,"mean":null' out || fail 'the mean of no tokens is not null'
run_bireme 65 score --checkpoint run .
printf '{"context":"the Lic","choices":["ense","%s"],"label":0}\n' "$(cat lines)" >>task.jsonl
run_bireme 65 evaluate --checkpoint run --task task.jsonl
expect_error 'task.jsonl:2: choice 1'
command -v mpirun >/dev/null || exit 0
for arguments in "score --checkpoint run holes" 'score nothing'; do
    # shellcheck disable=SC2086 # several arguments
    "$program" $arguments >alone 2>alone_stderr
    # shellcheck disable=SC2086
    run_ranks 2 $? $arguments
    cmp out alone || fail "one and two ranks print different text: $arguments"
    [ "$(grep -c '^error: ' stderr)" = "$(grep -c '^error: ' alone_stderr)" ] ||
        fail 'several ranks print the error'
done
exit 0
