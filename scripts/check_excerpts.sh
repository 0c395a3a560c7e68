#!/usr/bin/env bash
# Checks that the code excerpts in the developer documentation match the sources.
#
#   scripts/check_excerpts.sh [--self-test] [ROOT]
#
# An excerpt is a fenced block in docs/adding/, docs/design/ or CONTRIBUTING.md that begins with a
# path: "/* trainer/main.c */" or "# tests/CMakeLists.txt". Its lines must occur in that file in
# this order, without regard to indentation. A line "..." stands for omitted lines. Prints
# `page:line: reason` for each violation and exits with code 1.
set -euo pipefail

# check_tree ROOT: check all pages of a tree.
check_tree() {
    (cd "$1" && awk '
        function trim(text) {
            gsub(/^[ \t]+|[ \t]+$/, "", text)
            return text
        }
        function fail(reason) {
            print FILENAME ":" FNR ": " reason
            failed = 1
        }
        function close_source() {
            if (source != "") {
                close(source)
            }
            source = ""
        }
        # find: read the source up to this line; missing lines are reported once per excerpt.
        function find(wanted, text, state) {
            while ((state = (getline text < source)) > 0) {
                if (trim(text) == wanted) {
                    return 1
                }
            }
            return state < 0 ? -1 : 0
        }
        FNR == 1 { fenced = 0; close_source() }
        /^```/ {
            fenced = !fenced
            first = fenced
            close_source()
            next
        }
        fenced && first {
            first = 0
            if (match($0, /^(\/\*|#) [a-zA-Z0-9_.\/]+\/[a-zA-Z0-9_.]+( \*\/)?$/)) {
                split($0, word, " ")
                source = word[2]
                excerpts++
            }
            next
        }
        fenced && source != "" && trim($0) != "" && trim($0) != "..." {
            state = find(trim($0))
            if (state < 1) {
                fail(state < 0 ? "no file " source : source " does not contain this line here")
                close_source()
            }
        }
        END {
            if (excerpts == 0) {
                print "check_excerpts: no excerpts found"
                failed = 1
            }
            exit failed
        }' docs/adding/*.md docs/design/*.md CONTRIBUTING.md)
}

# self_test: check a page with one wrong line, one line in the wrong order and one missing file.
self_test() {
    local root found
    root=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder exists now
    trap "rm -rf '$root'" EXIT
    mkdir -p "$root/docs/adding" "$root/docs/design" "$root/base"
    printf 'int a;\nint b;\nint c;\n' >"$root/base/a.c"
    # shellcheck disable=SC2016 # the quotes of Markdown
    {
        printf '```c\n/* base/a.c */\nint a;\n...\n  int c;\n```\n'  # correct
        printf '```c\n/* base/a.c */\nint b;\nint a;\n```\n'         # line 10: order
        printf '```c\n/* base/a.c */\nint d;\n```\n'                 # line 14: missing
        printf '```c\n/* base/b.c */\nint a;\n```\n```\nint e;\n```\n' # line 18: no file
    } >"$root/docs/adding/a.md"
    printf '# Title\n' | tee "$root/docs/design/b.md" >"$root/CONTRIBUTING.md"
    found=$(check_tree "$root" | cut -d: -f2 | tr '\n' ' ' || true)
    if [ "$found" != "10 14 18 " ]; then
        echo "self-test: reported lines $found instead of 10 14 18"
        exit 1
    fi
    echo "check_excerpts: the check reports every known violation"
}

if [ "${1:-}" = --self-test ]; then
    self_test
    exit
fi
if ! check_tree "${1:-$(dirname "$0")/..}"; then
    echo "check_excerpts: update the excerpts above" >&2
    exit 1
fi
echo "check_excerpts: clean"
