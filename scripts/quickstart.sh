#!/usr/bin/env bash
# Trains a small GPT from a clean clone and generates text with it. The stages: install the missing
# packages, build Bireme, convert the English manual pages to a text corpus, train a tokenizer,
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

say() {
    echo "quickstart: $*" >&2
}

# begin TEXT: print the name of the next stage; `failed` prints it too.
begin() {
    stage=$1
    printf '\nquickstart: == %s == (%d s so far)\n' "$stage" $SECONDS >&2
}

failed() {
    local code=$?
    if [ "$code" -ne 0 ]; then
        say "failed in the stage '$stage' with exit code $code (docs/reference/exit_codes.md)"
        say "correct the error above and run this script again"
    fi
}
trap failed EXIT

# quiet COMMAND...: run the command and print the end of its output only if it fails.
quiet() {
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

# mark MARK KEY: write the mark of a stage.
mark() {
    echo "$2" >"$1.partial"
    mv "$1.partial" "$1"
}

fingerprint() {
    sha256sum | cut -c 1-16
}

build() {
    begin "building in build/"
    say "the first build takes about a minute on two cores"
    quiet cmake -S . -B build
    quiet cmake --build build --target bireme --parallel "$(nproc)"
    bireme=build/trainer/bireme
    "$bireme" --version | head -n 1 >&2
}

corpus() {
    begin "the English manual pages as text: $data/text"
    corpus_key=$(fingerprint <scripts/manual_corpus.sh)
    if is_current "$data/text.mark" "$corpus_key" && [ -d "$data/text" ]; then
        say "up to date"
    else
        say "groff formats about a thousand pages; this takes about a minute on two cores"
        rm -rf "$data/text" "$data/text.partial"
        mkdir -p "$data"
        ./scripts/manual_corpus.sh "$data/text.partial"
        mv "$data/text.partial" "$data/text"
        mark "$data/text.mark" "$corpus_key"
    fi
    mapfile -t pages < <(find "$data/text" -type f -size +0 | LC_ALL=C sort)
    if [ ${#pages[@]} -eq 0 ]; then
        say "there is no page in $data/text: remove this folder and run this script again"
        return 1
    fi
    say "${#pages[@]} pages, $(cat "${pages[@]}" | wc -c) bytes"
}

tokenizer() {
    begin "a byte-level BPE tokenizer of $vocabulary tokens: $data/tokenizer"
    tokenizer_key=$corpus_key-bpe-$vocabulary
    if is_current "$data/tokenizer.mark" "$tokenizer_key" &&
        [ -f "$data/tokenizer/tokenizer.json" ]; then
        say "up to date"
        return
    fi
    rm -rf "$data/tokenizer" "$data/tokenizer.partial"
    "$bireme" tokenizer train --type bpe --vocab-size $vocabulary --input "${pages[@]}" \
        --output "$data/tokenizer.partial"
    mv "$data/tokenizer.partial" "$data/tokenizer"
    mark "$data/tokenizer.mark" "$tokenizer_key"
}

shards() {
    begin "HDF5 shards with a held-out part: $data/*.h5"
    shards_key=$tokenizer_key-$validation
    if is_current "$data/shards.mark" "$shards_key" && compgen -G "$data/train-*.h5" >/dev/null &&
        compgen -G "$data/validation-*.h5" >/dev/null; then
        say "up to date"
        return
    fi
    rm -rf "$data/shards.mark" "$data"/train-*.h5 "$data"/validation-*.h5 "$data/shards.partial"
    "$bireme" prepare --objective clm --tokenizer "$data/tokenizer" --input "${pages[@]}" \
        --documents file --validation-fraction $validation --output "$data/shards.partial"
    mv "$data/shards.partial"/*.h5 "$data/"
    rm -rf "$data/shards.partial"
    mark "$data/shards.mark" "$shards_key"
}

# ranks: print the number of ranks: 2, or 1 on a machine with a single core.
ranks() {
    if [ "$(nproc)" -ge 2 ]; then
        echo 2
    else
        echo 1
    fi
}

# setting FILE KEY: print a number of a recipe.
setting() {
    sed -nE "s/^ *$2: *([0-9.]+).*/\1/p" "$1" | head -n 1
}

# launch SETTING...: train the recipe with these settings.
launch() {
    # Without --bind-to none, Open MPI binds each of two ranks, with all of its threads, to one
    # core.
    mpirun --oversubscribe --bind-to none -np "$(ranks)" "$bireme" train "$recipe" "$@"
}

# steps MINUTES: print how many steps fit into this time. An existing run keeps its number, because
# the schedule of the learning rate depends on it.
steps() {
    if [ -f "$run/recipe.yaml" ]; then
        setting "$run/recipe.yaml" max_steps
        return
    fi
    rm -rf "$run.timing"
    say "timing $timed_steps steps"
    quiet launch "run_dir=$run.timing" "train.max_steps=$timed_steps" data.validation=null \
        evaluate.every=0 checkpoint.every=0 log.every=1 || return
    sed -nE 's/.*"event": *"train".*"step_seconds": *([0-9.eE+-]+).*/\1/p' \
        "$run.timing/metrics.jsonl" | sort -g |
        awk -v minutes="$1" -v most="$(setting "$recipe" max_steps)" -v share=$share '
            { seconds[NR] = $1 }
            END {
                steps = int(60 * minutes * share / seconds[int((NR + 1) / 2)])
                print steps < 1 ? 1 : steps < most ? steps : most
            }'
    rm -rf "$run.timing"
}

train() {
    local minutes count run_key old
    minutes=${QUICKSTART_MINUTES:-$(setting "$recipe" max_minutes)}
    begin "training: at most $minutes minutes"
    run_key=$(cat "$recipe" "$data/shards.mark" | fingerprint)
    if [ -e "$run" ] && ! is_current "$run.mark" "$run_key"; then
        old=$run-before-$(date +%Y%m%d-%H%M%S)
        mv "$run" "$old"
        say "$run belongs to another recipe or to other data; it was renamed to $old"
    fi
    if [ -d "$run/final" ]; then
        say "complete; remove $run to train again"
        return
    fi
    mkdir -p "$(dirname "$run")"
    mark "$run.mark" "$run_key"
    count=$(steps "$minutes")
    say "mpirun -np $(ranks) bireme train $recipe train.max_steps=$count train.max_minutes=$minutes"
    launch "train.max_steps=$count" "train.max_minutes=$minutes"
}

# losses: print the first and the last validation loss of the run.
losses() {
    grep '"event": *"evaluate"' "$run/metrics.jsonl" |
        sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' | sed -n '1p;$p' | xargs -r printf '%.3f '
}

report() {
    local before after pair
    begin "result"
    pair=$(losses)
    read -r before after <<<"$pair"
    say "validation loss before training: ${before:-unknown}, after training: ${after:-unknown}"
    say "sample of generated text (bireme generate --checkpoint $run/final --prompt 'The' ...):"
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
  See all settings: recipes/README.md, $bireme plan $recipe
TEXT
}

begin "installing the missing packages"
./scripts/setup.sh
build
corpus
tokenizer
shards
train
report
print_next_steps
