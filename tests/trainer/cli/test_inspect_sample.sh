#!/bin/bash
# inspect --sample prints the text of a sample of each kind of shard. A shard that cannot be read
# does not change the report about the others.
# ctest: parts kinds output training permission
# ctest: timeout 120
. "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"

# All printable ASCII characters are tokens.
printf '%s\n' '{}|~!"#$%&()*+,-./0123456789:;<=>?@[]^_`' ' abcdefghijklmnopqrstuvwxyz' \
    'ABCDEFGHIJKLMNOPQRSTUVWXYZ' >ascii.txt
run_bireme 0 tokenizer train --type char --input ascii.txt --output letters

# prepare OBJECTIVE FOLDER FLAG...: make shards in FOLDER of the rows on standard input.
prepare() {
    local objective=$1 folder=$2
    shift 2
    cat >rows.jsonl
    run_bireme 0 prepare --objective "$objective" --tokenizer letters --input rows.jsonl \
        --output "$folder" "$@"
    [ -e "$folder/tokenizer" ] || cp -r letters "$folder/tokenizer"
}

# expect_sample FOLDER INDEX: the sample is printed as in the file `expected`, without the first
# lines about the shard.
expect_sample() {
    run_bireme 0 inspect "$1" --sample "$2"
    sed -n '/^in the loss/,$p' out >found
    diff expected found || fail "sample $2 of $1"
}

test_kinds() {
    prepare sft sft <<'END'
{"prompt": "Is it free?", "completion": "Yes."}
{"prompt": "Is it a file?", "completion": "No."}
END
    cat >expected <<'END'
in the loss      the marked tokens, unless sft.*_only_loss is set

[prompt: tokens 0 to 12]
Is it a file?

[completion: tokens 13 to 15, in the loss]
No.
END
    expect_sample sft 1
    prepare dpo dpo --sequence-length 32 <<'END'
{"prompt": "A file", "chosen": " is read.", "rejected": " sings."}
END
    cat >expected <<'END'
in the loss      the tokens of both responses

[prompt: tokens 0 to 5]
A file

[chosen: tokens 6 to 14, in the loss]
 is read.

[rejected: tokens 15 to 21, in the loss]
 sings.
END
    expect_sample dpo 0
    prepare classify classify --sequence-length 32 <<'END'
{"text": "one word", "label": "short"}
{"text": "some more words", "label": "long"}
END
    cat >expected <<'END'
in the loss      the label
label            "short"

[segment 0: tokens 0 to 7]
one word
END
    expect_sample classify 0
    prepare classify_tokens words --sequence-length 32 <<'END'
{"tokens": ["to", "us"], "labels": ["O", "B"]}
END
    run_bireme 0 inspect words --sample 0
    grep -q "^\[O: tokens 0 to 0, in the loss\]\$" out &&
        grep -q "^in the loss  *the labeled" out ||
        fail "token labels: $(cat out)"
    prepare regress numbers --sequence-length 32 <<'END'
{"text": "half", "label": 0.5}
END
    run_bireme 0 inspect numbers --sample 0
    grep -q '^label  *0.5$' out || fail "target value: $(cat out)"
    prepare answer answers --sequence-length 48 <<'END'
{"question": "who", "context": "it is us", "answer": "us", "answer_start": 6}
END
    run_bireme 0 inspect answers --sample 0
    grep -A1 '^\[segment 1' out | grep -q 'it is us' || fail "answer: $(cat out)"
    local first last
    IFS='[,]' read -r _ first last _ < <(sed -n 's/^label *//p' out)
    [ $((last - first)) = 1 ] || fail "answer: $(cat out)"
    prepare choose choices --sequence-length 32 <<'END'
{"text": "it is ", "choices": ["red", "green"], "label": 1}
END
    run_bireme 0 inspect choices --sample 0
    grep -q '^label  *1$' out && [ "$(grep -c '^it is ' out)" = 2 ] || fail "choices: $(cat out)"
    prepare embed embed --sequence-length 32 <<'END'
{"text": "one", "text_pair": "two"}
END
    run_bireme 0 inspect embed --sample 0
    grep -q '^one' out && grep -q '^two' out || fail "texts to embed: $(cat out)"
}

# A document of a text shard, JSON, the index over several shards, missing tokenizers, wrong values.
test_output() {
    run_bireme 0 inspect data --sample 0
    grep -A2 '^\[document: tokens 0 to ' out | grep -q 'Apache License' ||
        fail "the document is not printed: $(head -9 out)"
    printf 'first\n' >first.txt
    printf 'other\n' >other.txt
    run_bireme 0 prepare --objective clm --tokenizer tokenizer --input first.txt --output two
    run_bireme 0 prepare --objective clm --tokenizer tokenizer --input other.txt --output more
    mv more/train-00000-of-00001.h5 two/validation-00000-of-00001.h5
    run_bireme 0 inspect two --sample 1
    grep -q '^other$' out && grep -q '^shard  *two/validation' out || fail "sample 1: $(cat out)"
    run_bireme 64 inspect two --sample 2
    expect_error '--sample 2: two contains the samples 0 to 1;*'
    run_bireme 64 inspect two/train-00000-of-00001.h5 --sample 1
    expect_error 'contains the samples 0 to 0'
    run_bireme 64 inspect two --sample -1
    run_bireme 64 inspect two --tokenizer tokenizer
    expect_error '--tokenizer needs --sample'
    run_bireme 64 inspect tokenizer --sample 0
    expect_error 'contains no shards'
    run_bireme 0 inspect two --sample 1 --json
    tr -d ' \n' <out >compact
    grep -q '"text":"other' compact && grep -q '"loss_mask":\[1,1,1,1,1,1\]' compact ||
        fail "JSON: $(cat out)"
    local ids
    ids=$(sed -E 's/.*"ids":\[([0-9,]*)\].*/\1/; s/,/ /g' compact)
    echo "$ids" | run_bireme 0 tokenizer decode --tokenizer tokenizer
    grep -q '^other$' out || fail "the ids $ids do not decode to the text: $(cat out)"
    mv tokenizer elsewhere
    run_bireme 0 inspect two --sample 1
    grep -q "^$ids\$" out && grep -A1 '^text  *unknown: ' out | grep -q -- '--tokenizer' ||
        fail "no ids without the tokenizer: $(cat out)"
    run_bireme 0 inspect two --sample 1 --json
    grep -q '"text": null' out || fail "JSON without the tokenizer: $(cat out)"
    mkdir -p data runs/any/final
    cp -r two data/two
    cp -r elsewhere runs/any/final/tokenizer
    run_bireme 0 inspect data/two --sample 1
    grep -q '^other$' out || fail 'the tokenizer of a run is not found'
    rm -r runs
    run_bireme 0 inspect two --sample 1 --tokenizer elsewhere
    grep -q '^other$' out || fail 'the given tokenizer is not used'
    run_bireme 0 tokenizer train --type char --input first.txt --output wrong
    run_bireme 65 inspect two --sample 1 --tokenizer wrong
    expect_error 'two/validation'
    printf 'a\033[31mb' >escape.txt
    run_bireme 0 tokenizer train --type char --input escape.txt --output tokenizer
    run_bireme 0 prepare --objective clm --tokenizer tokenizer --input escape.txt --output escape
    script -qec true /dev/null >out 2>&1 || {
        echo "not checked: no pseudo-terminal: $(cat out)"
        return 0
    }
    script -qec "$program inspect escape --sample 0" /dev/null </dev/null >out ||
        fail 'inspect fails on a terminal'
    grep -q 'a?\[31mb' out || fail "a control character reaches the terminal: $(cat -v out)"
}

# Samples of a recipe and of a run folder: windows with document boundaries, packs of examples.
test_training() {
    local part rows
    for part in 'ab cd' 'efg' 'hi'; do
        printf '{"text": "%s"}\n' "$part"
    done >documents.jsonl
    run_bireme 0 prepare --objective clm --tokenizer letters --input documents.jsonl \
        --output documents
    sed 's#^data: .*#data: {tokenizer: letters, train: documents/train-*.h5, document_mask: true,#
        s/sequence_length: 32/shuffle: false, sequence_length: 4/
        s/^evaluate: .*/evaluate: {every: 0}/' recipe.yaml >windows.yaml
    # Windows of five tokens that share their ends: "ab cd" and "defgh". No row predicts the h.
    cat >expected <<'END'
shard            documents/train-00000-of-00001.h5 tokens 4 to 8
sample           1 in the order of training, counted from 0
examples         text
tokens           4
in the loss      the tokens that a row predicts

[document: tokens 0 to 0]
d

[document: tokens 1 to 1]
e

[document: tokens 2 to 3, in the loss]
fg
END
    run_bireme 0 inspect windows.yaml --sample 1
    diff expected out || fail 'sample 1 of windows.yaml'
    rows=$(for part in one two; do
        printf '{"prompt": "%s?", "completion": "%s."}\n' "$part" "$part"
    done)
    prepare sft sft <<<"$rows"
    sed 's#^objective: .*#objective: sft#
        s#^data: .*#data: {tokenizer: letters, train: sft/train-*.h5,#
        s/^evaluate: .*/evaluate: {every: 0}/
        s/^schedule: .*/schedule: {name: constant}/
        s/^train: .*/train: {max_steps: 1}/' recipe.yaml >packs.yaml
    echo 'sft: {packing: bfd}' >>packs.yaml
    run_bireme 0 train packs.yaml
    run_bireme 0 inspect run --sample 0
    grep -v '^$' out | sed -n '/^in the loss/,$p' | tail -n +2 | sed 's/tokens.*[0-9]//' >found
    cat >expected <<'END'
[example: ]
two?
[example: , in the loss]
two.
[example: ]
one?
[example: , in the loss]
one.
END
    diff expected found || fail 'sample 0 of the run'
    run_bireme 0 inspect run --sample 0 --json
    tr -d ' \n' <out | grep -q '"loss_mask":\[0,0,0,0,1,1,1,1,0,0,0,0,1,1,1,1\]' || fail 'loss mask'
    # The number of positions comes from model.init_from, as in train.
    run_bireme 0 train packs.yaml run_dir=long model.max_position_embeddings=2048
    sed 's/^model: .*/model: {init_from: long,/; s/max_position_embeddings: 32, //
        s/^run_dir: .*/run_dir: next/; s/sequence_length: 32/sequence_length: 2000/' \
        packs.yaml >next.yaml
    run_bireme 0 inspect next.yaml --sample 0
    sed 's/objective: sft/objective: classify/; /^sft:/d' packs.yaml >classify.yaml
    run_bireme 69 inspect classify.yaml --sample 0
    expect_error 'supports the objectives clm and sft'
}

# As root, every file can be read; the program then runs without this capability.
test_permission() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --bounding-set -dac_override,-dac_read_search true || {
            echo 'skipped: root, and no setpriv'
            exit 77
        }
        one_core+=(setpriv --bounding-set -dac_override,-dac_read_search)
    fi
    chmod 0 data/train-00000-of-00001.h5
    run_bireme 77 inspect data
    expect_error 'data: found 1 fault in its shards; make the shards in the list readable'
    grep -q 'train-00000-of-00001.h5 .*Permission denied' out || fail "inspect: $(cat out)"
    grep -q 'validation-00000-of-00001.h5 .* valid$' out ||
        fail "the other shard is not valid: $(cat out)"
    run_bireme 77 inspect data --json
    grep -q '"vocab_size": 0' out && fail "the vocabulary is that of the unread shard: $(cat out)"
    run_bireme 77 inspect data/train-00000-of-00001.h5
    mkdir -m 0 closed
    run_bireme 77 inspect closed
    expect_error 'cannot list closed: Permission denied'
    chmod 700 closed
    run_bireme 77 inspect data --sample 0
    expect_error 'Permission denied'
}

run_part "$@"
