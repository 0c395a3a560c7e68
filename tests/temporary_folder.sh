#!/bin/bash
# Sourced by shell tests: changes to a temporary folder, which is removed at the end unless
# BIREME_KEEP is 1.
folder=$(mktemp -d)
trap remove_folder EXIT
cd "$folder" || exit 1

# remove_folder: remove the temporary folder. A test that sets another trap calls it there.
remove_folder() {
    if [ "${BIREME_KEEP:-}" = 1 ]; then
        echo "kept: $folder"
    else
        rm -rf "$folder"
    fi
}

outputs=(out stderr output log) # fail prints the end of each of these files

# fail TEXT: end the test. Prints the lines of the test that led here, the innermost one first, and
# the last output of the program.
fail() {
    local i file text="failed: $1"
    {
        for ((i = 1; i < ${#BASH_SOURCE[@]}; i++)); do
            case ${BASH_SOURCE[i]} in
            */temporary_folder.sh | */tiny_training.sh) ;;
            *)
                echo "${BASH_SOURCE[i]}:${BASH_LINENO[i - 1]}: $text"
                text='called from here'
                ;;
            esac
        done
        [ "$text" = 'called from here' ] || echo "$text"
        for file in "${outputs[@]}"; do
            if [ -s "$file" ]; then
                echo "--- the last lines of $file:"
                tail -n 40 "$file" | cut -b 1-1000
            fi
        done
    } >&2
    exit 1
}

# run_part PART: run the function test_PART, a part of the comment `# ctest: parts` of the test.
run_part() {
    declare -F "test_${1:-}" >/dev/null ||
        fail "there is no part '${1:-}': the test has no function test_${1:-}"
    "test_$1"
}
