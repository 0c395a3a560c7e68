#!/bin/bash
# The man pages describe every command and option, and the completions for bash and zsh offer
# them.
set -u
program=${BIREME_PROGRAM:?} source=${BIREME_SOURCE_DIR:?}
source "${BIREME_SOURCE_DIR:=$PWD}/tests/temporary_folder.sh"

"$source/scripts/generate_manual.sh" "$program" manual || fail 'no manual'

# check_page ARGUMENT...: the page of a command has the options and the examples of its help. groff
# reports no error.
check_page() {
    local name option
    name=$(IFS=- && echo "bireme-$*")
    [ -s "manual/man1/$name.1" ] || fail "no page $name"
    COLUMNS=120 "$program" "$@" --help | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' |
        grep -v '^help$' >options
    sed 's/\\-/-/g' "manual/man1/$name.1" >page
    while read -r option; do
        grep -qE "^\.BI --$option( |\$)" page || fail "the page $name has no option --$option"
    done <options
    COLUMNS=120 "$program" "$@" --help | sed '1,/^examples:$/d; s/^  //' >examples
    sed -n '/^\.SH EXAMPLES$/,/^\.fi$/p' page | sed '1,2d; $d; s/\\e/\\/g' | cmp - examples ||
        fail "the page $name has other examples"
    [ -s examples ] || fail "bireme $* --help has no examples"
    if command -v groff >/dev/null; then
        groff -man -ww -Tutf8 "manual/man1/$name.1" 2>&1 >/dev/null | grep . &&
            fail "groff reports errors in $name"
    fi
    return 0
}

pages=0
for command in $("$program" --help=table | cut -f2); do
    check_page "$command"
    pages=$((pages + 1))
    subcommands=$("$program" "$command" --help=table | sed -n 's/^subcommand.\([a-z]*\).*/\1/p')
    for subcommand in $subcommands; do
        check_page "$command" "$subcommand"
        pages=$((pages + 1))
    done
    grep -q "^\.B $command$" manual/man1/bireme.1 || fail "bireme.1 does not list $command"
done
[ "$pages" -gt 25 ] && [ "$(find manual/man1 -name '*.1' | wc -l)" = $((pages + 1)) ] ||
    fail "$pages pages"
! grep -q '@' manual/man1/bireme.1 || fail 'a place in bireme.1 is not filled'

# expect_completion WORDS EXPECTED...: bash completes the last word of WORDS to these words, among
# others. A word with a leading "!" must be missing.
expect_completion() {
    local words=$1 word
    shift
    (
        compopt() { :; } # it works only in a real completion
        # shellcheck source=/dev/null
        . manual/bireme
        IFS='|' read -ra COMP_WORDS <<<"$words"
        [[ $words != *'|' ]] || COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _bireme
        printf '%s\n' "${COMPREPLY[@]}"
    ) >completed
    for word in "$@"; do
        if [[ $word == !* ]]; then
            ! grep -qxF -e "${word#!}" completed || fail "'$words' completes to ${word#!}"
        else
            grep -qxF -e "$word" completed ||
                fail "'$words' gives no $word: $(tr '\n' ' ' <completed)"
        fi
    done
}

touch recipe.yaml
expect_completion 'bireme|' train tokenizer --version help
expect_completion 'bireme|t' train tokenizer '!chat'
expect_completion 'bireme|tokenizer|' train encode decode
expect_completion 'bireme|tokenizer|train|--' --vocab-size --input '!--special'
expect_completion 'bireme|tokenizer|train|--type|' bpe char '!recipe.yaml'
expect_completion 'bireme|tokenizer|train|--type|bpe|--v' --vocab-size
expect_completion 'bireme|generate|--checkpoint|re' recipe.yaml
expect_completion 'bireme|generate|--max-new-tokens|' '!recipe.yaml'
expect_completion 'bireme|train|' recipe.yaml model.num_layers= run_dir=
expect_completion 'bireme|train|recipe.yaml|train.p' train.precision= '!model.num_layers='
expect_completion 'bireme|train|recipe.yaml|--' --resume --help
expect_completion 'bireme|bench|' kernels comm
expect_completion 'bireme|bench|--json|k' kernels

command -v zsh >/dev/null || {
    echo 'skipped: zsh is not installed; man pages and bash passed'
    exit 77
}
cat >stub.zsh <<'END'
_arguments() { print -rl -- "$@" }
_describe() { print -rl -- "${(@P)2}" }
words=("$@")
CURRENT=$#
END
# expect_zsh WORDS TEXT: the completion for zsh passes this text to zsh.
expect_zsh() {
    local words=$1
    IFS='|' read -ra list <<<"$words"
    [[ $words != *'|' ]] || list+=('')
    zsh -f -c 'source ./stub.zsh; source manual/_bireme' zsh "${list[@]}" >completed 2>stderr ||
        fail "zsh: $(cat stderr)"
    grep -qF -e "$2" completed || fail "zsh: '$words' gives no $2: $(cat completed stderr)"
}
expect_zsh 'bireme|' 'train:train a model from a recipe'
expect_zsh 'bireme|tokenizer|' 'train\:"train a tokenizer on text files"'
expect_zsh 'bireme|tokenizer|train|--' '--type[type of the tokenizer]:TYPE:(bpe wordpiece'
expect_zsh 'bireme|train|' '*:RECIPE:_bireme_operand'
expect_zsh 'bireme|serve|--' '--host['

# Tests the completion in zsh with zsh's functions, on a pseudo-terminal.
cat >real.zsh <<'END'
zmodload zsh/zpty
zpty real env TERM=dumb COLUMNS=100 zsh -f -i
zpty -w real "PS1=; fpath=($PWD/manual \$fpath); autoload -Uz compinit
compinit -u -d $PWD/dump; setopt no_list_beep; echo rea''dy"
zpty -r real text '*ready*'
zpty -w -n real "$1"$'\t\t'
zpty -r real text "*$2*"
END
# expect_typed WORDS TEXT: after WORDS and two presses of Tab, zsh prints this text.
expect_typed() {
    timeout 60 zsh -f real.zsh "$1" "$2" >typed 2>&1 || fail "zsh: Tab after '$1' gives no $2"
}
expect_typed 'bireme tok' 'bireme tokenizer '
expect_typed 'bireme tokenizer tr' 'bireme tokenizer train '
expect_typed 'bireme tokenizer train --type ' wordpiece
expect_typed 'bireme tokenizer train --vo' 'train --vocab-size '
expect_typed 'bireme train rec' 'bireme train recipe.yaml '
expect_typed 'bireme train recipe.yaml train.preci' 'train.precision='
expect_typed 'bireme serve --api' '--api-key-file '
