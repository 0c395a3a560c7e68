#!/bin/bash
# The help of every command fits into the terminal, and all widths print the same words.
set -u
program=${BIREME_PROGRAM:?}
source "${BIREME_SOURCE_DIR:?}/tests/temporary_folder.sh"

# list_names SECTION ARGUMENT...: print the names in this section of a help.
list_names() {
    local section=$1
    shift
    COLUMNS=120 "$program" "$@" --help |
        awk -v section="$section" '!/^  / { inside = $0 == section; next }
            inside && /^  [^ ]/ { print $1 }'
}

# check_help ARGUMENT...: the help of a command has at most 60, 80 and 120 columns.
check_help() {
    local width
    for width in 60 80 120; do
        COLUMNS=$width "$program" "$@" --help >$width || fail "bireme $* --help ended with $?"
        awk -v width=$width 'length > width { print FILENAME ": " $0; bad = 1 } END { exit bad }' \
            $width >&2 || fail "bireme $* --help is wider than $width columns"
        ! grep -q ' $' $width || fail "bireme $* --help has a line that ends with a space"
        tr -s ' \n' '  ' <$width | sed 's/| /|/g' >words-$width # a list a|b|c can be broken
        cmp words-60 words-$width || fail "bireme $* --help differs in $width columns"
    done
}

check_help
for command in $(list_names commands:); do
    check_help "$command"
    for subcommand in $(list_names subcommands: "$command"); do
        check_help "$command" "$subcommand"
    done
done
[ "$(wc -l <60)" -gt 5 ] || fail 'no help'

# Values that are no width, and the default.
"$program" train --help >default
for width in '' no 0 -3 80; do
    COLUMNS=$width "$program" train --help | cmp - default || fail "COLUMNS=$width"
done
COLUMNS=1000 "$program" train --help >wide
COLUMNS=120 "$program" train --help | cmp - wide || fail 'a very wide terminal'

# The name of a command in nanoGPT leads to the command here.
"$program" sample >out 2>stderr
[ $? = 64 ] || fail 'an unknown command did not end with 64'
grep -q "unknown command 'sample'; use 'bireme generate'" stderr || fail 'sample gives no hint'

[ -e /dev/ptmx ] && script -qec true /dev/null >/dev/null 2>&1 || {
    echo 'skipped: no pseudo-terminals, or no program script'
    exit 77
}
script -qec "stty cols 60; COLUMNS=100 '$program' train --help" /dev/null | tr -d '\r' >terminal
COLUMNS=60 "$program" train --help | cmp - terminal || fail 'the width of the terminal is not used'
