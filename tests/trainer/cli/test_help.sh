#!/bin/bash
# The help of every command fits into the terminal, and has the same words at all widths. The help
# ends with examples, and the command accepts these examples.
# ctest: timeout 120
set -u
program=${BIREME_PROGRAM:?}
source "${BIREME_SOURCE_DIR:=$PWD}/tests/temporary_folder.sh"

# list_names SECTION: print the names in this section of the help that check_help has written last.
list_names() {
    awk -v section="$1" '!/^  / { inside = $0 == section; next }
        inside && /^  [^ ]/ { print $1 }' 120
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

# These functions replace the programs of the examples. A call only parses its options.
bireme() {
    echo "$*" >>calls
    "$program" "$@" --help=check >>output 2>&1 || echo "bireme $*" >>output
}
mpirun() {
    shift 2 # -np N
    "$@"
}

# check_examples ARGUMENT...: the help that check_help has written last has one to three examples.
# Each is a call of this command that the command accepts.
check_examples() {
    local count
    sed '1,/^examples:$/d; s/^  //' 80 >examples
    count=$(grep -c '^[^ ]' examples)
    [ "$count" -ge 1 ] && [ "$count" -le 3 ] || fail "bireme $* --help has $count examples"
    : >calls
    : >output
    (eval "$(cat examples)") >unused 2>&1 || fail "bireme $*: an example fails: $(cat unused)"
    ! [ -s output ] || fail "bireme $*: an example is refused: $(cat output)"
    [ "$(grep -c "^$* " calls)" = "$count" ] ||
        fail "bireme $*: not all examples call the command: $(cat calls)"
}

check_help
commands=$(list_names commands:)
for command in $commands; do
    check_help "$command"
    check_examples "$command"
    for subcommand in $(list_names subcommands:); do
        check_help "$command" "$subcommand"
        check_examples "$command" "$subcommand"
    done
done
# The examples would not be checked if --help=check accepted every option.
for arguments in 'train recipe.yaml --resum=never' 'train' 'chat --checkpoint run --top-k x'; do
    # shellcheck disable=SC2086 # several arguments
    "$program" $arguments --help=check 2>stderr
    [ $? = 64 ] || fail "--help=check accepts 'bireme $arguments'"
done
[ "$(wc -w <<<"$commands")" -gt 20 ] || fail "commands: $commands"

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
grep -q "unknown command 'sample'; use .bireme generate." stderr || fail 'sample gives no hint'

[ -e /dev/ptmx ] && script -qec true /dev/null >/dev/null 2>&1 || {
    echo 'skipped: no pseudo-terminals, or no program script'
    exit 77
}
script -qec "stty cols 60; COLUMNS=100 '$program' train --help" /dev/null | tr -d '\r' >terminal
COLUMNS=60 "$program" train --help | cmp - terminal || fail 'the width of the terminal is not used'
