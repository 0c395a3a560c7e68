#!/bin/bash
# Files and folders of a foreign source: nothing outside the output folder is written or read, no
# line exhausts the memory, and no control character reaches the terminal.
# ctest: name untrusted
# ctest: parts manifest run_folder own_links foreign_links prepare outputs lines long_lines output
# ctest: timeout 120
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
sed -i "s/warmup_steps: 5/warmup_steps: 0/; s/max_steps: 20/max_steps: 1/" recipe.yaml

# forge FOLDER SED_PROGRAM: change the manifest and compute its digest again.
forge() {
    local manifest=$1/manifest.json
    sed -i "$2" "$manifest"
    head -n -2 "$manifest" | head -c -2 >body # without the comma and the newline before the digest
    {
        cat body
        printf ',\n "sha256": "%s"\n}\n' "$(sha256sum <body | cut -d' ' -f1)"
    } >"$manifest"
    rm body
}

test_manifest() {
    run_bireme 0 train recipe.yaml checkpoint.every=0
    cp -r run/final honest
    forge honest ''
    run_bireme 0 checkpoint verify honest
    for name in ../PWNED model/x xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx 9model; do
        rm -rf forged output
        cp -r run/final forged
        forge forged "s|\"family\": \"model\"|\"family\": \"$name\"|"
        run_bireme 80 checkpoint reshard forged --output output --ranks 1
        expect_error 'invalid tensor family'
        [ ! -e output ] || fail 'a folder was written'
        [ "$(find . -name '*PWNED*' -o -name 'tmp-*' | wc -l)" = 0 ] || fail 'a file was written'
    done
    for name in ../../../name ../x /x 'a//c'; do
        rm -rf forged
        cp -r run/final forged
        forge forged "0,/\"name\": \"transf/s|\"name\": \"transf[^\"]*\"|\"name\": \"$name\"|"
        run_bireme 80 checkpoint reshard forged --output output --ranks 1
        expect_error 'invalid tensor name'
    done
}

# All files that a run writes under a predictable name.
test_run_folder() {
    local name
    for name in LOCK log.txt metrics.jsonl; do
        rm -rf run
        mkdir run
        echo precious >precious
        ln -s ../precious "run/$name"
        run_bireme 73 train recipe.yaml
        expect_error "$name is a symbolic link"
        [ "$(cat precious)" = precious ] || fail "a run wrote through the link $name"
        rm "run/$name"
        mkfifo "run/$name"
        run_bireme 73 train recipe.yaml
        expect_error "$name is not a regular file"
    done
    rm -rf run
    mkdir run
    ln -s ../precious run/recipe.yaml.tmp
    run_bireme 0 train recipe.yaml
    [ "$(cat precious)" = precious ] || fail 'a run wrote through the link recipe.yaml.tmp'
    rm run/metrics.jsonl
    mkfifo run/metrics.jsonl
    run_bireme 0 inspect run
}

# make_linked_run NAME: make a run folder with one checkpoint, and move its folder NAME to another
# place; a link remains.
make_linked_run() {
    rm -rf run scratch
    run_bireme 0 train recipe.yaml log.tensorboard=true
    mkdir scratch
    mv "run/$1" "scratch/$1"
    ln -s "../scratch/$1" "run/$1"
    rm -rf run/final
}

# The user may put these folders on another disk.
test_own_links() {
    local name
    for name in checkpoints tensorboard; do
        make_linked_run $name
        run_bireme 0 train recipe.yaml log.tensorboard=true train.max_steps=2
        [ -L "run/$name" ] || fail "the link $name is replaced"
    done
    [ "$(find scratch/tensorboard -type f | wc -l)" = 2 ] || fail 'no second file of TensorBoard'
    make_linked_run checkpoints
    run_bireme 0 train recipe.yaml train.max_steps=2
    [ -d scratch/checkpoints/step-00000002 ] || fail 'the checkpoint is not in the linked folder'
}

# Another user must not select the folder in which a resumed run writes and deletes files.
test_foreign_links() {
    local name owned
    [ "$(id -u)" = 0 ] || {
        echo 'skipped: only root can make a link of another user'
        exit 77
    }
    for name in checkpoints tensorboard; do
        for owned in "run/$name" run; do
            make_linked_run $name
            chown -h 12345 "$owned"
            find scratch run/metrics.jsonl -exec stat -c '%n %y %s' {} + | sort >before
            run_bireme 77 train recipe.yaml log.tensorboard=true train.max_steps=2
            expect_error "run/$name is a symbolic link, and the link or its folder belongs to"
            run_bireme 0 export --checkpoint run --output exported # reading is permitted
            run_bireme 0 import exported --output imported
            rm -r exported imported
            find scratch run/metrics.jsonl -exec stat -c '%n %y %s' {} + | sort | cmp - before ||
                fail "a command wrote through a link or changed the metrics: $name, $owned"
            chown -h 0 "$owned"
            run_bireme 0 train recipe.yaml log.tensorboard=true train.max_steps=2
        done
    done
    # Without a link, the owner of the run folder does not matter.
    rm -rf run
    mkdir run
    chown 12345 run
    run_bireme 0 train recipe.yaml
}

# The temporary folder of a preparation has a fixed name, and so have the files in it.
test_prepare() {
    local text=$source/LICENSE name
    echo precious >precious
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 200 --input "$text" --output words
    mkdir outside rows
    ln -s ../outside rows/.unfinished
    run_bireme 73 prepare --objective clm --tokenizer tokenizer --input "$text" --output rows
    expect_error 'rows/.unfinished is not a folder'
    [ -z "$(ls outside)" ] || fail 'a preparation wrote through the link .unfinished'
    rm rows/.unfinished
    touch rows/.unfinished
    run_bireme 73 prepare --objective clm --tokenizer tokenizer --input "$text" --output rows
    expect_error 'rows/.unfinished is not a folder'
    for objective in 'clm --tokenizer tokenizer' 'mlm --tokenizer words'; do
        rm -rf rows
        mkdir -p rows/.unfinished/folder
        for name in tokens sentences documents part-000000.h5 part-000000.h5.tmp; do
            ln -s ../../precious "rows/.unfinished/$name"
        done
        ln -s ../precious rows/train-00000-of-00001.h5
        # shellcheck disable=SC2086 # the objective and its tokenizer
        run_bireme 0 prepare --objective $objective --input "$text" --output rows
        [ "$(cat precious)" = precious ] || fail "prepare: $objective: a write through a link"
        [ ! -e rows/.unfinished ] || fail 'the temporary folder is left'
        [ ! -L rows/train-00000-of-00001.h5 ] || fail 'a shard is a link'
        run_bireme 0 inspect rows
    done
}

# Other commands that write fixed names, or a name that can already be a link.
test_outputs() {
    local name
    echo precious >precious
    run_bireme 0 train recipe.yaml checkpoint.every=0
    mkdir words
    for name in words/tokenizer.json words/chat_template.jinja; do
        ln -s ../precious "$name"
        ln -s ../precious "$name.tmp"
    done
    for name in page.html.tmp plot.svg.tmp other.html model.gguf; do
        ln -s precious "$name"
    done
    run_bireme 0 tokenizer train --type char --input "$source/LICENSE" --output words
    run_bireme 0 report run --output page.html
    run_bireme 0 report run --plot loss --output plot.svg
    run_bireme 73 report run --output other.html
    run_bireme 73 export --checkpoint run --format gguf --output model.gguf
    [ "$(cat precious)" = precious ] || fail 'a command wrote through a link'
}

test_lines() {
    run_bireme 0 train recipe.yaml checkpoint.every=0
    { printf 'the work\n' && head -c 67108865 /dev/zero | tr '\0' x && printf '\nlast\n'; } >long
    run_bireme 65 score --checkpoint run long
    expect_error 'long:2: the line has more than 64 MiB'
    run_bireme 65 tokenizer encode --tokenizer tokenizer /dev/zero
    expect_error 'the line has more than 64 MiB'
    run_bireme 65 score --checkpoint run /dev/zero
    expect_error '/dev/zero:1: the line has more than 64 MiB'
    run_bireme 65 prepare --objective sft --tokenizer tokenizer --input /dev/zero --output rows
    run_bireme 65 prepare --objective classify --tokenizer tokenizer --input /dev/zero --output rows
    ln -s /dev/zero zero.csv
    run_bireme 65 prepare --objective classify --tokenizer tokenizer --input zero.csv --output rows
    expect_error 'longer than 64 MiB'
    # A line that fits the limit but not the memory is an error and not the end of the input.
    { printf 'the work\n' && head -c 60000000 /dev/zero && printf '\nlast\n'; } >large
    if [ -z "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then
        bytes=$(awk '/VmPeak/ { print $2 }' /proc/self/status)
        (
            ulimit -v $((bytes + 600000))
            "$program" score --checkpoint run large >out 2>stderr
        )
        code=$?
        [ "$code" = 70 ] || [ "$code" = 65 ] || fail "a line larger than memory ended with $code"
        grep -q '^error: ' stderr || fail 'a line that memory cannot hold is not reported'
    fi
}

# write_long FILE LINE [TEXT]: write a line, a line with TEXT and 64 MiB of NUL characters, and a
# last line. The file is sparse.
write_long() {
    printf '%s\n%s' "$2" "${3:-x}" >"$1"
    truncate -s +$((64 << 20)) "$1"
    printf '\nlast\n' >>"$1"
}

# check_long FILE ARGUMENT...: the command refuses the second line of the file.
check_long() {
    local file=$1
    shift
    run_bireme 65 "$@"
    expect_error "$file:2: .*the \(line\|row\) \(has more\|is longer\) than [46]"
    expect_error '\(64 MiB\|4194304 bytes\)'
}

# make_models: train a model for each command: run (clm), bert (mlm), labels (classify), reads
# (answer), words (seq2seq).
make_models() {
    local bert=(train recipe.yaml model.architecture=bert data.tokenizer=tok data.validation=null
        evaluate.every=0 checkpoint.every=0)
    run_bireme 0 train recipe.yaml checkpoint.every=0
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output tok
    run_bireme 0 prepare --objective mlm --tokenizer tok --input "$source/LICENSE" \
        --sequence-length 32 --output mlm
    run_bireme 0 "${bert[@]}" objective=mlm 'data.train=mlm/train-*.h5' run_dir=bert
    for label in yes no; do echo '{"text": "the work", "label": "'$label'"}'; done >label.jsonl
    run_bireme 0 prepare --objective classify --tokenizer tok --input label.jsonl --output label
    run_bireme 0 "${bert[@]}" objective=classify 'data.train=label/train-*.h5' run_dir=labels
    for text in work license; do
        echo '{"question": "the", "context": "the '$text'", "answer": "'$text'", "answer_start": 4}'
    done >answer.jsonl
    run_bireme 0 prepare --objective answer --tokenizer tok --input answer.jsonl --output answer
    run_bireme 0 "${bert[@]}" objective=answer 'data.train=answer/train-*.h5' run_dir=reads
    make_pairs
    run_bireme 0 "${common[@]}" run_dir=pair train.max_steps=1
}

# Every command that reads lines or rows refuses one that is too long, with its file and number.
test_long_lines() {
    make_models
    write_long long 'the work'
    write_long ids '1 2' '3 '
    write_long pairs.long $'the\twork' $'the\t'
    write_long long.jsonl '{"text": "the work"}' '{"text": "'
    write_long long.csv $'text,label\nthe work,yes' 'the'
    write_long task.jsonl '{"context": "the", "choices": ["a", "b"], "label": 0}' '{"context": "'
    write_long sft.jsonl '{"prompt": "the", "completion": "work"}' '{"prompt": "'
    check_long long score --checkpoint run long
    check_long long.jsonl score --checkpoint run --columns text=text long.jsonl
    check_long long embed --checkpoint run long
    check_long long.jsonl embed --checkpoint run --columns text=text long.jsonl
    check_long long generate --checkpoint run --max-new-tokens 1 --prompt-file long
    write_long masked 'the [MASK] work'
    check_long 'standard input' fill-mask --checkpoint bert <masked
    check_long long classify --checkpoint labels long
    check_long pairs.long answer --checkpoint reads pairs.long
    check_long long translate --checkpoint pair long
    check_long task.jsonl evaluate --checkpoint run --task task.jsonl
    check_long long evaluate --predictions long --references long
    check_long long tokenizer encode --tokenizer tokenizer long
    check_long long tokenizer encode --tokenizer tok --workers 2 --add-special-tokens long
    check_long ids tokenizer decode --tokenizer tokenizer ids
    check_long long.jsonl prepare --objective clm --tokenizer tokenizer --input long.jsonl \
        --output rows
    check_long sft.jsonl prepare --objective sft --tokenizer tokenizer --input sft.jsonl \
        --output rows
    check_long long prepare --objective seq2seq --tokenizer words --source long --target long \
        --output rows
    run_bireme 65 prepare --objective classify --tokenizer tok --input long.csv --output rows
    expect_error 'long.csv:3: the row is longer than 64 MiB'
    # --whole reads 64 MiB and more, up to its own limit.
    head -c $(((64 << 20) + 1)) /dev/zero | tr '\0' ' ' >whole
    run_bireme 0 tokenizer encode --tokenizer tok --whole whole
    truncate -s $(((1 << 30) + 1)) huge
    run_bireme 65 tokenizer encode --tokenizer tok --whole huge
    expect_error 'huge: the text has more than 1 GiB, the limit of --whole'
}

# On a terminal standard output has no control characters, and a long text arrives whole.
check_terminal() {
    cp -r run "run$1"
    script -qec "$program inspect 'run$1'" /dev/null >out || fail "inspect ended with $?"
    grep -q 'run folder' out || fail 'inspect prints nothing on a terminal'
    ! grep -q "$(printf '\033')" out || fail 'an escape sequence was printed on a terminal'
    script -qec "stty cols 80; $program prepare --help" /dev/null | tr -d '\r' >out
    COLUMNS=80 "$program" prepare --help | cmp - out || fail 'the help differs on a terminal'
}

test_output() {
    local escape
    escape=$(printf '\033]0;title\a')
    run_bireme 66 inspect "missing$escape"
    ! grep -q "$(printf '\033')" stderr || fail 'an escape sequence was printed'
    run_bireme 0 train recipe.yaml checkpoint.every=0
    if script -qec true /dev/null >out 2>&1; then
        check_terminal "$escape"
    else
        echo "not checked: no pseudo-terminal: $(cat out)"
    fi
    # A closed descriptor is not taken by a file that the run opens.
    "$program" train recipe.yaml checkpoint.every=0 run_dir=quiet 2>&- ||
        fail "train without standard error ended with $?"
    grep -q '^host .* process [0-9]*$' quiet/LOCK || fail 'the lock file lost its content'
    [ "$(wc -l <quiet/LOCK)" = 1 ] || fail 'messages were written into the lock file'
    echo 'the work' >short
    "$program" score --checkpoint run short >&- 2>stderr
    [ $? = 74 ] || fail 'a closed standard output is not an error'
    # The number of threads of a foreign checkpoint is limited to the cores.
    run_bireme 0 train recipe.yaml checkpoint.every=0 run_dir=wide parallel.threads=64
    mkfifo input
    OMP_NUM_THREADS='' "$program" score --checkpoint wide input <&- >out 2>stderr &
    exec 9>input
    yes 'the work' | head -n 1000 >&9 # enough for the first block of output
    for _ in $(seq 300); do
        [ ! -s out ] || break
        sleep 0.1
    done
    # No file of the checkpoint has become standard input.
    [ "$(readlink "/proc/$!/fd/0")" = /dev/null ] ||
        fail "standard input is $(readlink "/proc/$!/fd/0")"
    threads=$(find "/proc/$!/task" -mindepth 1 -maxdepth 1 | wc -l)
    exec 9>&-
    wait $! || fail "score ended with $?"
    [ "$threads" -lt $(($(nproc) + 32)) ] || fail "$threads threads on $(nproc) cores"
}

run_part "$@"
