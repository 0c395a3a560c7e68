#!/usr/bin/env bash
# Trains a small GPT from a clean clone and generates text with it. The stages: install the missing
# packages, build Bireme, convert the English man pages to a text corpus, train a tokenizer,
# write shards, train for a few minutes, generate.
#
#   scripts/quickstart.sh
#
# The script times a few steps and then trains as many steps as fit into the recipe's
# train.max_minutes on this machine, at most train.max_steps. Therefore the learning rate reaches
# the end of its schedule on every machine.
#
# Environment: QUICKSTART_MINUTES replaces the recipe's train.max_minutes.
#
# The script may be run again at any time. It skips a stage if the output of the stage is up to
# date, and it resumes interrupted training from the last checkpoint. All files are in build/,
# data/manual/ and runs/quickstart/. To repeat a stage, remove its folder.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly recipe=recipes/quickstart.yaml data=data/manual run=runs/quickstart
readonly vocabulary=4096 validation=0.05
readonly timed_steps=12
readonly share=0.9 # of the minutes is planned for steps; the rest is for evaluations and delays
stage="the beginning"

# Open MPI runs as root only with both of these.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export CMAKE_GENERATOR=Ninja # for a new build folder; an existing one keeps its generator

print_message() {
    echo "quickstart: $*" >&2
}

# begin_stage TEXT: print the name of the next stage; report_failure prints it too.
begin_stage() {
    stage=$1
    printf '\nquickstart: == %s == (%d s so far)\n' "$stage" $SECONDS >&2
}

report_failure() {
    local code=$?
    if [ "$code" -eq 130 ] || [ "$code" -eq 75 ]; then
        print_message "interrupted in the stage '$stage'; run this script again to continue"
    elif [ "$code" -ne 0 ]; then
        print_message "failed in the stage '$stage' with exit code $code" \
            "(docs/reference/exit_codes.md)"
        print_message "correct the error above and run this script again"
    fi
}
trap report_failure EXIT
trap 'exit 130' INT # after the running command has ended; training saves first

# run_quietly COMMAND...: run the command and print the end of its output only if it fails.
run_quietly() {
    local log code=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || code=$?
    if [ "$code" -ne 0 ]; then
        tail -n 40 "$log" >&2
    fi
    rm -f "$log"
    return "$code"
}

# is_current MARK KEY: whether the output of a stage is up to date. The mark is a file with a key
# that identifies the inputs of the stage.
is_current() {
    [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

# write_mark MARK KEY: write the mark of a stage.
write_mark() {
    echo "$2" >"$1.partial"
    mv "$1.partial" "$1"
}

print_fingerprint() {
    sha256sum | cut -c 1-16
}

build_program() {
    begin_stage "building in build/"
    print_message "the first build takes about a minute on two cores"
    run_quietly cmake -S . -B build -DBIREME_CPU_VARIANTS=ALL # test.sh may have omitted some
    run_quietly cmake --build build --target bireme --parallel "$(nproc)"
    bireme=build/trainer/bireme
    "$bireme" --version | head -n 1 >&2
}

write_corpus() {
    begin_stage "the English man pages as text: $data/text"
    corpus_key=$(print_fingerprint <scripts/manual_corpus.sh)
    if is_current "$data/text.mark" "$corpus_key" && [ -d "$data/text" ]; then
        print_message "up to date"
    else
        print_message "groff formats about a thousand pages; this takes about a minute on two cores"
        rm -rf "$data/text" "$data/text.partial"
        mkdir -p "$data"
        ./scripts/manual_corpus.sh "$data/text.partial"
        mv "$data/text.partial" "$data/text"
        write_mark "$data/text.mark" "$corpus_key"
    fi
    mapfile -t pages < <(find "$data/text" -type f -size +0 | LC_ALL=C sort)
    if [ ${#pages[@]} -eq 0 ]; then
        print_message "there is no page in $data/text: remove this folder and run this script again"
        return 1
    fi
    print_message "${#pages[@]} pages, $(cat "${pages[@]}" | wc -c) bytes"
}

train_tokenizer() {
    begin_stage "a byte-level BPE tokenizer of $vocabulary tokens: $data/tokenizer"
    tokenizer_key=$corpus_key-bpe-$vocabulary
    if is_current "$data/tokenizer.mark" "$tokenizer_key" &&
        [ -f "$data/tokenizer/tokenizer.json" ]; then
        print_message "up to date"
        return
    fi
    rm -rf "$data/tokenizer" "$data/tokenizer.partial"
    "$bireme" tokenizer train --type bpe --vocab-size $vocabulary --input "${pages[@]}" \
        --output "$data/tokenizer.partial"
    mv "$data/tokenizer.partial" "$data/tokenizer"
    write_mark "$data/tokenizer.mark" "$tokenizer_key"
}

write_shards() {
    begin_stage "HDF5 shards of training and validation data: $data/*.h5"
    shards_key=$tokenizer_key-$validation
    if is_current "$data/shards.mark" "$shards_key" && compgen -G "$data/train-*.h5" >/dev/null &&
        compgen -G "$data/validation-*.h5" >/dev/null; then
        print_message "up to date"
        return
    fi
    rm -rf "$data/shards.mark" "$data"/train-*.h5 "$data"/validation-*.h5 "$data/shards.partial"
    "$bireme" prepare --objective clm --tokenizer "$data/tokenizer" --input "${pages[@]}" \
        --documents file --validation-fraction $validation --output "$data/shards.partial"
    mv "$data/shards.partial"/*.h5 "$data/"
    rm -rf "$data/shards.partial"
    write_mark "$data/shards.mark" "$shards_key"
}

# print_ranks: print the number of ranks: 2, or 1 on a machine with a single core.
print_ranks() {
    if [ "$(nproc)" -ge 2 ]; then
        echo 2
    else
        echo 1
    fi
}

# print_setting FILE KEY: print a number of a recipe.
print_setting() {
    sed -nE "s/^ *$2: *([0-9.]+).*/\1/p" "$1" | head -n 1
}

# train_recipe SETTING...: train the recipe with these settings.
train_recipe() {
    # The launcher saves and stops after Ctrl-C; mpirun alone kills its ranks. --no-bind: a bound
    # rank would share its core with other programs.
    scripts/launch_mpirun.sh --no-bind --mpirun --oversubscribe -n "$(print_ranks)" \
        "$bireme" train "$recipe" "$@"
}

# print_steps MINUTES: print how many steps fit into this time. An existing run keeps its number,
# because the schedule of the learning rate depends on it.
print_steps() {
    if [ -f "$run/recipe.yaml" ]; then
        print_setting "$run/recipe.yaml" max_steps
        return
    fi
    rm -rf "$run.timing"
    print_message "timing $timed_steps steps"
    run_quietly train_recipe "run_dir=$run.timing" "train.max_steps=$timed_steps" \
        data.validation=null evaluate.every=0 checkpoint.every=0 log.every=1 || return
    sed -nE 's/.*"event": *"train".*"step_seconds": *([0-9.eE+-]+).*/\1/p' \
        "$run.timing/metrics.jsonl" | sort -g |
        awk -v minutes="$1" -v most="$(print_setting "$recipe" max_steps)" -v share=$share '
            { seconds[NR] = $1 }
            END {
                steps = int(60 * minutes * share / seconds[int((NR + 1) / 2)])
                print steps < 1 ? 1 : steps < most ? steps : most
            }'
    rm -rf "$run.timing"
}

train_model() {
    local minutes count run_key old
    minutes=${QUICKSTART_MINUTES:-$(print_setting "$recipe" max_minutes)}
    begin_stage "training, at most $minutes min"
    run_key=$(cat "$recipe" "$data/shards.mark" | print_fingerprint)
    if [ -e "$run" ] && ! is_current "$run.mark" "$run_key"; then
        old=$run-before-$(date +%Y%m%d-%H%M%S)
        mv "$run" "$old"
        print_message "$run belongs to another recipe or to other data; it was renamed to $old"
    fi
    if [ -d "$run/final" ]; then
        print_message "complete; remove $run to train again"
        return
    fi
    mkdir -p "$(dirname "$run")"
    write_mark "$run.mark" "$run_key"
    count=$(print_steps "$minutes")
    print_message "scripts/launch_mpirun.sh -n $(print_ranks) bireme train $recipe" \
        "train.max_steps=$count train.max_minutes=$minutes"
    train_recipe "train.max_steps=$count" "train.max_minutes=$minutes"
}

# print_losses: print the first and the last validation loss of the run.
print_losses() {
    grep '"event": *"evaluate"' "$run/metrics.jsonl" |
        sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' | sed -n '1p;$p' | xargs -r printf '%.3f '
}

print_result() {
    local before after pair
    begin_stage "result"
    pair=$(print_losses)
    read -r before after <<<"$pair"
    print_message "validation loss before training: ${before:-unknown}," \
        "after training: ${after:-unknown}"
    print_message "sample of generated text" \
        "(bireme generate --checkpoint $run/final --prompt 'The' ...):"
    echo
    "$bireme" generate --checkpoint "$run/final" --prompt "The" --max-new-tokens 120 \
        --temperature 0.8 --top-k 40 --seed 1
    echo
}

print_next_steps() {
    cat >&2 <<TEXT

quickstart: == next steps ==
  Generate from another prompt:
    $bireme generate --checkpoint $run/final --prompt 'DESCRIPTION' --temperature 0.7
  Evaluate on the validation data:
    $bireme evaluate --checkpoint $run/final --data '$data/validation-*.h5'
  Inspect a run, a shard, a checkpoint or a tokenizer:
    $bireme inspect $run
  Train longer (remove $run first):
    scripts/launch_mpirun.sh -n 2 $bireme train $recipe \\
        train.max_minutes=30 train.max_steps=5000
  Train on your own text: bireme tokenizer train, bireme prepare, a copy of $recipe (README.md)
  See all settings: recipes/README.md, $bireme plan $recipe --settings
TEXT
}

begin_stage "installing the missing packages"
./scripts/setup.sh
build_program
write_corpus
train_tokenizer
write_shards
train_model
print_result
print_next_steps
