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
bits as without the fault. [exit_codes.md](exit_codes.md) describes the exit codes and the `E-`
words, [warnings.md](warnings.md) the `W-` names. 137 is the code of mpirun after a SIGKILL.

| | fault | promise | exit code | tests |
|---|---|---|---|---|
PAGE
    awk -F'\t' '!/^#/ {
        tests = $6
        gsub(/ /, "`, `", tests)
        tests = tests == "" ? "none" : "`" tests "`"
        printf "| %s | %s | %s | %s | %s |\n", $2, $3, $6 == "" ? $7 : $4, $5, tests
    }' $matrix
    cat <<'PAGE'

## Run the tests

`ctest --preset release -L '^fault$'` runs the whole matrix. Each test of a row has the label
`fault_NAME`, so that `ctest --preset release -L '^fault_rank_hangs$'` runs one row. A test that
cannot run on a machine is skipped and prints the reason.

The time of a row is the sum over its tests. The machines are AMD EPYC, 2 cores of a virtual machine
that was shared with other work; the load is the load average.

| | label | test time | measured | note |
|---|---|---|---|---|
PAGE
    awk -F'\t' '
        /^#/ { next }
        FNR == NR { if ($2 == "passed") { seconds[$1] = $3 " s"; measured[$1] = $4 }; next }
        { printf "| %s | `fault_%s` | %s | %s | %s |\n", $2, $1, seconds[$1], measured[$1], $7 }
        ' $times $matrix
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
