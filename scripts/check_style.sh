#!/usr/bin/env bash
# Checks the manner of the house that a machine can check: format, length of files, words that do not
# belong in a finished tree, calls that lose errors or lengths, run bits, machine's paths.
#
#   scripts/check_style.sh [--fix]
#
# Prints `file:line: reason` for each finding and exits 1. --fix formats the C sources. clang-format is
# used where its version is the one that .clang-format was written for, and otherwise left out, said so.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly longest_file=700 format_version=14
findings=0

# report: every line of standard input is a finding.
report() {
    local line
    while IFS= read -r line; do
        echo "$line"
        findings=$((findings + 1))
    done
}

# files PATTERN...: what git tracks or would, of these patterns.
files() {
    git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r file; do
        if [ -f "$file" ]; then
            echo "$file"
        fi
    done
}

check_format() {
    local tool=clang-format
    if command -v "clang-format-$format_version" >/dev/null; then
        tool=clang-format-$format_version
    fi
    if ! "$tool" --version 2>/dev/null | grep -q "version $format_version\."; then
        echo "check_style: format not checked: clang-format $format_version is not here"
        return
    fi
    if [ "${1:-}" = --fix ]; then
        files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r "$tool" -i
    fi
    report < <(files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r "$tool" --dry-run 2>&1 |
        sed -n 's/^\([^:]*:[0-9]*\):[0-9]*: warning: .*/\1: not as clang-format writes it/p' |
        sort -u -t: -k1,1)
}

check_length() {
    report < <(files '*.c' '*.h' '*.sh' '*.py' '*.cc' '*.cu' '*.cuh' | xargs -r awk -v limit=$longest_file \
        'FNR == limit + 1 { print FILENAME ":" FNR ": longer than " limit " lines: split it by idea" }')
}

# check_words REASON EXPRESSION PATTERN...: no line of these files matches.
check_words() {
    local reason=$1 expression=$2
    shift 2
    report < <(files "$@" | grep -v '^scripts/check_style.sh$' | xargs -r grep -HnE "$expression" |
        awk -F: -v reason="$reason" '{ print $1 ":" $2 ": " reason }')
}

check_run_bits() {
    local file
    report < <(files 'scripts/*.sh' 'scripts/*.py' 'scripts/*.sbatch' .ci/run | while IFS= read -r file; do
        if head -c 2 "$file" | grep -q '#!' && [ ! -x "$file" ]; then
            echo "$file:1: begins with #! and may not be run: chmod +x"
        fi
    done)
}

check_format "$@"
check_length
check_words "an unfinished thing" '\b(TODO|FIXME|XXX|HACK)\b' '*.c' '*.h' '*.sh' '*.py' '*.yaml' '*.md' '*.txt' \
    '*.cc' '*.cu' '*.cuh'
check_words "an unfinished thing" '\b([Ss]tub|[Pp]laceholder)s?\b' '*.c' '*.h' '*.cc' '*.cu' '*.cuh'
check_words "loses errors or lengths: use base/text.h, snprintf, the caller's buffer" \
    '\b(atoi|atol|atof|gets|sprintf|vsprintf|alloca|strtok)\(' '*.c' '*.h' '*.cc' '*.cu' '*.cuh'
check_words "history in a name" '\b[a-z_]+_(old|new2|v2|bak)\(' '*.c' '*.h' '*.cc' '*.cu' '*.cuh'
check_words "a tab" "$(printf '\t')" '*.c' '*.h' '*.cc' '*.cu' '*.cuh' '*.sh' '*.py' '*.yaml'
check_words "a blank at the end" ' +$' '*.c' '*.h' '*.cc' '*.cu' '*.cuh' '*.sh' '*.py' '*.yaml' '*.txt'
check_words "a path of one machine" '(^|[^a-zA-Z0-9_./])/(work|home|root)/' '*.c' '*.h' '*.cc' '*.cu' '*.cuh' '*.sh' '*.py' '*.yaml' '*.md' '*.txt' '*.json'
check_run_bits
if [ "$findings" -gt 0 ]; then
    echo "check_style: $findings findings" >&2
    exit 1
fi
echo "check_style: clean"
