#!/bin/bash
# The whole program on a tiny corpus (the licence's text): resuming, stopping, errors, generation.
# usage: test_train.sh PART; BIREME_PROGRAM and BIREME_SOURCE_DIR are set by ctest
source "${BIREME_SOURCE_DIR:?}/tests/trainer/tiny_training.sh"

# Listed, verified, compared and cut anew without a model; and trained on from what was cut.
checkpoints() {
    need_mpirun
    run_ranks 3 0 train recipe.yaml run_dir=made parallel.zero_stage=2 parallel.bucket_mib=1 model.hidden_size=40
    run 0 train recipe.yaml run_dir=other model.hidden_size=40
    local newest=made/checkpoints/step-00000020
    run 0 checkpoint list made
    [ "$(grep -c ': whole, step .*, 3 ranks, ' out)" = 3 ] || fail 'not three whole checkpoints are listed'
    run 0 checkpoint verify made --json
    grep -q '"whole": true' out || fail 'not whole'
    run 0 checkpoint diff made $newest
    grep -q '^equal: 84 tensors' out || fail 'a checkpoint differs from itself'
    run 81 checkpoint diff made other --json
    grep -q '"name": "exp_avg_sq/transformer.h.1.ln_2.bias"' out || fail 'the moments are not compared'
    one_line 81 'differ'
    run 0 checkpoint diff made other --tolerance 0.5
    run 81 checkpoint diff made made/final
    grep -q 'only in the first' out || fail 'missing tensors are not named'
    run 0 checkpoint reshard made --output cut/step-00000020 --ranks 5
    [ "$(find cut/step-00000020 -name 'optimizer-*-of-00005.h5' | wc -l)" = 5 ] || fail 'not five files'
    run 0 checkpoint diff made cut/step-00000020
    run 0 checkpoint reshard cut/step-00000020 --output again
    run 0 checkpoint diff made again
    cmp again/state-00000.h5 $newest/state-00000.h5 || fail 'the state was not kept'
    run 73 checkpoint reshard made --output again
    run 66 checkpoint verify nowhere
    run 66 checkpoint list data
    run 64 checkpoint diff made
    rm -rf shorter && cp -r made shorter && rm -rf shorter/checkpoints/step-00000020 shorter/final
    run 0 checkpoint reshard shorter --output middle --ranks 4
    rm -rf shorter/checkpoints/step-00000010 && mv middle shorter/checkpoints/step-00000010
    run_ranks 2 0 train recipe.yaml run_dir=shorter parallel.zero_stage=1 model.hidden_size=40
    same_losses made shorter 1e-5
    printf x | dd of="$(echo $newest/optimizer-00001-*)" bs=1 seek=5000 conv=notrunc status=none
    run 80 checkpoint verify made
    grep -q 'step-00000020: damaged: optimizer-00001.*sha256' out || fail 'the damaged one is not named'
    run 80 checkpoint diff $newest again
    rm made/checkpoints/step-00000010/state-00000.h5
    run 0 checkpoint list made
    grep -q 'step-00000010: damaged: state-00000.h5 is missing' out || fail 'the missing file is not named'
}

resume() { # 10 + save + resume + 10 equals 20, bit for bit; at another layout to 1e-5
    need_mpirun
    run 0 train recipe.yaml run_dir=whole
    cp -r whole halved
    rm -rf halved/checkpoints/step-00000020 halved/final
    run 0 train recipe.yaml run_dir=halved log.tensorboard=true
    same_losses whole halved 0
    event_files whole 0
    event_files halved 1
    same_weights whole halved 00000020
    grep -q '"event":"resume","step":10' halved/metrics.jsonl || fail 'no resume line'
    cp halved/metrics.jsonl before
    run 0 train recipe.yaml run_dir=halved
    grep -q 'is finished' told || fail 'a finished run was not left alone'
    cmp halved/metrics.jsonl before || fail 'the metrics of a finished run changed'
    cp -r whole unfinished # killed between the last checkpoint and the final weights
    rm -rf unfinished/final
    run 0 train recipe.yaml run_dir=unfinished
    for file in whole/final/model-*.h5; do
        cmp "$file" "unfinished/final/$(basename "$file")" || fail 'the final weights were not made up for'
    done
    same_losses whole unfinished 0
    [ "$(grep -c '"event":"end".*"max_steps"' unfinished/metrics.jsonl)" = 1 ] || fail 'not one end line'
    cp -r whole owing # stopped at a step whose evaluation was still to come
    rm -rf owing/checkpoints/step-00000020 owing/final
    sed -i '/"event":"evaluate","step":10,/d' owing/metrics.jsonl
    run 0 train recipe.yaml run_dir=owing
    same_losses whole owing 0
    cp -r whole other
    rm -rf other/checkpoints/step-00000020 other/final
    run_ranks 3 0 train recipe.yaml run_dir=other log.tensorboard=true
    same_losses whole other 1e-5
    event_files other 1
    cp -r whole damaged
    rm -rf damaged/final
    printf x | dd of="$(echo damaged/checkpoints/step-00000020/model-*.h5)" bs=1 seek=5000 conv=notrunc status=none
    run 0 train recipe.yaml run_dir=damaged
    grep -q 'W-CKPT-SKIP.*step-00000020.*sha256' told || fail 'the damaged checkpoint was not named'
    same_losses whole damaged 0
    grep -q '"event":"warning","step":10,.*"name":"CKPT-SKIP","text":"[^"]*step-00000020: .*sha256' \
        damaged/metrics.jsonl || fail 'the warning is no event'
    "$program" prepare --objective clm --tokenizer tokenizer --input "$source/LICENSE" --output shorter \
        --validation-fraction 0.3 >out 2>told || fail prepare
    run_ranks 2 80 train recipe.yaml run_dir=whole train.max_steps=25 'data.train=shorter/train-*.h5'
    one_line 80 'other data'
    run 80 train recipe.yaml run_dir=whole optimizer.learning_rate=0.5
    grep -q 'optimizer.learning_rate' told || fail 'the changed setting was not named'
    run 0 train recipe.yaml run_dir=whole train.max_steps=8
    grep -q 'is finished: 20 steps are done, more than the recipe requires' told || fail 'fewer steps than done'
    [ -d whole/final ] || fail 'the final weights are gone'
    run 0 train recipe.yaml run_dir=whole train.max_steps=25 schedule.warmup_steps=5 evaluate.every=5
    [ "$(losses whole train | tail -n 1 | cut -d' ' -f1)" = 25 ] || fail 'a longer run did not go on'
}

catches_term() { # PID: whether it has a handler for SIGTERM
    local mask
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    ((0x${mask:-0} & 1 << 14))
}

stop() { # a signal saves and ends with 75; started again the run ends as if it had never stopped
    export MALLOC_PERTURB_=165 # what a handler on a foreign stack damages shows (trainer/train/stop_signal.c)
    need_mpirun
    run 0 train recipe.yaml run_dir=whole train.max_steps=60 evaluate.every=30
    for signal in USR1 TERM INT; do
        env --default-signal=INT "${one_core[@]}" "$program" train recipe.yaml run_dir=stop$signal train.max_steps=60 \
            evaluate.every=30 >out 2>told &
        local job=$!
        while kill -0 $job 2>/dev/null && ! grep -qs '"event":"train"' stop$signal/metrics.jsonl; do
            sleep 0.01
        done
        kill -$signal $job 2>/dev/null
        wait $job
        local code=$?
        [ $code = 75 ] || [ $code = 0 ] || fail "SIG$signal ended the run with $code"
        run 0 train recipe.yaml run_dir=stop$signal train.max_steps=60 evaluate.every=30
        same_losses whole stop$signal 0
    done
    run 75 train recipe.yaml run_dir=wall train.max_steps=100000 train.wall_minutes=0.2
    grep -q 'wall_minutes' told || fail 'the wall-clock limit was not named'
    ! grep -q '^W-WALL' told || fail 'a session that trained is told that it did not'
    run 75 train recipe.yaml run_dir=short train.wall_minutes=0.1
    grep -q '^W-WALL.*before a step was done' told || fail 'a session without a step is not warned of'
    for delay in 0.15 0.45; do # while mpirun starts the ranks, and while they find each other
        rm -f pid
        timeout 50 bash -c 'echo $$ >pid; exec "$@"' _ "$source/scripts/launch_mpirun.sh" -n 2 "$program" train recipe.yaml \
            run_dir=early$delay train.max_steps=100000000 >out 2>told &
        local launcher=$! code=0
        while kill -0 $launcher 2>/dev/null && ! { [ -s pid ] && catches_term "$(cat pid)"; }; do
            sleep 0.01
        done
        sleep $delay
        kill -TERM "$(cat pid)"
        wait $launcher || code=$?
        [ $code = 75 ] || fail "SIGTERM after $delay s ended the launcher with $code"
    done
    run 0 train recipe.yaml run_dir=minutes train.max_steps=100000 train.max_minutes=0.02
    [ -d minutes/final ] || fail 'max_minutes left no final weights'
    [ "$(losses minutes train | tail -n 1 | cut -d' ' -f1)" -lt 17 ] || grep -q '^W-SCHEDULE: .* train.max_minutes ends' told ||
        fail 'nobody warned of minutes that end long before the steps'
    run 0 train recipe.yaml run_dir=minutes train.max_steps=100000 train.max_minutes=0.02
    grep -q 'is finished' told || fail 'a run ended by max_minutes was not left alone'
}

# An evaluation that would take minutes, before the first step, after the last, or owed by an earlier session,
# ends at a stop too, and says nothing; what it owes is made up for.
stop_evaluating() {
    need_mpirun
    for ((i = 0; i < 300; i++)); do cat "$source/LICENSE"; done >many
    "$program" prepare --objective clm --tokenizer tokenizer --input many --output long \
        --validation-fraction 0.99 >out 2>told || fail prepare
    stopped_while_evaluating() { # RANKS RUN STEP
        local ranks=$1 run=$2 launcher='' victim='' code=0
        [ "$ranks" = 1 ] || launcher="mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np $ranks"
        : >told
        # shellcheck disable=SC2086
        $launcher "${one_core[@]}" "$program" train recipe.yaml run_dir="$run" train.max_steps=20 evaluate.every=7 \
            evaluate.batches=null 'data.validation=long/validation-*.h5' >out 2>told &
        local job=$!
        while kill -0 $job 2>/dev/null && ! grep -q 'steps done' told; do
            sleep 0.01
        done
        victim=$(pgrep -f "$program train recipe.yaml run_dir=$run " | tail -n 1) # of two ranks, the one that is not first
        kill -USR1 "$victim" 2>/dev/null
        wait $job || code=$?
        [ $code = 75 ] || fail "a stop in an evaluation ended the run with $code"
        ! grep -q "\"event\":\"evaluate\",\"step\":$3," "$run/metrics.jsonl" || fail 'the evaluation went on to its end'
        grep -q "stopped after step $3 " told || fail "not stopped at step $3"
    }
    run 0 train recipe.yaml run_dir=whole train.max_steps=20 evaluate.every=7
    for ranks in 1 2; do
        run=first$ranks
        stopped_while_evaluating $ranks $run 0
        [ -f $run/checkpoints/step-00000000/manifest.json ] || fail 'nothing was saved before the first step'
        stopped_while_evaluating $ranks $run 0 # again, from what was saved
        run_ranks $ranks 0 train recipe.yaml run_dir=$run train.max_steps=20 evaluate.every=7
        [ $ranks != 1 ] || same_weights whole $run 00000020
        same_losses whole $run 1e-5
    done
    cp -r whole last # between the last checkpoint and the final weights, the last evaluation missing
    rm -rf last/final
    sed -i '/"event":"evaluate","step":20,/d' last/metrics.jsonl
    stopped_while_evaluating 1 last 20
    run 0 train recipe.yaml run_dir=last train.max_steps=20 evaluate.every=7
    [ -d last/final ] || fail 'no final weights'
    same_losses whole last 0
}

# One rank alone reads damage, in the middle of the run: it says so, and the ranks that share a model with it or have
# other data end with it. Each rank stands in a folder of its own, with shards of its own.
one_bad_reader() {
    need_mpirun
    local setting start shard
    sed -i '/evaluate:/d; s/, validation: [^,]*,/,/' recipe.yaml
    for setting in parallel.tensor=2 'parallel.tensor=2 parallel.sequence=true parallel.zero_stage=1' parallel.tensor=1; do
        rm -rf run rank && mkdir -p rank/0 rank/1 && cp -r tokenizer data rank/0 && cp -r tokenizer data rank/1
        shard=$(echo rank/1/data/train-*.h5)
        start=(train "$folder/recipe.yaml" run_dir="$folder/run" train.max_steps=1000000 checkpoint.every=0)
        # Each rank has its own working folder. mpirun of Open MPI 5.0.7 crashes where two programs are given for that,
        # as in `mpirun -np 1 --wdir A pwd : -np 1 --wdir B pwd`.
        # shellcheck disable=SC2016,SC2086
        timeout 50 mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 \
            bash -c 'cd "$1/$OMPI_COMM_WORLD_RANK" && shift && exec "$@"' _ "$folder/rank" "$program" "${start[@]}" \
            $setting >out 2>told &
        local job=$! code=0
        while kill -0 $job 2>/dev/null && ! grep -qs '"event":"train","step":1,' run/metrics.jsonl; do
            sleep 0.05
        done
        dd if=/dev/zero of="$shard" bs=1024 count=20 seek=10 conv=notrunc status=none # of 43: most of the tokens
        wait $job || code=$?
        [ $code = 65 ] || fail "$setting: a shard that rank 1 finds damaged ended the run with $code"
        one_line 65 '^E-DATA rank 1 .* step [1-9].*data/train-.*h5'
    done
}

errors() { # each bad input: one line, its code, no rank waits
    need_mpirun
    run_ranks 3 78 train recipe.yaml model.hiden_size=64
    one_line 78 "hidden_size"
    run_ranks 3 66 train recipe.yaml 'data.train=nowhere/*.h5'
    one_line 66 nowhere
    run_ranks 2 79 train recipe.yaml run_dir=nan optimizer.learning_rate=100 optimizer.weight_decay=1 \
        optimizer.max_grad_norm=0 schedule.warmup_steps=0 train.max_steps=2000
    one_line 79 'samples [0-9]* (data/train-.*h5 tokens [0-9]* to [0-9]*).*the weights were not updated'
    local wild='optimizer.learning_rate=100 optimizer.weight_decay=1 optimizer.max_grad_norm=0 schedule.warmup_steps=0'
    # shellcheck disable=SC2086
    run 0 train recipe.yaml run_dir=wild $wild train.max_steps=1 data.validation=null evaluate.every=0
    # shellcheck disable=SC2086
    run_ranks 2 79 train recipe.yaml run_dir=wilder $wild train.max_steps=1
    one_line 79 'validation loss'
    printf '{"context":"the Lic","choices":["ense","zzzz"],"label":0}\n' >task.jsonl
    for command in 'evaluate --json --data data/validation-*.h5' 'evaluate --task task.jsonl' 'score recipe.yaml' \
        'generate --prompt the --num-beams 2'; do
        set -f # the pattern is the program's
        # shellcheck disable=SC2086
        run 79 $command --checkpoint wild
        set +f
        one_line 79 damaged
    done
    head -c 20000 "$(echo data/train-*.h5)" >cut.h5
    run_ranks 2 65 train recipe.yaml data.train=cut.h5
    one_line 65 cut.h5
    both() { # CODE TEXT SETTING...: train refuses it, and so does plan, in the same words
        local code=$1 text=$2
        shift 2
        run "$code" train recipe.yaml run_dir=refused "$@"
        one_line "$code" "$text"
        run "$code" plan recipe.yaml run_dir=refused "$@"
        one_line "$code" "$text"
    }
    both 69 'command line: train.device' train.device=cuda
    both 78 'use one of 1' parallel.tensor=2
    both 78 'command line: model.vocab_size: 3 is smaller' model.vocab_size=3
    both 78 'warmup_steps: 5000: more than the 24 steps of train.epochs' train.max_steps=null train.epochs=1 schedule.warmup_steps=5000
    both 78 'data.train: no training data' data.train=null
    both 66 'data.tokenizer: .*bireme tokenizer train' data.tokenizer=nowhere
    both 66 'data.train: no shard matches.*bireme prepare' 'data.train=data/none-*.h5'
    both 66 'nowhere/.*bireme prepare.*--output nowhere' 'data.train=[{path: "data/train-*.h5"}, {path: "nowhere/*.h5"}]'
    both 66 'command line: data.validation' 'data.validation=nowhere/*.h5'
    both 65 'data.validation.*cut.h5' data.validation=cut.h5
    both 66 'model.init_from: .*nowhere' model.init_from=nowhere
    run 0 plan recipe.yaml model.vocab_size=100 data.tokenizer=nowhere 'data.train=nowhere/*.h5'
    [ "$(grep -c '^W-NOT-CHECKED' told)" = 2 ] || fail 'what was not checked is not told'
    run 0 plan recipe.yaml --json
    grep -q '"not_checked": \[\]' out || fail 'something was not checked'
    grep -q '"steps_per_epoch": [0-9]' out || fail 'the data was not looked at'
    run 66 train nowhere.yaml
    run 64 train
    run 66 generate --checkpoint nowhere
}

generate() { # with and without the cache, in batches, with stop texts; evaluating; scoring
    run 0 train recipe.yaml
    run 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 --json
    cp out cached
    run 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 --json --no-cache
    cmp out cached || fail 'the cache changes the text'
    run 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 --json --num-beams 1 \
        --num-samples 2
    [ "$(sed 's/"sample":[0-9]*//' out | uniq | wc -l)" = 1 ] || fail 'greedy samples differ'
    printf 'License\n\nthe\n\n' | (run 0 generate --checkpoint run --prompt-file - --num-samples 2 --temperature 0) || exit 1
    [ "$(grep -c '^----- prompt [12] of 2, sample [12] of 2 -----$' out)" = 4 ] || fail 'the texts are not told apart'
    grep -q 'W-EMPTY-PROMPT: standard input:2: skipped 2 empty lines' told || fail 'empty lines are not told'
    printf 'License\nthe\nany other\n' >prompts
    run 0 generate --checkpoint run --prompt-file prompts --temperature 0 --max-new-tokens 20 --json
    head -n 1 out | cmp - cached || fail 'a batch changes the text'
    printf 'License\nthe License is granted to You\nthe\nthe\n' >prompts # 32 positions: the second leaves 3
    run 0 generate --checkpoint run --prompt-file prompts --temperature 0 --max-new-tokens 20 --json
    head -n 1 out | cmp - cached || fail 'a longer prompt beside it cuts the text'
    run 0 generate --checkpoint run --prompt-file prompts --max-new-tokens 20 --json --seed 5
    cp out together
    run 0 generate --checkpoint run --prompt-file prompts --max-new-tokens 20 --json --seed 5 --batch-size 1
    cmp out together || fail 'the texts depend on --batch-size'
    [ "$(tail -n 2 out | uniq | wc -l)" = 2 ] || fail 'the same prompt twice draws the same numbers'
    run 0 generate --checkpoint run --prompt 'License' --temperature 1e-200 --max-new-tokens 20 --json
    cmp out cached || fail 'a tiny temperature is not greedy'
    run 64 generate --checkpoint run --prompt License --prompt-file prompts
    printf 'the\nthe License is granted to You under the License\n' >prompts
    run 64 generate --checkpoint run --prompt-file prompts --batch-size 1
    one_line 64 'prompt 2 has 47 tokens, but the model has 32 positions'
    [ ! -s out ] || fail 'texts were written before all prompts were looked at'
    printf 'the\0other\n' >prompts
    run 65 generate --checkpoint run --prompt-file prompts
    one_line 65 'prompts:1: .*NUL byte'
    printf 'the\r\nLicense\n' >prompts
    run 0 generate --checkpoint run --prompt-file prompts --temperature 0 --json
    head -n 1 out | grep -q '"prompt":"the",' || fail "a line's end as on Windows is a part of the prompt"
    run 0 generate --checkpoint run --prompt 'the' --seed 3 --top-k 5 --top-p 0.9 --repetition-penalty 1.2
    cp out first
    run 0 generate --checkpoint run --prompt 'the' --seed 3 --top-k 5 --top-p 0.9 --repetition-penalty 1.2
    cmp out first || fail 'the same seed gives another text'
    run 0 generate --checkpoint run --prompt 'the' --num-beams 3 --max-new-tokens 10 --json
    grep -q '"log_probability":-' out || fail 'beams tell no log-probability'
    sed 's/,"log_probability".*//' out >beams
    run 0 generate --checkpoint run --prompt 'the' --num-beams 3 --max-new-tokens 10 --json --no-cache
    sed 's/,"log_probability".*//' out | cmp - beams || fail 'the cache changes the beams'
    run 0 generate --checkpoint run --prompt 'License' --temperature 0 --max-new-tokens 20 --stop e --no-echo
    ! grep -q e out || fail 'the stop text is there'
    run 0 evaluate --checkpoint run --data 'data/validation-*.h5' --json
    grep -q '"loss":' out || fail 'no loss'
    printf '{"context":"the Lic","choices":["ense","zzzz"],"label":0}\n' >task.jsonl
    run 0 evaluate --checkpoint run --task task.jsonl --json
    grep -q '"accuracy":1.0' out || fail 'the task went wrong'
    mv out accuracy
    printf '{"ind":1,"ctx":"the Lic","endings":["ense","zzzz"],"label":"0"}\n' >hellaswag.jsonl
    run 0 evaluate --checkpoint run --task hellaswag.jsonl --json
    cmp out accuracy || fail "HellaSwag's names are read differently"
    printf '{"ctx":"the Lic","endings":["ense","zzzz"],"label":""}\n' >hellaswag.jsonl
    run 65 evaluate --checkpoint run --task hellaswag.jsonl
    one_line 65 'hellaswag.jsonl:1: no "label" that is a number'
    run 0 help train
    grep -q -e --resume out || fail 'help train is not train --help'
    printf 'the License\nxqxqxq\n' >lines
    run 0 score --checkpoint run lines
    awk '{ v[NR] = $1 / $2 } END { exit !(v[1] > v[2]) }' out || fail 'nonsense scores higher'
    run 65 score --checkpoint run <<<$'\x01'
    head -c 40 "$source/LICENSE" | tr '\n' ' ' >lines
    run 65 score --checkpoint run lines
    one_line 65 'lines:1: .* 32 positions'
    printf 'the License\n\nt\nthe\n\x01\n' >holes
    run 65 score --checkpoint run holes
    one_line 65 '^E-DATA .*holes:5: '
    [ "$(wc -l <out)" = 4 ] || fail 'not a line for each line'
    [ "$(sed -n 2,3p out | sort -u)" = $'0.000000\t0' ] || fail 'an empty line is not 0 of 0 tokens'
    run 65 score --checkpoint run --json <holes
    one_line 65 'standard input:5: '
    grep -q '"tokens":0,"mean":null' out || fail 'the mean of no tokens is not null'
    run 65 score --checkpoint run .
    printf '{"context":"the Lic","choices":["ense","%s"],"label":0}\n' "$(cat lines)" >>task.jsonl
    run 65 evaluate --checkpoint run --task task.jsonl
    one_line 65 'task.jsonl:2: choice 1'
    ! command -v mpirun >/dev/null || for arguments in "score --checkpoint run holes" 'score nothing'; do
        # shellcheck disable=SC2086 # several arguments
        "$program" $arguments >alone 2>alone_told
        # shellcheck disable=SC2086
        run_ranks 2 $? $arguments
        cmp out alone || fail "two ranks print something else than one: $arguments"
        [ "$(grep -c '^E-' told)" = "$(grep -c '^E-' alone_told)" ] || fail 'each rank tells the error'
    done
}

inspect() { # tables for people, JSON for programs; what is damaged is named
    run 0 tokenizer train --vocab-size 9999 --input "$source/LICENSE" --output bytes
    grep -q 'W-SMALLER: .* ids instead of 9999' told || fail 'a smaller tokenizer is not told'
    run 0 train recipe.yaml
    run 0 inspect run
    grep -q 'run folder, ended (max_steps)' out || fail 'the state is not told'
    grep -q '^  validation loss  *[0-9]' out || fail 'no validation loss'
    [ "$(grep -c '^  step-000000[12]0 .* whole$' out)" = 2 ] || fail 'not two checkpoints'
    ! grep -q '{' out || fail 'JSON for people'
    run 0 inspect run --json
    grep -q '"ended": true' out && grep -q '"perplexity"' out || fail 'the JSON lacks something'
    run 0 inspect run/checkpoints
    [ "$(grep -c 'whole$' out)" = 2 ] || fail 'not two checkpoints in their folder'
    run 0 inspect data
    grep -q 'total of train ' out && grep -q '2 shards, whole' out || fail 'the shards are not told'
    run 0 inspect tokenizer
    grep -q 'end token   none' out || fail 'the end token of a char tokenizer'
    printf x | dd of="$(echo run/checkpoints/step-00000020/model-*.h5)" bs=1 seek=5000 conv=notrunc status=none
    run 80 inspect run
    one_line 80 'contains 1 damaged checkpoint'
    grep -q 'step-00000020 .*damaged: .*sha256' out || fail 'the damaged checkpoint has no reason'
    mv data/train-00000-of-00001.h5 data/train-00000-of-00002.h5
    run 65 inspect data
    grep -q 'shards are missing' out || fail 'the missing shard'
    printf x | dd of=data/train-00000-of-00002.h5 bs=1 seek=9000 conv=notrunc status=none
    run 65 inspect data --json
    grep -q '"reason"' out || fail 'the damaged shard'
}

choose() { # which checkpoint a path means; a damaged one is named, and an older one is taken
    need_mpirun
    run 0 train recipe.yaml
    local shards='data/validation-*.h5' newest oldest
    newest=run/checkpoints/step-00000020 oldest=run/checkpoints/step-00000010
    loss() { # PATH FILE [SKIPPED...]: the loss there as in the file; these are warned of, once
        local path=$1 file=$2 named
        shift 2
        cut -c1-15 out >loss # "loss":2.34567
        [ "$(grep -c W-CKPT-SKIP told)" = $# ] || fail "$path: not $# warnings"
        for named in "$@"; do
            grep -q "W-CKPT-SKIP: $named" told || fail "$named was not named"
        done
        [ -e "$file" ] || cp loss "$file"
        cmp loss "$file" || fail "$path is not the $file one"
    }
    one() { # PATH FILE [SKIPPED...]
        run 0 evaluate --checkpoint "$1" --data "$shards" --json
        loss "$@"
    }
    two() { # the same on two ranks
        run_ranks 2 0 evaluate --checkpoint "$1" --data "$shards" --json
        loss "$@"
    }
    damage() { # FOLDER
        printf x | dd of="$(echo "$1"/model-*.h5)" bs=1 seek=5000 conv=notrunc status=none
    }
    one $newest last
    one $oldest first
    cmp -s first last && fail 'the checkpoints are equal'
    for path in run run/ run/final run/checkpoints run/checkpoints/; do
        one $path last
    done
    two run/checkpoints last
    for resumed in run run/checkpoints $newest; do
        run 0 train recipe.yaml run_dir=other train.max_steps=22 --resume $resumed
        grep -q "resuming $newest" told || fail "--resume $resumed does not go on from the newest"
        rm -rf other
    done
    run_ranks 2 80 train recipe.yaml run_dir=none --resume run/final
    one_line 80 'run/final holds weights only'
    damage run/final
    one run last run/final
    damage $newest
    two run first run/final $newest
    one run/checkpoints first $newest
    run_ranks 2 0 train recipe.yaml run_dir=other --resume run
    grep -q "resuming $oldest" told || fail '--resume of a run does not go back to the older one'
    grep -q "W-CKPT-SKIP: $newest" told || fail 'the damaged one was not named'
    run 80 evaluate --checkpoint $newest --data "$shards" # it was named: no other
    one_line 80 "$newest is damaged: model"
    damage $oldest
    run_ranks 2 80 evaluate --checkpoint run --data "$shards"
    one_line 80 'final: .*; step-00000020: .*; step-00000010: '
    run 80 generate --checkpoint recipe.yaml
    one_line 80 'recipe.yaml is a file'
    run 80 train recipe.yaml run_dir=none --resume data
    one_line 80 'data is not a checkpoint'
    run_ranks 2 66 evaluate --checkpoint nowhere --data "$shards"
    one_line 66 nowhere
}

# Killed at random instants, again and again: no state that the next start cannot go on from, nothing lost
# but the steps after the newest published checkpoint, and the end as if nothing had happened.
# BIREME_KILLS says how many kills (100 in CI).
bench() { # bench: the kind and the recipe may be left out; progress goes to standard error
    run 0 bench recipe.yaml --repeats 2 --json
    grep -q '"tokens":96,' out || fail 'the recipe was not taken'
    grep -q 'step 1 of 2' told || fail 'no progress'
    run 0 bench step recipe.yaml --repeats 1 batch.micro_size=1 parallel.threads=1
    grep -q '1 rank x 1 thread,' out || fail 'ranks and threads are not told'
    run 0 bench kernels recipe.yaml --repeats 1 --json
    for name in linear_forward attention_backward classifier_run adamw_update convert; do
        grep -q "\"name\": *\"$name\"" out || fail "bench kernels lacks $name"
    done
    grep -q '"share_of_floor": *[0-9.]*[1-9]' out || fail 'bench kernels told no floor'
    run 0 bench kernels recipe.yaml --repeats 1 train.precision=fp32
    grep -qE '^residual_norm_forward +[0-9.]+ +[0-9.]+ +[0-9.]+%' out || fail 'bench kernels has no table'
    run 0 bench data recipe.yaml --repeats 1 --json
    grep -q 'reading .* at random' told || fail 'no progress of data'
    grep -q '"tokens_per_second": *[1-9]' out || fail 'bench data told no speed'
    run 0 bench data recipe.yaml --repeats 1
    grep -q 'million tokens/s' out || fail 'bench data told no speed'
    run 64 bench dtaa recipe.yaml
    one_line 64 "did you mean 'data'"
    run 66 bench nothing.yaml
    one_line 66 nothing.yaml
}

kills() { # RANKS
    local ranks=$1 left=${BIREME_KILLS:-8} saved=0 attempts=0 settings
    killed=killed$$ # in this machine's list of processes, no other test's
    [ "$ranks" = 1 ] || need_mpirun
    settings="train.max_steps=300 evaluate.every=100 checkpoint.every=3 log.every=50"
    start() { # RUN
        local launcher=
        [ "$ranks" = 1 ] || launcher="mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np $ranks"
        # shellcheck disable=SC2086
        exec setsid $launcher "$program" train recipe.yaml run_dir="$1" $settings
    }
    (start whole) >out 2>told || fail 'the run that is left alone'
    while [ "$left" -gt 0 ]; do
        attempts=$((attempts + 1))
        : >told # a kill may come before the shell has emptied it
        (start "$killed") >out 2>told &
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
        if grep -qs 'resuming' told; then
            local from
            from=$(sed -n 's/.*resuming .*: step \([0-9]*\),.*/\1/p' told)
            [ "$from" -ge "$saved" ] || fail "step $saved was saved, step $from is resumed"
        fi
        local newest
        newest=$(sed -n 's/.*saved step \([0-9]*\) .*/\1/p' told | tail -n 1)
        [ -z "$newest" ] || saved=$newest
        left=$((left - 1))
        if [ "$code" = 0 ]; then # it got through: the next kills hit a run that begins
            check_killed
            rm -rf "$killed"
            saved=0
        fi
    done
    (start "$killed") >out 2>told || fail 'the last start'
    check_killed
}

check_killed() {
    same_losses whole "$killed" 0
    same_weights whole "$killed" 00000300
}

case ${1:-} in
checkpoints | resume | stop | stop_evaluating | one_bad_reader | errors | generate | inspect | choose | bench) "$1" ;;
kills_1 | kills_2) kills "${1#kills_}" ;;
*)
    echo "no such part: ${1:-}" >&2
    exit 64
    ;;
esac
echo "$1: all as it should be"
