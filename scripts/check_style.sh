#!/usr/bin/env bash
# Checks the rules of style that a program can check (CONTRIBUTING.md).
#
#   scripts/check_style.sh [--changed] [OPTION] [ROOT]
#
# Without an option all rules are checked. --changed checks only the files that differ from the last
# commit, and untracked files. The rule `format` is skipped, with its reason, where clang-format is
# missing or has another version. Without ROOT, check_includes.sh and check_excerpts.sh run too,
# except with --rules and --format. Options:
#
#   --rules        check all rules except `format`
#   --format       check only `format`; exit code 77 if it is skipped
#   --ci FOLDER    check all rules; install clang-format into FOLDER if it is missing, and fail if
#                  it cannot be installed
#   --fix          format the C, C++ and CUDA files, then check all rules
#   --self-test    check a temporary tree with known violations of each rule and fail unless exactly
#                  these are reported
#
# Prints `file:line: rule: reason` for each violation and exits with code 1.
set -euo pipefail
export LC_ALL=C # one character is one byte for awk, grep and sort

readonly format_version=14.0.6 # the only place that names it; pip install clang-format==VERSION
readonly longest_file=700 longest_readme=850 # lines; words
readonly c_files='\.(c|h|cc|cu|cuh)$'
# These files may call malloc and calloc. If there is no memory, they continue, or return NULL or
# false. main.c allocates for jansson, and the examples use nothing but the library.
plain_allocation='^comm/(host/mpi_window|shared/space)\.c$'
plain_allocation+='|^kernels/(cpu/gemm/divisions|cuda/graph)\.c$'
plain_allocation+='|^trainer/(main|cli/output/prepare_report|formats/checkpoint/manifest)\.c$'
plain_allocation+='|^trainer/inference/server/(http|token_json)\.c$'
plain_allocation+='|^trainer/logging/(json_text|report/figures|report/page)\.c$'
plain_allocation+='|^trainer/library/examples/'
# These files may call strdup. If there is no memory, they continue without the text.
plain_copy='^datasets/chat/known_jinja\.c$|^trainer/(cli/inspect_run|logging/report/chart)\.c$'
plain_copy+='|^trainer/library/examples/'
readonly plain_allocation plain_copy
here=$(cd "$(dirname "$0")" && pwd)

usage() {
    sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 64
}

# list_files: write the paths of the tree's files to $work/all: those that git tracks or would
# track; without git, all files outside of build folders.
list_files() {
    local file
    if [ -e .git ] &&
        git ls-files --cached --others --exclude-standard >"$work/git" 2>/dev/null; then
        while IFS= read -r file; do
            if [ -f "$file" ]; then
                echo "$file"
            fi
        done <"$work/git"
    else
        find . -type d \( -name .git -o -path './build*' -o -name '.venv*' -o -name __pycache__ \
            -o -path ./runs -o -path ./data \) -prune -o -type f -print | sed 's|^\./||'
    fi | grep -v '^scripts/style/self_test.txt$' | sort >"$work/all" || true
}

# list_checked: write the paths of the files to check to $work/checked.
list_checked() {
    if [ $changed = no ]; then
        cp "$work/all" "$work/checked"
        return
    fi
    [ -e .git ] || {
        echo 'check_style: --changed needs a git repository' >&2
        exit 64
    }
    {
        git diff --name-only --relative HEAD
        git ls-files --others --exclude-standard
    } | sort -u | comm -12 - "$work/all" >"$work/checked"
}

# check_with PROGRAM PATHS [NOT]: run scripts/style/PROGRAM.awk on the files of which the path
# matches the expression PATHS and not the expression NOT.
check_with() {
    grep -E "$2" "$work/checked" | grep -vE "${3:-^$}" >"$work/list" || true
    awk -v list="$work/list" -f "$here/style/common.awk" -f "$here/style/$1.awk"
}

# check_names: run names.awk. The rule reads all files, because their names and headers define the
# prefixes of the functions, and reports only the files to check.
check_names() {
    grep -E "$c_files" "$work/all" >"$work/list" || true
    awk -v list="$work/list" -f "$here/style/common.awk" -f "$here/style/names.awk" |
        awk -F'[\t:]' 'FNR == NR { is_checked[$0] = 1; next } $2 in is_checked' "$work/checked" -
}

# check_lines RULE REASON EXPRESSION PATHS [NOT]: no line of the files of which the path matches the
# expression PATHS and not the expression NOT matches EXPRESSION.
check_lines() {
    grep -E "$4" "$work/checked" | grep -vE "${5:-^$}" | xargs -r grep -HnE "$3" /dev/null |
        awk -F: -v rule="$1" -v reason="$2" '{ print rule "\t" $1 ":" $2 ": " reason }' || true
}

check_length() {
    { grep -E '\.(c|h|cc|cu|cuh|sh|py|awk)$' "$work/checked" || true; } |
        xargs -r awk -v limit=$longest_file '
            FNR == limit + 1 {
                print "length\t" FILENAME ":" FNR ": more than " limit " lines; split the file by" \
                    " idea"
            }'
    if grep -qx README.md "$work/checked" && [ "$(wc -w <README.md)" -gt $longest_readme ]; then
        printf 'length\tREADME.md:1: more than %d words; use a page of docs/\n' $longest_readme
    fi
}

# check_heads: a source file without a header of the same name begins with a comment.
check_heads() {
    local file start
    grep -E '^(base|comm|datasets|kernels|trainer)/.*\.(c|cu)$' "$work/checked" |
        while IFS= read -r file; do
            if [ -e "${file%.*}.h" ] || [ -e "${file%.*}.cuh" ] || [ -e "${file%.*}_impl.h" ]; then
                continue
            fi
            IFS= read -r start <"$file" || true
            case $start in
            '/*'* | '') ;;
            *) printf 'heads\t%s:1: begin with a comment that describes the file\n' "$file" ;;
            esac
        done || true
}

check_run_bits() {
    local file start
    grep -E '^scripts/.*\.(sh|py|sbatch)$|(^|/)test_[^/]*\.sh$|^\.ci/run$' "$work/checked" |
        while IFS= read -r file; do
            if IFS= read -r -n 2 start <"$file" && [ "$start" = '#!' ] && [ ! -x "$file" ]; then
                printf 'run_bits\t%s:1: begins with #! and is not executable: chmod +x\n' "$file"
            fi
        done || true
}

# check_rules: print `rule TAB file:line: reason` for each violation of a rule other than `format`.
check_rules() {
    local text='\.(c|h|cc|cu|cuh|inc|sh|sbatch|py|awk|yaml|cmake)$|(^|/)CMakeLists\.txt$'
    check_with width \
        '\.(c|h|cc|cu|cuh|sh|sbatch|awk|md|cmake|yaml)$|(^|/)CMakeLists\.txt$|^\.ci/run$'
    check_names
    check_with docstrings '\.h$' '^tests/|_impl\.h$'
    check_with numbers '^(base|comm|datasets|kernels|trainer)/.*\.[ch]$' '^base/number\.h$'
    check_with words "$text"'|\.(proto|md|in|1)$|^\.ci/run$|^CMakePresets\.json$' '^scripts/style/'
    awk -f "$here/style/folders.awk" "$work/all"
    check_length
    check_lines unfinished "unfinished work" '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b' \
        "$text|\.(md|txt)\$"
    check_lines unfinished "unfinished work" '\b([Ss]tub|[Pp]laceholder)s?\b' "$c_files"
    check_lines unsafe "loses errors or lengths; use base/text.h, snprintf or the caller's buffer" \
        '\b(atoi|atol|atof|gets|sprintf|vsprintf|alloca|strtok)\(' "$c_files"
    check_lines messages "write for what: \"out of memory for %zu bytes of text\"" \
        '"out of memory[":]' '^(base|comm|datasets|kernels|trainer)/.*\.c$'
    check_lines memory "use ALLOCATE, GROW or RESERVE (base/memory.h)" \
        '\b(malloc|calloc|realloc)\(' '^(comm|datasets|kernels|trainer)/.*\.(c|h|cu|cuh)$' \
        "$plain_allocation"
    check_lines memory "use memory_copy_text or memory_copy_bytes (base/memory.h)" \
        '\bstrn?dup\(' '^(comm|datasets|kernels|trainer)/.*\.(c|h|cu|cuh)$' "$plain_copy"
    check_lines history "a name with history" '\b[a-z_]+_(old|new2|v2|bak)\(' "$c_files"
    check_lines blanks "a tab" "$(printf '\t')" "$text"
    check_lines blanks "a blank at the end of the line" ' $' "$text|\.txt\$"
    check_lines paths "a path of one machine" '(^|[^a-zA-Z0-9_./])/(work|home|root)/' \
        "$text"'|\.(md|txt|json)$'
    check_heads
    check_run_bits
}

# find_format [FOLDER]: set $tool to a clang-format of the pinned version; fail if there is none.
find_format() {
    for tool in "${CLANG_FORMAT:-}" "${1:-build}"/clang-format/bin/clang-format \
        build*/clang-format/bin/clang-format clang-format-14 clang-format; do
        if [ -n "$tool" ] &&
            "$tool" --version 2>/dev/null | grep -qE "version ${format_version//./\\.}( |\$)"; then
            return 0
        fi
    done
    return 1
}

# install_format FOLDER: install the pinned clang-format into a virtual environment in this folder.
install_format() {
    timeout 120 python3 -m venv "$1/clang-format" >"$work/pip" 2>&1 &&
        timeout 120 "$1/clang-format/bin/python" -m pip install --quiet \
            --disable-pip-version-check "clang-format==$format_version" >>"$work/pip" 2>&1
}

# check_format: print `format TAB file:line: reason` for each line that $tool would change.
check_format() {
    { grep -E "$c_files" "$work/checked" || true; } | xargs -r "$tool" --dry-run 2>&1 |
        awk -F: '/: warning: / {
            print "format\t" $1 ":" $2 ": clang-format would change this line (--fix does it)"
        }' | sort -u
}

# write_tree FOLDER: write the files of scripts/style/self_test.txt into the folder and the
# violations that they contain to $work/expected.
write_tree() {
    awk -v folder="$1" '
        /^=== / { file = folder "/" $2; name = $2; line = 0; next }
        /^violations: / {
            count = split($0, rule, " ")
            for (i = 2; i <= count; i++) {
                print rule[i] "\t" name ":" line + 1
            }
            next
        }
        file != "" { line++; print > file }' "$here/style/self_test.txt" | sort >"$work/expected"
}

# expect_result CODE TEXT ARGUMENT...: this script ends with this code and prints this text.
expect_result() {
    local code=0 expected=$1 text=$2 output
    shift 2
    output=$("$here/check_style.sh" "$@" 2>&1) || code=$?
    if [ "$code" != "$expected" ] || ! grep -qF "$text" <<<"$output"; then
        echo "self-test: check_style.sh $* ended with code $code, not with $expected and '$text':"
        echo "$output"
        missed=1
    fi
}

# test_format: the rule `format` in $work/small with other clang-format programs and without one.
test_format() {
    local bin=$work/bin small=$work/small
    local path=$bin:$PATH program
    mkdir -p "$bin"
    for program in clang-format clang-format-14; do
        printf '#!/bin/sh\necho clang-format version 13.0.1\n' >"$bin/$program"
    done
    printf '#!/bin/sh\nexit 1\n' >"$bin/python3"
    chmod +x "$bin/"*
    local -x CLANG_FORMAT=
    PATH=$path expect_result 0 "skipped: clang-format $format_version is not installed" "$small"
    PATH=$path expect_result 77 "skipped: clang-format $format_version is not installed" \
        --format "$small"
    PATH=$path expect_result 1 "clang-format $format_version is missing" --ci "$bin" "$small"

    cat >"$bin/clang-format" <<TOOL
#!/bin/sh
[ "\$1" = --version ] && echo "clang-format version $format_version" && exit
echo "base/width.c:1:9: warning: code should be clang-formatted [-Wclang-format-violations]" >&2
TOOL
    PATH=$path expect_result 1 'base/width.c:1: format: ' --format "$small"
    PATH=$path expect_result 1 'base/width.c:1: format: ' --ci "$bin" "$small"
    if find_format; then
        printf 'int  base_width( void );\n' >"$small/base/width.h"
        CLANG_FORMAT=$tool expect_result 1 'base/width.h:1: format: ' --format "$small"
    fi
}

# test_changed: --changed checks only changed and new files.
test_changed() {
    local tree=$work/changed
    mkdir -p "$tree/base"
    command -v git >/dev/null && git init -q "$tree" || {
        echo 'self-test: --changed is not tested without git'
        return
    }
    printf '/* %s */\nint base_first(void);\n' TO''DO >"$tree/base/first.c"
    git -C "$tree" add base
    git -C "$tree" -c user.name=test -c user.email=test@localhost commit -qm 'base: first'
    expect_result 1 'base/first.c:1: unfinished: ' --rules "$tree"
    expect_result 0 'clean' --changed "$tree"
    printf '/* The file first.c permits this prefix. */\nint first_run(void);\n' \
        >"$tree/base/first_part.c"
    expect_result 0 'clean' --changed "$tree"
    printf '/* No file permits this prefix. */\nint other_run(void);\n' >"$tree/base/second.c"
    expect_result 1 'base/second.c:2: names: ' --changed "$tree"
    expect_result 1 'check_style: 1 violations' --changed "$tree"
    rm "$tree/base/second.c"
    printf '/* A comment. */\nint base_first(void);\n/* %s */\n' TO''DO >"$tree/base/first.c"
    expect_result 1 'base/first.c:3: unfinished: ' --changed "$tree"
    rm -rf "$tree/.git"
    expect_result 64 'needs a git repository' --changed "$tree"
}

self_test() {
    local tree=$work/tree i path
    missed=0
    sed -n 's/^=== //p' "$here/style/self_test.txt" | while IFS= read -r path; do
        mkdir -p "$tree/$(dirname "$path")"
    done
    write_tree "$tree"
    chmod +x "$tree/scripts/runs.sh"
    mkdir -p "$tree/comm" "$tree/kernels/cpu" "$tree/trainer/model" "$tree/tests/many"
    for ((i = 1; i <= 45; i++)); do
        [ $i -gt 41 ] || : >"$tree/comm/file$i.c"
        : >"$tree/kernels/cpu/file$i.cu"
        [ $i -gt 21 ] || : >"$tree/trainer/model/file$i.c"
        [ $i -gt 10 ] || : >"$tree/trainer/model/file$i.h"
        : >"$tree/tests/many/test$i.c"
    done
    awk -v lines=$((longest_file + 1)) 'BEGIN { while (lines-- > 0) print "/* */" }' \
        >"$tree/base/long.c"
    awk -v words=$((longest_readme + 1)) 'BEGIN { while (words-- > 0) print "word" }' \
        >"$tree/README.md"
    printf '%s\t%s\n' folders comm/:1 folders kernels/cpu/:1 folders trainer/model/:1 \
        length base/long.c:$((longest_file + 1)) length README.md:1 >>"$work/expected"
    (cd "$tree" && list_files && list_checked && check_rules) | sed 's/^\([^:]*:[0-9]*\):.*/\1/' |
        sort >"$work/found"
    sort -o "$work/expected" "$work/expected"
    if ! diff "$work/expected" "$work/found" >"$work/diff"; then
        sed -n 's/^< /self-test: not reported: /p; s/^> /self-test: reported by mistake: /p' \
            "$work/diff"
        missed=1
    fi

    expect_result 1 'base/width.c:3: width: ' --rules "$tree"
    mkdir -p "$work/small/base"
    echo '/* */' >"$work/small/base/width.c"
    expect_result 0 'clean' --rules "$work/small"

    test_format
    test_changed
    return $missed
}

option=all folder='' changed=no
if [ "${1:-}" = --changed ]; then
    changed=yes
    shift
fi
case ${1:-} in
--ci)
    option=--ci folder=${2:?"--ci needs a folder"}
    shift 2
    ;;
--rules | --format | --fix | --self-test)
    option=$1
    shift
    ;;
-*) usage ;;
esac
[ $# -le 1 ] || usage
other_checks=()
case $option:$# in
all:0 | --fix:0 | --ci:0) other_checks=(check_includes.sh check_excerpts.sh) ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$option" = --self-test ]; then
    self_test
    echo "check_style: the check reports exactly the known violations"
    exit 0
fi
cd "${1:-$here/..}"
list_files
list_checked

if [ "$option" != --rules ]; then
    if find_format "$folder" ||
        { [ "$option" = --ci ] && install_format "$folder" && find_format "$folder"; }; then
        if [ "$option" = --fix ]; then
            grep -E "$c_files" "$work/checked" | xargs -r "$tool" -i
        fi
        check_format >>"$work/found"
    elif [ "$option" = --ci ]; then
        tail -n 5 "$work/pip" >&2
        printf 'format\t.clang-format:1: clang-format %s is missing and pip did not install it\n' \
            "$format_version" >>"$work/found"
    else
        echo "check_style: skipped: clang-format $format_version is not installed" \
            "(pip install clang-format==$format_version)"
        [ "$option" != --format ] || exit 77
    fi
fi
if [ "$option" != --format ]; then
    check_rules >>"$work/found" # not after "||", where bash ignores errors
fi
awk -F '\t' '{
    split($2, part, ":")
    print part[1] ":" part[2] ": " $1 substr($2, length(part[1]) + length(part[2]) + 2)
}' "$work/found" | sort -t: -k1,1 -k2,2n >"$work/new"
failed=0
if [ -s "$work/new" ]; then
    cat "$work/new"
    echo "check_style: $(wc -l <"$work/new") violations" >&2
    failed=1
else
    echo "check_style: clean"
fi
for check in "${other_checks[@]}"; do
    "$here/$check" || failed=1
done
exit $failed
