#!/bin/bash
# The commands after "# Run:" of each recipe work word for word, from an empty folder, with little
# data and two steps: each file that a command reads is the output of an earlier command.
# ctest: timeout 120
# ctest: parts summarize_manual t5_tiny_manual_denoise t5_tiny_manual_instructions
# ctest: parts t5_tiny_manual_summarize transformer_base_wmt transformer_big_wmt
# ctest: parts translate_manual translate_manual_denoise
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# write_lines FIRST COUNT FILE: lines of the license, which have an end in all files.
write_lines() {
    mkdir -p "$(dirname "$3")"
    grep -E '[a-z]{3}' "$source/LICENSE" | cut -c 1-60 | tail -n "+$1" | head -n "$2" >"$3"
}

# Write corpora with the file names and fields of the scripts and of WMT.
corpus_translation_corpus() {
    write_lines 1 60 "$1/train.en" && write_lines 2 60 "$1/train.$2"
    for part in validation test; do
        write_lines 70 4 "$1/$part.en" && write_lines 71 4 "$1/$part.$2"
    done
}
corpus_summary_corpus() {
    write_lines 1 60 "$1/train.text" && write_lines 2 60 "$1/train.summary"
    for part in validation test; do
        write_lines 70 4 "$1/$part.text" && write_lines 71 4 "$1/$part.summary"
    done
}
corpus_manual_corpus() {
    for page in 1 2 3 4 5 6 7 8; do
        write_lines $((page * 10)) 60 "$1/page.$page.txt"
    done
}
corpus_manual_tasks() {
    mkdir -p "$1"
    for label in 1 2 3; do
        echo "{\"text\": \"copyright notice $label\", \"label\": \"$label\"}"
    done >"$1/sections-train.jsonl"
    for part in train validation; do
        for word in source object license; do
            echo "{\"question\": \"What is $word?\", \"context\": \"The $word is a form.\"," \
                "\"answers\": {\"text\": [\"a form\"], \"answer_start\": [$((8 + ${#word}))]}}"
        done >"$1/questions-$part.jsonl"
    done
}

# make_folder FOLDER: the recipes, the scripts of the corpora, and a `bireme` that runs with a small
# vocabulary, a small model, two steps and short targets.
make_folder() {
    local script
    mkdir -p "$1/scripts" "$1/bin"
    ln -s "$source/recipes" "$1/recipes"
    for script in translation_corpus summary_corpus manual_corpus manual_tasks; do
        {
            echo "#!/bin/bash"
            printf 'source=%q\n' "$source"
            declare -f write_lines "corpus_$script"
            echo "corpus_$script \"\$@\""
        } >"$1/scripts/$script.sh"
        chmod +x "$1/scripts/$script.sh"
    done
    cat >"$1/bin/bireme" <<'TEXT'
#!/bin/bash
echo "bireme $*" >&2
arguments=("$@") more=()
case $1 in
    tokenizer)
        for i in "${!arguments[@]}"; do
            [ "${arguments[i]}" != --vocab-size ] || arguments[i + 1]=400
        done
        ;;
    train)
        more=(train.max_steps=2 train.max_minutes=null evaluate.every=0 checkpoint.every=0
            train.precision=fp32 schedule.warmup_steps=1 schedule.warmup_ratio=null
            batch.global_size=8 batch.micro_size=8
            model.num_layers=1 model.hidden_size=32 model.num_heads=2 model.intermediate_size=32)
        ;;
    translate | summarize | generate) more=(--max-new-tokens 4) ;;
esac
exec "$BIREME_PROGRAM" "${arguments[@]}" "${more[@]}"
TEXT
    chmod +x "$1/bin/bireme"
}

# print_commands RECIPE: the lines between "# Run:" and "#".
print_commands() {
    sed -n '/^# Run:$/,/^#$/s/^# //p' "$1" | tail -n +2
}

name=${1:?}
for recipe in "$source"/recipes/*.yaml; do
    [ -z "$(print_commands "$recipe")" ] || basename "$recipe" .yaml
done >with_commands
sed -n 's/^# ctest: parts //p' "$0" | tr ' ' '\n' | diff - with_commands >stderr ||
    fail 'the parts of this test are not the recipes with commands'
make_folder folder
cd folder
if [[ $name = transformer_*_wmt ]]; then # its texts come from another place
    corpus_translation_corpus . de
    for language in en de; do
        mv train.$language wmt.$language
    done
fi
print_commands "recipes/$name.yaml" >commands
PATH=$PWD/bin:$PATH bash -eu commands >out 2>stderr || fail "a command of $name.yaml ended with $?"
[ -d "runs/$name/final" ] || fail "$name.yaml was not trained"
