#!/bin/bash
# Tests that the scripts of this folder report each wrong page and accept correct ones.
# ctest: name docs_can_fail
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
source "$here/../temporary_folder.sh"

check_page() { # CODE LINE...: run a page of these lines, which must end with this code
    local expected=$1 code=0
    shift
    printf '%s\n' "$@" >"$folder/page.md"
    "$here/run_page.sh" "$folder/page.md" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$expected" ] || fail "code $code instead of $expected: $*"
}

check_page 0 '<!-- test -->' '```sh' 'true' '```'
check_page 0 '<!-- test: s/false/true/ -->' '```sh' 'false' '```'
check_page 0 '<!-- test exit 3 -->' '```sh' '(exit 3)' '```'
check_page 0 '<!-- file a/b: s/x/y/ -->' '```text' 'x' '```' '<!-- test -->' '```sh' \
    'grep -x y a/b' '```'
# shellcheck disable=SC2016
check_page 0 '<!-- setup' 'a=1' '-->' '<!-- test -->' '```sh' 'echo "a is $a"' '```' \
    '<!-- output: ^a is [1]$ -->'
check_page 77 '<!-- setup' 'exit 77' '-->' '<!-- test -->' '```sh' 'false' '```'
check_page 1 '<!-- test -->' '```sh' 'false' 'true' '```'
check_page 1 '<!-- test -->' '```sh' 'false | true' '```'
check_page 1 '<!-- test exit 3 -->' '```sh' 'true' '```'
check_page 1 '<!-- test -->' '```sh' 'echo a' '```' '<!-- output: b -->'
check_page 0 '<!-- test -->' '```sh' 'echo "{\"loss\": 1}" >metrics.jsonl' '```'
check_page 1 '<!-- test -->' '```sh' 'echo "{\"undocumented\": 1}" >metrics.jsonl' '```'
check_page 1 '<!-- test -->' 'no block follows'
check_page 1 'nothing to test'
check_page 1 '```sh' 'an open block'

check_links() { # CODE LINE...: check the links of a page of these lines
    local expected=$1 code=0
    shift
    rm -rf "$folder/tree" && mkdir "$folder/tree"
    printf '%s\n' "$@" >"$folder/tree/page.md"
    "$here/check_links.sh" "$folder/tree" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$expected" ] || fail "check_links: code $code instead of $expected: $*"
}

# shellcheck disable=SC2016
check_links 0 '# A `name`: it' '[a](#a-name-it), [b](page.md), [c](https://example.org)'
check_links 1 '[a](missing.md)'
check_links 1 '# A' '[a](#b)'

fields=('Main result' Prediction Measured Hardware Software 'Runs and spread' Date Commit Command)
check_records() { # CODE DATE: check a record with these fields, and an index with this date
    local expected=$1 code=0
    rm -rf "$folder/tree" && mkdir "$folder/tree"
    printf -- '- **%s:** x\n' "${fields[@]}" >"$folder/tree/a_b_2026-01-02.md"
    echo "| [a](a_b_2026-01-02.md) | $2 |" >"$folder/tree/README.md"
    "$here/check_records.sh" "$folder/tree" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$expected" ] || fail "check_records: code $code instead of $expected: $2"
}

check_records 0 2026-01-02
check_records 1 2026-01-03
unset 'fields[1]'
check_records 1 2026-01-02

# shellcheck disable=SC2016
check_warnings() { # CODE CALL PAGE: check a tree with this call, this page and version of HDF5
    local expected=$1 code=0 tree=$folder/warnings
    mkdir -p "$tree"/{base,comm,datasets/shard,kernels,trainer,docs/reference,docs/guide}
    echo '#if H5_VERSION_GE(1, 10, 7)' >"$tree/datasets/shard/h5file.c"
    echo "- HDF5 $version or newer" >"$tree/docs/guide/multi_node.md"
    printf '    %s\n' 'log_warning(' '"ONE", "text");' "$2" >"$tree/base/log.c"
    printf '%s\n' '| `W-ONE` | text |' "$3" >"$tree/docs/reference/warnings.md"
    "$here/check_warnings.sh" "$tree" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$expected" ] || fail "check_warnings: code $code instead of $expected: $2 $3"
}

version=1.10.7
check_warnings 0 '' ''
version=1.10.6 check_warnings 1 '' ''
check_warnings 0 'log_warning("TWO", "text");' '| `W-TWO` | text |'
check_warnings 1 'log_warning("TWO", "text");' ''
check_warnings 1 '' '| `W-TWO` | text |'
check_warnings 1 'log_warning("TWO", "text");' '| `TWO` | text |'
check_warnings 1 'log_warning(name, "text");' ''

check_architectures() { # CODE PAGE SED: check the documents after this change to a page
    local expected=$1 code=0 page
    rm -rf "$folder/tree"
    for page in README.md docs/reference/architectures.md recipes/README.md \
        trainer/model/architecture.c; do
        mkdir -p "$folder/tree/$(dirname "$page")"
        cp "$here/../../$page" "$folder/tree/$page"
    done
    sed -i -e "$3" "$folder/tree/$2"
    "$here/check_architectures.sh" "$folder/tree" >"$folder/log" 2>&1 || code=$?
    [ "$code" = "$expected" ] || fail "check_architectures: code $code instead of $expected: $2 $3"
}

check_architectures 0 README.md ''
check_architectures 1 README.md 's/ModernBERT//'
check_architectures 1 docs/reference/architectures.md '/^| `t5`/d'
check_architectures 1 trainer/model/architecture.c '/^ \* gemma2 /d'
check_architectures 1 recipes/README.md 's/^| `architecture` | /&a_new_one, /'
echo "run_page.sh, check_links.sh, check_records.sh, check_warnings.sh and check_architectures.sh" \
    "report each error"
