#!/bin/bash
# Functions of the shell tests of the program; sourced. Makes a temporary folder with a tokenizer
# and shards of the license's text and a recipe that trains in 0.1 s, and changes to this folder.
# The functions write the output of the program to the files `out` and `stderr`.
#
# ctest sets the variables below. A test that is run by hand has these defaults: the current folder
# is the source folder, and the program is that of build/.
set -u
source=${BIREME_SOURCE_DIR:=$PWD}
program=${BIREME_PROGRAM:=$source/build/trainer/bireme}
export BIREME_SOURCE_DIR BIREME_PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -x "$program" ] || {
    echo "tiny_training.sh: no program $program; build it, or set BIREME_PROGRAM" >&2
    exit 1
}
source "$source/tests/temporary_folder.sh"
# One thread for each rank: at these sizes the threads of a team only wait for each other.
export OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1
# The thread sanitizer does not support OpenMP's barriers; on one core, a rank has one thread.
one_core=()
[ -z "${TSAN_OPTIONS:-}" ] ||
    one_core=(taskset -c "$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')")

run_seconds=50 # time limit of run_bireme
[ -z "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ] || run_seconds=150

# run_bireme CODE ARGUMENT...: run the program, which must end with this code.
run_bireme() {
    local expected=$1
    shift
    timeout $run_seconds "${one_core[@]}" "$program" "$@" >out 2>stderr
    local code=$?
    [ "$code" = "$expected" ] || fail "bireme $* ended with $code instead of $expected"
}

# run_ranks RANKS CODE ARGUMENT...: the same on several ranks.
run_ranks() {
    local ranks=$1 expected=$2
    shift 2
    [ "$ranks" != 1 ] || { run_bireme "$expected" "$@" && return; }
    timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np "$ranks" \
        "$program" "$@" >out 2>stderr
    local code=$?
    [ "$code" = "$expected" ] ||
        fail "mpirun -np $ranks bireme $* ended with $code instead of $expected"
}

# need_mpirun: skip the test without MPI.
need_mpirun() {
    command -v mpirun >/dev/null && "$program" --version | grep -q '^MPI  *MPI' || {
        echo "skipped: no mpirun, or built without MPI"
        exit 77
    }
}

# has_bf16 RECIPE: whether this processor trains the recipe in bf16.
has_bf16() {
    "$program" plan "$1" train.precision=bf16 >out 2>stderr && return
    grep -q 'precision bf16.*\[E-UNAVAILABLE\]$' stderr || fail 'no plan in bf16'
    echo 'not checked: this processor has no bf16'
    return 1
}

# expect_error TEXT: the last command printed exactly one error, which contains this text.
expect_error() {
    local count
    count=$(grep -c '^error: .* \[E-[A-Z-]*\]$' stderr)
    [ "$count" = 1 ] || fail "$count error lines instead of 1"
    grep -q -- "$1" stderr || fail "the error does not contain '$1'"
}

# print_losses RUN EVENT: print step and loss of each line with this event.
print_losses() {
    grep "\"event\":\"$2\"" "$1/metrics.jsonl" |
        sed -E 's/.*"step":([0-9]+).*"loss":([-+.eE0-9]+|null).*/\1 \2/'
}

# need_shim: skip the test where tests/shim/fault_shim.c cannot be preloaded.
need_shim() {
    [ -z "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ] || {
        echo "skipped: the shim and the library of a sanitizer must both be loaded first"
        exit 77
    }
}

# name_places: print the lines of the file `places`, which tests/shim/allocation_shim.c has written,
# with the names of the functions: NUMBER FUNCTION CALLER...
name_places() {
    nm -t d "$program" | awk '$2 ~ /[tT]/ { print $1 + 0, $3 }' | sort -n >symbols
    awk '
        FNR == NR { address[++count] = $1; name[count] = $2; next }
        {
            for (i = 2; i <= NF; i++) {
                low = 1
                high = count
                while (low < high) {
                    middle = int((low + high + 1) / 2)
                    if (address[middle] <= $i) low = middle; else high = middle - 1
                }
                $i = name[low]
                sub(/\..*/, "", $i) # of a part that the compiler has split off
            }
            print
        }' symbols places
}

# stop_first_evaluation JOB RUN SECONDS: stop a training with the files `out` and `stderr` this long
# after its start, during the evaluation before the first step.
stop_first_evaluation() {
    until grep -qs '"event":"start"' "$2/metrics.jsonl" || ! kill -0 "$1" 2>/dev/null; do
        sleep 0.1
    done
    sleep "$3"
    kill -USR1 "$1"
    wait "$1"
    local code=$?
    [ $code = 75 ] || fail "a stop during an evaluation ended with $code"
    grep -q '^stopped after step 0 ' stderr || fail 'the stop is not reported'
    ! grep -q '"event":"evaluate"' "$2/metrics.jsonl" || fail 'the evaluation was too short'
}

# compare_losses RUN RUN TOLERANCE: the losses of both runs are equal, up to a relative tolerance.
compare_losses() {
    for event in train evaluate; do
        print_losses "$1" $event >a
        print_losses "$2" $event >b
        [ -s a ] || fail "$1 has no $event losses"
        paste -d' ' a b | awk -v t="$3" 'NF != 4 || $1 != $3 { bad = 1 }
            { d = $2 - $4; if (d < 0) d = -d; if (!(d <= t * $4)) bad = 1 } END { exit bad }' ||
            fail "the $event losses of $1 and $2 differ: $(paste -d' ' a b | tr '\n' ';')"
    done
}

# expect_event_files RUN COUNT: the run has this number of TensorBoard files.
expect_event_files() {
    local found
    found=$(find "$1" -path '*/tensorboard/events.out.tfevents.*' -size +0 | wc -l)
    [ "$found" = "$2" ] || fail "$1 has $found event files instead of $2"
}

# check_reproducible RECIPE NAME SETTING...: the runs NAME-1, NAME-2 and NAME-3, on 1, 2 and 3 ranks
# at ZeRO stages 0, 1 and 2, have bitwise equal losses and checkpoints.
check_reproducible() {
    local recipe=$1 name=$2 layout ranks stage
    shift 2
    for layout in '1 0' '2 1' '3 2'; do
        read -r ranks stage <<<"$layout"
        rm -f pairs/reference-* # each run computes its own reference
        run_ranks "$ranks" 0 train "$recipe" parallel.reproducible=true \
            parallel.zero_stage="$stage" run_dir="$name-$ranks" train.max_steps=6 \
            checkpoint.every=6 "$@"
        print_losses "$name-$ranks" train >"losses-$ranks"
        [ -s losses-1 ] && cmp losses-1 "losses-$ranks" ||
            fail "the losses of $name-1 and $name-$ranks differ"
        [ "$ranks" = 1 ] || run_bireme 0 checkpoint diff "$name-1" "$name-$ranks"
    done
}

# compare_weights RUN RUN STEP: the checkpoints of this step have equal bytes.
compare_weights() {
    for family in model optimizer; do
        for file in "$1"/checkpoints/step-"$3"/$family-*.h5; do
            cmp "$file" "$2/checkpoints/step-$3/$(basename "$file")" || fail "$file differs"
        done
    done
}

# edit_manifest MANIFEST SCRIPT: edit a manifest with sed -E and write its new digest.
edit_manifest() {
    local text body tail=$',\n "sha256": "'
    text=$(sed -E "$2" "$1")
    body=${text%"$tail"*}
    printf '%s%s%s"\n}\n' "$body" "$tail" "$(printf %s "$body" | sha256sum | cut -d' ' -f1)" >"$1"
}

# set_samples MANIFEST NUMBER: change the position of the data in a checkpoint.
set_samples() {
    edit_manifest "$1" "s/^( \"samples\": )[0-9]+,/\\1$2,/"
}

# compare_layouts NAME SETTING...: train with "${common[@]}" and these settings. The loss must fall,
# the losses must be equal at other layouts, and a resume must be bit for bit.
compare_layouts()
{
    local name=$1 layout
    shift
    run_bireme 0 "${common[@]}" run_dir="$name" "$@"
    print_losses "$name" evaluate | awk -v learned=$learned \
        'NR == 1 { a = $2 } END { exit !($2 < learned * a) }' ||
        fail "$name learns nothing: $(print_losses "$name" evaluate)"
    for layout in parallel.zero_stage=2 \
        'parallel.tensor=2 parallel.sequence=true train.activation_checkpointing=full'; do
        # shellcheck disable=SC2086 # several settings
        run_ranks 2 0 "${common[@]}" run_dir=more "$@" $layout
        compare_losses "$name" more 1e-5
        rm -rf more
    done
    run_bireme 0 "${common[@]}" run_dir=resumed "$@"
    rm -rf resumed/checkpoints/step-00000008 resumed/final
    run_bireme 0 "${common[@]}" run_dir=resumed "$@"
    compare_losses "$name" resumed 0
    compare_weights "$name" resumed 00000008
    rm -rf resumed
}

# make_data: make the tokenizer and the shards.
make_data() {
    "$program" tokenizer train --type char --input "$source/LICENSE" --output tokenizer 2>stderr ||
        fail tokenizer
    "$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" \
        --output data --validation-fraction 0.2 >out 2>stderr || fail prepare
}

# The build has made both (tests/trainer/CMakeLists.txt). An older program may have made others.
if [ "${BIREME_TINY_DATA:-}/made" -nt "$program" ]; then
    cp -r "$BIREME_TINY_DATA/tokenizer" "$BIREME_TINY_DATA/data" .
else
    make_data
fi
cat >recipe.yaml <<END
objective: clm
run_dir: run
seed: 7
model: {architecture: gpt2, num_layers: 2, hidden_size: 32, num_heads: 2,
  max_position_embeddings: 32, dropout: 0.1}
data: {tokenizer: tokenizer, train: data/train-*.h5, validation: data/validation-*.h5,
  sequence_length: 32}
batch: {global_size: 12, micro_size: 3}
optimizer: {learning_rate: 1.0e-2, max_grad_norm: 1.0}
schedule: {name: cosine, warmup_steps: 5}
train: {max_steps: 20}
evaluate: {every: 10, batches: 1}
checkpoint: {every: 10, keep: 3}
log: {every: 1}
END

# write_pairs LINES WORDS TARGET: write sources to pairs.a and their targets to pairs.b, with up to
# five of the first 13 or fewer words of a list. TARGET: reversed (the words in reverse order) or
# capitals.
write_pairs() {
    awk -v lines="$1" -v words="$2" -v reversed="$([ "$3" = reversed ] && echo 1)" 'BEGIN {
        split("the list of files and user system answer license work source object form", w, " ")
        x = 7
        for (i = 0; i < lines; i++) {
            source = target = ""
            for (j = 0; j < 1 + i % 5; j++) {
                x = (x * 1103 + 12345) % 65536
                word = w[x % words + 1]
                space = j > 0 ? " " : ""
                source = source space word
                target = reversed ? word space target : target space toupper(word)
            }
            print source > "pairs.a"
            print target > "pairs.b"
        } }'
}

# make_pairs: make pairs of texts, their tokenizer `words`, shards, and the settings `common` of a
# training on them. A target has the words of its source in reverse order.
make_pairs() {
    write_pairs 120 13 reversed
    run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input pairs.a --output words
    run_bireme 0 prepare --objective seq2seq --tokenizer words --source pairs.a --target pairs.b \
        --output pairs --validation-fraction 0.2
    common=(train recipe.yaml objective=seq2seq data.tokenizer=words 'data.train=pairs/train-*.h5'
        'data.validation=pairs/validation-*.h5' model.architecture=marian model.num_heads=4
        model.activation=relu optimizer.learning_rate=3e-3 train.max_steps=8 evaluate.batches=null
        checkpoint.every=4)
}

# make_preferences LINES: make preference pairs, their shards `pairs`, and dpo.yaml, a recipe that
# starts from base/final. The prompts are words of this many places of the license, the chosen
# response is the next word, and the rejected response has its letters in reverse order.
make_preferences() {
    grep -oE '[a-z]{3,} [a-z]{3,}' "$source/LICENSE" | head -"$1" | sort -u | awk '
        {
            reversed = ""
            for (i = length($2); i > 0; i--) reversed = reversed substr($2, i, 1)
            if (reversed != $2)
                printf "{\"prompt\": \"%s \", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", $1, $2,
                    reversed
        }' >pairs.jsonl
    run_bireme 0 prepare --objective dpo --tokenizer tokenizer --input pairs.jsonl --output pairs \
        --validation-fraction 0.2 --sequence-length 32
    cat >dpo.yaml <<END
objective: dpo
run_dir: dpo
seed: 7
model: {num_layers: 2, hidden_size: 32, num_heads: 2, max_position_embeddings: 32,
  init_from: base/final}
data: {tokenizer: tokenizer, train: pairs/train-*.h5, validation: pairs/validation-*.h5}
batch: {global_size: 12, micro_size: 3}
optimizer: {learning_rate: 1.0e-3, beta2: 0.999, weight_decay: 0.0}
schedule: {name: linear, min_ratio: 0.0}
train: {max_steps: 24}
evaluate: {every: 12, batches: null}
checkpoint: {every: 12}
log: {every: 1}
END
}

learned=0.95 # compare_layouts: the last loss is below this part of the first one

# damage_weights RUN: write `damaged`, the model of the run with all weights about 1e30.
damage_weights() {
    local header bytes
    rm -rf exported damaged
    run_bireme 0 export --checkpoint "$1" --output exported
    bytes=$(stat -c %s exported/model.safetensors)
    header=$(($(od -An -tu8 -N8 exported/model.safetensors) + 8))
    head -c "$header" exported/model.safetensors >weights
    while :; do printf 'Iq'; done | head -c $((bytes - header)) >>weights # a float of 1e30
    mv weights exported/model.safetensors
    run_bireme 0 import exported --output damaged
}

# make_word_pairs: make five preference pairs for dpo and their shards `pairs`.
make_word_pairs() {
    local word
    for word in red green blue white black; do
        printf '{"prompt": "the %s ", "chosen": "house", "rejected": "%s"}\n' $word $word
    done >pairs.jsonl
    run_bireme 0 prepare --objective dpo --tokenizer tokenizer --input pairs.jsonl --output pairs \
        --validation-fraction 0 --sequence-length 32
}
