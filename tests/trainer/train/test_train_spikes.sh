#!/bin/bash
# train.on_spike: the samples of planted/2.h5 are random characters. They come after 117 of 160
# steps and fill 7 to 8 global batches.
# usage: test_train_spikes.sh PART TRAINER SHIM; TRAINER is flipping_trainer.c, SHIM fault_shim.c.
# Parts:
#
#   warn         a warning; the weights do not depend on train.on_spike if there is no spike
#   skip         the update of a spike is left out; train.max_spikes
#   rollback     at most two checkpoint intervals are lost, and the final validation loss is within
#                0.5 % of that without planted samples
#   layouts      the same samples are skipped on 1 and 2 ranks, with ZeRO and tensor parallelism
#   resume       the same samples are skipped after a resume, also at another layout
#   not_finite   values that are not finite
#   disagree     one rank finds a spike, the others do not
#   stop         a stop request in a spike and after the rollback; a rollback during a save; a
#                spike in the last step
#   objectives   embed and sft
# ctest: parts warn skip rollback layouts resume not_finite disagree stop objectives
# ctest: targets test_program_flipping_trainer test_fault_shim
# ctest: timeout 300
trainer=$(realpath "${2:?}") shim=$(realpath "${3:?}")
. "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

awk -v seed=1 '
    function random() { seed = (seed * 16807) % 2147483647; return seed / 2147483647 }
    { line[NR] = $0 }
    END {
        for (i = 0; i < 12 * NR; i++) print line[int(random() * NR) + 1]
        for (i = 0; i < 73; i++) {
            text = ""
            for (j = 0; j < 40; j++) {
                text = text substr("abcdefghijklmnopqrstuvwxyz ", int(random() * 27) + 1, 1)
            }
            print text >"2.txt"
        }
    }' "$source/LICENSE" >text
head -c 45000 text >1.txt
tail -c +45001 text >3.txt
mkdir planted clean
for part in 1 2 3; do
    run_bireme 0 prepare --objective clm --tokenizer tokenizer --input $part.txt --output shards
    mv shards/train-00000-of-00001.h5 planted/$part.h5
done
cp planted/[13].h5 clean
sed -i 's#^data: .*#data: {tokenizer: tokenizer, train: planted/*.h5, shuffle: false,#
    s#^  sequence_length#  validation: data/validation-*.h5, sequence_length#
    s/^optimizer: .*/optimizer: {learning_rate: 3.0e-3, max_grad_norm: 1.0}/
    s/^schedule: .*/schedule: {name: cosine, warmup_steps: 5, min_ratio: 0.1}/
    s/^train: .*/train: {max_steps: 160}/
    s/^evaluate: .*/evaluate: {every: 40, batches: null}/
    s/^checkpoint: .*/checkpoint: {every: 20, keep: 99}/' recipe.yaml

# last_loss RUN: print the validation loss after the last step.
last_loss() {
    print_losses "$1" evaluate | tail -n 1 | cut -d' ' -f2
}

# skipped RUN STEP: print the skipped samples in this checkpoint, one range after the other.
skipped() {
    tr -d ' \n' <"$1/checkpoints/step-$2/manifest.json" |
        sed -E 's/.*"skipped_samples":(\[[][0-9,]*\]).*/\1/'
}

# is_close NUMBER NUMBER TOLERANCE: the relative difference is at most TOLERANCE.
is_close() {
    awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d <= t * b) }'
}

# expect_spikes RUN SKIPPED: the last run of the program responded to the planted samples.
expect_spikes() {
    grep -q '^warning: step 118: loss 4.* samples 1404 to 1415; ' stderr ||
        fail 'no warning of the first planted samples'
    [ "$(skipped "$1" 00000160)" = "$2" ] || fail "skipped: $(skipped "$1" 00000160)"
}

readonly rollback_range='[[1200,1536]]' # from step 100; the planted samples are 1405 to 1498

test_warn() {
    run_bireme 0 train recipe.yaml
    expect_spikes run '[]'
    grep '"event":"spike"' run/metrics.jsonl | head -n 1 >line
    grep -q '"action":"warn","spike_step":118,"loss":4.*"first_sample":1404,"end_sample":1416}' \
        line || fail "the metrics of the spike: $(cat line)"
    # The range in the warning identifies the samples.
    run_bireme 0 inspect run --sample 1410
    grep -q '^shard  *planted/2.h5 tokens' out || fail "sample 1410: $(cat out)"
    grep -q '"event":"warning".*"name":"SPIKE"' run/metrics.jsonl || fail 'no warning line'
    local action
    for action in warn skip rollback; do
        run_bireme 0 train recipe.yaml 'data.train=clean/*.h5' run_dir="$action" \
            train.on_spike="$action"
        ! grep -q 'W-SPIKE' stderr || fail 'a warning without a spike'
        compare_weights warn "$action" 00000160
        compare_losses warn "$action" 0
    done
}

test_skip() {
    run_bireme 0 train recipe.yaml train.on_spike=skip
    expect_spikes run '[[1404,1500]]'
    grep -q 'samples 1488 to 1499; the weights were not updated (spike 8 of at most 10)' stderr ||
        fail 'the last planted samples are not reported'
    # Neither the weights nor the moments change in the skipped step 118.
    run_bireme 0 train recipe.yaml train.on_spike=skip run_dir=two checkpoint.every=117 \
        train.max_steps=118
    local file
    for file in two/checkpoints/step-00000117/{model,optimizer}-*.h5; do
        cmp "$file" "two/checkpoints/step-00000118/$(basename "$file")" || fail "$file differs"
    done
    # A run that resumes before the spike writes its line once.
    rm -r two/final two/checkpoints/step-00000118
    run_bireme 0 train recipe.yaml train.on_spike=skip run_dir=two checkpoint.every=117 \
        train.max_steps=118
    [ "$(grep -c '"event":"spike","step":118,' two/metrics.jsonl)" = 1 ] &&
        [ "$(grep -c '"event":"spike"' two/metrics.jsonl)" = 1 ] ||
        fail "metrics: $(grep '"event":"spike"' two/metrics.jsonl)"
    run_bireme 79 train recipe.yaml train.on_spike=skip run_dir=limit train.max_spikes=3
    expect_error 'step 121: .*samples 1440 to 1451: more than the 3 spikes of train.max_spikes'
    [ "$(grep -c 'Z error: step 121: .*\[E-[A-Z]*\]$' limit/log.txt)" = 1 ] ||
        fail 'log.txt does not contain the error'
    ! [ -e limit/final ] || fail 'final weights were written'
    run_bireme 78 train recipe.yaml train.on_spike=rollback checkpoint.every=0 run_dir=never
    expect_error 'train.on_spike'
}

test_rollback() {
    run_bireme 0 train recipe.yaml 'data.train=clean/*.h5' run_dir=clean_run
    run_bireme 0 train recipe.yaml run_dir=warn_run
    run_bireme 0 train recipe.yaml train.on_spike=rollback log.every=1000
    expect_spikes run "$rollback_range"
    local clean lost
    clean=$(last_loss clean_run)
    ! is_close "$(last_loss warn_run)" "$clean" 0.005 || fail 'the planted samples do no harm'
    is_close "$(last_loss run)" "$clean" 0.005 ||
        fail "the loss is $(last_loss run) instead of $clean"
    # Each response but the first abandons the steps from the copy to the spike.
    lost=$(sed -n 's/^warning: step \([0-9]*\): .*; back to step \([0-9]*\), .*/\1 \2/p' stderr |
        awk '{ lost += $1 - $2 } END { print lost + 0 }')
    [ "$lost" -ge 18 ] && [ "$lost" -le 40 ] || fail "$lost steps were lost"
    grep '"event":"spike"' run/metrics.jsonl >lines
    [ "$(wc -l <lines)" = "$(grep -c '\[W-SPIKE\]$' stderr)" ] || fail "metrics: $(cat lines)"
    tail -n 1 lines | grep -q '"step":100,.*"action":"rollback","spike_step":101,.*'\
'"first_skipped_sample":1200,"end_skipped_sample":1536,"spikes":4}' || fail "metrics: $(cat lines)"
    # All weights and moments return: a run from the checkpoint of step 100 and sample 1536 has the
    # same bits.
    cp -r run from_disk
    rm -r from_disk/final from_disk/checkpoints/step-000001[246]0
    set_samples from_disk/checkpoints/step-00000100/manifest.json 1536
    run_bireme 0 train recipe.yaml run_dir=from_disk
    grep -q '^resuming from_disk/checkpoints/step-00000100' stderr || fail 'step 100 is not used'
    compare_weights run from_disk 00000160
    # The lines of abandoned steps are dropped: each step has one line. With keep_best, each
    # improvement is saved and copied.
    run_bireme 0 train recipe.yaml train.on_spike=rollback run_dir=all_lines \
        evaluate.every=4 checkpoint.keep=1 checkpoint.keep_best=true log.tensorboard=true
    grep -q '^warning: step 118: .*; back to step 1[01]' stderr || fail 'no rollback'
    print_losses all_lines train | cut -d' ' -f1 >steps
    seq 160 | cmp - steps || fail "steps in metrics.jsonl: $(tr '\n' ' ' <steps)"
    print_losses all_lines evaluate | cut -d' ' -f1 >steps
    seq 0 4 160 | cmp - steps || fail "evaluations in metrics.jsonl: $(tr '\n' ' ' <steps)"
}

test_layouts() {
    need_mpirun
    run_bireme 0 train recipe.yaml train.on_spike=rollback run_dir=one
    run_bireme 0 train recipe.yaml train.on_spike=skip run_dir=skip_one
    local layout
    for layout in zero_stage=0 zero_stage=1 zero_stage=2 tensor=2; do
        run_ranks 2 0 train recipe.yaml train.on_spike=rollback parallel.$layout run_dir=$layout
        expect_spikes $layout "$rollback_range"
        compare_losses one $layout 1e-3
        run_ranks 2 0 train recipe.yaml train.on_spike=skip parallel.$layout run_dir=skip_$layout
        expect_spikes skip_$layout '[[1404,1500]]'
        compare_losses skip_one skip_$layout 1e-3
    done
}

test_resume() {
    need_mpirun
    sed -i "s/every: 40/every: 20/; s/name: cosine/name: constant/" recipe.yaml
    run_bireme 0 train recipe.yaml train.on_spike=rollback run_dir=whole
    local steps layout other
    # Before the spike, after it but before the next checkpoint, and after that checkpoint.
    for steps in 100 110 140; do
        run_bireme 0 train recipe.yaml train.on_spike=rollback run_dir=run-$steps \
            train.max_steps=$steps
        rm -rf run-$steps/checkpoints/step-00000110 # as after a kill
        for layout in zero_stage=1 tensor=2; do
            cp -r run-$steps other-$steps-$layout
        done
        run_bireme 0 train recipe.yaml train.on_spike=rollback run_dir=run-$steps
        compare_weights whole run-$steps 00000160
        compare_losses whole run-$steps 0
        same_spikes whole run-$steps
        [ "$(skipped run-$steps 00000160)" = "$rollback_range" ] ||
            fail "skipped: $(skipped run-$steps 00000160)"
        for layout in zero_stage=1 tensor=2; do
            other=other-$steps-$layout
            run_ranks 2 0 train recipe.yaml train.on_spike=rollback run_dir=$other parallel.$layout
            compare_losses whole $other 1e-3
            [ "$(skipped $other 00000160)" = "$rollback_range" ] ||
                fail "skipped: $(skipped $other 00000160)"
        done
    done
    run_bireme 0 checkpoint reshard run-140/checkpoints/step-00000140 --ranks 2 --output resharded
    grep -q '"skipped_samples"' resharded/manifest.json || fail 'reshard drops the skipped samples'
}

# train_changed RANKS CODE RANK STEP BEFORE SETTING...: train while a value becomes NaN.
train_changed() {
    local ranks=$1 expected=$2
    export FLIP_RANK=$3 FLIP_STEP=$4 FLIP_BEFORE=$5 FLIP_TENSOR=2 FLIP_NAN=1
    shift 5
    if [ "$ranks" = 1 ]; then
        timeout 50 "$trainer" recipe.yaml "$@" >out 2>stderr
    else
        timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np "$ranks" "$trainer" \
            recipe.yaml "$@" >out 2>stderr
    fi
    local code=$?
    unset FLIP_RANK FLIP_STEP FLIP_BEFORE FLIP_TENSOR FLIP_NAN
    [ "$code" = "$expected" ] || fail "$* ended with $code instead of $expected"
    grep -q "^flipped\|^changed" stderr || fail 'no value was changed'
}

test_not_finite() {
    need_mpirun
    local short=('data.train=clean/*.h5' train.max_steps=40 checkpoint.every=10) layout n=0
    run_bireme 0 train recipe.yaml "${short[@]}" run_dir=undisturbed
    train_changed 1 79 0 14 norm "${short[@]}" run_dir=warn
    expect_error 'the gradient of .* is nan'
    # A save that is still running when a step fails is published, and the run resumes there.
    for layout in '1 zero_stage=0' '2 zero_stage=1' '2 tensor=2'; do
        train_changed "${layout% *}" 79 0 14 norm "${short[@]}" checkpoint.every=2 \
            parallel."${layout#* }" run_dir=saved
        run_bireme 0 checkpoint verify saved/checkpoints/step-00000014
        rm -r saved
    done
    for layout in '1 zero_stage=0' '2 zero_stage=0' '2 zero_stage=1' '2 zero_stage=2' \
        '2 tensor=2'; do
        # A gradient in step 15: skipped once.
        n=$((n + 1))
        train_changed "${layout% *}" 0 0 14 norm "${short[@]}" train.on_spike=skip \
            parallel."${layout#* }" run_dir=skip$n
        [ "$(grep -c '\[W-SPIKE\]$' stderr)" = 1 ] || fail 'not exactly one skipped step'
        grep -q '^warning: step 15: .*gradient norm -*nan (score inf), samples 168 to 179; the' \
            stderr || fail 'no warning'
        grep -q '"event":"spike".*"grad_norm":null' skip$n/metrics.jsonl || fail 'no metrics'
        is_close "$(last_loss skip$n)" "$(last_loss undisturbed)" 0.01 ||
            fail "the loss is $(last_loss skip$n)"
        # A weight of one rank in step 15: it is restored from the copy of step 10.
        train_changed "${layout% *}" 0 0 14 step "${short[@]}" train.on_spike=rollback \
            parallel."${layout#* }" run_dir=back$n
        grep -q '^warning: step 15: .*; back to step 10, and samples 120 to 179 are' stderr ||
            fail 'no warning'
        is_close "$(last_loss back$n)" "$(last_loss undisturbed)" 0.01 ||
            fail "the loss is $(last_loss back$n)"
    done
    # The copy of the start of a session.
    train_changed 1 0 0 3 step "${short[@]}" train.on_spike=rollback run_dir=start
    grep -q '^warning: step 4: .*; back to step 0, and samples 0 to 47 are' stderr ||
        fail 'no warning'
    # Weights that stay NaN reach the limit.
    train_changed 1 79 0 14 step "${short[@]}" train.on_spike=skip run_dir=lasting
    expect_error 'step 25: .*more than the 10 spikes of train.max_spikes'
}

test_disagree() {
    need_mpirun
    local layout action
    for layout in zero_stage=0 zero_stage=1 tensor=2; do
        for action in skip rollback; do
            train_changed 2 81 1 14 spike 'data.train=clean/*.h5' train.max_steps=40 \
                checkpoint.every=10 train.on_spike=$action parallel.$layout run_dir=run
            expect_error 'step 15: rank 1 found a loss spike in this step and rank 0 did not'
            run_bireme 0 checkpoint verify run/checkpoints/step-00000010
            rm -r run
        done
    done
}

# has_all_steps RUN STEPS: metrics.jsonl has one train line for each step.
has_all_steps() {
    print_losses "$1" train | cut -d' ' -f1 >steps
    seq "$2" | cmp - steps || fail "steps in metrics.jsonl: $(tr '\n' ' ' <steps)"
}

# same_spikes RUN RUN: the lines of spikes in metrics.jsonl are equal. After a resume the skipped
# samples begin at the end of those that were skipped before.
same_spikes() {
    local run
    for run in "$1" "$2"; do
        grep '"event":"spike"' "$run/metrics.jsonl" |
            sed -E 's/"(time|first_skipped_sample)":[^,]*,//g' >"spikes-$run"
    done
    [ -s "spikes-$1" ] && cmp "spikes-$1" "spikes-$2" ||
        fail "the spikes of $1: $(cat "spikes-$1"), and of $2: $(cat "spikes-$2")"
}

test_stop() {
    need_mpirun
    local ranks
    settings=(train.on_spike=rollback checkpoint.keep=2)
    for ranks in 1 2; do
        run_ranks $ranks 0 train recipe.yaml "${settings[@]}" run_dir=whole$ranks
        # The request arrives in step 118, the first spike, after its last micro-batch.
        timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np $ranks \
            env FLIP_STOP=117 "$trainer" recipe.yaml "${settings[@]}" \
            run_dir=stopped$ranks >out 2>stderr
        [ $? = 75 ] || fail "a stop in step 118 does not end with 75"
        grep -q '^warning: step 118: .*; back to step 100.*W-SPIKE' stderr || fail 'no rollback'
        grep -q '^stopped after step 100 ' stderr || fail 'the run stops at another step'
        has_all_steps stopped$ranks 100
        # The rollback is saved: the next session does not repeat the steps to the spike.
        [ "$(skipped stopped$ranks 00000100)" = '[[1200,1416]]' ] ||
            fail "skipped: $(skipped stopped$ranks 00000100)"
        run_ranks $ranks 0 train recipe.yaml "${settings[@]}" run_dir=stopped$ranks
        ! grep -q '^warning: step 118: ' stderr || fail 'the first spike is repeated'
        same_spikes whole$ranks stopped$ranks
        [ "$(skipped stopped$ranks 00000160)" = "$rollback_range" ] ||
            fail "skipped: $(skipped stopped$ranks 00000160)"
        compare_weights whole$ranks stopped$ranks 00000160
        compare_losses whole$ranks stopped$ranks 0
        has_all_steps stopped$ranks 160
    done
    # The last step is a spike: the steps since the copy are done with other samples.
    run_bireme 0 train recipe.yaml "${settings[@]}" run_dir=last train.max_steps=118
    grep -q '^warning: step 118: .*; back to step 100.*W-SPIKE' stderr || fail 'no rollback'
    [ "$(skipped last 00000118)" = "$rollback_range" ] || fail "skipped: $(skipped last 00000118)"
    has_all_steps last 118
    [ -e last/final ] || fail 'no final weights were written'
    # The checkpoint of step 100 is still being written at the time of the rollback.
    need_shim
    LD_PRELOAD=$shim FAULT_DIR=slow/checkpoints/tmp-step-00000100 FAULT_DO=slow FAULT_AT=1 \
        FAULT_STICKY=1 FAULT_SLOW_MS=150 timeout 50 "$program" train recipe.yaml \
        "${settings[@]}" run_dir=slow >out 2>stderr || fail "a slow save: exit code $?"
    sed -n '/back to step 100/,$p' stderr | grep -q '^saved step 100 ' ||
        fail 'step 100 is saved before the rollback'
    compare_weights whole1 slow 00000160
    compare_losses whole1 slow 0
    has_all_steps slow 160
}

test_objectives() {
    # embed: the loss over the global batch, for which each step reads its data twice.
    awk 'BEGIN {
        for (i = 0; i < 600; i++) {
            word = sprintf("%c%c", 97 + i % 26, 97 + int(i / 26) % 26)
            printf "{\"text\": \"of %s\", \"text_pair\": \"the %s\"}\n", word, word
        }
    }' >pairs.jsonl
    run_bireme 0 prepare --objective embed --tokenizer tokenizer --input pairs.jsonl \
        --output embed --sequence-length 16
    local embed=(objective=embed 'data.train=embed/train-*.h5' data.sequence_length=16
        data.validation=null evaluate.every=0 train.max_steps=30 checkpoint.every=10)
    train_changed 1 0 0 14 step "${embed[@]}" train.on_spike=rollback run_dir=embed_run
    grep -q '^warning: step 15: .*; back to step 10, and samples 120 to 179 are' stderr ||
        fail 'no rollback'
    [ "$(grep -c '\[W-SPIKE\]$' stderr)" = 1 ] || fail 'not exactly one spike'
    awk -v seed=5 '
        function random() { seed = (seed * 16807) % 2147483647; return seed / 2147483647 }
        BEGIN {
            split("license work copy notice file", w, " ")
            for (i = 0; i < 1200; i++) {
                word = w[int(random() * 5) + 1]
                answer = word " is " word
                if (i >= 960 && i < 996) {
                    answer = ""
                    for (j = 0; j < 14; j++)
                        answer = answer substr("qzxjkvbpygfwmucld", int(random() * 17) + 1, 1)
                }
                printf "{\"prompt\": \"%s\", \"completion\": \" %s\"}\n", word, answer
            }
        }' >rows.jsonl
    run_bireme 0 prepare --objective sft --tokenizer tokenizer --input rows.jsonl --output sft
    local sft=(objective=sft 'data.train=sft/train-*.h5' data.validation=null evaluate.every=0
        train.max_steps=95)
    run_bireme 0 train recipe.yaml "${sft[@]}" train.on_spike=rollback
    grep -q '^warning: step 81: .*; back to step 80, and samples 960 to 971 are' stderr ||
        fail 'no rollback'
    case $(skipped run 00000095) in
    '[[960,'*) ;;
    *) fail "skipped: $(skipped run 00000095)" ;;
    esac
    run_bireme 0 train recipe.yaml "${sft[@]}" train.on_spike=skip run_dir=skip
    [ "$(skipped skip 00000095)" = '[[960,996]]' ] || fail "skipped: $(skipped skip 00000095)"
}

run_part "$@"
