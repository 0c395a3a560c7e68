#!/bin/bash
# What the tests of `bireme train` share: a tiny corpus (the licence's text), a recipe that takes 0.1 s, how to
# run it and what to compare. Sourced; the shell then stands in a folder of its own, removed at its end.
set -u
program=${BIREME_PROGRAM:?} source=${BIREME_SOURCE_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
export OMP_NUM_THREADS=1
# The thread sanitizer does not see OpenMP's barriers; on one core, one rank has one thread.
one_core=()
[ -z "${TSAN_OPTIONS:-}" ] || one_core=(taskset -c "$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')")

fail() {
    echo "failed: $1; told:" >&2
    cat told >&2
    exit 1
}

run_seconds=50 # at most

run() { # CODE ARGUMENT...: the program must end with this code
    local wanted=$1
    shift
    timeout $run_seconds "${one_core[@]}" "$program" "$@" >out 2>told
    local code=$?
    [ "$code" = "$wanted" ] || fail "bireme $* ended with $code instead of $wanted"
}

run_ranks() { # RANKS CODE ARGUMENT...
    local ranks=$1 wanted=$2
    shift 2
    [ "$ranks" != 1 ] || { run "$wanted" "$@" && return; }
    timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np "$ranks" "$program" "$@" >out 2>told
    local code=$?
    [ "$code" = "$wanted" ] || fail "mpirun -np $ranks bireme $* ended with $code instead of $wanted"
}

need_mpirun() {
    command -v mpirun >/dev/null && "$program" --version | grep -q '^MPI  *MPI' || {
        echo "skipped: no mpirun, or built without MPI"
        exit 77
    }
}

has_bf16() { # RECIPE: whether this processor trains it in bf16; prints where it does not
    "$program" plan "$1" train.precision=bf16 >out 2>told && return
    grep -q '^E-UNAVAILABLE .*precision bf16' told || fail 'no plan in bf16'
    echo 'not checked: this processor has no bf16'
    return 1
}

one_line() { # CODE TEXT: exactly one error line, and it says this
    [ "$(grep -c '^E-' told)" = 1 ] || fail "not one error line but $(grep -c '^E-' told)"
    grep -q -- "$2" told || fail "the error does not say '$2'"
}

losses() { # RUN EVENT: step and loss, a line each
    grep "\"event\":\"$2\"" "$1/metrics.jsonl" |
        sed -E 's/.*"step":([0-9]+).*"loss":([-+.eE0-9]+|null).*/\1 \2/'
}

need_shim() { # skipped where it cannot be preloaded
    [ -z "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ] || {
        echo "skipped: a sanitizer's library has to be the first to be loaded, and so has the shim"
        exit 77
    }
}

same_losses() { # RUN RUN TOLERANCE
    for event in train evaluate; do
        losses "$1" $event >a
        losses "$2" $event >b
        [ -s a ] || fail "$1 has no $event losses"
        paste -d' ' a b | awk -v t="$3" 'NF != 4 || $1 != $3 { bad = 1 }
            { d = $2 - $4; if (d < 0) d = -d; if (!(d <= t * $4)) bad = 1 } END { exit bad }' ||
            fail "the $event losses of $1 and $2 differ: $(paste -d' ' a b | tr '\n' ';')"
    done
}

event_files() { # RUN COUNT: of TensorBoard's
    local found
    found=$(find "$1" -path '*/tensorboard/events.out.tfevents.*' -size +0 | wc -l)
    [ "$found" = "$2" ] || fail "$1 has $found event files instead of $2"
}

reproduced() { # RECIPE NAME SETTING...: the same bits on one rank, on two and on three, which share moments or gradients
    local recipe=$1 name=$2 layout ranks stage
    shift 2
    for layout in '1 0' '2 1' '3 2'; do
        read -r ranks stage <<<"$layout"
        rm -f pairs/reference-* # each computes its own
        run_ranks "$ranks" 0 train "$recipe" parallel.reproducible=true parallel.zero_stage="$stage" \
            run_dir="$name-$ranks" train.max_steps=6 checkpoint.every=6 "$@"
        losses "$name-$ranks" train >"losses-$ranks"
        [ -s losses-1 ] && cmp losses-1 "losses-$ranks" || fail "the losses of $name-1 and $name-$ranks differ"
        [ "$ranks" = 1 ] || run 0 checkpoint diff "$name-1" "$name-$ranks"
    done
}

same_weights() { # RUN RUN STEP: byte for byte
    for family in model optimizer; do
        for file in "$1"/checkpoints/step-"$3"/$family-*.h5; do
            cmp "$file" "$2/checkpoints/step-$3/$(basename "$file")" || fail "$file differs"
        done
    done
}

"$program" tokenizer train --type char --input "$source/LICENSE" --output tokenizer 2>told || fail tokenizer
"$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" --output data \
    --validation-fraction 0.2 >out 2>told || fail prepare
cat >recipe.yaml <<END
objective: clm
run_dir: run
seed: 7
model: {architecture: gpt2, num_layers: 2, hidden_size: 32, num_heads: 2, max_position_embeddings: 32, dropout: 0.1}
data: {tokenizer: tokenizer, train: data/train-*.h5, validation: data/validation-*.h5, sequence_length: 32}
batch: {global_size: 12, micro_size: 3}
optimizer: {learning_rate: 1.0e-2, max_grad_norm: 1.0}
schedule: {name: cosine, warmup_steps: 5}
train: {max_steps: 20}
evaluate: {every: 10, batches: 1}
checkpoint: {every: 10, keep: 3}
log: {every: 1}
END
