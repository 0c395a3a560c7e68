#!/bin/bash
# bireme import and export with the other commands, and with file calls that fail.
#
#   test_model_folder.sh commands | calls SHIM
#
#   commands     a run is exported, imported, scored, evaluated, generated from and trained on from
#   calls        each n-th call that changes a file of the output fails (no space, input/output error, a short write) or is the
#                last before a kill: code 74 with one line and no output; the folder is there whole, or not at all
part=${1:-} shim=${2:+$(realpath "$2")}
# shellcheck source=tests/trainer/tiny_training.sh
. "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"
sed -i 's/num_layers: 2/num_layers: 1/; s/hidden_size: 32/hidden_size: 16/; s/max_steps: 20/max_steps: 4/
    s/warmup_steps: 5/warmup_steps: 1/; s/every: 10/every: 2/' recipe.yaml

same_numbers() { # FILE FILE: numbers to 1e-6, other words exactly
    paste -d' ' "$1" "$2" | awk '
        NF % 2 { exit bad = 1 }
        { for (i = 1; i <= NF / 2; i++) {
            a = $i; b = $(i + NF / 2); d = a - b
            if (a != b && !(d * d <= 1e-12 * b * b && b + 0 != 0)) exit bad = 1
        } }
        END { exit bad || NR == 0 }'
}

commands() {
    local ranks=1 tensor=1
    "$program" --version | grep -q '^MPI  *MPI' && command -v mpirun >/dev/null && ranks=2 tensor=2
    run_ranks $ranks 0 train recipe.yaml run_dir=run parallel.tensor=$tensor
    head -n 5 "$source/LICENSE" | cut -c1-30 >lines
    run 0 export --checkpoint run --output models/theirs
    [ ! -s out ] || fail 'export prints results'
    [ "$(ls models)" = theirs ] || fail "models/ holds $(ls models)"
    run 0 import models/theirs --output models/ours
    cp out section
    run 0 checkpoint diff run/final models/ours --tolerance 0 && grep -q '^equal: 16 tensors' out || fail 'the weights differ'
    cmp tokenizer/tokenizer.json models/ours/tokenizer/tokenizer.json || fail 'another tokenizer'
    for command in score generate evaluate; do
        case $command in
        score) arguments=(lines) ;;
        generate) arguments=(--prompt The --temperature 0 --max-new-tokens 8) ;;
        evaluate) arguments=(--data 'data/validation-*.h5') ;;
        esac
        run 0 $command --checkpoint run/final "${arguments[@]}"
        cp out before
        run 0 $command --checkpoint models/ours "${arguments[@]}"
        # The run evaluates in micro-batches of its recipe, the imported model in others: matrix products of another number
        # of rows may round differently.
        if [ $command = evaluate ]; then
            same_numbers before out || fail "$command differs: $(paste before out)"
        else
            cmp before out || fail "$command differs"
        fi
    done
    run 0 inspect models/ours

    # A recipe with the section that import told begins with these weights: the last loss of the run is its first.
    sed '/^model:/d; s/max_steps: 4/max_steps: 1/' recipe.yaml | cat - section >on.yaml
    run 0 train on.yaml run_dir=on
    losses run evaluate | tail -n 1 | cut -d' ' -f2 >a
    losses on evaluate | head -n 1 | cut -d' ' -f2 >b
    paste -d' ' a b | awk '{ d = $1 - $2; exit !(d * d <= 1e-10 * $1 * $1) }' || fail "the losses $(cat a b) differ"

    run 73 import models/theirs --output models/ours && one_line 73 'already exists'
    run 73 export --checkpoint run --output models/theirs && one_line 73 'already exists'
    run 66 import nowhere --output models/new && one_line 66 'there is no folder nowhere'
    run 66 export --checkpoint nowhere --output models/new && one_line 66 nowhere
    run 64 import --output models/new
    run 64 export --checkpoint run --output models/new --dtype fp8
    printf x >>run/final/model-00000-of-0000$ranks.h5
    run 80 export --checkpoint run/final --output models/new && one_line 80 'model-00000'
    rm models/theirs/tokenizer.json
    run 0 import models/theirs --output models/mute
    grep -q 'no tokenizer.json' told || fail 'nobody tells that there is no tokenizer'
    run 65 generate --checkpoint models/mute --prompt The && one_line 65 'no tokenizer'
    run 0 evaluate --checkpoint models/mute --data 'data/validation-*.h5'
    truncate -s -1 models/theirs/model.safetensors
    run 65 import models/theirs --output models/new && one_line 65 'model.safetensors'
    [ ! -e models/new ] || fail 'a failed command left its output'
}

struck() { # FAULT AT COMMAND...
    local fault=$1 at=$2
    shift 2
    rm -rf there calls
    { LD_PRELOAD=$shim FAULT_DIR=there/ FAULT_DO=$fault FAULT_AT=$at FAULT_LOG=calls \
        timeout 50 "$program" "$@" >out 2>told; } 2>/dev/null
    code=$?
}

whole() { # COMMAND: what it wrote is what an undisturbed one wrote
    case $1 in
    export) diff -r there/new reference/new ;;
    import) "$program" checkpoint diff there/new reference/new --tolerance 0 ;;
    esac >/dev/null 2>&1
}

strike() { # COMMAND...
    local count at call stride tried=0 faults=(enospc eio short kill)
    rm -rf reference
    "$program" "$@" --output reference/new >out 2>told || fail "$*"
    struck '' 0 "$@" --output there/new
    count=$(wc -l <calls)
    [ "$code" = 0 ] && [ "$count" -ge 8 ] || fail "$1: only $count calls were counted"
    [ -n "${BIREME_FULL_SWEEP:-}" ] && stride=1 || stride=7
    for ((at = 1 + RANDOM % stride; at <= count; at += stride)); do
        for fault in "${faults[@]}"; do
            struck "$fault" $at "$@" --output there/new
            call=$(sed -n "s/^$at //p" calls)
            case $fault:$code:$call in
            kill:137:*) ;;
            short:0:* | *:0:open*.h5) ;; # the rest is written by the next call; HDF5 tries twice
            *:74:* | *:73:*mkdir*) one_line "$code" E- ;;
            *) fail "$1: $fault at call $at ($call) ended with $code" ;;
            esac
            if [ -e there/new ]; then
                whole "$1" || fail "$1: $fault at call $at ($call) left a damaged folder"
            fi
            [ "$code" = 0 ] || [ "$code" = 137 ] || [ -e there/new ] || [ -z "$(ls there 2>/dev/null)" ] ||
                fail "$1: $fault at call $at ($call) left $(ls there)"
            tried=$((tried + 1))
        done
    done
    echo "$1: $tried calls struck"
}

calls() {
    need_shim
    run 0 train recipe.yaml
    strike export --checkpoint run/final
    cp -r reference/new theirs
    strike import theirs
}

case $part in
commands | calls) $part ;;
*)
    echo "no such part: $part" >&2
    exit 64
    ;;
esac
echo "$part: all as it should be"
