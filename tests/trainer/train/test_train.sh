#!/bin/bash
# The program on a tiny corpus: checkpoints, resume, stop, errors, benchmarks.
# ctest: parts checkpoints resume stop stop_evaluating damaged_shard errors inspect one_token
# ctest: parts resolve bench kills_1 kills_2
# ctest: timeout 900
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# `bireme checkpoint` list, verify, diff and reshard; training from a resharded checkpoint.
test_checkpoints() {
    need_mpirun
    run_ranks 3 0 train recipe.yaml run_dir=made parallel.zero_stage=2 parallel.bucket_mib=1 \
        model.hidden_size=40
    run_bireme 0 train recipe.yaml run_dir=other model.hidden_size=40
    local newest=made/checkpoints/step-00000020
    run_bireme 0 checkpoint list made
    [ "$(grep -c ': valid, step .*, 3 ranks, ' out)" = 3 ] || fail 'not three complete checkpoints'
    run_bireme 0 checkpoint verify made --json
    grep -q '"whole": true' out || fail 'the checkpoint is not complete'
    run_bireme 0 checkpoint diff made $newest
    grep -q '^equal: 84 tensors' out || fail 'a checkpoint differs from itself'
    run_bireme 81 checkpoint diff made other --json
    grep -q '"name": "exp_avg_sq/transformer.h.1.ln_2.bias"' out ||
        fail 'the moments are not compared'
    expect_error 'differ'
    run_bireme 0 checkpoint diff made other --tolerance 0.5
    run_bireme 81 checkpoint diff made made/final
    grep -q 'only in the first' out || fail 'missing tensors are not reported'
    run_bireme 0 checkpoint reshard made --output cut/step-00000020 --ranks 5
    [ "$(find cut/step-00000020 -name 'optimizer-*-of-00005.h5' | wc -l)" = 5 ] ||
        fail 'not five optimizer files'
    run_bireme 0 checkpoint diff made cut/step-00000020
    run_bireme 0 checkpoint reshard cut/step-00000020 --output again
    run_bireme 0 checkpoint diff made again
    cmp again/state-00000.h5 $newest/state-00000.h5 || fail 'the training state differs'
    run_bireme 73 checkpoint reshard made --output again
    run_bireme 66 checkpoint verify nowhere
    run_bireme 66 checkpoint list data
    run_bireme 64 checkpoint diff made
    rm -rf shorter && cp -r made shorter && rm -rf shorter/checkpoints/step-00000020 shorter/final
    run_bireme 0 checkpoint reshard shorter --output middle --ranks 4
    rm -rf shorter/checkpoints/step-00000010 && mv middle shorter/checkpoints/step-00000010
    run_ranks 2 0 train recipe.yaml run_dir=shorter parallel.zero_stage=1 model.hidden_size=40
    compare_losses made shorter 1e-5
    printf x | dd of="$(echo $newest/optimizer-00001-*)" bs=1 seek=5000 conv=notrunc status=none
    run_bireme 80 checkpoint verify made
    grep -q 'step-00000020: damaged: optimizer-00001.*sha256' out ||
        fail 'the damaged checkpoint is not reported'
    run_bireme 80 checkpoint diff $newest again
    rm made/checkpoints/step-00000010/state-00000.h5
    run_bireme 0 checkpoint list made
    grep -q 'step-00000010: damaged: state-00000.h5 is missing' out ||
        fail 'the missing file is not reported'
}

# The checks of test_resume change copies of the complete run `whole`, and resume them.

# 10 steps, a save, a resume and 10 steps have the same bits as 20 steps.
check_same_bits() {
    cp -r whole halved
    rm -rf halved/checkpoints/step-00000020 halved/final
    run_bireme 0 train recipe.yaml run_dir=halved log.tensorboard=true
    compare_losses whole halved 0
    expect_event_files whole 0
    expect_event_files halved 1
    compare_weights whole halved 00000020
    grep -q '"event":"resume","step":10' halved/metrics.jsonl || fail 'no resume line'
}

# A start of a finished run changes nothing.
check_finished_run() {
    cp halved/metrics.jsonl before
    run_bireme 0 train recipe.yaml run_dir=halved
    grep -q 'is finished' stderr || fail 'a finished run is not reported as finished'
    cmp halved/metrics.jsonl before || fail 'the metrics of a finished run changed'
    # checkpoint.every 0 saves at the end only, and the run is finished all the same.
    run_bireme 0 train recipe.yaml run_dir=once checkpoint.every=0
    [ "$(ls once/checkpoints)" = step-00000020 ] || fail "every 0 saved $(ls once/checkpoints)"
    compare_weights whole once 00000020
    cp once/metrics.jsonl before
    run_bireme 0 train recipe.yaml run_dir=once checkpoint.every=0
    grep -q 'is finished' stderr || fail 'a finished run with every 0 is not reported as finished'
    cmp once/metrics.jsonl before || fail 'a finished run with every 0 was trained again'
}

# A run that was stopped after a checkpoint makes up for the missing part of its end.
check_missing_end() {
    cp -r whole unfinished # as if killed between the last checkpoint and the final weights
    rm -rf unfinished/final
    run_bireme 0 train recipe.yaml run_dir=unfinished
    for file in whole/final/model-*.h5; do
        cmp "$file" "unfinished/final/$(basename "$file")" || fail 'the final weights differ'
    done
    compare_losses whole unfinished 0
    [ "$(grep -c '"event":"end".*"max_steps"' unfinished/metrics.jsonl)" = 1 ] ||
        fail 'not one end line'
    cp -r whole unevaluated # as if stopped at step 10 before its evaluation
    rm -rf unevaluated/checkpoints/step-00000020 unevaluated/final
    sed -i '/"event":"evaluate","step":10,/d' unevaluated/metrics.jsonl
    run_bireme 0 train recipe.yaml run_dir=unevaluated
    compare_losses whole unevaluated 0
}

# On another number of ranks, losses are equal to 1e-5.
check_other_ranks() {
    cp -r whole other
    rm -rf other/checkpoints/step-00000020 other/final
    run_ranks 3 0 train recipe.yaml run_dir=other log.tensorboard=true
    compare_losses whole other 1e-5
    expect_event_files other 1
}

# A damaged checkpoint is reported, and the one before is used.
check_damaged_checkpoint() {
    cp -r whole damaged
    rm -rf damaged/final
    printf x | dd of="$(echo damaged/checkpoints/step-00000020/model-*.h5)" bs=1 seek=5000 \
        conv=notrunc status=none
    run_bireme 0 train recipe.yaml run_dir=damaged
    grep -q 'step-00000020.*sha256.*\[W-CKPT-SKIP\]$' stderr ||
        fail 'the damaged checkpoint is not reported'
    compare_losses whole damaged 0
    local name='"name":"CKPT-SKIP"'
    grep -q "\"event\":\"warning\",\"step\":10,.*$name,\"text\":\"[^\"]*step-00000020: .*sha256" \
        damaged/metrics.jsonl || fail 'the metrics do not contain the warning'
}

# Other data and most other settings are refused; fewer and more steps are not.
check_changed_settings() {
    "$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" \
        --output shorter \
        --validation-fraction 0.3 >out 2>stderr || fail prepare
    run_ranks 2 80 train recipe.yaml run_dir=whole train.max_steps=25 \
        'data.train=shorter/train-*.h5'
    expect_error 'other data'
    run_bireme 80 train recipe.yaml run_dir=whole optimizer.learning_rate=0.5
    grep -q 'optimizer.learning_rate' stderr || fail 'the changed setting is not reported'
    run_bireme 0 train recipe.yaml run_dir=whole train.max_steps=8
    grep -q 'is finished: 20 steps are done, more than the recipe requires' stderr ||
        fail 'a run with fewer steps than done is not reported as finished'
    [ -d whole/final ] || fail 'the final weights were removed'
    cp stderr whole/before
    run_bireme 0 train recipe.yaml run_dir=whole train.max_steps=25 schedule.warmup_steps=5 \
        evaluate.every=5
    [ "$(print_losses whole train | tail -n 1 | cut -d' ' -f1)" = 25 ] ||
        fail 'a longer run did not train up to step 25'
    grep -A 1 '^the schedule has 25 steps instead of 20$' stderr |
        grep -q '^at step 20 the learning rate is .* instead of ' ||
        fail 'the longer schedule is not reported'
    ! grep -q 'the schedule has' whole/before || fail 'an unchanged schedule is reported'
}

test_resume() {
    need_mpirun
    run_bireme 0 train recipe.yaml run_dir=whole
    check_same_bits
    check_finished_run
    check_missing_end
    check_other_ranks
    check_damaged_checkpoint
    check_changed_settings
}

# has_term_handler PID: whether the process has a handler for SIGTERM.
has_term_handler() {
    local mask
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    ((0x${mask:-0} & 1 << 14))
}

# A signal or a time limit saves and ends with code 75. The resumed run equals one without a stop.
test_stop() {
    # Reveals damage by a signal handler that runs on another thread's stack
    # (trainer/setup/stop_signal.c).
    export MALLOC_PERTURB_=165
    need_mpirun
    local settings=(schedule.name=constant evaluate.every=30) signal run steps
    for signal in USR1 TERM INT; do
        env --default-signal=INT "${one_core[@]}" "$program" train recipe.yaml \
            run_dir=stop$signal train.max_steps=100000000 "${settings[@]}" >out 2>stderr &
        local job=$!
        while kill -0 $job 2>/dev/null && ! grep -qs '"event":"train"' stop$signal/metrics.jsonl; do
            sleep 0.01
        done
        kill -$signal $job 2>/dev/null
        wait $job
        local code=$?
        [ $code = 75 ] || fail "SIG$signal ended the run with $code"
        [ "$(sed -n '/^to continue:$/{n;p;}' stderr)" = "  bireme train recipe.yaml \
run_dir=stop$signal train.max_steps=100000000 ${settings[*]}" ] || fail 'no command to continue'
        ! grep -q '/final' stderr || fail 'the summary of a stopped run names final weights'
        steps=$(print_losses stop$signal train | tail -n 1 | cut -d' ' -f1)
        steps=$((steps + 30))
        for run in stop$signal whole$signal; do
            run_bireme 0 train recipe.yaml run_dir=$run train.max_steps=$steps "${settings[@]}"
            grep -q "^$steps of $steps steps, [0-9]* tokens, [0-9.]* [a-z]*$" stderr &&
                grep -q "^  weights  *$run/final$" stderr || fail 'the run ends without a summary'
        done
        compare_losses whole$signal stop$signal 0
    done
    run_bireme 75 train recipe.yaml run_dir=wall train.max_steps=100000 train.wall_minutes=0.2
    grep -q 'wall_minutes' stderr || fail 'the wall-clock limit is not reported'
    ! grep -q '\[W-WALL\]$' stderr || fail 'there is a warning although steps were done'
    run_bireme 75 train recipe.yaml run_dir=short train.wall_minutes=0.1
    grep -q 'before a step was done.*\[W-WALL\]$' stderr ||
        fail 'there is no warning without a step'
    for delay in 0.15 0.45; do # while mpirun starts the ranks, and while they connect
        rm -f pid
        timeout 50 bash -c 'echo $$ >pid; exec "$@"' _ "$source/scripts/launch_mpirun.sh" -n 2 \
            "$program" train recipe.yaml run_dir=early$delay train.max_steps=100000000 \
            >out 2>stderr &
        local launcher=$! code=0
        while kill -0 $launcher 2>/dev/null &&
            ! { [ -s pid ] && has_term_handler "$(cat pid)"; }; do
            sleep 0.01
        done
        sleep $delay
        kill -TERM "$(cat pid)"
        wait $launcher || code=$?
        [ $code = 75 ] || fail "SIGTERM after $delay s ended the launcher with $code"
    done
    run_bireme 0 train recipe.yaml run_dir=minutes train.max_steps=100000 train.max_minutes=0.02
    [ -d minutes/final ] || fail 'max_minutes left no final weights'
    [ "$(print_losses minutes train | tail -n 1 | cut -d' ' -f1)" -lt 17 ] ||
        grep -q 'train.max_minutes ends.*\[W-SCHEDULE\]$' stderr ||
        fail 'there is no warning about minutes that end long before the steps'
    run_bireme 0 train recipe.yaml run_dir=minutes train.max_steps=100000 train.max_minutes=0.02
    grep -q '^minutes ended in an earlier session' stderr ||
        fail 'the end of a run by max_minutes is not reported'
    ! grep -q 'is finished' stderr || fail 'a run ended by max_minutes is reported as finished'
    grep -q '^train.max_minutes=0.02 ended the run at step [0-9]* of 100000; ' stderr ||
        fail 'the message does not name train.max_minutes'
}

# A signal also stops a long evaluation: before the first step, after the last one, or after a
# resume. A stopped evaluation logs nothing, and the next start repeats it.
test_stop_evaluating() {
    need_mpirun
    for ((i = 0; i < 300; i++)); do cat "$source/LICENSE"; done >many
    "$program" prepare --objective clm --tokenizer tokenizer --input many --output long \
        --validation-fraction 0.99 >out 2>stderr || fail prepare
    stop_while_evaluating() { # RANKS RUN STEP
        local ranks=$1 run=$2 launcher='' victim='' code=0
        [ "$ranks" = 1 ] || launcher="mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np $ranks"
        : >stderr
        # shellcheck disable=SC2086
        $launcher "${one_core[@]}" "$program" train recipe.yaml run_dir="$run" \
            train.max_steps=20 evaluate.every=7 evaluate.batches=null \
            'data.validation=long/validation-*.h5' >out 2>stderr &
        local job=$!
        while kill -0 $job 2>/dev/null && ! grep -q 'steps done' stderr; do
            sleep 0.01
        done
        # The second of two ranks.
        victim=$(pgrep -f "$program train recipe.yaml run_dir=$run " | tail -n 1)
        kill -USR1 "$victim" 2>/dev/null
        wait $job || code=$?
        [ $code = 75 ] || fail "a stop in an evaluation ended the run with $code"
        ! grep -q "\"event\":\"evaluate\",\"step\":$3," "$run/metrics.jsonl" ||
            fail 'the evaluation was not stopped'
        grep -q "stopped after step $3 " stderr || fail "not stopped at step $3"
    }
    run_bireme 0 train recipe.yaml run_dir=whole train.max_steps=20 evaluate.every=7
    for ranks in 1 2; do
        run=first$ranks
        stop_while_evaluating $ranks $run 0
        [ -f $run/checkpoints/step-00000000/manifest.json ] ||
            fail 'there is no checkpoint of step 0'
        stop_while_evaluating $ranks $run 0 # once more, from the checkpoint
        run_ranks $ranks 0 train recipe.yaml run_dir=$run train.max_steps=20 evaluate.every=7
        [ $ranks != 1 ] || compare_weights whole $run 00000020
        compare_losses whole $run 1e-5
    done
    cp -r whole last # as if killed after the last checkpoint, before the last evaluation
    rm -rf last/final
    sed -i '/"event":"evaluate","step":20,/d' last/metrics.jsonl
    stop_while_evaluating 1 last 20
    run_bireme 0 train recipe.yaml run_dir=last train.max_steps=20 evaluate.every=7
    [ -d last/final ] || fail 'there are no final weights'
    compare_losses whole last 0
}

# A shard of one rank is damaged while the run trains: this rank prints the error, and all ranks end
# with its code. Each rank has its own working folder with its own shards.
test_damaged_shard() {
    need_mpirun
    local setting start shard
    sed -i '/evaluate:/d; s/, validation: [^,]*,/,/' recipe.yaml
    for setting in parallel.tensor=2 \
        'parallel.tensor=2 parallel.sequence=true parallel.zero_stage=1' parallel.tensor=1; do
        rm -rf run rank && mkdir -p rank/0 rank/1
        cp -r tokenizer data rank/0 && cp -r tokenizer data rank/1
        shard=$(echo rank/1/data/train-*.h5)
        start=(train "$folder/recipe.yaml" run_dir="$folder/run" train.max_steps=1000000
            checkpoint.every=0)
        # mpirun of Open MPI 5.0.7 crashes if it is given one program per working folder, as in
        # `mpirun -np 1 --wdir A pwd : -np 1 --wdir B pwd`.
        # shellcheck disable=SC2016,SC2086
        timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 \
            bash -c 'cd "$1/$OMPI_COMM_WORLD_RANK" && shift && exec "$@"' _ "$folder/rank" \
            "$program" "${start[@]}" $setting >out 2>stderr &
        local job=$! code=0
        while kill -0 $job 2>/dev/null &&
            ! grep -qs '"event":"train","step":1,' run/metrics.jsonl; do
            sleep 0.05
        done
        # 20 of 43 KiB, which contain most of the tokens.
        dd if=/dev/zero of="$shard" bs=1024 count=20 seek=10 conv=notrunc status=none
        wait $job || code=$?
        [ $code = 65 ] || fail "$setting: a damaged shard of rank 1 ended the run with $code"
        expect_error '^error: rank 1 .* step [1-9].*data/train-.*h5.*\[E-DATA\]$'
    done
}

# Each bad input ends the program with one error line and its exit code, on all ranks.
test_errors() {
    need_mpirun
    run_ranks 3 78 train recipe.yaml model.hiden_size=64
    expect_error "hidden_size"
    run_ranks 3 66 train recipe.yaml 'data.train=nowhere/*.h5'
    expect_error nowhere
    # Each step multiplies the weights by about -10,000; the loss is NaN after five steps.
    local diverging='optimizer.learning_rate=100 optimizer.weight_decay=100
        optimizer.max_grad_norm=0 schedule.warmup_steps=0'
    # shellcheck disable=SC2086
    run_ranks 2 79 train recipe.yaml run_dir=nan $diverging train.max_steps=2000
    expect_error 'samples [0-9]* (data/train-.*h5 tokens [0-9]* to [0-9]*).*'\
'the weights were not updated'
    # shellcheck disable=SC2086
    run_bireme 0 train recipe.yaml run_dir=diverged $diverging train.max_steps=5 \
        data.validation=null evaluate.every=0
    # shellcheck disable=SC2086
    run_ranks 2 79 train recipe.yaml run_dir=evaluated $diverging train.max_steps=5
    expect_error 'validation loss'
    printf '{"context":"the Lic","choices":["ense","zzzz"],"label":0}\n' >task.jsonl
    for command in 'evaluate --json --data data/validation-*.h5' \
        'evaluate --task task.jsonl' 'score recipe.yaml' 'generate --prompt the --num-beams 2'; do
        set -f # the program expands the pattern
        # shellcheck disable=SC2086
        run_bireme 79 $command --checkpoint diverged
        set +f
        expect_error damaged
    done
    head -c 20000 "$(echo data/train-*.h5)" >cut.h5
    run_ranks 2 65 train recipe.yaml data.train=cut.h5
    expect_error cut.h5
    expect_refusal() { # CODE TEXT SETTING...: train and plan refuse the setting with the same text
        local code=$1 text=$2
        shift 2
        run_bireme "$code" train recipe.yaml run_dir=refused "$@"
        expect_error "$text"
        run_bireme "$code" plan recipe.yaml run_dir=refused "$@"
        expect_error "$text"
    }
    run_bireme 69 train recipe.yaml run_dir=refused train.device=cuda
    expect_error 'command line: train.device'
    run_bireme 0 plan recipe.yaml run_dir=refused train.device=cuda
    grep -q 'command line: train.device.* with code 69 .*\[W-NOT-CHECKED\]$' stderr ||
        fail 'plan does not report the missing GPU'
    expect_refusal 78 '1 rank: use 2, 4, ... ranks (.*--ranks N of plan), or set .* to 1' \
        parallel.tensor=2
    expect_refusal 78 'command line: model.vocab_size: 3 is smaller' model.vocab_size=3
    expect_refusal 78 'warmup_steps: 5000: more than the 24 steps of train.epochs; use fewer' \
        train.max_steps=null train.epochs=1 schedule.warmup_steps=5000
    expect_refusal 78 'data.train: no training data' data.train=null
    expect_refusal 66 'data.tokenizer: .*bireme tokenizer train.*--output nowhere' \
        data.tokenizer=nowhere
    expect_refusal 66 'a file; use its folder\( \[\|; to plan\)' \
        data.tokenizer=tokenizer/tokenizer.json
    expect_refusal 65 'data.train: data is a folder; name its shards, for example data/train-' \
        data.train=data
    expect_refusal 66 'data.train: no shard matches.*bireme prepare' 'data.train=data/none-*.h5'
    expect_refusal 66 'nowhere/.*bireme prepare.*--output nowhere' \
        'data.train=[{path: "data/train-*.h5"}, {path: "nowhere/*.h5"}]'
    expect_refusal 66 'command line: data.validation' 'data.validation=nowhere/*.h5'
    expect_refusal 65 'data.validation.*cut.h5' data.validation=cut.h5
    expect_refusal 66 'model.init_from: .*nowhere' model.init_from=nowhere
    run_bireme 0 plan recipe.yaml model.vocab_size=100 data.tokenizer=nowhere \
        'data.train=nowhere/*.h5'
    [ "$(grep -c '\[W-NOT-CHECKED\]$' stderr)" = 2 ] || fail 'unchecked settings are not reported'
    run_bireme 0 plan recipe.yaml --json
    grep -q '"not_checked": \[\]' out || fail 'something was not checked'
    grep -q '"steps_per_epoch": [0-9]' out || fail 'the data was not read'
    grep -q '"epochs": [0-9]' out || fail 'no epochs'
    mkdir folder
    cp recipe.yaml folder
    run_bireme 66 train train.max_steps=3
    expect_error 'no recipe train.max_steps=3; write the path of the recipe before the settings'
    run_bireme 78 train folder
    expect_error 'folder is a folder; give the YAML file of a job, for example folder/recipe.yaml'
    # A start that fails late removes the folder that it has made, and no other.
    run_bireme 0 train recipe.yaml run_dir=base
    echo x >>"$(echo base/final/model-*.h5)"
    run_bireme 80 train recipe.yaml run_dir=refused model.init_from=base/final
    [ ! -e refused ] || fail "left by a failed start: $(find refused)"
    mkdir refused
    run_bireme 80 train recipe.yaml run_dir=refused model.init_from=base/final
    [ -e refused/log.txt ] || fail 'a folder that existed was removed'
    run_bireme 66 train nowhere.yaml
    run_bireme 64 prepare --objective translate --tokenizer tokenizer --input recipe.yaml --output t
    expect_error "--objective translate: .* did you mean 'seq2seq'?"
    run_bireme 64 train recipe.yaml --epochs 3
    expect_error 'write train.epochs=VALUE after the recipe'
    run_bireme 64 train
    run_bireme 66 generate --checkpoint nowhere
}

# inspect prints tables or JSON, and reports damaged files.
test_inspect() {
    run_bireme 0 tokenizer train --vocab-size 9999 --input "$source/LICENSE" --output bytes
    grep -q ' ids instead of 9999.*\[W-SMALLER\]$' stderr ||
        fail 'a smaller vocabulary is not reported'
    run_bireme 0 train recipe.yaml
    run_bireme 0 inspect run
    grep -q 'run folder, ended (max_steps)' out || fail 'the state of the run is not printed'
    grep -q '^  validation loss  *[0-9]' out || fail 'no validation loss'
    [ "$(grep -c '^  step-000000[12]0 .* valid$' out)" = 2 ] || fail 'not two checkpoints'
    ! grep -q '{' out || fail 'the table contains JSON'
    ! grep -q 'hidden_size' out || fail 'the settings are printed without --settings'
    run_bireme 0 inspect run --settings
    grep -q '^  hidden_size: 32' out || fail '--settings prints no settings'
    run_bireme 0 inspect run/final
    grep -qE '^  step 20, 240 samples, 7\.[0-9]+ k tokens, ' out &&
        grep -qE '^  [0-9.]+ k parameters, .* files, [0-9.]+ KiB$' out ||
        fail "the numbers of a checkpoint are not scaled: $(head -4 out)"
    run_bireme 0 checkpoint list run
    grep -qE ' [0-9.]+ KiB$' out || fail 'the sizes of the checkpoints are not scaled'
    run_bireme 0 inspect run --json
    grep -q '"ended": true' out && grep -q '"perplexity"' out || fail 'the JSON is not complete'
    run_bireme 0 inspect run/checkpoints
    [ "$(grep -c 'valid$' out)" = 2 ] || fail 'not two checkpoints in their folder'
    run_bireme 0 inspect data
    grep -q 'total of train ' out && grep -q '2 shards, valid' out ||
        fail 'the shards are not listed'
    run_bireme 0 inspect tokenizer
    grep -q 'end token   none' out || fail 'a char tokenizer has an end token'
    printf x | dd of="$(echo run/checkpoints/step-00000020/model-*.h5)" bs=1 seek=5000 \
        conv=notrunc status=none
    run_bireme 80 inspect run
    expect_error 'contains 1 damaged checkpoint'
    grep -q 'step-00000020 .*damaged: .*sha256' out || fail 'the damage is not described'
    mv data/train-00000-of-00001.h5 data/train-00000-of-00002.h5
    run_bireme 65 inspect data
    grep -q 'shards are missing' out || fail 'the missing shard is not reported'
    printf x | dd of=data/train-00000-of-00002.h5 bs=1 seek=9000 conv=notrunc status=none
    run_bireme 65 inspect data --json
    grep -q '"reason"' out || fail 'the damaged shard is not reported'
}

# The checkpoint that a path selects. A damaged one is reported, and an older one is used.
# Sequences of one token, and a model with one position: every command reads the checkpoint.
test_one_token() {
    read_checkpoint() { # CHECKPOINT
        run_bireme 0 evaluate --checkpoint "$1" --data 'data/validation-*.h5'
        run_bireme 0 checkpoint verify "$1"
        run_bireme 0 export --checkpoint "$1" --output "$1-export"
        run_bireme 0 import "$1-export" --output "$1-import"
        run_bireme 0 export --checkpoint "$1-import" --output "$1-again"
        cmp "$1-export/model.safetensors" "$1-again/model.safetensors" ||
            fail "an import and an export changed the weights of $1"
    }
    local short=(recipe.yaml run_dir=short data.sequence_length=1)
    run_bireme 0 plan "${short[@]}"
    run_bireme 0 train "${short[@]}"
    rm -r short/final short/checkpoints/step-00000020
    run_bireme 0 train "${short[@]}"
    grep -q '"event":"resume","step":10' short/metrics.jsonl || fail 'no resume line'
    run_bireme 0 plan short/recipe.yaml
    read_checkpoint short
    run_bireme 0 generate --checkpoint short --prompt t --max-new-tokens 4
    ! grep -q 'W-ESCAPE' stderr || fail 'a warning about a prompt without an escape'
    run_bireme 65 generate --checkpoint short --prompt 't\n' --max-new-tokens 4
    grep -q '\[W-ESCAPE\]$' stderr || fail 'no warning about a backslash in a prompt'
    run_bireme 64 generate --checkpoint short --out_dir=short
    expect_error "'--out_dir'; use --checkpoint"
    run_bireme 0 train recipe.yaml run_dir=narrow model.max_position_embeddings=1 \
        data.sequence_length=1
    read_checkpoint narrow
    run_bireme 78 train recipe.yaml objective=sft data.sequence_length=1
    expect_error 'sft.max_length: 1 is too short for objective (sft); an example needs 2 tokens'
}

test_resolve() {
    need_mpirun
    run_bireme 0 train recipe.yaml
    local shards='data/validation-*.h5' newest oldest
    newest=run/checkpoints/step-00000020 oldest=run/checkpoints/step-00000010
    # check_loss PATH FILE [SKIPPED...]: the printed loss is the one in the file; there is one
    # warning about each skipped checkpoint.
    check_loss() {
        local path=$1 file=$2 named
        shift 2
        cut -c1-15 out >loss # "loss":2.34567
        [ "$(grep -c W-CKPT-SKIP stderr)" = $# ] || fail "$path: not $# warnings"
        for named in "$@"; do
            grep -q "^warning: $named.*\[W-CKPT-SKIP\]$" stderr || fail "$named is not reported"
        done
        [ -e "$file" ] || cp loss "$file"
        cmp loss "$file" || fail "$path does not select the $file checkpoint"
    }
    expect_loss() { # PATH FILE [SKIPPED...]
        run_bireme 0 evaluate --checkpoint "$1" --data "$shards" --json
        check_loss "$@"
    }
    expect_loss_2_ranks() { # PATH FILE [SKIPPED...]
        run_ranks 2 0 evaluate --checkpoint "$1" --data "$shards" --json
        check_loss "$@"
    }
    damage_weights() { # FOLDER
        printf x | dd of="$(echo "$1"/model-*.h5)" bs=1 seek=5000 conv=notrunc status=none
    }
    expect_loss $newest last
    expect_loss $oldest first
    cmp -s first last && fail 'the checkpoints are equal'
    for path in run run/ run/final run/checkpoints run/checkpoints/; do
        expect_loss $path last
    done
    expect_loss_2_ranks run/checkpoints last
    for resumed in run run/checkpoints $newest; do
        run_bireme 0 train recipe.yaml run_dir=other train.max_steps=22 --resume $resumed
        grep -q "resuming $newest" stderr || fail "--resume $resumed does not use the newest"
        rm -rf other
    done
    run_bireme 64 train recipe.yaml run_dir=none --resume yes
    expect_error 'resume yes: use auto, never or a PATH'
    run_ranks 2 80 train recipe.yaml run_dir=none --resume run/final
    expect_error 'run/final holds weights only'
    damage_weights run/final
    expect_loss run last run/final
    damage_weights $newest
    expect_loss_2_ranks run first run/final $newest
    expect_loss run/checkpoints first $newest
    run_ranks 2 0 train recipe.yaml run_dir=other --resume run
    grep -q "resuming $oldest" stderr || fail '--resume RUN does not use the older checkpoint'
    grep -q "^warning: $newest.*\[W-CKPT-SKIP\]$" stderr ||
        fail 'the damaged checkpoint is not reported'
    # A checkpoint that is given directly is not replaced by another one.
    run_bireme 80 evaluate --checkpoint $newest --data "$shards"
    expect_error "$newest is damaged: model"
    damage_weights $oldest
    run_ranks 2 80 evaluate --checkpoint run --data "$shards"
    expect_error 'final: .*; step-00000020: .*; step-00000010: '
    run_bireme 80 generate --checkpoint recipe.yaml
    expect_error 'recipe.yaml is a file'
    run_bireme 80 train recipe.yaml run_dir=none --resume data
    expect_error 'data is not a checkpoint'
    run_ranks 2 66 evaluate --checkpoint nowhere --data "$shards"
    expect_error nowhere
}

# The kind of benchmark is optional. Progress goes to standard error.
test_bench() {
    run_bireme 0 bench recipe.yaml --repeats 2 --json
    grep -q '"tokens":96,' out || fail 'the recipe was not used'
    grep -q 'step 1 of 2' stderr || fail 'no progress'
    run_bireme 0 bench step recipe.yaml --repeats 1 batch.micro_size=1 parallel.threads=1
    grep -q '1 rank x 1 thread,' out || fail 'ranks and threads are not printed'
    grep -q '^operation .* of step ' out || fail 'bench step prints no table'
    run_bireme 0 bench kernels recipe.yaml --repeats 1 --json
    for name in linear_forward attention_backward classifier_run adamw_update convert; do
        grep -q "\"name\": *\"$name\"" out || fail "bench kernels lacks $name"
    done
    for name in roofline floor; do
        grep -q "\"share_of_$name\": *[0-9.]*[1-9]" out || fail 'bench kernels prints no roofline'
    done
    run_bireme 0 bench kernels recipe.yaml --repeats 1 train.precision=fp32
    grep -qE '^residual_norm_forward +[0-9.]+ +[0-9.]+ +[0-9.]+%' out ||
        fail 'bench kernels prints no table'
    run_bireme 0 bench data recipe.yaml --repeats 1 --json
    grep -q 'reading .* at random' stderr || fail 'no progress of data'
    grep -q '"tokens_per_second": *[1-9]' out || fail 'bench data --json prints no speed'
    run_bireme 0 bench data recipe.yaml --repeats 1
    grep -q 'million tokens/s' out || fail 'bench data prints no speed'
    run_bireme 0 bench comm --repeats 1
    grep -qE '^all-reduce +4096 bytes +[0-9.]+ us .*copy: [0-9.]+ us' out ||
        fail 'bench comm prints no microseconds'
    run_bireme 64 bench
    expect_error 'step (.*), kernels, comm, data or cluster; usage: .*bench'
    run_bireme 64 bench dtaa recipe.yaml
    expect_error "did you mean 'data'"
    run_bireme 66 bench nothing.yaml
    expect_error nothing.yaml
}

# test_kills RANKS: kill the run BIREME_KILLS times at random moments (8 by default, 40 in CI).
# Each start resumes, at least from the newest checkpoint that was reported as saved, and the end
# equals the end of a run without kills.
test_kills() {
    local ranks=$1 left=${BIREME_KILLS:-8} saved=0 attempts=0 settings
    killed=killed$$ # unique in the process list of this machine
    [ "$ranks" = 1 ] || need_mpirun
    settings="train.max_steps=300 evaluate.every=100 checkpoint.every=3 log.every=50"
    start_run() { # RUN
        local launcher=
        [ "$ranks" = 1 ] || launcher="mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np $ranks"
        # shellcheck disable=SC2086
        exec setsid $launcher "$program" train recipe.yaml run_dir="$1" $settings
    }
    (start_run whole) >out 2>stderr || fail 'the run without kills fails'
    while [ "$left" -gt 0 ]; do
        attempts=$((attempts + 1))
        : >stderr # a kill may come before the shell has emptied it
        (start_run "$killed") >out 2>stderr &
        local job=$! wait_ms=$((RANDOM % (ranks == 1 ? 600 : 1500)))
        sleep "$(printf '0.%03d' $((wait_ms % 1000)))"
        [ $wait_ms -lt 1000 ] || sleep 1
        if [ "$ranks" = 1 ]; then
            kill -9 $job 2>/dev/null
        else # one rank, or the whole job
            local victim
            victim=$(pgrep -f "run_dir=$killed" | shuf -n 1)
            [ -z "$victim" ] || kill -9 "$victim" 2>/dev/null
        fi
        wait $job 2>/dev/null
        local code=$?
        [ "$code" != 80 ] || fail "after kill $attempts nothing could be resumed"
        case $code in 0 | 137 | 1 | 71) ;; *) fail "kill $attempts ended the run with $code" ;; esac
        if grep -qs 'resuming' stderr; then
            local from
            from=$(sed -n 's/.*resuming .*: step \([0-9]*\),.*/\1/p' stderr)
            [ "$from" -ge "$saved" ] || fail "step $saved was saved, step $from is resumed"
        fi
        local newest
        newest=$(sed -n 's/.*saved step \([0-9]*\) .*/\1/p' stderr | tail -n 1)
        [ -z "$newest" ] || saved=$newest
        left=$((left - 1))
        if [ "$code" = 0 ]; then # the run ended before the kill: begin a new one
            check_killed
            rm -rf "$killed"
            saved=0
        fi
    done
    (start_run "$killed") >out 2>stderr || fail 'the last start fails'
    check_killed
}

check_killed() {
    compare_losses whole "$killed" 0
    compare_weights whole "$killed" 00000300
}

case ${1:-} in
kills_1 | kills_2) test_kills "${1#kills_}" ;;
*) run_part "$@" ;;
esac
