#!/usr/bin/env bash
# From a clean clone to text from your own GPT: what is missing is installed, Bireme is built, the English
# manual pages become a corpus, a tokenizer and shards, and a small GPT learns them for a few minutes.
#
#   scripts/quickstart.sh
#
# It trains as many steps as fit into the recipe's train.max_minutes on this machine (a few are timed first),
# at most the recipe's train.max_steps: so the learning rate comes to the end of its schedule everywhere.
#
# Environment: QUICKSTART_MINUTES, minutes of training instead of the recipe's train.max_minutes.
# Run it again at any time: a stage whose output is there and current is skipped, and training that was
# interrupted goes on from its last checkpoint. Everything lies in build/, data/manual/ and runs/quickstart/;
# remove a folder and its stage is done anew.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly recipe=recipes/quickstart.yaml data=data/manual run=runs/quickstart
readonly vocabulary=4096 validation=0.05
readonly timed_steps=12 share=0.9 # of the minutes that are planned: the rest is for evaluations and a busier machine
stage="the beginning"

# Open MPI refuses root unless told twice.
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export CMAKE_GENERATOR=Ninja # for a new build folder; one that exists keeps its own

say() {
    echo "quickstart: $*" >&2
}

# begin TEXT: what is done from here on, for the person and for the message if it fails.
begin() {
    stage=$1
    printf '\nquickstart: == %s == (%d s so far)\n' "$stage" $SECONDS >&2
}

failed() {
    local code=$?
    if [ "$code" -ne 0 ]; then
        say "stopped in: $stage (exit code $code; docs/exit-codes.md). The reason stands above; then run this again."
    fi
}
trap failed EXIT

# quiet COMMAND...: its output is shown only where it fails.
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

# A stage's mark holds what its output was made from; the output is current while that is the same.
is_current() {
    [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

mark() {
    echo "$2" >"$1.partial"
    mv "$1.partial" "$1"
}

fingerprint() {
    sha256sum | cut -c 1-16
}

build() {
    begin "building into build/"
    say "about a minute on two cores the first time"
    quiet cmake -S . -B build
    quiet cmake --build build --target bireme --parallel "$(nproc)"
    bireme=build/trainer/bireme
    "$bireme" --version | head -n 1 >&2
}

corpus() {
    begin "the English manual pages as text: $data/text"
    corpus_key=$(fingerprint <scripts/manual_corpus.sh)
    if is_current "$data/text.mark" "$corpus_key" && [ -d "$data/text" ]; then
        say "there already"
    else
        say "a thousand pages through groff: about a minute on two cores"
        rm -rf "$data/text" "$data/text.partial"
        mkdir -p "$data"
        ./scripts/manual_corpus.sh "$data/text.partial"
        mv "$data/text.partial" "$data/text"
        mark "$data/text.mark" "$corpus_key"
    fi
    mapfile -t pages < <(find "$data/text" -type f -size +0 | LC_ALL=C sort)
    if [ ${#pages[@]} -eq 0 ]; then
        say "no page in $data/text: remove that folder and run this again"
        return 1
    fi
    say "${#pages[@]} pages, $(cat "${pages[@]}" | wc -c) bytes"
}

tokenizer() {
    begin "a byte-level BPE tokenizer of $vocabulary tokens: $data/tokenizer"
    tokenizer_key=$corpus_key-bpe-$vocabulary
    if is_current "$data/tokenizer.mark" "$tokenizer_key" && [ -f "$data/tokenizer/tokenizer.json" ]; then
        say "there already"
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
        say "there already"
        return
    fi
    rm -rf "$data/shards.mark" "$data"/train-*.h5 "$data"/validation-*.h5 "$data/shards.partial"
    "$bireme" prepare --objective clm --tokenizer "$data/tokenizer" --input "${pages[@]}" \
        --documents file --validation-fraction $validation --output "$data/shards.partial"
    mv "$data/shards.partial"/*.h5 "$data/"
    rm -rf "$data/shards.partial"
    mark "$data/shards.mark" "$shards_key"
}

# ranks: two, or one on a machine with a single core.
ranks() {
    if [ "$(nproc)" -ge 2 ]; then
        echo 2
    else
        echo 1
    fi
}

# setting FILE KEY: a number of a recipe.
setting() {
    sed -nE "s/^ *$2: *([0-9.]+).*/\1/p" "$1" | head -n 1
}

launch() {
    # Not bound: with two ranks Open MPI ties each to one core, and a rank's threads with it.
    mpirun --oversubscribe --bind-to none -np "$(ranks)" "$bireme" train "$recipe" "$@"
}

# steps MINUTES: how many fit into them. A run that is there already keeps its own number: its schedule hangs on it.
steps() {
    if [ -f "$run/recipe.yaml" ]; then
        setting "$run/recipe.yaml" max_steps
        return
    fi
    rm -rf "$run.timing"
    say "timing $timed_steps steps, to see how many fit"
    quiet launch "run_dir=$run.timing" "train.max_steps=$timed_steps" data.validation=null evaluate.every=0 \
        checkpoint.every=0 log.every=1 || return
    sed -nE 's/.*"event": *"train".*"step_seconds": *([0-9.eE+-]+).*/\1/p' "$run.timing/metrics.jsonl" |
        sort -g | awk -v minutes="$1" -v most="$(setting "$recipe" max_steps)" -v share=$share '
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
        say "$run was made from another recipe or other data: it is $old now"
    fi
    if [ -d "$run/final" ]; then
        say "done already; remove $run to train anew"
        return
    fi
    mkdir -p "$(dirname "$run")"
    mark "$run.mark" "$run_key"
    count=$(steps "$minutes")
    say "mpirun -np $(ranks) bireme train $recipe train.max_steps=$count train.max_minutes=$minutes"
    launch "train.max_steps=$count" "train.max_minutes=$minutes"
}

# losses: the first and the last validation loss of the run.
losses() {
    grep '"event": *"evaluate"' "$run/metrics.jsonl" | sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' |
        sed -n '1p;$p' | xargs -r printf '%.3f '
}

tell() {
    local before after pair
    begin "what was learnt"
    pair=$(losses)
    read -r before after <<<"$pair"
    say "validation loss before training ${before:-unknown}, after ${after:-unknown}"
    say "a sample (bireme generate --checkpoint $run/final --prompt 'The' ...):"
    echo
    "$bireme" generate --checkpoint "$run/final" --prompt "The" --max-new-tokens 120 --temperature 0.8 \
        --top-k 40 --seed 1
    echo
}

next() {
    cat >&2 <<TEXT

quickstart: == what to try next ==
  other words          $bireme generate --checkpoint $run/final --prompt 'DESCRIPTION' --temperature 0.7
  how good, exactly    $bireme evaluate --checkpoint $run/final --data '$data/validation-*.h5'
  what is in there     $bireme inspect $run        (also a shard, a checkpoint, a tokenizer)
  train for longer     remove $run, then: scripts/launch_mpirun.sh -n 2 $bireme train $recipe train.max_minutes=30 train.max_steps=5000
  your own text        bireme tokenizer train, bireme prepare, then a copy of $recipe (README.md)
  every setting        recipes/README.md, $bireme plan $recipe
TEXT
}

begin "what this machine lacks"
./scripts/setup.sh
build
corpus
tokenizer
shards
train
tell
next
