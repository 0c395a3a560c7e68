#!/usr/bin/env bash
# Measures the generated tokens per second of a running server with one client and with several.
#
#   scripts/bench/bench_serve.sh URL [ROUNDS] [CLIENTS] [TOKENS]
#
# Each round measures one client, then CLIENTS clients at the same time (default: 3 rounds, 8
# clients, 128 tokens). Each client requests one greedy text. Prints a line for each measurement.
set -euo pipefail
url=${1:?usage: scripts/bench/bench_serve.sh URL [ROUNDS] [CLIENTS] [TOKENS]}
rounds=${2:-3} clients=${3:-8} tokens=${4:-128}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# measure N: let N clients request a text each; print the rate.
measure() {
    local begin end i pids=() body
    body='{"prompt":"The License is granted by the copyright owner to You","temperature":0'
    body+=",\"max_tokens\":$tokens}"
    begin=$(date +%s.%N)
    for ((i = 0; i < $1; i++)); do
        curl -sf -m 600 -o "$folder/$i" -H 'Content-Type: application/json' -d "$body" \
            "$url/v1/completions" &
        pids+=($!)
    done
    wait "${pids[@]}"
    end=$(date +%s.%N)
    for ((i = 0; i < $1; i++)); do
        sed 's/.*"completion_tokens":\([0-9]*\).*/\1\n/' "$folder/$i"
    done | awk -v seconds="$(echo "$begin $end" | awk '{ print $2 - $1 }')" -v clients="$1" '
        { sum += $1 }
        END { printf "%d clients: %d tokens in %.2f s, %.1f tokens/s\n", clients, sum, seconds,
                     sum / seconds }'
}

for ((round = 0; round < rounds; round++)); do
    measure 1
    measure "$clients"
done
