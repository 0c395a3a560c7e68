#!/bin/bash
# Tests bireme import and export with the other commands, and with failing file calls.
# Parts:
#
#   commands     export and import a run; score, evaluate, generate and train from the result
#   calls        each n-th call that changes a file of the output fails (no space, input/output
#                error, short write) or is the last one before a kill. A failure ends with code 74
#                and one error line. The output folder is either complete or missing.
# ctest: parts commands calls
# ctest: targets test_fault_shim
shim=${2:+$(realpath "$2")}
# shellcheck source=tests/trainer/tiny_training.sh
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
sed -i 's/num_layers: 2/num_layers: 1/; s/hidden_size: 32/hidden_size: 16/;
    s/max_steps: 20/max_steps: 4/
    s/warmup_steps: 5/warmup_steps: 1/; s/every: 10/every: 2/' recipe.yaml

# has_equal_numbers FILE FILE: the numbers are equal to 1e-6 and the other words exactly.
has_equal_numbers() {
    paste -d' ' "$1" "$2" | awk '
        NF % 2 { exit bad = 1 }
        { for (i = 1; i <= NF / 2; i++) {
            a = $i; b = $(i + NF / 2); d = a - b
            if (a != b && !(d * d <= 1e-12 * b * b && b + 0 != 0)) exit bad = 1
        } }
        END { exit bad || NR == 0 }'
}

test_commands() {
    local ranks=1 tensor=1
    "$program" --version | grep -q '^MPI  *MPI' && command -v mpirun >/dev/null && ranks=2 tensor=2
    run_ranks $ranks 0 train recipe.yaml run_dir=run parallel.tensor=$tensor
    head -n 5 "$source/LICENSE" | cut -c1-30 >lines
    run_bireme 0 export --checkpoint run --output models/theirs
    [ ! -s out ] || fail 'export wrote to standard output'
    [ "$(ls models)" = theirs ] || fail "models/ contains $(ls models)"
    run_bireme 0 import models/theirs --output models/ours
    cp out section
    ! grep -qE ': null|relative_attention|rope_|next_sentence' section ||
        fail 'import prints settings that the model does not have'
    run_bireme 0 checkpoint diff run/final models/ours --tolerance 0 &&
        grep -q '^equal: 16 tensors' out || fail 'the weights differ'
    cmp tokenizer/tokenizer.json models/ours/tokenizer/tokenizer.json ||
        fail 'the tokenizers differ'
    for command in score generate evaluate; do
        case $command in
        score) arguments=(lines) ;;
        generate) arguments=(--prompt The --temperature 0 --max-new-tokens 8) ;;
        evaluate) arguments=(--data 'data/validation-*.h5') ;;
        esac
        run_bireme 0 $command --checkpoint run/final "${arguments[@]}"
        cp out before
        run_bireme 0 $command --checkpoint models/ours "${arguments[@]}"
        # The run and the imported model evaluate with different micro-batch sizes. GEMMs with
        # different numbers of rows may round differently.
        if [ $command = evaluate ]; then
            has_equal_numbers before out || fail "$command differs: $(paste before out)"
        else
            cmp before out || fail "$command differs"
        fi
    done
    run_bireme 0 inspect models/ours

    # A recipe with the section that import printed starts from these weights: its first validation
    # loss equals the last one of the run.
    sed '/^model:/,/}/d; s/max_steps: 4/max_steps: 1/' recipe.yaml | cat - section >on.yaml
    run_bireme 0 train on.yaml run_dir=on
    print_losses run evaluate | tail -n 1 | cut -d' ' -f2 >a
    print_losses on evaluate | head -n 1 | cut -d' ' -f2 >b
    paste -d' ' a b | awk '{ d = $1 - $2; exit !(d * d <= 1e-10 * $1 * $1) }' ||
        fail "the losses $(cat a b) differ"

    run_bireme 73 import models/theirs --output models/ours && expect_error 'already exists'
    run_bireme 73 export --checkpoint run --output models/theirs && expect_error 'already exists'
    run_bireme 66 import nowhere --output models/new && expect_error 'there is no folder nowhere'
    run_bireme 66 export --checkpoint nowhere --output models/new && expect_error nowhere
    run_bireme 64 import models/theirs --output models/new --add-tokens '<|a|>,<|b|>'
    expect_error "write a space between tokens: --add-tokens '<|a|>' '<|b|>'"
    run_bireme 64 import --output models/new
    run_bireme 64 export --checkpoint run --output models/new --dtype fp8
    printf x >>run/final/model-00000-of-0000$ranks.h5
    run_bireme 80 export --checkpoint run/final --output models/new && expect_error 'model-00000'
    rm models/theirs/tokenizer.json
    run_bireme 0 import models/theirs --output models/without_tokenizer
    grep -q 'no tokenizer.json' stderr || fail 'the missing tokenizer is not reported'
    run_bireme 65 generate --checkpoint models/without_tokenizer --prompt The &&
        expect_error 'no tokenizer'
    run_bireme 0 evaluate --checkpoint models/without_tokenizer --data 'data/validation-*.h5'
    local pretrained=$source/tests/reference/pretrained
    run_bireme 0 import "$pretrained/bert_bare" --output models/bare
    grep -q '(7: cls.predictions.transform.dense.weight, \.\.\.).*\[W-RANDOM-HEAD\]$' stderr ||
        fail 'random heads are not reported'
    run_bireme 0 import "$pretrained/bert_bare" --objective embed --output models/embed
    [ "$(grep -c 'pooler.dense.*\[W-UNUSED-TENSOR\]$' stderr)" = 2 ] ||
        fail 'unused tensors are not reported'
    truncate -s -1 models/theirs/model.safetensors
    run_bireme 65 import models/theirs --output models/new && expect_error 'model.safetensors'
    [ ! -e models/new ] || fail 'a failed command left an output folder'
}

# run_with_fault FAULT AT COMMAND...: run the command with this fault at this file call.
run_with_fault() {
    local fault=$1 at=$2
    shift 2
    rm -rf there calls
    { LD_PRELOAD=$shim FAULT_DIR=there/ FAULT_DO=$fault FAULT_AT=$at FAULT_LOG=calls \
        timeout 50 "$program" "$@" >out 2>stderr; } 2>/dev/null
    code=$?
}

# is_complete COMMAND: the output equals the output of a run without a fault.
is_complete() {
    case $1 in
    export) diff -r there/new reference/new ;;
    import) "$program" checkpoint diff there/new reference/new --tolerance 0 ;;
    esac >/dev/null 2>&1
}

# sweep_faults COMMAND...: run the command with each fault at the selected file calls.
sweep_faults() {
    local count at call stride tried=0 faults=(enospc eio short kill)
    rm -rf reference
    "$program" "$@" --output reference/new >out 2>stderr || fail "$*"
    run_with_fault '' 0 "$@" --output there/new
    count=$(wc -l <calls)
    [ "$code" = 0 ] && [ "$count" -ge 8 ] || fail "$1: only $count calls were counted"
    [ -n "${BIREME_FULL_SWEEP:-}" ] && stride=1 || stride=7
    for ((at = 1 + RANDOM % stride; at <= count; at += stride)); do
        for fault in "${faults[@]}"; do
            run_with_fault "$fault" $at "$@" --output there/new
            call=$(sed -n "s/^$at //p" calls)
            case $fault:$code:$call in
            kill:137:*) ;;
            short:0:* | *:0:open*.h5) ;; # the next call writes the rest; HDF5 tries twice
            *:74:* | *:73:*mkdir*) expect_error '\[E-' ;;
            *) fail "$1: $fault at call $at ($call) ended with $code" ;;
            esac
            if [ -e there/new ]; then
                is_complete "$1" || fail "$1: $fault at call $at ($call) left a damaged folder"
            fi
            [ "$code" = 0 ] || [ "$code" = 137 ] || [ -e there/new ] ||
                [ -z "$(ls there 2>/dev/null)" ] ||
                fail "$1: $fault at call $at ($call) left $(ls there)"
            tried=$((tried + 1))
        done
    done
    echo "$1: $tried faults injected"
}

test_calls() {
    need_shim
    run_bireme 0 train recipe.yaml
    sweep_faults export --checkpoint run/final
    cp -r reference/new theirs
    sweep_faults import theirs
}

run_part "$@"
