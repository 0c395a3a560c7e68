#!/bin/bash
# Tests steps on an emulated GPU that the host queues before it reads the previous step's results.
# usage: test_ahead.sh PART; ctest sets BIREME_SIMT, BIREME_FLIPPING_SIMT and BIREME_SOURCE_DIR
# ctest: name simt_train
# ctest: parts not_finite disagree ahead weights_ahead lamb_ahead fp8_ahead fp8_skip times
# ctest: timeout 300
# shellcheck disable=SC2034,SC2086,SC2154 # settings are words; tiny_training.sh shares variables
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
gpu=${BIREME_SIMT:?} flipping=${BIREME_FLIPPING_SIMT:?} program=$gpu
small='train.max_steps=4 evaluate.every=2 checkpoint.every=2 batch.global_size=4
    batch.micro_size=2 schedule.warmup_steps=1 train.device=cuda log.every=1'

# check_ahead NAME RANKS SETTING...: check that all runs have the same bits. The host decides about
# updates in the first run (rollback), the device in the other runs, also about spikes (skip).
check_ahead() {
    local name=$1 ranks=$2
    shift 2
    local five="$small train.max_steps=5 checkpoint.every=5 optimizer.max_grad_norm=0.5 $*"
    run_ranks "$ranks" 0 train recipe.yaml run_dir="$name-host" train.on_spike=rollback $five
    run_ranks "$ranks" 0 train recipe.yaml run_dir="$name-device" $five
    run_ranks "$ranks" 0 train recipe.yaml run_dir="$name-skip" train.on_spike=skip $five
    local run
    for run in device skip; do
        compare_losses "$name-host" "$name-$run" 0
        compare_weights "$name-host" "$name-$run" 00000005
        [ "$(print_field grad_norm "$name-host")" = "$(print_field grad_norm "$name-$run")" ] ||
            fail "$name: the gradient norms differ"
    done
}

# print_field NAME RUN: print this field of all train lines.
print_field() {
    grep '"event":"train"' "$2/metrics.jsonl" | grep -o "\"$1\":[^,}]*"
}

# The numbers do not depend on where the decision about an update is computed. Evaluations, a stop
# signal and a resume do not change them either.
test_ahead() {
    need_mpirun
    local stop="$small train.max_steps=5 checkpoint.every=5 optimizer.max_grad_norm=0.5
        evaluate.every=0 batch.global_size=6"
    check_ahead one 1 evaluate.every=0 batch.global_size=6
    check_ahead graphs 1 train.cuda_graphs=true train.precision=bf16 evaluate.every=0
    check_ahead zero 2 parallel.zero_stage=2 train.precision=bf16 optimizer.stochastic_rounding=true
    check_ahead tensor 2 parallel.tensor=2 evaluate.every=0
    program=$flipping
    FLIP_STOP=1 run_bireme 75 recipe.yaml run_dir=stopped $stop
    grep -q 'stopped after step 2 because' stderr || fail "another step: $(cat stderr)"
    program=$gpu
    run_bireme 0 train recipe.yaml run_dir=stopped $stop
    compare_weights one-device stopped 00000005
}

# write_documents: write documents.txt; in every second one, sentences have at most two words.
write_documents() {
    awk 'BEGIN {
        split("license work source object form list files user system", words, " ")
        x = 3
        for (d = 0; d < 120; d++) {
            for (s = 0; s < 2; s++) {
                x = (x * 1103 + 12345) % 65536
                line = ""
                for (n = 1 + int(x / 8) % (d % 2 ? 2 : 9); n > 0; n--) {
                    x = (x * 1103 + 12345) % 65536
                    line = line " " words[1 + int(x / 8) % 9]
                }
                print line "."
            }
            print ""
        } }' >documents.txt
}

# Values of one step that the host writes: the weight of next-sentence prediction, which changes
# with the masked tokens per pair, and the gradients of a head.
test_weights_ahead() {
    local settings='model.architecture=bert evaluate.every=0 batch.global_size=2'
    write_documents
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output words
    run_bireme 0 prepare --objective mlm --tokenizer words --input documents.txt --output pairs \
        --validation-fraction 0.2 --sequence-length 32
    check_ahead mlm 1 objective=mlm data.tokenizer=words data.train=pairs/train-*.h5 \
        data.validation=pairs/validation-*.h5 $settings
    awk 'NF > 0 { printf "{\"text\": \"%s\", \"label\": %d}\n", $0, NR % 3 }' documents.txt \
        >rows.jsonl
    run_bireme 0 prepare --objective classify --tokenizer words --input rows.jsonl --output labels \
        --validation-fraction 0.2
    check_ahead head 1 objective=classify data.tokenizer=words data.train=labels/train-*.h5 \
        data.validation=labels/validation-*.h5 $settings
}

# The trust ratios of LAMB are computed on the device. Each rank of ZeRO and of a tensor-parallel
# group has a part of a tensor.
test_lamb_ahead() {
    need_mpirun
    local steps idle=()
    check_ahead one 1 optimizer.name=lamb
    check_ahead zero 2 optimizer.name=lamb optimizer.nvlamb=true parallel.zero_stage=1 \
        train.precision=bf16 evaluate.every=0
    check_ahead tensor 2 optimizer.name=lamb parallel.tensor=2 evaluate.every=0
    for steps in 2 6; do
        SIMT_IDLE=$PWD/idle run_bireme 0 train recipe.yaml run_dir=idle-$steps $small \
            optimizer.name=lamb evaluate.every=0 checkpoint.every=0 train.max_steps=$steps
        idle+=("$(cat idle)")
    done
    [ "${idle[0]}" = "${idle[1]}" ] ||
        fail "four more steps left the device without work $((idle[1] - idle[0])) times"
}

# The scales of FP8 are computed on the device. A run that resumes after step 2, and a run with
# another history length, have other histories in device memory.
test_fp8_ahead() {
    need_mpirun
    local fp8='train.precision=fp8 fp8.first_last_layers_bf16=false fp8.amax_history=3'
    check_ahead one 1 $fp8 evaluate.every=0
    compare_history one
    cp -r one-device resumed
    rm -rf resumed/checkpoints/step-0000000[4-5] resumed/final
    run_bireme 0 train recipe.yaml run_dir=resumed $small train.max_steps=5 checkpoint.every=5 \
        optimizer.max_grad_norm=0.5 $fp8 evaluate.every=0
    compare_weights one-device resumed 00000005
    check_ahead zero 2 $fp8 parallel.zero_stage=2
    check_ahead tensor 2 $fp8 parallel.tensor=2 evaluate.every=0
    compare_history zero
    compare_history tensor
}

# A skipped step does not change the history. With GPUs of two models, the host decides. The
# gradient of step 3 is not finite.
test_fp8_skip() {
    need_mpirun
    local run six="$small train.max_steps=6 checkpoint.every=6 evaluate.every=0 train.on_spike=skip
        train.precision=fp8 fp8.first_last_layers_bf16=false fp8.amax_history=3"
    cat >named <<'END'
#!/bin/bash
[[ $* != *=skip-host* ]] || export SIMT_NAME="model $OMPI_COMM_WORLD_RANK"
exec "$BIREME_FLIPPING_SIMT" "$@"
END
    chmod +x named
    program=./named
    export FLIP_RANK=0 FLIP_STEP=2 FLIP_BEFORE=norm
    for run in host device; do
        run_ranks 2 0 recipe.yaml run_dir=skip-$run $six
        [ "$(grep -c '^warning: step 3: .*W-SPIKE' stderr)" = 1 ] || fail 'step 3 was not skipped'
    done
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE
    compare_losses skip-host skip-device 0
    compare_weights skip-host skip-device 00000006
    compare_history skip 00000006
}

# compare_history NAME [STEP]: compare the amax histories of two runs of check_ahead.
compare_history() {
    cmp "$1"-{host,device}/checkpoints/step-"${2:-00000005}"/fp8-00000-of-0000*.h5 ||
        fail "$1: the amax history differs"
}

# step_seconds is measured on the device. The host reads the results of a step only after the device
# has finished the next step, and it reads the results of the last two steps together. The times of
# all steps add up to the time of the run. tokens_per_second is computed from the same times. The
# run `mixed` has pauses, in which the host evaluates and saves.
test_times() {
    local run eight="$small train.max_steps=8 model.hidden_size=64"
    export SIMT_STREAMS=eager
    run_bireme 0 train recipe.yaml run_dir=steps $eight evaluate.every=0 checkpoint.every=0
    run_bireme 0 train recipe.yaml run_dir=mixed $eight evaluate.every=5 checkpoint.every=5
    for run in steps mixed; do
        paste -d ' ' <(print_numbers step_seconds $run) <(print_numbers tokens_per_second $run) \
            <(print_numbers tokens $run) <(print_numbers time $run) >times
        awk -v run=$run '
            NR == 1 { begin = $4; before = $3; next }
            { sum += $1; end = $4; all[NR] = $1 }
            NR > 2 && (run == "steps" || NR != 6) {
                seconds = ($3 - before) / $2
                if (seconds < 0.999 * $1 || seconds > 1.001 * $1) bad = bad " speed of step " NR
            }
            { before = $3 }
            END {
                for (i = 2; i <= 8; i++) if (all[i] < sum / 7 / 5) bad = bad " time of step " i
                if (run == "steps" && (sum < 0.8 * (end - begin) || sum > 1.2 * (end - begin)))
                    bad = bad " sum " sum " in " end - begin " s"
                if (NR != 8 || bad != "") { print "wrong:" bad; exit 1 }
            }' times || fail "$run: $(cat times)"
    done
}

# print_numbers NAME RUN: print the values of this field of all train lines.
print_numbers() {
    print_field "$1" "$2" | sed 's/.*://'
}

# hash_state: print the hash of weights and moments at the end of the last run of $flipping.
hash_state() {
    sed -n 's/^hash //p' stderr
}

# A gradient or a loss is not finite. The host reads it after it has queued the next step.
# The error names the step, the tensor and the samples. Neither step has changed a weight or moment.
test_not_finite() {
    need_mpirun
    local sample='(data/train-.*h5 tokens [0-9]* to [0-9]*)' run
    local six="$small train.max_steps=6 evaluate.every=0 batch.global_size=2
        schedule.name=constant checkpoint.async=false"
    local expected
    export FLIP_HASH=1
    run_bireme 0 train recipe.yaml run_dir=whole $six
    program=$flipping
    run_bireme 0 recipe.yaml run_dir=two $six train.max_steps=2
    expected=$(hash_state)
    [ -n "$expected" ] || fail 'no hash'
    for run in gradient loss; do
        program=$flipping
        export FLIP_RANK=0 FLIP_STEP=2 FLIP_BEFORE=norm
        [ $run = gradient ] || export FLIP_BEFORE=step FLIP_TENSOR=-1 FLIP_NAN=1
        run_bireme 79 recipe.yaml run_dir=$run $six checkpoint.every=2
        unset FLIP_RANK FLIP_STEP FLIP_BEFORE FLIP_TENSOR FLIP_NAN
        grep -q '^error: step 3: ' stderr || fail "$run: another step: $(cat stderr)"
        expect_error 'the weights were not updated'
        [ "$(grep -c '"event":"train"' $run/metrics.jsonl)" = 2 ] || fail "$run: a line of step 3"
        [ $run = loss ] || [ "$(hash_state)" = "$expected" ] || fail 'weights or moments changed'
    done
    expect_error "micro-batch of samples [45] $sample"
    program=$gpu
    run_bireme 0 train recipe.yaml run_dir=gradient $six checkpoint.every=2
    grep -q '^resuming gradient/checkpoints/step-00000002' stderr || fail 'step 2 is not used'
    compare_weights whole gradient 00000006
    # The element is on rank 1, and all ranks end with the error.
    program=$flipping
    export FLIP_RANK=1 FLIP_STEP=2 FLIP_BEFORE=norm
    run_ranks 2 79 recipe.yaml run_dir=ranks $six parallel.zero_stage=1
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE
    expect_error "step 3: the gradient of .* is nan at element [0-9]*.*samples of this rank are"
    # The host reads the sums of 64 micro-batches before the step ends.
    export FLIP_RANK=0 FLIP_STEP=0 FLIP_BEFORE=norm
    run_bireme 79 recipe.yaml run_dir=many $six batch.global_size=66 batch.micro_size=1 \
        data.sequence_length=4 model.num_layers=1 model.hidden_size=8
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE
    expect_error "samples of this rank are 0 $sample, 1 $sample, 2 $sample, 3 $sample and 62 more"
}

# One GPU decides to skip an update and the other does not. The ranks compare the decisions before
# they respond to a spike.
test_disagree() {
    need_mpirun
    local layout six="$small train.max_steps=6 evaluate.every=0 checkpoint.async=false"
    program=$flipping
    for layout in zero_stage=1 tensor=2; do
        export FLIP_RANK=1 FLIP_STEP=2 FLIP_BEFORE=spike
        run_ranks 2 81 recipe.yaml run_dir=$layout $six train.on_spike=skip parallel.$layout
        unset FLIP_RANK FLIP_STEP FLIP_BEFORE
        expect_error 'step 3: rank 1 found a loss spike in this step and rank 0 did not'
        run_bireme 0 recipe.yaml run_dir=$layout $six
        grep -q "^resuming $layout/checkpoints/step-00000002" stderr || fail 'step 2 is not used'
    done
}

run_part "$@"
