#!/bin/bash
# Runs the fault matrix and prints result and time of each row.
#
#   tests/faults/run_matrix.sh [--record "MACHINE"] [--only REGEX] [--jobs N] [FOLDER]
#
# FOLDER is a build folder (default: build). --only selects tests by their name. --jobs runs N tests
# at the same time, except those that need the whole machine. With --record the results are written
# to times.tsv and the page docs/reference/reliability.md, each row with the date and this
# description of the machine, such as "Zen 4, load 20". The time of a row is the sum over its tests.
# Rows of which a test was not run keep their results. The reason of each skipped test is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."
machine='' jobs=1 only=. failed=no
while [[ $# -gt 1 || ${1:-} == -* ]]; do
    case $1:${2:-} in
    --record:?*) machine=$2 ;;
    --jobs:[1-9]*) jobs=$2 ;;
    --only:?*) only=$2 ;;
    *) sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2 && exit 64 ;;
    esac
    shift 2
done
build=${1:-build}
report=$(mktemp)
trap 'rm -f "$report" "$report.rows"' EXIT

ctest --test-dir "$build" -L "^fault\$" -R "$only" --parallel "$jobs" --output-junit "$report" \
    --no-tests=error --output-on-failure || {
    echo "run_matrix: some tests failed" >&2
    failed=yes
}

awk -F'"' '/<testcase name=/ { name = $2 }
    /skipped: / { sub(/.*skipped: /, ""); print "run_matrix: " name " was skipped: " $0 }' "$report"

# From the report of ctest: NAME RESULT SECONDS of each test.
expression='<testcase name="\([^"]*\)".* time="\([0-9.e+-]*\)" status="\([a-z]*\)"'
sed -n "s/.*$expression.*/\\1 \\3 \\2/p" "$report" >"$report.rows"
[ "$jobs" = 1 ] || machine=${machine:+$machine, $jobs tests at the same time}
awk -F'\t' -v report="$report.rows" -v old=tests/faults/times.tsv \
    -v measured="$(date +%F), $machine" '
    BEGIN {
        while ((getline line <report) > 0) {
            split(line, t, " ")
            state[t[1]] = t[2]
            seconds[t[1]] = t[3]
        }
        while ((getline line <old) > 0) {
            split(line, t, "\t")
            before[t[1]] = line
        }
    }
    /^#/ || $6 == "" { next }
    {
        count = split($6, names, " ")
        result = "passed"
        sum = 0
        complete = 1
        for (i = 1; i <= count; i++) {
            s = state[names[i]]
            if (s == "") complete = 0
            else if (s == "fail") result = "failed"
            else if (s != "run" && result == "passed") result = "skipped"
            sum += seconds[names[i]]
        }
        if (complete) printf "%s\t%s\t%.0f\t%s\n", $1, result, sum, measured
        else if ($1 in before) print before[$1]
    }' tests/faults/matrix.tsv >"$report"
cat "$report"
if [ -n "$machine" ]; then
    {
        printf '# name\tresult\tseconds\tmeasured\n'
        cat "$report"
    } >tests/faults/times.tsv
    scripts/generate_reliability.sh
fi
[ $failed = no ] && ! grep -q $'\tfailed\t' "$report"
