#!/usr/bin/env bash
# Compares three ways in which the threads of a training step wait: the default of libgomp, short
# spinning (GOMP_SPINCOUNT=2000, the default of bireme) and one thread. Each one is measured without
# other work ("idle"), next to one busy loop per core ("busy"), and next to one loop per core that
# computes and sleeps in turn for 50 ms ("half"). The runs alternate, so that a drift of the machine
# affects all of them.
#
#   scripts/bench/bench_waits.sh [BUILD_FOLDER [RECIPE [STEPS [ROUNDS]]]] > docs/benchmarks/NAME.md
#
# The defaults are build, recipes/shakespeare_char.yaml, 20 steps and 3 rounds. The record is
# written to standard output, the progress to standard error. Run it on an idle machine.
set -euo pipefail
export LC_ALL=C # a point in EPOCHREALTIME
cd "$(dirname "$0")/../.."
build=${1:-build} recipe=${2:-recipes/shakespeare_char.yaml} steps=${3:-20} rounds=${4:-3}
program=$build/trainer/bireme
work=$(mktemp -d)
loops=()
stop_loops() {
    [ ${#loops[@]} = 0 ] || kill "${loops[@]}" 2>/dev/null || true
    loops=()
}

# compute LOAD: compute until the process ends; for the load "half", sleep half of the time.
compute() {
    local end
    while :; do
        end=$((${EPOCHREALTIME/./} + 50000))
        while [ "${EPOCHREALTIME/./}" -lt $end ]; do :; done
        [ "$1" = busy ] || sleep 0.05
    done
}
trap 'stop_loops; rm -rf "$work"' EXIT
unset OMP_WAIT_POLICY GOMP_SPINCOUNT OMP_NUM_THREADS

# measure WAY FILE: append the time of a step in seconds to the file. BIREME_SPINCOUNT_SET keeps the
# program from setting GOMP_SPINCOUNT.
measure() {
    local variable=GOMP_SPINCOUNT=2000 settings=(model.vocab_size=65) # as in shakespeare_char
    [ "$1" != default ] || variable=BIREME_SPINCOUNT_SET=1
    [ "$1" != one ] || settings+=(parallel.threads=1)
    env "$variable" "$program" bench step "$recipe" "${settings[@]}" --repeats "$steps" \
        --no-roofline --json >"$work/out" 2>"$work/stderr" || {
        cat "$work/stderr" >&2
        return 1
    }
    grep -o '"step_seconds":[0-9.e-]*' "$work/out" | cut -d: -f2 >>"$2"
}

for ((round = 1; round <= rounds; round++)); do
    for load in idle busy half; do
        if [ "$load" != idle ]; then
            for ((core = 0; core < $(nproc); core++)); do
                compute $load &
                loops+=($!)
            done
        fi
        for way in default short one; do
            echo "round $round of $rounds: $load, $way" >&2
            measure "$way" "$work/$way-$load"
        done
        stop_loops
    done
done

# print_row LABEL FILE: print the median, the smallest and the largest time in milliseconds.
print_row() {
    sort -g "$2" | awk -v label="$1" '{ t[NR] = 1000 * $1 }
        END { printf "| %s | %.1f | %.1f | %.1f |\n", label, t[int((NR + 1) / 2)], t[1], t[NR] }'
}

cat <<END
# Waiting OpenMP threads on a shared machine

- **Measured:** the time of a training step with the default of libgomp, with short spinning
  (\`GOMP_SPINCOUNT=2000\`, the default of bireme) and with \`parallel.threads=1\`; alone ("idle"),
  next to one busy loop per core ("busy"), and next to one loop per core that computes and sleeps in
  turn for 50 ms ("half").
- **Hardware:** $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores.
- **Software:** $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), $("$program" --version |
    sed -n 's/^compiler *//p').
- **Runs:** $rounds alternating rounds of $steps steps each.
- **Date:** $(date -u +%F).
- **Commit:** $("$program" --version | sed -n 's/^commit *//p').
- **Command:** \`scripts/bench/bench_waits.sh $build $recipe $steps $rounds\`

| other work, threads | median ms | smallest ms | largest ms |
|---|---|---|---|
END
for load in idle busy half; do
    print_row "$load, default of libgomp" "$work/default-$load"
    print_row "$load, short spinning" "$work/short-$load"
    print_row "$load, one thread" "$work/one-$load"
done
