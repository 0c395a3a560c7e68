#!/bin/bash
# Runs the commands of one documentation page in a temporary folder, to check that they work.
#
#   run_page.sh PAGE.md        BIREME_PROGRAM and BIREME_SOURCE_DIR are set by ctest
#
# The comments of the page, which readers do not see, select what is run, in the order of the page:
#
#   <!-- test -->              run the next fenced block with bash
#   <!-- test: SED -->         the same, after `sed -E SED` has made its sizes small
#   <!-- test exit N -->       the same; its last command must end with code N (": SED" may follow)
#   <!-- file PATH -->         write the next fenced block to PATH
#   <!-- file PATH: SED -->    the same, after `sed -E SED`
#   <!-- output: TEXT -->      the last block must print TEXT, which may be a grep -E expression
#   <!-- setup                 run the following lines, up to the line with the end of the comment
#
# All blocks of a page share one shell: variables, functions and the folder remain. `bireme` is on
# PATH. The folder has copies of recipes/ and scripts/, and corpus/ with the text of the license in
# several files. Blocks that call mpirun are skipped if MPI is missing, and blocks that train in fp8
# if the processor has no bf16. Exit code 77: skipped.
#
# At the end, each field of each metrics.jsonl that the page wrote must be documented.
set -euo pipefail

page=$(realpath "${1:?usage: run_page.sh PAGE.md}")
source_folder=${BIREME_SOURCE_DIR:?} program=${BIREME_PROGRAM:?}
folder=$(mktemp -d)
mkdir "$folder/bin" "$folder/steps" "$folder/work"
ln -s "$program" "$folder/bin/bireme"
export PATH=$folder/bin:$PATH OMP_THREAD_LIMIT=1 OMP_WAIT_POLICY=passive BIREME_PLANS=off
# The thread sanitizer does not see the barriers of OpenMP; on one core, a rank has one thread.
if [ -n "${TSAN_OPTIONS:-}" ]; then
    taskset -pc "$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')" $$ >/dev/null
fi
# More ranks than cores, with Open MPI 4 and 5.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

step='the beginning' output=$folder/output line=0
: >"$output"

clean_up() {
    local code=$?
    if [ "$code" != 0 ] && [ "$code" != 77 ]; then
        echo "run_page: $page: line $line failed with code $code: $step; the end of its output:" >&2
        tail -n 30 "$output" >&2
    fi
    rm -rf "$folder"
}
trap clean_up EXIT

# split_page: write steps/NNNN.body and steps/NNNN.head (line, kind, exit code, path, sed script).
split_page() {
    awk -v steps="$folder/steps" '
        function begin(kind, code, path, script) {
            name = sprintf("%s/%04d", steps, ++count)
            printf "%d\n%s\n%s\n%s\n%s\n", NR, kind, code, path, script >(name ".head")
            close(name ".head")
            printf "" >(name ".body")
        }
        function after_colon(text) { return sub(/^[^:]*: */, "", text) ? text : "" }
        hidden && /^-->/ { hidden = 0; close(name ".body"); next }
        hidden { print >>(name ".body"); next }
        block && /^ *```/ { block = 0; taken = 0; close(name ".body"); next }
        block { if (taken) print >>(name ".body"); next }
        /^<!-- setup *$/ { begin("setup", 0, "", ""); hidden = 1; next }
        /^<!-- (test|file|output)/ {
            text = $0
            sub(/^<!-- /, "", text)
            sub(/ *-->.*$/, "", text)
            split(text, word, /[ :]+/)
            if (word[1] == "output") {
                begin("output", 0, "", after_colon(text))
            } else if (word[1] == "file") {
                begin("file", 0, word[2], after_colon(text))
                block_expected = 1
            } else {
                begin("test", word[2] == "exit" ? word[3] : 0, "", after_colon(text))
                block_expected = 1
            }
            next
        }
        /^ *```/ { block = 1; taken = block_expected; block_expected = 0; next }
        END { exit block_expected || hidden || block || !count }' "$page"
}

has_mpi() {
    command -v mpirun >/dev/null && bireme --version | grep -q '^MPI  *MPI'
}

has_bf16() {
    local message
    message=$(bireme plan recipes/t5_base.yaml train.precision=bf16 2>&1) || true
    [[ $message != *'precision bf16: this processor lacks'* ]]
}

# run_block BODY CODE: run a block, which must end with this code.
run_block() {
    local expected=$2 code=0
    if [ "$expected" = 0 ]; then
        # shellcheck disable=SC1090
        . "$1" >"$output" 2>&1
        return
    fi
    (
        set -e
        # shellcheck disable=SC1090
        . "$1"
    ) >"$output" 2>&1 && code=0 || code=$?
    [ "$code" = "$expected" ] || {
        echo "exit code $code instead of $expected" >>"$output"
        return 1
    }
}

if ! split_page; then
    echo "run_page: $page: no commands to test, or a comment or a block without its end" >&2
    exit 1
fi
cd "$folder/work"
cp -r "$source_folder/recipes" "$source_folder/scripts" .
mkdir corpus
awk '{ print >("corpus/part" int(NR / 70) ".txt") }' "$source_folder/LICENSE"
# shellcheck source=tests/docs/small.sh
. "$source_folder/tests/docs/small.sh"

skipped=0 missing=no
for head in "$folder"/steps/*.head; do
    {
        read -r line && read -r kind && read -r code && IFS= read -r path && IFS= read -r script
    } <"$head"
    body=${head%.head}.body
    step="$kind $path $script"
    case $kind in
    setup | test)
        [ -z "$script" ] || sed -E -i "$script" "$body"
        if { grep -q mpirun "$body" && ! has_mpi; } ||
            { grep -q 'precision=fp8' "$body" && ! has_bf16; }; then
            skipped=$((skipped + 1)) missing=yes
            continue
        fi
        missing=no
        run_block "$body" "$code"
        ;;
    file)
        mkdir -p "$(dirname "$path")"
        sed -E "$script" "$body" >"$path"
        ;;
    output)
        [ $missing = yes ] || grep -qE -e "$script" "$output"
        ;;
    esac
done

# list_undocumented: print the fields of the runs that neither metrics.md nor a guide contains.
list_undocumented() {
    find . -name metrics.jsonl -exec cat {} + | tr -d ' ' | grep -oE '[{,]"[a-z0-9_]+":' |
        tr -d '{,":' | sort -u | sed 's/^tensor_comm_/comm_/' |
        grep -vxFf <(grep -ohE '[a-z0-9_]+' "$source_folder"/docs/reference/metrics.md \
            "$source_folder"/docs/guide/*.md)
}
if list_undocumented >"$output"; then
    step='documented metrics' code=1
    false
fi
steps=$(find "$folder/steps" -name '*.head' | wc -l)
echo "$(basename "$page"): $steps steps, $skipped skipped without MPI or bf16"
