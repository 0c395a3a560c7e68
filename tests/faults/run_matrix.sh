#!/bin/bash
# Runs the fault matrix and prints result and time of each row.
#
#   tests/faults/run_matrix.sh [--record "MACHINE"] [--jobs N] [FOLDER]
#
# FOLDER is a build folder (default: build-release). With --record the results are written to
# times.tsv, together with the date and this description of the machine. The time of a row is the
# sum over its tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
machine='' jobs=1
while [ $# -gt 1 ]; do
    case $1 in
    --record) machine=$2 ;;
    --jobs) jobs=$2 ;;
    *) sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2 && exit 64 ;;
    esac
    shift 2
done
build=${1:-build-release}
report=$(mktemp)
trap 'rm -f "$report" "$report.rows"' EXIT

ctest --test-dir "$build" -L "^fault\$" --parallel "$jobs" --output-junit "$report" \
    --no-tests=error --output-on-failure || echo "run_matrix: some tests failed" >&2

# From the report of ctest: NAME RESULT SECONDS of each test.
expression='<testcase name="\([^"]*\)".* time="\([0-9.e+-]*\)" status="\([a-z]*\)"'
sed -n "s/.*$expression.*/\\1 \\3 \\2/p" "$report" >"$report.rows"
awk -F'\t' '
    FNR == NR { split($0, t, " "); state[t[1]] = t[2]; seconds[t[1]] = t[3]; next }
    /^#/ || $6 == "" { next }
    {
        count = split($6, names, " ")
        result = "passed"
        sum = 0
        for (i = 1; i <= count; i++) {
            s = state[names[i]]
            if (s == "fail") result = "failed"
            else if (s != "run" && result == "passed") result = "skipped"
            sum += seconds[names[i]]
        }
        printf "%s\t%s\t%.0f\n", $1, result, sum
    }' "$report.rows" tests/faults/matrix.tsv >"$report"
cat "$report"
if [ -n "$machine" ]; then
    {
        printf '# measured: Measured on %s: %s. The time of a row is the sum over its tests.\n' \
            "$(date +%F)" "$machine"
        printf '# name\tresult\tseconds\n'
        cat "$report"
    } >tests/faults/times.tsv
fi
! grep -q $'\tfailed\t' "$report"
