#!/bin/bash
# run_page.sh and check_links.sh can fail: each wrong page is noticed, and a correct one passes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
    echo "failed: $1" >&2
    cat "$folder/log" >&2
    exit 1
}

page() { # CODE LINE...: a page of these lines ends with this code
    local wanted=$1 code=0
    shift
    printf '%s\n' "$@" >"$folder/page.md"
    "$here/run_page.sh" "$folder/page.md" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "code $code instead of $wanted: $*"
}

page 0 '<!-- test -->' '```sh' 'true' '```'
page 0 '<!-- test: s/false/true/ -->' '```sh' 'false' '```'
page 0 '<!-- test exit 3 -->' '```sh' '(exit 3)' '```'
page 0 '<!-- file a/b: s/x/y/ -->' '```text' 'x' '```' '<!-- test -->' '```sh' 'grep -x y a/b' '```'
# shellcheck disable=SC2016
page 0 '<!-- setup' 'a=1' '-->' '<!-- test -->' '```sh' 'echo "a is $a"' '```' \
    '<!-- output: ^a is [1]$ -->'
page 77 '<!-- setup' 'exit 77' '-->' '<!-- test -->' '```sh' 'false' '```'
page 1 '<!-- test -->' '```sh' 'false' 'true' '```'
page 1 '<!-- test -->' '```sh' 'false | true' '```'
page 1 '<!-- test exit 3 -->' '```sh' 'true' '```'
page 1 '<!-- test -->' '```sh' 'echo a' '```' '<!-- output: b -->'
page 1 '<!-- test -->' 'no block follows'
page 1 'nothing to test'
page 1 '```sh' 'an open block'

links() { # CODE LINE...
    local wanted=$1 code=0
    shift
    rm -rf "$folder/tree" && mkdir "$folder/tree"
    printf '%s\n' "$@" >"$folder/tree/page.md"
    "$here/check_links.sh" "$folder/tree" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || fail "check_links: code $code instead of $wanted: $*"
}

# shellcheck disable=SC2016
links 0 '# A `name`: it' '[a](#a-name-it), [b](page.md), [c](https://example.org)'
links 1 '[a](missing.md)'
links 1 '# A' '[a](#b)'
echo "run_page.sh and check_links.sh notice what is wrong"
