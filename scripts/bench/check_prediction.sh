#!/bin/bash
# Compares the step time that `bireme plan --cluster` predicts with the one that `bireme bench step`
# measures, for several layouts of CPU ranks on this machine.
#
#   scripts/bench/check_prediction.sh [--repeats N] PROGRAM [section.key=value ...]
#
# First, `bireme bench cluster` measures the machine with two ranks. All predictions use its result.
# The script takes about three minutes for GPT-2 124M on two cores. Run no other program meanwhile.
# docs/benchmarks/prediction_* contains results.
set -eu
repeats=3
[ "${1:-}" != --repeats ] || { repeats=$2 && shift 2; }
[ $# -ge 1 ] || {
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
program=$1
shift
export OMP_WAIT_POLICY=passive
# Open MPI runs as root only with both of these.
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo '{model: {vocab_size: 50257}, data: {sequence_length: 256}, train: {max_steps: 1}}' \
    >"$folder/recipe.yaml"

# print_number NAME: print the first number with this name in the JSON text of standard input.
print_number() {
    sed -nE "s/.*\"$1\": *([0-9.e-]+).*/\1/p" | head -n 1
}

# run_on_ranks RANKS ARGUMENT...: run the program on this number of ranks. If it fails, print its
# errors.
run_on_ranks() {
    mpirun --oversubscribe --bind-to none -np "$1" "$program" "${@:2}" \
        2>"$folder/errors" </dev/null || {
        cat "$folder/errors" >&2
        exit 1
    }
}

run_on_ranks 2 bench cluster --repeats "$repeats" batch.micro_size=2 batch.global_size=2 "$@" |
    tee "$folder/cluster.yaml"
printf '\n| ranks | tensor | ZeRO | checkpointing | measured ms | predicted ms | error |\n'
printf '|---|---|---|---|---|---|---|\n'
while read -r ranks tensor stage recompute micro; do
    settings=(parallel.tensor="$tensor" parallel.zero_stage="$stage"
        train.activation_checkpointing="$recompute"
        batch.micro_size="$micro" batch.global_size=$((micro * ranks / tensor)) "$@")
    measured=$(run_on_ranks "$ranks" bench step --no-roofline --json --repeats "$repeats" \
        "${settings[@]}" | print_number step_seconds)
    predicted=$("$program" plan "$folder/recipe.yaml" --ranks "$ranks" \
        --cluster "$folder/cluster.yaml" --json "${settings[@]}" 2>/dev/null |
        sed -n '/"prediction"/,$p' | print_number step_seconds)
    awk -v m="$measured" -v p="$predicted" -v l="| $ranks | $tensor | $stage | $recompute |" \
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
