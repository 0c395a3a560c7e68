#!/bin/bash
# The HTTP server: answers equal the answers of the commands, bad requests get their status, and
# clients that are slow, vanish or are many do not disturb others.
# ctest: parts text seq2seq tasks errors clients stop openai page
# ctest: timeout 600
# shellcheck source=tests/trainer/tiny_training.sh
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
command -v curl >/dev/null || {
    echo 'skipped: no curl'
    exit 77
}
server='' url=''
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; remove_folder' EXIT

# start_server CHECKPOINT OPTION...: start a server at a free port; set $server and $url.
start_server() {
    local checkpoint=$1
    shift
    : >address
    "${one_core[@]}" "$program" serve --checkpoint "$checkpoint" --port 0 "$@" >address 2>stderr &
    server=$!
    for _ in $(seq 400); do
        url=$(sed -n 's/^listening on //p' address)
        [ -z "$url" ] || return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    fail 'the server does not start'
}

# stop_server: end the server with SIGTERM; its exit code must be 0.
stop_server() {
    local pid=$server
    kill -TERM "$pid"
    wait "$pid" || fail "the server ended with $?"
    server=''
}

# ask PATH BODY OPTION...: send a request; its answer is in `out`, the HTTP status in $code.
ask() {
    local path=$1 body=$2
    shift 2
    code=$(curl -s -m 50 -o out -w '%{http_code}' -H 'Content-Type: application/json' "$@" \
        --data-binary "$body" "$url$path")
}

# expect CODE TEXT: the last answer has this status and contains this text.
expect() {
    [ "$code" = "$1" ] || fail "status $code instead of $1: $(cat out)"
    grep -qF -- "$2" out || fail "no $2 in: $(cat out)"
}

# print_texts: print the field "text" of each choice of `out`, as JSON text, one per line.
print_texts() {
    grep -o '"index":[0-9]*,"text":"\([^"\\]\|\\.\)*"' out | sed 's/.*"text":"\(.*\)"$/\1/'
}

# print_metric NAME: print the value of a metric.
print_metric() {
    curl -s -m 20 "$url/metrics" | sed -n "s/^$1 //p"
}

# generate OPTION...: print the texts of `bireme generate --json` as print_texts does.
generate() {
    run_bireme 0 generate --checkpoint run --json --no-slide "$@"
    sed -E 's/.*"text": ?"(.*)", ?"ids".*/\1/' out
}

# An encoder-decoder: the prompt is the source, and the texts are the same as in translate and
# generate.
test_seq2seq() {
    local line
    write_pairs 200 8 capitals
    run_bireme 0 tokenizer train --type bpe --vocab-size 300 --input pairs.a pairs.b --output words
    run_bireme 0 prepare --objective seq2seq --tokenizer words --source pairs.a --target pairs.b \
        --output pairs
    run_bireme 0 train recipe.yaml objective=seq2seq data.tokenizer=words run_dir=run \
        'data.train=pairs/train-*.h5' data.validation=null evaluate.every=0 \
        model.architecture=marian model.num_layers=1 model.dropout=0 model.activation=relu \
        optimizer.learning_rate=4e-3 train.max_steps=200 checkpoint.every=0 model.hidden_size=64
    head -6 pairs.a >sources
    run_bireme 0 translate --checkpoint run sources
    mv out expected
    [ "$(sort -u expected | wc -l)" -gt 3 ] || fail "equal targets: $(cat expected)"
    run_bireme 64 serve --checkpoint run --port 0 --target-lang es
    expect_error 'the tokenizer has no token >>es<<'
    start_server run --max-num-seqs 2
    # The sources are sent one at a time, then all in one request: three rounds of two slots.
    while IFS= read -r line; do
        ask /v1/completions "{\"prompt\":\"$line\",\"temperature\":0,\"max_tokens\":99}"
        print_texts
    done <sources | cmp - expected || fail 'other targets'
    ask /v1/completions "{\"prompt\":[$(sed 's/.*/"&"/' sources | paste -sd,)],\"temperature\":0,
        \"max_tokens\":99}"
    print_texts | cmp - expected || fail "other targets of one request: $(cat out)"
    ask /v1/completions "{\"prompt\":\"$(head -1 sources)\",\"temperature\":0,
        \"max_tokens\":99,\"stream\":true}"
    expect 200 'data: [DONE]'
    [ "$(print_texts | tr -d '\n')" = "$(head -1 expected)" ] || fail "stream: $(cat out)"
    run_bireme 0 generate --checkpoint run --json --seed 3 --temperature 2 --max-new-tokens 9 \
        --num-samples 3 --prompt "$(head -1 sources)"
    sed -E 's/.*"text": ?"(.*)", ?"ids".*/\1/' out >sampled
    ask /v1/completions "{\"prompt\":\"$(head -1 sources)\",\"seed\":3,\"n\":3,\"max_tokens\":9,
        \"temperature\":2}"
    print_texts | cmp - sampled || fail "other samples: $(cat out sampled)"
    # Beam search gives the targets of translate and the hypotheses of generate. One search of two
    # beams runs at a time.
    run_bireme 0 translate --checkpoint run --num-beams 2 --length-penalty -3 sources
    mv out beams
    ask /v1/completions "{\"prompt\":[$(sed 's/.*/"&"/' sources | paste -sd,)],\"num_beams\":2,
        \"length_penalty\":-3,\"max_tokens\":99}"
    print_texts | cmp - beams || fail "other targets of beam search: $(cat out)"
    run_bireme 0 generate --checkpoint run --json --num-beams 2 --num-samples 2 \
        --prompt "$(head -1 sources)"
    sed -E 's/.*"text": ?"(.*)", ?"ids".*/\1/' out >beams
    [ "$(sort -u beams | wc -l)" = 2 ] || fail "equal hypotheses: $(cat beams)"
    ask /v1/completions "{\"prompt\":\"$(head -1 sources)\",\"num_beams\":2,\"n\":2,
        \"max_tokens\":99}"
    print_texts | cmp - beams || fail "other hypotheses: $(cat out)"
    ask /v1/completions '{"prompt":"the","num_beams":3}'
    expect 400 '3 beams are too many; the server runs at most 2 (--max-num-seqs)'
    # The server refuses requests that such a model cannot answer.
    ask /v1/models '' -X GET && expect 200 '"tasks":["completions"]'
    ask /v1/completions '{"prompt":"a","echo":true}' && expect 400 'does not continue its prompt'
    ask /v1/completions '{"prompt":[[]]}' && expect 400 'error'
    ask /v1/completions "{\"prompt\":\"$(yes the | head -300 | paste -sd' ')\"}"
    expect 400 context_length_exceeded
    ask /v1/chat/completions '{"messages":[{"role":"user","content":"a"}]}' && expect 400 chat
    ask /v1/embeddings '{"input":"a"}' && expect 400 'does not support this path'
    stop_server
    # With a chat template, the answer equals the answer of generate --chat.
    cp "$source/recipes/manual_template.json" run/final/tokenizer/chat_template.json
    run_bireme 0 generate --checkpoint run --json --chat --prompt 'the list of files'
    sed -E 's/.*"text": ?"(.*)", ?"ids".*/\1/' out >expected
    [ -s expected ] || fail 'an empty answer'
    start_server run
    ask /v1/models '' -X GET && expect 200 '"tasks":["completions","chat"]'
    ask /v1/chat/completions '{"messages":[{"role":"user","content":"the list of files"}],
        "temperature":0,"max_tokens":99}'
    expect 200 '"object":"chat.completion"'
    [ "$(sed -E 's/.*"content":"([^"]*)".*/\1/' out)" = "$(cat expected)" ] ||
        fail "chat: $(cat out expected)"
    stop_server
}

# test_beam_order: beam searches start in the order of their arrival. A search that needs all beams
# starts before smaller ones that arrive later, although the end of the first request leaves room
# for a small one.
test_beam_order() {
    local count=0 prompts beams pids=()
    stop_server
    start_server run --max-num-seqs 4
    : >order
    for beams in '301 2' '1 4' '101 2'; do
        prompts=$(yes '"the"' | head -n "${beams% *}" | paste -sd,)
        {
            curl -s -m 50 -o /dev/null -H 'Content-Type: application/json' --data-binary \
                "{\"prompt\":[$prompts],\"num_beams\":${beams#* },\"max_tokens\":25}" \
                "$url/v1/completions"
            echo "$beams" >>order
        } &
        pids+=($!)
        count=$((count + 1))
        for _ in $(seq 100); do
            [ "$(print_metric bireme_requests_open)" -lt $count ] && [ ! -s order ] || break
        done
    done
    wait "${pids[@]}"
    [ "$(tail -n 1 order)" = '101 2' ] || fail "beam searches end in the order $(paste -sd, order)"
}

test_text() {
    run_bireme 0 train recipe.yaml train.max_steps=100 checkpoint.every=0 evaluate.every=0
    start_server run
    [ "$(curl -s "$url/health")" = '{"status":"ok"}' ] || fail health
    ask /v1/models '' -X GET && expect 200 '"id":"run"'
    # Greedy and sampled texts are the same as in `bireme generate`.
    generate --prompt License --temperature 0 --max-new-tokens 20 >expected
    ask /v1/completions '{"model":"any","prompt":"License","temperature":0,"max_tokens":20}'
    expect 200 '"model":"any"'
    print_texts | cmp - expected || fail "another greedy text: $(cat out)"
    grep -q '"usage":{"prompt_tokens":7,"completion_tokens":20,"total_tokens":27}' out || fail usage
    generate --prompt the --seed 5 --max-new-tokens 25 --num-samples 3 --top-k 9 >expected
    ask /v1/completions '{"prompt":"the","seed":5,"max_tokens":25,"n":3,"top_k":9}'
    expect 200 '"model":"run"' # the name in /v1/models, because the request has none
    print_texts | cmp - expected || fail "other samples: $(cat out)"
    # A stream has the same texts.
    for n in 1 3; do
        body='{"prompt":"the","seed":5,"max_tokens":25,"n":'$n',"top_k":9'
        ask /v1/completions "$body}"
        print_texts >whole
        ask /v1/completions "$body,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
        expect 200 'data: [DONE]'
        usage='"prompt_tokens":3,"completion_tokens":'$((25 * n))','
        grep -qF "\"choices\":[],\"usage\":{$usage" out ||
            fail "no usage in the stream: $(tail -n 4 out)"
        cp out stream
        for ((i = 0; i < n; i++)); do
            grep "\"index\":$i," stream >out
            print_texts | tr -d '\n'
            echo
        done | cmp - whole || fail 'the stream has another text'
    done
    # Beam search gives the texts of `bireme generate --num-beams`.
    generate --prompt License --num-beams 4 --num-samples 3 --length-penalty 2 \
        --max-new-tokens 12 >expected
    for beams in '"use_beam_search":true,"best_of":4' '"num_beams":4'; do
        ask /v1/completions "{\"prompt\":[\"the\",\"License\"],\"n\":3,\"length_penalty\":2,
            \"max_tokens\":12,$beams}"
        expect 200 '"usage":{"prompt_tokens":10,"completion_tokens":72,"total_tokens":82}'
        print_texts | tail -n 3 | cmp - expected || fail "$beams: other texts: $(cat out)"
    done
    # Clients at the same time get the texts that they get alone. There are 3 slots for 8 clients,
    # and the last one has beam search.
    stop_server
    start_server run --max-num-seqs 3
    for i in 1 2 3 4 5 6 7 8; do
        body='{"prompt":"the License","seed":'$i',"max_tokens":20,"logprobs":2}'
        [ $i != 8 ] || body='{"prompt":["the License","the"],"num_beams":3,"max_tokens":20}'
        ask /v1/completions "$body"
        sed 's/"id":"[^"]*","object":"[^"]*","created":[0-9]*//' out >"alone-$i"
        echo "$body" >"body-$i"
    done
    pids=()
    for i in 1 2 3 4 5 6 7 8; do
        curl -s -m 50 -o "together-$i" -H 'Content-Type: application/json' \
            --data-binary "@body-$i" "$url/v1/completions" &
        pids+=($!)
    done
    wait "${pids[@]}"
    for i in 1 2 3 4 5 6 7 8; do
        sed 's/"id":"[^"]*","object":"[^"]*","created":[0-9]*//' "together-$i" |
            cmp - "alone-$i" || fail "client $i gets another text"
    done
    test_beam_order
    # Stop strings, ids, lists and echo.
    ask /v1/completions '{"prompt":"the","seed":2,"max_tokens":25,"stop":["e","n"," "]}'
    expect 200 '"finish_reason":"stop"'
    # A line break is \n in JSON.
    print_texts | sed 's/\\n//g' | grep -q '[en ]' && fail "a stop string remains: $(cat out)"
    "$program" tokenizer encode --tokenizer tokenizer --text License >ids 2>stderr ||
        "$program" tokenizer encode --tokenizer tokenizer <<<License >ids 2>stderr || fail encode
    ids=$(tr -s ' \n' ',' <ids | sed 's/,*$//')
    ids=$(cut -d, -f1-7 <<<"$ids")
    ask /v1/completions '{"prompt":"License","temperature":0,"max_tokens":8}'
    print_texts >expected
    ask /v1/completions "{\"prompt\":[$ids],\"temperature\":0,\"max_tokens\":8}"
    print_texts | cmp - expected || fail "ids give another text: $(cat out)"
    ask /v1/completions "{\"prompt\":[[$ids],[$ids]],\"temperature\":0,\"max_tokens\":8}"
    print_texts | cmp - <(cat expected expected) || fail "lists of ids: $(cat out)"
    ask /v1/completions \
        '{"prompt":["License","the"],"temperature":0,"max_tokens":0,"echo":true,"logprobs":1}'
    expect 200 '"index":1,"text":"the"'
    grep -q '"tokens":\["t","h","e"\],"token_logprobs":\[null,-[0-9.e-]*,-[0-9.e-]*\]' out ||
        fail "log-probabilities of the prompt: $(cat out)"
    grep -q '"text_offset":\[0,1,2\]' out || fail "offsets: $(cat out)"
    run_bireme 0 score --checkpoint run --tokens <(echo License)
    cp out scores
    ask /v1/completions '{"prompt":"License","max_tokens":0,"echo":true,"logprobs":0}'
    sed 's/.*"token_logprobs":\[null,\([^]]*\)\].*/\1/' out | tr ',' '\n' >values
    [ "$(grep -c . values)" = 6 ] || fail "$(cat values)"
    awk '{ sum += $1 } END { printf "%.3f\n", sum }' values >sum
    awk 'NR == 1 { printf "%.3f\n", $1 }' scores | cmp - sum || fail "score: $(cat scores sum)"
    [ "$(print_metric bireme_sequences_running)" = 0 ] || fail 'sequences remain'
    stop_server
}

test_tasks() {
    readonly reference=$source/tests/reference/sft
    mkdir tokenizer_messages
    cp "$reference/tokenizer.json" tokenizer_messages/
    run_bireme 0 prepare --objective sft --tokenizer tokenizer_messages --chat-template chatml \
        --input "$reference/messages.jsonl" --output messages
    cat >messages.yaml <<END
objective: sft
run_dir: run_messages
model: {architecture: gpt2, num_layers: 2, hidden_size: 32, num_heads: 2,
  max_position_embeddings: 128}
data: {tokenizer: tokenizer_messages, train: messages/train-*.h5, sequence_length: 128}
batch: {global_size: 4, micro_size: 4}
train: {max_steps: 3}
END
    run_bireme 0 train messages.yaml
    start_server run_messages
    curl -s "$url/v1/models" | grep -q '"tasks":\["completions","chat","embeddings"\]' || fail tasks
    run_bireme 0 generate --checkpoint run_messages --chat --system 'Be brief.' \
        --prompt 'list files' --temperature 0 --max-new-tokens 12 --json
    sed -E 's/.*"text": ?"[ ]*(.*)", ?"ids".*/\1/' out >expected
    body='{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":
        "text","text":"list files"}]}],"temperature":0,"max_completion_tokens":12'
    ask /v1/chat/completions "$body}"
    expect 200 '"object":"chat.completion"'
    [ "$(sed 's/.*"content":"\(.*\)"},"logprobs".*/\1/' out)" = "$(cat expected)" ] ||
        fail "chat: $(cat out)"
    run_bireme 0 generate --checkpoint run_messages --chat --system 'Be brief.' \
        --prompt 'list files' --num-beams 3 --max-new-tokens 12 --json
    sed -E 's/.*"text": ?"[ ]*(.*)", ?"ids".*/\1/' out >beams
    ask /v1/chat/completions "$body,\"use_beam_search\":true,\"best_of\":3}"
    [ "$(sed 's/.*"content":"\(.*\)"},"logprobs".*/\1/' out)" = "$(cat beams)" ] ||
        fail "chat with beam search: $(cat out)"
    ask /v1/chat/completions "$body,\"stream\":true,\"logprobs\":true,\"top_logprobs\":2}"
    expect 200 '"delta":{"role":"assistant","content":""}'
    grep -o '"delta":{[^}]*}' out | sed -n 's/.*"content":"\(.*\)"}/\1/p' | tr -d '\n' >streamed
    echo >>streamed
    cmp streamed expected || fail "chat stream: $(cat out)"
    grep -q '"top_logprobs":\[{"token":' out || fail 'no log-probabilities'
    # Embeddings are the same as in `bireme embed`, also in base64.
    ask /v1/embeddings '{"input":["list files","ls"]}'
    grep -q '"model":"[^"]' out || fail "no model: $(cat out)"
    expect 200 '"object":"embedding"'
    grep -o '"embedding":\[[^]]*\]' out | sed 's/.*\[\(.*\)\]/\1/' | tr ',' ' ' >vectors
    printf 'list files\nls\n' >lines
    run_bireme 0 embed --checkpoint run_messages lines
    paste -d' ' vectors out | awk '{ n = NF / 2; if (n != 32) bad = 1
        for (i = 1; i <= n; i++) { d = $i - $(n + i); if (!(d * d < 1e-12)) bad = 1 } }
        END { exit bad || NR != 2 }' || fail "embeddings: $(cat vectors out)"
    ask /v1/embeddings '{"input":"list files","encoding_format":"base64"}'
    sed 's/.*"embedding":"\([^"]*\)".*/\1/' out | base64 -d | od -An -v -t f4 |
        tr -s ' \n' ' ' >decoded
    head -n 1 vectors | paste -d' ' decoded - | awk '{ n = NF / 2; if (n != 32) exit 1
        for (i = 1; i <= n; i++) { d = $i - $(n + i); if (!(d * d < 1e-12)) exit 1 } }' ||
        fail "base64: $(cat decoded)"
    ask /v1/fill-mask '{"input":"a"}' && expect 400 '"code":"unsupported_model"'
    stop_server
    # Damaged weights give no answer.
    run_bireme 0 tokenizer train --type wordpiece --vocab-size 300 --input "$source/LICENSE" \
        --output words
    run_bireme 0 prepare --objective mlm --tokenizer words --input "$source/LICENSE" \
        --sequence-length 32 --output pairs
    cat >bert.yaml <<END
objective: mlm
run_dir: run_bert
model: {architecture: bert, num_layers: 1, hidden_size: 16, num_heads: 2,
  max_position_embeddings: 32}
data: {tokenizer: words, train: pairs/train-*.h5}
batch: {global_size: 4, micro_size: 2}
train: {max_steps: 2}
END
    run_bireme 0 train bert.yaml
    start_server run_bert
    run_bireme 0 fill-mask --checkpoint run_bert --top-k 3 'the [MASK] of'
    cp out expected
    ask /v1/fill-mask '{"input":["the [MASK] of","a [MASK]"],"top_k":3}'
    expect 200 '"index":1,"masks":[[{'
    for token in $(grep -o '"text":"[^"]*"' out | head -n 3 | sed 's/.*:"\(.*\)"/\1/'); do
        grep -qF -- "$token" expected || fail "masks: $token, $(cat expected out)"
    done
    # Another request is answered between the texts of a long one.
    printf '{"input":["a [MASK]"' >long
    for _ in $(seq 1023); do
        printf ',"the work of the license [MASK] is of the [MASK] in it"'
    done >>long
    printf '],"top_k":100}' >>long
    for _ in 1 2 3 4 5; do
        curl -s -m 50 -o answer -H 'Content-Type: application/json' --data-binary @long \
            "$url/v1/fill-mask" &
        client=$!
        while [ "$(print_metric bireme_requests_open)" = 0 ] && kill -0 $client; do :; done
        ask /v1/fill-mask '{"input":"a [MASK]"}' && expect 200 '"masks"'
        open=$(print_metric bireme_requests_open)
        wait $client
        [ "$open" = 0 ] || break
    done 2>/dev/null
    [ "$open" = 1 ] || fail 'a long request blocks another one'
    grep -q '"index":1023,' answer || fail 'the long answer is not complete'
    stop_server
    test_classify_and_answer
    damage_weights run_bert
    start_server damaged
    ask /v1/fill-mask '{"input":"a [MASK]"}' && expect 500 'the weights are damaged'
    stop_server
}

# Labels and answers equal the results of the commands.
test_classify_and_answer() {
    printf '{"text": "the work", "label": "a"}\n{"text": "of it", "label": "b"}\n' >labels.jsonl
    run_bireme 0 prepare --objective classify --tokenizer words --input labels.jsonl \
        --sequence-length 32 --output labels
    cat >classify.yaml <<END
objective: classify
run_dir: run_classify
model: {init_from: run_bert}
data: {tokenizer: words, train: labels/train-*.h5, sequence_length: 32}
batch: {global_size: 2, micro_size: 2}
train: {max_steps: 2}
END
    run_bireme 0 train classify.yaml
    start_server run_classify
    echo 'the work' >line
    run_bireme 0 classify --checkpoint run_classify line
    label=$(cut -f 1 out)
    ask /v1/classify '{"input":"the work","top_k":1}'
    expect 200 "\"labels\":[{\"label\":\"$label\",\"probability\":0."
    stop_server
    printf '%s\n' '{"id":"1","context":"the work of it","question":"of it?",
        "answers":{"text":["work"],"answer_start":[4]}}' | tr -d '\n' >squad.jsonl
    echo >>squad.jsonl
    run_bireme 0 prepare --objective answer --tokenizer words --input squad.jsonl \
        --sequence-length 32 --output squad
    sed -e 's/classify/answer/' -e 's/labels/squad/' classify.yaml >answer.yaml
    run_bireme 0 train answer.yaml
    start_server run_answer --set answer.no_answer_threshold=1e9
    echo 'the work of it' >line
    run_bireme 0 answer --checkpoint run_answer --question 'of it?' line \
        --set answer.no_answer_threshold=1e9
    cp out expected
    ask /v1/answer '{"question":"of it?","context":"the work of it"}'
    expect 200 '"probability":0.'
    answer=$(sed 's/.*"answer":"\([^"]*\)".*/\1/' out)
    [ -n "$answer" ] && [ "$answer" = "$(cut -f 1 expected)" ] ||
        fail "answer: $(cat out expected)"
    ask /v1/answer '{"question":"of\u0000it","context":"the work"}' && expect 400 'NUL'
    ask /v1/answer '{"question":"of it","context":"the\u0000work"}' && expect 400 'NUL'
    stop_server
}

test_errors() {
    run_bireme 0 train recipe.yaml
    echo 'sk-secret' >key
    start_server run --max-body-bytes 20000 --api-key-file key
    ask /v1/completions '{"prompt":"a"}' && expect 401 '"type":"authentication_error"'
    ask /v1/completions '{"prompt":"a"}' -H 'Authorization: Bearer sk-secre' && expect 401 key
    ask /v1/completions '{"prompt":"a"}' -H 'Authorization: Bearer sk-secret' && expect 200 text
    curl -s "$url/health" | grep -q ok || fail 'health needs a key'
    curl -s "$url/" | grep -q '<!DOCTYPE html>' || fail 'no page'
    stop_server
    start_server run --max-body-bytes 20000
    while IFS='|' read -r status path body text; do
        ask "$path" "$body"
        expect "$status" "$text"
        grep -q '^{"error":{"message":".*","type":".*","param":.*,"code":.*}}$' out ||
            fail "not an error object: $(cat out)"
    done <<'END'
400|/v1/completions|{"prompt":|not valid JSON
400|/v1/completions||not valid JSON
400|/v1/completions|[]|not a JSON object
400|/v1/completions|{}|"param":"prompt"
400|/v1/completions|{"prompt":3}|"param":"prompt"
400|/v1/completions|{"prompt":[]}|"param":"prompt"
400|/v1/completions|{"prompt":[[]]}|empty list
400|/v1/completions|{"prompt":[1,"a"]}|not a token id
400|/v1/completions|{"prompt":[99999]}|outside the vocabulary
400|/v1/completions|{"prompt":[-1]}|not a token id
400|/v1/completions|{"prompt":"a","n":0}|"param":"n"
400|/v1/completions|{"prompt":"a","n":1.5}|"param":"n"
400|/v1/completions|{"prompt":"a","temperature":-1}|"param":"temperature"
400|/v1/completions|{"prompt":"a","temperature":"hot"}|must be a number
400|/v1/completions|{"prompt":"a","top_p":2}|"param":"top_p"
400|/v1/completions|{"prompt":"a","max_tokens":0}|needs echo
400|/v1/completions|{"prompt":"a","max_tokens":1e3}|must be an integer
400|/v1/completions|{"prompt":"a","stream":"yes"}|true or false
400|/v1/completions|{"prompt":"a","stop":[""]}|"param":"stop"
400|/v1/completions|{"prompt":"a","logprobs":99}|"param":"logprobs"
400|/v1/completions|{"prompt":"a","model":7}|"param":"model"
400|/v1/completions|{"prompt":"a","model":"a\u0000b"}|NUL
400|/v1/completions|{"prompt":"a","suffix":"b"}|not supported
400|/v1/completions|{"prompt":"a","best_of":2}|best_of needs use_beam_search
400|/v1/completions|{"prompt":"a","use_beam_search":true}|set best_of to a number above 1
400|/v1/completions|{"prompt":"a","use_beam_search":1}|true or false
400|/v1/completions|{"prompt":"a","num_beams":2,"n":3}|n is 3, more than the 2 beams
400|/v1/completions|{"prompt":"a","num_beams":2,"best_of":3}|num_beams is 2, but best_of is 3
400|/v1/completions|{"prompt":"a","num_beams":9}|9 beams are too many
400|/v1/completions|{"prompt":"a","num_beams":2,"stream":true}|"param":"use_beam_search"
400|/v1/completions|{"prompt":"a","num_beams":2,"logprobs":0}|"param":"logprobs"
400|/v1/completions|{"prompt":"a","num_beams":2,"echo":true}|"param":"echo"
400|/v1/completions|{"prompt":"a","length_penalty":99}|"param":"length_penalty"
400|/v1/completions|{"prompt":"a","logit_bias":{"1":5}}|not supported
400|/v1/completions|{"prompt":"a\u0000b"}|NUL
400|/v1/completions|{"prompt":"the License is granted to You by us"}|context_length_exceeded
400|/v1/completions|{"prompt":"\u4e2d"}|vocabulary
400|/v1/chat/completions|{"messages":[{"role":"user","content":"a"}]}|no chat template
400|/v1/embeddings|{"input":"a","encoding_format":"x"}|"param":"encoding_format"
404|/v1/nothing|{}|no such path
405|/health|{}|accepts GET only
END
    ask /v1/completions '' -X GET && expect 405 'POST only'
    ask /v1/completions "$(printf '{"prompt":"\xff\xfe"}')" && expect 400 'not valid JSON'
    head -c 30000 /dev/zero | tr '\0' ' ' >huge
    ask /v1/completions @huge && expect 413 'max-body-bytes'
    ask /v1/completions @huge -H 'Transfer-Encoding: chunked' && expect 413 'max-body-bytes'
    printf '%*s' 15000 '' | tr ' ' '[' >deep
    ask /v1/completions @deep && expect 400 'not valid JSON'
    # Pages of other sites cannot use the server.
    ask /v1/completions '{"prompt":"a"}' -H 'Origin: http://example.org' && expect 403 Origin
    ask /v1/completions '{"prompt":"a"}' -H 'Host: example.org' && expect 403 Host
    ask /v1/completions '{"prompt":"a"}' -H "Origin: $url" && expect 200 text
    stop_server
    grep -q 'W-API-KEY' stderr && fail 'a warning about the local address'
    start_server run --host 0.0.0.0
    grep -q 'W-API-KEY' stderr || fail 'no warning about requests without a key'
    stop_server
    run_bireme 69 serve --checkpoint run --host 192.0.2.1 && expect_error 'cannot listen on'
    run_bireme 66 serve --checkpoint none && expect_error none
    run_bireme 66 serve --checkpoint run --api-key-file none && expect_error none
    run_bireme 64 serve --checkpoint run --max-model-len 33 && expect_error '32 positions'
    printf '\n' >key
    run_bireme 65 serve --checkpoint run --api-key-file key && expect_error 'first line'
}

test_clients() {
    run_bireme 0 train recipe.yaml
    start_server run --max-connections 60 --max-num-seqs 2
    address=${url#http://}
    port=${address##*:}
    # Half requests and clients that send nothing do not disturb others.
    exec {half}<>"/dev/tcp/127.0.0.1/$port"
    head='POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s'
    # shellcheck disable=SC2059 # the format is constant
    printf "$head" 100 '{"pro' >&$half
    exec {silent}<>"/dev/tcp/127.0.0.1/$port"
    # A client that never reads its stream.
    body='{"prompt":"the","n":100,"max_tokens":29,"stream":true,"logprobs":5,"seed":1}'
    exec {deaf}<>"/dev/tcp/127.0.0.1/$port"
    # shellcheck disable=SC2059
    printf "$head" ${#body} "$body" >&$deaf
    # One client reads a byte per second, another one sends a byte per second.
    exec {reader}<>"/dev/tcp/127.0.0.1/$port"
    # shellcheck disable=SC2059
    printf "$head" ${#body} "$body" >&$reader
    exec {sender}<>"/dev/tcp/127.0.0.1/$port"
    # shellcheck disable=SC2059
    whole=$(printf "$head" ${#body} "$body")
    (for ((i = 0; i < 60; i++)); do
        printf '%s' "${whole:i:1}" >&$sender
        IFS= read -r -t 5 -N 1 byte <&$reader && printf '%s' "$byte" >>slow
        sleep 1
    done) 2>/dev/null &
    slow=$!
    for _ in 1 2 3 4; do
        ask /v1/completions '{"prompt":"the","max_tokens":5}' && expect 200 text
    done
    # Clients that vanish: their sequences are cancelled, with and without a stream, and with beams.
    long='"prompt":["the","a","of","to","in","or"],"n":128,"max_tokens":29,"temperature":3'
    searches='"prompt":['$(yes '"the"' | head -n 1000 | paste -sd,)'],"max_tokens":29,"num_beams":2'
    for body in "{$long,\"stream\":true}" "{$long,\"stream\":false}" "{$searches}"; do
        before=$(print_metric bireme_requests_cancelled_total)
        open=$(print_metric bireme_requests_open)
        curl -s -o /dev/null --json "$body" "$url/v1/completions" &
        client=$!
        until [ "$(print_metric bireme_requests_open)" -gt "$open" ]; do
            kill -0 $client || fail 'the request ended too early'
        done
        kill $client
        ask /v1/completions '{"prompt":"the","max_tokens":5}' && expect 200 text
        for _ in $(seq 100); do
            [ "$(print_metric bireme_requests_cancelled_total)" = "$before" ] || continue 2
            sleep 0.1
        done
        fail "no request was cancelled: ${body:0:99}"
    done
    ask /v1/completions '{"prompt":"the","max_tokens":5,"num_beams":2}' && expect 200 text
    kill -0 $slow || fail 'the slow clients ended too early'
    [ -s slow ] && printf 'HTTP/1.1 200 OK' | grep -q "^$(head -c 15 slow)" ||
        fail "the slow client got: $(cat slow)"
    kill $slow
    exec {reader}>&- {sender}>&-
    # Garbage is not HTTP: the answer is an error, or the server closes the connection.
    exec {garbage}<>"/dev/tcp/127.0.0.1/$port"
    head -c 2000 "$program" >&$garbage
    ! head -n 1 <&$garbage 2>/dev/null | tr -d '\0' | grep -q ' 200 ' || fail 'garbage was accepted'
    exec {half}>&- {silent}>&- {deaf}>&- {garbage}>&-
    # More connections than allowed: the server survives and serves the next client.
    connections=()
    for _ in $(seq 200); do
        exec {connection}<>"/dev/tcp/127.0.0.1/$port" && connections+=("$connection")
    done 2>/dev/null
    for connection in "${connections[@]}"; do
        exec {connection}>&-
    done
    for _ in $(seq 50); do
        ask /v1/completions '{"prompt":"the","max_tokens":5}'
        [ "$code" != 200 ] || break
        sleep 0.1
    done
    expect 200 text
    stop_server
    # A thousand clients at a time.
    [ "$(ulimit -n)" -ge 1100 ] || ulimit -n 1100 2>/dev/null || return 0
    start_server run --max-connections 1010
    port=${url##*:}
    connections=()
    for _ in $(seq 1000); do
        exec {connection}<>"/dev/tcp/127.0.0.1/$port" || fail 'a connection was refused'
        connections+=("$connection")
    done
    ask /v1/completions '{"prompt":"the","max_tokens":5}' && expect 200 text
    for connection in "${connections[@]}"; do
        printf 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n' >&"$connection"
    done
    for connection in "${connections[@]}"; do
        IFS= read -r -t 20 line <&"$connection" && [ "$line" = $'HTTP/1.1 200 OK\r' ] ||
            fail "a client of 1000 got: $line"
        exec {connection}>&-
    done
    ask /v1/completions '{"prompt":"the","max_tokens":5}' && expect 200 text
    stop_server
}

# start_stream N: request N texts of two prompts as a stream; wait until `streamed` has text.
start_stream() {
    local body='{"prompt":["the","a"],"n":'$1',"max_tokens":29,"temperature":3,"stream":true}'
    : >streamed
    curl -s -m 50 -o streamed -H 'Content-Type: application/json' --data-binary "$body" \
        "$url/v1/completions" &
    client=$!
    for _ in $(seq 200); do
        [ ! -s streamed ] || return
        sleep 0.05
    done
    fail 'no answer begins'
}

test_stop() {
    run_bireme 0 train recipe.yaml
    # A full queue refuses requests. On a fast machine the stream may end before the request.
    start_server run --max-queue 1
    for _ in 1 2 3 4 5; do
        start_stream 128
        ask /v1/completions '{"prompt":"a"}'
        kill $client 2>/dev/null
        [ "$code" != 503 ] || break
    done
    expect 503 '"code":"server_busy"'
    stop_server
    # A signal does not cut a running answer.
    for signal in TERM INT; do
        start_server run
        start_stream 100
        kill -$signal $server
        wait $server || fail "after SIG$signal the server ended with $?"
        server=''
        wait $client || fail "the client ended with $?"
        tail -n 2 streamed | grep -q '^data: \[DONE\]$' || fail "SIG$signal cut the answer"
        [ "$(grep -c '"finish_reason":"length"' streamed)" = 200 ] || fail 'texts are missing'
        grep -q 'stop requested' stderr || fail 'the stop is not logged'
    done
    # The time limit ends an answer.
    start_server run --max-num-seqs 1 --timeout 1
    ask /v1/completions '{"prompt":["the","a"],"n":128,"max_tokens":29,"temperature":3}'
    [ "$code" = 503 ] || [ "$code" = 200 ] || fail "status $code"
    stop_server
}

# use_page CHECKPOINT TASK...: use the tabs of the page in a browser.
use_page() {
    start_server "$1"
    shift
    for task in "$@"; do
        SERVER_PID=$server timeout 170 \
            python3 "$source/scripts/clients/check_page.py" "$url" "$task" >page 2>&1 ||
            fail "the page, $task: $(tail -n 3 page)"
    done
    stop_server
}

# Tests the page in a browser: conversation, stop button, probabilities, all tasks, light and dark
# mode, and the width of a phone.
test_page() {
    command -v chromium >/dev/null || {
        echo 'skipped: no chromium'
        exit 77
    }
    command -v python3 >/dev/null || {
        echo 'skipped: no python3'
        exit 77
    }
    # shellcheck source=tests/trainer/library/small_models.sh
    source "$source/tests/trainer/library/small_models.sh"
    make_models
    # The model is wider and has more positions, so that an answer takes longer than a stop.
    sed -e 's/messages-run/long-run/; s/num_layers: 2/num_layers: 4/' \
        -e 's/hidden_size: 32/hidden_size: 128/; s/positions: 128/positions: 4096/' \
        -e 's/max_steps: 40/max_steps: 2/' messages.yaml >long.yaml
    run_bireme 0 train long.yaml
    use_page long-run chat completions
    use_page mlm-run fill-mask
    use_page classify-run classify
    use_page answer-run answer
}

test_openai() {
    python=${BIREME_PYTHON:-python3}
    "$python" -c 'import openai' 2>/dev/null || {
        echo 'skipped: no Python with the package openai'
        exit 77
    }
    run_bireme 0 train recipe.yaml
    start_server run
    "$python" "$source/scripts/clients/check_openai.py" "$url/v1" || fail 'the openai client'
    stop_server
}

run_part "$@"
