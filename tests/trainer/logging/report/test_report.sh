#!/bin/bash
# Reports of runs: the page that `train` writes, the comparison of several runs, pictures, and the
# curve in the terminal.
# ctest: timeout 240
. "$(dirname "$0")/../tiny_training.sh"

# expect_page FILE TEXT...: the page is complete, loads nothing and contains these texts.
expect_page() {
    local file=$1 tag text
    shift
    for tag in html body table figure svg g details; do
        [ "$(grep -o "<$tag[ >]" "$file" | wc -l)" = "$(grep -o "</$tag>" "$file" | wc -l)" ] ||
            fail "$file: <$tag> is not balanced"
    done
    ! grep -qE 'https?:|src=|href=|url\(|@import' "$file" || fail "$file loads something"
    for text in "$@"; do
        grep -qF -- "$text" "$file" || fail "$file does not contain '$text'"
    done
}

last_value() { # RUN EVENT KEY: print the last value with six significant digits
    local value
    value=$(grep "\"event\":\"$2\"" "$1/metrics.jsonl" | tail -1 |
        sed -E "s/.*\"$3\":([-+.eE0-9]+).*/\\1/")
    printf '%.6g' "$value"
}

# `train` writes the page at checkpoints and at the end; a failure is a warning.
run_bireme 0 train recipe.yaml parallel.threads=1
expect_page run/report.html 'completed (max_steps)' 'gpt2, clm' 'Learning rate' \
    'data-name="validation"' "$(last_value run train loss)\"" \
    "$(last_value run evaluate loss)\"" 'optimizer.learning_rate' 'measured peak' \
    'overflow-wrap:break-word' # words in the first column are not broken on a phone
# The curve of the validation has one value for each evaluation.
points=$(sed -n 's/.*data-name="validation" data-x="\([^"]*\)".*/\1/p' run/report.html | head -1)
[ "$points" = 0,10,20 ] || fail "the validation curve has the steps $points"
run_bireme 0 train recipe.yaml parallel.threads=1 run_dir=without log.report=false
[ ! -e without/report.html ] || fail 'log.report=false writes a page'
mkdir -p blocked/report.html
run_bireme 0 train recipe.yaml parallel.threads=1 run_dir=blocked
grep -q '\[W-REPORT\]$' stderr || fail 'no warning W-REPORT'

# A stopped run and its resumption.
run_bireme 0 train recipe.yaml parallel.threads=1 run_dir=resumed train.max_steps=10
run_bireme 0 train recipe.yaml parallel.threads=1 run_dir=resumed
expect_page resumed/report.html '2 sessions' '20 of 20'

# Several runs on one page: curves of each run, and the settings that differ.
run_bireme 0 report run without/ resumed --output runs.html
expect_page runs.html '3 runs' 'data-name="run, validation"' 'data-name="without, validation"' \
    'Settings that differ' 'log.report'
sed -n '/Settings that differ/,/<h2>Settings</p' runs.html >differ
! grep -q 'optimizer.learning_rate' differ || fail 'an equal setting is listed as different'

# The predicted time of a step next to the measured one.
cat >cluster.yaml <<END
device: {memory_gib: 8, gemm_tflops_fp32: 0.01, attention_tflops_fp32: 0.01,
  memory_gb_per_second: 10}
node: {devices: 1}
END
run_bireme 0 report run --cluster cluster.yaml --output predicted.html
grep -qE 'Time of a step</th><td>[0-9.]+ [um]s predicted, [0-9.]+ [um]?s measured \(' \
    predicted.html || fail 'the report has no prediction'
run_bireme 66 report run --cluster nowhere.yaml --output predicted.html

# Text of a foreign folder is not interpreted by the browser or the terminal.
name='<script>alert(1)<script>"'
cp -r without "$name"
printf '{"event":"warning","step":3,"time":1,"name":"X","text":"<img src=x>\\u001b[2J"}\n' \
    >>"$name/metrics.jsonl"
printf 'damaged\n{"event":"train","step":19,"loss":' >>"$name/metrics.jsonl"
run_bireme 0 report "$name" --output foreign.html
! grep -qE '<script>alert|<img' foreign.html || fail 'a name is not escaped'
grep -qF '&lt;img src=x&gt;?[2J' foreign.html || fail 'the text of the warning is missing'

# Numbers and tables of any size in a foreign file.
mkdir large
printf '{"event":"train","step":%s,"time":1,"loss":%s,"tokens":1e308}\n' 9000000000000000000 1e308 \
    9000000000000001024 -1e308 >large/metrics.jsonl
awk 'BEGIN {
    for (i = 0; i < 200; i++) {
        support = support (i ? "," : "") "\"" i "\":1"
        rows = rows (i ? "," : "") "[]"
    }
    printf "{\"event\":\"evaluate\",\"step\":9000000000000001024,\"time\":1,"
    printf "\"support\":{%s},\"confusion_matrix\":[%s]}\n", support, rows
}' >>large/metrics.jsonl
run_bireme 0 report large --output large.html
expect_page large.html '<h2>Labels'
! grep -q 'Confusion matrix' large.html || fail 'a matrix of 200 labels is written'
grep -qE '<td>[0-9,]{411}</td>' large.html || fail 'the number of tokens does not have 309 digits'

# Pictures.
run_bireme 0 report run --plot loss --output loss.svg
grep -q '^<svg xmlns=' loss.svg || fail 'not an SVG picture'
grep -q '"training"' loss.svg || fail 'the picture has no training curve'
run_bireme 0 report run without --plot grad_norm --output - && cp out norms.svg
grep -q 'data-name="without"' norms.svg || fail 'the picture lacks a run'
run_bireme 0 inspect run --plot
[ "$(awk '{ if (length($0) > n) n = length($0) } END { print n + 0 }' out)" -ge 60 ] ||
    fail 'no curve in the terminal'
grep -q '^validation loss: first ' out || fail 'no validation curve in the terminal'

# Errors.
run_bireme 64 report run --plot no_such_field --output x.svg
expect_error "no run has two values of 'no_such_field'; choose one of: loss, learning_rate"
[ ! -e x.svg ] || fail 'a failed report writes a file'
# The address sanitizer finds a search for the empty name that does not end.
mkdir names
for step in 1 2; do
    echo '{"event":"train","step":'$step',"abc":1,"":2,"bc":3,", ":4,"d,":5}'
done >names/metrics.jsonl
run_bireme 64 report names --plot loss --output x.svg
expect_error "no run has two values of 'loss'; choose one of: abc, bc, , , d, "
run_bireme 66 report missing --output x.html
expect_error 'missing contains no metrics.jsonl'
run_bireme 64 report run
run_bireme 73 report run --output missing/x.html
# An existing file is replaced only if it is a report, a picture or empty.
: >empty.html
for file in runs.html empty.html; do
    run_bireme 0 report run --output "$file"
    expect_page "$file" 'completed (max_steps)'
done
printf '<!doctype html>\n<html lang="en"><head><title>Mine</title>\n' >mine.html
printf '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"></svg>' >mine.svg
for file in recipe.yaml mine.html mine.svg run; do
    [ -d "$file" ] || cp "$file" copy
    run_bireme 73 report run --output "$file"
    expect_error "$file exists and is not a report"
    [ -d "$file" ] || cmp "$file" copy || fail "$file was changed"
done
# A name of another format is refused; a name without a suffix is not.
run_bireme 64 report run --output page.png
expect_error 'page.png: a report without --plot FIELD is an HTML page; give the file a name'
run_bireme 64 report run --output loss.svg
expect_error 'loss.svg: a report without --plot FIELD is an HTML page'
run_bireme 64 report run --plot loss --output page.html
expect_error '--plot writes an SVG picture'
run_bireme 0 report run --output run.2
run_bireme 64 inspect run --plot --json
exit 0
