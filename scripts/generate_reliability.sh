#!/usr/bin/env bash
# Writes docs/reference/reliability.md from the fault matrix, tests/faults/matrix.tsv, and the
# measured times, tests/faults/times.tsv. tests/faults/run_matrix.sh --record measures the times.
#
#   scripts/generate_reliability.sh [--check]
#
# With --check the file is compared instead of written: the exit code is 1 if it differs.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly page=docs/reference/reliability.md
readonly matrix=tests/faults/matrix.tsv times=tests/faults/times.tsv

write_page() {
    cat <<'PAGE'
# Reliability

This page lists each fault, what Bireme promises after it, and the tests.
`scripts/generate_reliability.sh` writes the page from `tests/faults/matrix.tsv` and
`tests/faults/times.tsv`; edit these files, not the page.

A checkpoint that was reported as saved (`saved step N`) stays valid after each of these faults,
unless a row states otherwise. The same command then resumes, and the final weights have the same
bits as those of a run without the fault. [exit_codes.md](exit_codes.md) describes the exit codes
and the `E-` lines, [warnings.md](warnings.md) the `W-` lines. 137 is the code of mpirun after a
SIGKILL. In the last column, `skipped` means that the tests did not have what their note requires,
and `not measured` that no time has been recorded.

PAGE
    sed -n 's/^# measured: //p' $times | fmt -w 100
    cat <<'PAGE'

| | fault | promise | exit code | test time |
|---|---|---|---|---|
PAGE
    awk -F'\t' '
        FNR == NR { if ($0 !~ /^#/) { result[$1] = $2; seconds[$1] = $3 }; next }
        /^#/ { next }
        {
            promise = $4
            if ($6 == "") time = "not tested"
            else if (!($1 in result)) time = "not measured"
            else if (result[$1] == "passed") time = seconds[$1] " s"
            else time = result[$1]
            if ($6 == "") promise = $7
            printf "| %s | %s | %s | %s | %s |\n", $2, $3, promise, $5, time
        }' $times $matrix
    cat <<'PAGE'

## Tests

`ctest --preset release -L '^fault$'` runs the whole matrix. Each test of a row has the label
`fault_NAME`, so that `ctest --preset release -L '^fault_rank_hangs$'` runs one row. A test that
cannot run on a machine is skipped and prints the reason.

| | label | tests | note |
|---|---|---|---|
PAGE
    awk -F'\t' '!/^#/ {
        tests = $6
        gsub(/ /, "`, `", tests)
        if (tests != "") tests = "`" tests "`"
        printf "| %s | `fault_%s` | %s | %s |\n", $2, $1, tests, $7
    }' $matrix
}

if [ "${1:-}" != --check ]; then
    write_page >"$page.tmp"
    mv "$page.tmp" "$page"
    exit
fi
if ! write_page | diff -u "$page" -; then
    echo "generate_reliability: $page differs; run scripts/generate_reliability.sh" >&2
    exit 1
fi
