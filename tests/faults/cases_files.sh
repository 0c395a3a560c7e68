# shellcheck shell=bash
# Cases of run_fault.sh: outputs that are full, closed, removed or not permitted; slow saves; resume
# of another job.

check_other_job() {
    local setting text
    settings=()
    run_bireme 0 train recipe.yaml run_dir="$folder/job"
    head -c 5000 "$source/LICENSE" >text
    "$program" tokenizer train --type char --input text "$source/CONTRIBUTING.md" \
        --output other_tokenizer 2>stderr || fail tokenizer
    "$program" prepare --objective clm --tokenizer other_tokenizer --input "$source/LICENSE" \
        --output other_data --validation-fraction 0.2 >out 2>stderr || fail prepare
    rm -rf job/final
    for setting in 'model.hidden_size=64 model.hidden_size' 'model.num_layers=3 model.num_layers' \
        'model.num_heads=4 model.num_heads' 'batch.global_size=6 batch.global_size' \
        'seed=8 seed'; do
        read -r setting text <<<"$setting"
        run_bireme 80 train recipe.yaml run_dir="$folder/job" train.max_steps=30 "$setting"
        expect_error "another recipe: .*$text"
    done
    run_bireme 80 train recipe.yaml run_dir="$folder/job" train.max_steps=30 \
        data.tokenizer=other_tokenizer 'data.train=other_data/train-*.h5' \
        'data.validation=other_data/validation-*.h5'
    expect_error '\[E-CHECKPOINT\]$'
    [ ! -e job/final ] || fail 'another job was trained'
}

check_recipe_bomb() {
    local i
    {
        echo 'a0: &a0 [x, x, x, x, x, x, x, x, x]'
        for ((i = 1; i < 9; i++)); do
            printf "a$i: &a$i [*aN, *aN, *aN, *aN, *aN, *aN, *aN, *aN]\n" | sed "s/N/$((i - 1))/g"
        done
    } >aliases.yaml
    head -c 400000 /dev/zero | tr '\0' '[' >deep.yaml
    head -c 64000000 /dev/zero | tr '\0' '#' >large.yaml
    for i in aliases deep large; do
        # The limit of the address space has room for the program's libraries.
        run_seconds=30 run_bireme 78 train $i.yaml
        expect_error "$i.yaml.*\[E-RECIPE\]$"
        if [ -z "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then
            (
                ulimit -v 400000
                timeout 30 "$program" train $i.yaml >out 2>stderr
            )
            [ $? = 78 ] || fail "$i.yaml needs more than 400 MB"
        fi
    done
}

check_permission() {
    need_root 'to start the program as another user'
    command -v setpriv >/dev/null || {
        echo 'skipped: no setpriv (package util-linux)'
        exit 77
    }
    local as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups) copy=$folder/program
    # run_as_nobody CODE ARGUMENT...: run the program as the user nobody.
    run_as_nobody() {
        local expected=$1
        shift
        timeout 50 "${as_nobody[@]}" "$copy" "$@" >out 2>stderr
        code=$?
        [ $code = "$expected" ] || fail "bireme $* as nobody ended with $code"
    }
    chmod 755 "$folder"
    cp "$program" "$copy"
    "${as_nobody[@]}" "$copy" --version >out 2>stderr || {
        echo 'skipped: another user cannot run the program here'
        exit 77
    }
    run_as_nobody 77 train recipe.yaml run_dir="$folder/denied"
    expect_error "$folder/denied.*\[E-PERMISSION\]$"
    mkdir open && chmod 777 open
    run_as_nobody 0 train recipe.yaml run_dir="$folder/open/run"
    chmod 600 data/train-*.h5
    run_as_nobody 77 train recipe.yaml run_dir="$folder/open/data"
    expect_error 'data/train.*\[E-PERMISSION\]$'
    chmod 644 data/train-*.h5
    chmod 600 recipe.yaml
    run_as_nobody 77 train recipe.yaml run_dir="$folder/open/recipe"
    expect_error 'recipe.yaml.*\[E-PERMISSION\]$'
    chmod 644 recipe.yaml
    chmod -R go-w open && chown -R root open
    run_as_nobody 77 train recipe.yaml run_dir="$folder/open/run" train.max_steps=30
    expect_error 'open/run.*\[E-PERMISSION\]$'
}

check_output_closed() {
    local run
    train_whole 1
    "$program" train recipe.yaml run_dir="$folder/full" "${settings[@]}" >/dev/full 2>&1 ||
        fail "a full standard error ended the run with $?"
    "$program" train recipe.yaml run_dir="$folder/closed" "${settings[@]}" >&- 2>&- ||
        fail "a closed standard error ended the run with $?"
    {
        "$program" train recipe.yaml run_dir="$folder/left" "${settings[@]}" 2>&1
        echo $? >left_code
    } | head -n 1 >/dev/null
    wait_until 60 'the run does not end' test -s left_code
    [ "$(cat left_code)" = 0 ] || fail "a reader that ended, ended the run with $(cat left_code)"
    for run in full closed left; do
        compare_losses whole $run 0
        compare_weights whole $run "$(printf '%08d' $steps)"
        grep -q "saved step $steps" $run/log.txt || fail "$run/log.txt is not complete"
        grep -q '"event":"end"' $run/metrics.jsonl || fail "$run/metrics.jsonl has no end"
    done
}

# The disk is full for rank 1, and the file calls of rank 0 are slow. The job does not end before
# rank 0 has removed the temporary folder.
check_abandoned_save() {
    need_shim
    need_mpirun
    # shellcheck disable=SC2016
    echo 'export FAULT_DO=enospc FAULT_STICKY=1 FAULT_SLOW_MS=60
        [ "$OMPI_COMM_WORLD_RANK" = 1 ] || export FAULT_DO=slow; exec "$@"' >full.sh
    start_job abandoned "${mpirun[@]}" --mca odls_base_sigkill_timeout 0 -np 2 \
        env FAULT_DIR=abandoned/checkpoints/tmp-step-00000040 FAULT_AT=1 \
        bash ./full.sh env LD_PRELOAD="$shim" "$program" train recipe.yaml \
        run_dir="$folder/abandoned" "${settings[@]}"
    end_job
    [ "$code" = 74 ] || fail "a full disk on rank 1 ended the job with $code"
    expect_error '^error: rank 1 .*No space left.*step-00000020.*\[E-WRITE\]$'
    [ -z "$(find abandoned/checkpoints -name 'tmp-*')" ] || fail 'a temporary folder is left'
    resume abandoned 2 20
}

# A shard is damaged while a save is running.
check_damaged_in_save() {
    need_shim
    need_mpirun
    local ranks
    for ranks in 1 2; do
        rm -rf during damaged && cp -r data damaged
        start_job during "${mpirun[@]}" -np $ranks env LD_PRELOAD="$shim" \
            FAULT_DIR=during/checkpoints/tmp-step FAULT_DO=slow FAULT_AT=1 FAULT_STICKY=1 \
            FAULT_SLOW_MS=40 "$program" train recipe.yaml run_dir="$folder/during" \
            train.max_steps=1000000 evaluate.every=0 checkpoint.every=300 data.validation=null \
            'data.train=damaged/train-*.h5'
        wait_until 60 'no save has begun' sh -c 'ls -d during/checkpoints/tmp-step-00000300*' \
            >out 2>&1
        # 20 of 43 KiB, which contain most of the tokens.
        dd if=/dev/zero of="$(echo damaged/train-*.h5)" bs=1024 count=20 seek=10 conv=notrunc \
            status=none
        end_job
        [ "$code" = 65 ] || fail "a damaged shard ended the run with $code"
        expect_error '^error: .*step [3-6][0-9]*: .*damaged/train-.*\[E-DATA\]$'
        grep -q '^saved step 300 in ' stderr || fail 'the running save was not published'
        run_bireme 0 checkpoint verify during/checkpoints/step-00000300
    done
}

check_slow_save() {
    need_shim
    local stalls
    start_job slow env LD_PRELOAD="$shim" FAULT_DIR=slow/checkpoints/tmp- FAULT_DO=slow FAULT_AT=1 \
        FAULT_STICKY=1 FAULT_SLOW_MS=10 "$program" train recipe.yaml run_dir="$folder/slow" \
        "${settings[@]}"
    end_job
    [ "$code" = 0 ] || fail "a run with slow saves ended with $code"
    train_whole 1
    compare_weights whole slow "$(printf '%08d' $steps)"
    compare_losses whole slow 0
    stalls=$(sed -n 's/.*"event":"checkpoint".*"stall_seconds":\([-0-9.e+]*\).*/\1/p' \
        slow/metrics.jsonl | awk '$1 > 0.05 { n++ } END { print n + 0 }')
    [ "$stalls" -ge 3 ] || fail "only $stalls saves waited for the one before them"
}

# The thread that writes a checkpoint ends in the middle of a file.
check_writer_dies() {
    need_shim
    local ranks
    for ranks in 1 2; do
        [ $ranks = 1 ] || need_mpirun
        start_job dead "${mpirun[@]}" -np $ranks env LD_PRELOAD="$shim" FAULT_RANK=$((ranks - 1)) \
            FAULT_DIR=dead/checkpoints/tmp-step-00000040 FAULT_DO=end_thread \
            "$program" train recipe.yaml run_dir="$folder/dead" "${settings[@]}"
        end_job
        [ "$code" = 74 ] || fail "a writer thread that ended: code $code"
        expect_error "thread.*step-00000020.*\[E-WRITE\]$"
        [ "$ranks" = 1 ] || expect_error "^error: rank $((ranks - 1)) "
        [ ! -e dead/checkpoints/step-00000040 ] || fail 'an incomplete checkpoint was published'
        resume dead $ranks 20
        rm -rf dead whole
    done
}

check_run_folder_removed() {
    local change ranks
    command -v mpirun >/dev/null && "$program" --version | grep -q '^MPI  *MPI' && ranks='1 2' || {
        ranks=1
        echo 'not checked: two ranks, because there is no mpirun'
    }
    # The removed checkpoint is not named; the one that remains is.
    for ranks in $ranks; do
        for change in 'rm -rf gone/checkpoints' 'mv gone/checkpoints gone/elsewhere' \
            'rm -rf gone' 'mv gone elsewhere'; do
            rm -rf gone elsewhere
            start_ranks gone $ranks train.max_steps=1000000 log.every=1000000
            wait_until 60 'no checkpoint is saved' has_saved 40
            $change 2>/dev/null || rm -rf gone
            end_job
            [ "$code" = 74 ] ||
                fail "'$change' during the run on $ranks ranks ended it with $code"
            expect_error '\[E-WRITE\]$'
            ! grep -q '^error: .*checkpoint is unchanged' stderr ||
                fail "'$change': the error names a checkpoint that is gone"
        done
    done
    # The files of the run are gone, but checkpoints/ is not: the next save reports it.
    for change in LOCK metrics.jsonl; do
        rm -rf gone elsewhere
        start_ranks gone 1 train.max_steps=3000
        wait_until 60 'no checkpoint is saved' has_saved 40
        rm gone/$change
        end_job
        [ "$code" = 74 ] || fail "the run without its file $change ended with $code"
        expect_error "gone/$change was removed or replaced.*\[E-WRITE\]$"
        [ ! -e gone/final ] || fail 'final weights were written'
    done
}

check_read_only() {
    command -v mkfs.ext4 >/dev/null || {
        echo "skipped: no mkfs.ext4 (package e2fsprogs)"
        exit 77
    }
    truncate -s 24M image
    mkfs.ext4 -q -F image
    mkdir disk
    trap 'umount -l disk 2>/dev/null; remove_folder' EXIT
    mount -o loop,errors=remount-ro image disk 2>/dev/null || {
        echo "skipped: mounting is not permitted"
        exit 77
    }
    start_ranks disk/run 1 train.max_steps=1000000 log.every=10
    wait_until 60 'no checkpoint is saved' has_saved 40
    # As after an error of the disk; a remount would be refused while files are open for writing.
    echo 1 >"/sys/fs/ext4/$(basename "$(findmnt -no SOURCE disk)")/trigger_fs_error" 2>/dev/null ||
        mount -o remount,ro,force disk 2>/dev/null
    touch disk/probe 2>/dev/null && {
        echo 'skipped: the file system cannot be made read-only'
        kill -KILL "$(find_ranks disk/run)"
        exit 77
    }
    end_job
    [ "$code" = 74 ] || [ "$code" = 77 ] || fail "a read-only file system ended the run with $code"
    expect_error 'Read-only file system' # of a save or of metrics.jsonl
}

# The test of power cuts must fail if files or folders are not synced.
check_power_cut_mutants() {
    local type what code types=(ext4 xfs) unsynced=(files folders)
    if [ -z "${BIREME_LONG:-}" ]; then # one of the four cases, chosen by the seed
        types=("${types[RANDOM % 2]}")
        unsynced=("${unsynced[RANDOM % 2]}")
    fi
    for type in "${types[@]}"; do
        for what in "${unsynced[@]}"; do
            code=0
            BIREME_UNSYNCED=$what "$source/tests/trainer/train/test_train_faults.sh" \
                power_cut_$type "$shim" >out 2>stderr || code=$?
            if [ $code = 77 ]; then
                cat out
                exit 77
            fi
            [ $code != 0 ] || fail "the test power_cut_$type passes without the fsync of $what"
            grep -qE 'was reported as saved|published checkpoint is damaged|ended with|missing' \
                stderr || fail "power_cut_$type without the fsync of $what fails for another reason"
            echo "power_cut_$type without the fsync of $what: $(grep '^failed' stderr | cut -c1-90)"
        done
    done
}
