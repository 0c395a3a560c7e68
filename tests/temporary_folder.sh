#!/bin/bash
# Sourced by shell tests: changes to a temporary folder, which is removed at the end.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

# fail TEXT: end the test.
fail() {
    echo "failed: $1" >&2
    exit 1
}

# run_part PART: run the function test_PART, a part of the comment `# ctest: parts` of the test.
run_part() {
    declare -F "test_${1:-}" >/dev/null ||
        fail "no part '${1:-}'; the parts are $(sed -n 's/^# ctest: parts //p' "$0" | tr '\n' ' ')"
    "test_$1"
}
