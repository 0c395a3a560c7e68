#!/bin/bash
# What `bireme plan --cluster` predicts beside what `bireme bench step` measures, at several layouts of CPU ranks on this
# machine, from one description that `bireme bench cluster` makes of it with two ranks just before. About three minutes for
# GPT-2 124M on two cores; nothing else should run. docs/benchmarks/prediction_* keeps results.
# usage: scripts/check_prediction.sh [--repeats N] PROGRAM [section.key=value ...]
set -eu
repeats=3
[ "${1:-}" != --repeats ] || { repeats=$2 && shift 2; }
[ $# -ge 1 ] || {
    sed -n '2,6s/^# //p' "$0" >&2
    exit 64
}
program=$1
shift
export OMP_WAIT_POLICY=passive
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo '{model: {vocab_size: 50257}, data: {sequence_length: 256}, train: {max_steps: 1}}' >"$folder/recipe.yaml"

number() { # NAME: of JSON; the first one
    sed -nE "s/.*\"$1\": *([0-9.e-]+).*/\1/p" | head -n 1
}
on_ranks() { # RANKS ARGUMENT...
    mpirun --oversubscribe --bind-to none -np "$1" "$program" "${@:2}" 2>"$folder/told" </dev/null || {
        cat "$folder/told" >&2
        exit 1
    }
}

on_ranks 2 bench cluster --repeats "$repeats" batch.micro_size=2 batch.global_size=2 "$@" | tee "$folder/cluster.yaml"
printf '\n| ranks | tensor | ZeRO | checkpointing | measured ms | predicted ms | error |\n|---|---|---|---|---|---|---|\n'
while read -r ranks tensor stage again micro; do
    settings=(parallel.tensor="$tensor" parallel.zero_stage="$stage" train.activation_checkpointing="$again"
        batch.micro_size="$micro" batch.global_size=$((micro * ranks / tensor)) "$@")
    measured=$(on_ranks "$ranks" bench step --no-floor --json --repeats "$repeats" "${settings[@]}" | number step_seconds)
    predicted=$("$program" plan "$folder/recipe.yaml" --ranks "$ranks" --cluster "$folder/cluster.yaml" --json "${settings[@]}" \
        2>/dev/null | sed -n '/"prediction"/,$p' | number step_seconds)
    awk -v m="$measured" -v p="$predicted" -v l="| $ranks | $tensor | $stage | $again |" \
        'BEGIN { printf "%s %.0f | %.0f | %+.0f %% |\n", l, 1e3 * m, 1e3 * p, 100 * (p / m - 1) }'
done <<'END'
1 1 0 none 4
1 1 0 full 4
2 1 0 none 2
2 1 1 none 2
2 2 0 none 4
4 1 0 none 1
4 2 1 none 2
END
