#!/usr/bin/env bash
# Writes the man pages of the commands and the completions for bash and zsh, from the tables that
# the program prints (--help=table, trainer/cli/options.h). The build runs it (target manual).
#
#   scripts/generate_manual.sh PROGRAM FOLDER
#
# FOLDER/man1/ receives bireme.1 and a page for each command and subcommand, FOLDER/bireme the
# completion for bash, and FOLDER/_bireme the one for zsh.
set -euo pipefail
readonly program=$1 folder=$2
source=$(cd "$(dirname "$0")/.." && pwd)
readonly source
mkdir -p "$folder/man1"
version=$("$program" --version | sed -n 's/^bireme //p')
readonly version

tables=$(mktemp -d)
trap 'rm -rf "$tables"' EXIT

# print_table [COMMAND [SUBCOMMAND]]: print the rows of a help. The program runs once for each help.
print_table() {
    local table="$tables/table $*"
    [ -e "$table" ] || "$program" "$@" --help=table >"$table"
    cat "$table"
}

# list_names KIND [COMMAND]: print the names of the commands or the subcommands.
list_names() {
    local kind=$1
    shift
    print_table "$@" | awk -F'\t' -v kind="$kind" '$1 == kind { print $2 }'
}

# list_pages: print "COMMAND" or "COMMAND SUBCOMMAND" for each help.
list_pages() {
    local command subcommand
    for command in $(list_names command); do
        echo "$command"
        for subcommand in $(list_names subcommand "$command"); do
            echo "$command $subcommand"
        done
    done
}

# The functions of the awk programs that write man pages.
# shellcheck disable=SC2016 # awk expands the dollar signs
readonly roff='
    function escape(text) {
        gsub(/\\/, "\\e", text)
        gsub(/-/, "\\-", text)
        return text
    }
    function print_line(text) { print (text ~ /^[.\x27]/ ? "\\&" : "") escape(text) }
    # Paragraphs are separated by empty lines. Indented lines keep their line breaks.
    function print_paragraphs(text,    lines, count, i, kept) {
        count = split(text, lines, /\\n/)
        for (i = 1; i <= count; i++) {
            if (lines[i] ~ /^  / && !kept) { print ".nf"; kept = 1 }
            if (lines[i] !~ /^  / && kept) { print ".fi"; kept = 0 }
            if (lines[i] == "") print ".PP"; else print_line(lines[i])
        }
        if (kept) print ".fi"
    }'

# write_page COMMAND [SUBCOMMAND]: write bireme-COMMAND.1 or bireme-COMMAND-SUBCOMMAND.1.
write_page() {
    local name=bireme-${*// /-} help
    name=${name// /-}
    help=$(if [ $# = 1 ]; then print_table; else print_table "$1"; fi |
        awk -F'\t' -v name="${!#}" '$1 ~ /command$/ && $2 == name { print $3 }')
    print_table "$@" | awk -F'\t' -v name="$name" -v help="$help" -v version="$version" "$roff"'
        function begin_section(title) {
            if (section != title) print ".SH " title
            section = title
        }
        BEGIN {
            printf ".TH %s 1 \"\" \"bireme %s\" \"User Commands\"\n", toupper(name), version
            begin_section("NAME")
            print escape(name) " \\- " escape(help)
        }
        $1 == "usage" {
            begin_section("SYNOPSIS")
            count = split($2, lines, /\\n/)
            for (i = 1; i <= count; i++) {
                if (i > 1) print ".br"
                print_line(lines[i])
            }
        }
        $1 == "description" { begin_section("DESCRIPTION"); print_paragraphs($2) }
        $1 == "subcommand" {
            begin_section("SUBCOMMANDS")
            printf ".TP\n.BR %s\\-%s (1)\n", escape(name), escape($2)
            print_line($3)
        }
        $1 == "option" {
            begin_section("OPTIONS")
            printf ".TP\n.BI \\-\\-%s%s\n", escape($2), $3 != "" ? " \" " escape($3) "\"" : ""
            note = $7
            if ($5 != "") note = note (note != "" ? "; " : "") "required"
            if ($6 != "") note = note (note != "" ? "; " : "") "default: " $6
            print_line($8 (note != "" ? " (" note ")" : ""))
        }
        $1 == "examples" {
            begin_section("EXAMPLES")
            print ".nf"
            count = split($2, lines, /\\n/)
            for (i = 1; i <= count; i++) print_line(lines[i])
            print ".fi"
        }
        END { print ".SH SEE ALSO\n.BR bireme (1)" }' >"$folder/man1/$name.1"
}

# write_main_page: write bireme.1 from docs/bireme.1, with the list of the commands.
write_main_page() {
    print_table | awk -F'\t' "$roff"'
        { printf ".TP\n.B %s\n", $2; print_line($3 "; see bireme-" $2 "(1)") }' >"$folder/commands"
    sed -e "/^@COMMANDS@$/{r $folder/commands
        d
    }" -e "s/@VERSION@/$version/" "$source/docs/bireme.1" >"$folder/man1/bireme.1"
    rm "$folder/commands"
}

# print_settings: print "section.key=" for each key of a recipe.
print_settings() {
    "$program" plan --document-keys | sed -nE \
        -e 's/^## `([a-z_]+)`.*/\1/; t section' \
        -e 's/^\| `([a-z_0-9]+)`.*/\1/; t key' -e 'd' \
        -e ':section; h; d' -e ':key; G; s/^([^\n]*)\n(.+)$/\2.\1=/; s/^([^\n]*)\n$/\1=/; p'
}

# write_bash: write the completion for bash.
write_bash() {
    local page
    cat <<'BASH'
# Completion of bireme for bash, generated by scripts/generate_manual.sh.

# _bireme_options PAGE: print the options of a command ("train") or subcommand ("tokenizer train").
_bireme_options() {
    case $1 in
BASH
    while read -r page; do
        # shellcheck disable=SC2086 # a page is one word or two
        print_table $page | awk -F'\t' -v page="$page" '
            $1 == "option" { text = text " --" $2 }
            $1 == "subcommand" { text = text " " $2 }
            END { printf "    \"%s\") echo \"%s --help\" ;;\n", page, substr(text, 2) }'
    done <<<"$pages"
    cat <<'BASH'
    esac
}

# _bireme_value PAGE OPTION: print the choices of a value; @ for a file, ? for any text. Print
# nothing for an option without a value.
_bireme_value() {
    case "$1 $2" in
BASH
    while read -r page; do
        # shellcheck disable=SC2086
        print_table $page | awk -F'\t' -v page="$page" '
            $1 == "option" && $3 != "" {
                gsub(/\|/, " ", $7)
                value = $7 != "" ? $7 : $3 ~ /FILE|DIR|PATH/ ? "@" : "?"
                printf "    \"%s --%s\") echo \"%s\" ;;\n", page, $2, value
            }'
    done <<<"$pages"
    cat <<'BASH'
    esac
}

# _bireme_operand PAGE: print the choices of an operand; @ for a file, with "=" also settings.
_bireme_operand() {
    case $1 in
BASH
    while read -r page; do
        # shellcheck disable=SC2086
        print_table $page | awk -F'\t' -v page="$page" '
            $1 == "usage" { settings = $2 ~ /section\.key=value/ ? "=" : "" }
            $1 == "operand" {
                gsub(/\|/, " ", $2)
                printf "    \"%s\") echo \"%s%s\" ;;\n", page,
                    $2 ~ /[A-Z]/ ? "@" : $2 " @", settings
            }'
    done <<<"$pages"
    cat <<BASH
    esac
}

_bireme_commands='$(list_names command | tr '\n' ' ')help --help --version'
_bireme_settings='$(print_settings | tr '\n' ' ')'
BASH
    cat <<'BASH'

_bireme() {
    local current=${COMP_WORDS[COMP_CWORD]} page='' option='' value i
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$_bireme_commands" -- "$current")
        return
    fi
    page=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" -gt 2 ] && [ -n "$(_bireme_options "$page ${COMP_WORDS[2]}")" ]; then
        page+=" ${COMP_WORDS[2]}"
    fi
    # The last option; the current word may be its value.
    for ((i = COMP_CWORD - 1; i > 1; i--)); do
        if [[ ${COMP_WORDS[i]} == --* ]]; then
            option=${COMP_WORDS[i]}
            break
        fi
    done
    value=$(_bireme_value "$page" "$option")
    if [[ $current == -* ]]; then
        value=$(_bireme_options "$page")
    elif [ -z "$value" ] || [ $((COMP_CWORD - i)) -gt 1 ]; then
        value=$(_bireme_operand "$page")
        [ -n "$value" ] || value=$(_bireme_options "$page")
    fi
    [[ $value != *=* ]] || value="${value/=/} $_bireme_settings"
    if [[ $value == *@* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null
        value=${value/@/}
    fi
    [ "$value" != '?' ] || value=''
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$value" -- "$current")
    [[ ${COMPREPLY[0]:-} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -F _bireme bireme
BASH
}

# write_zsh: write the completion for zsh.
write_zsh() {
    local page
    cat <<'ZSH'
#compdef bireme
# Completion of bireme for zsh, generated by scripts/generate_manual.sh.

_bireme_page() {
    case $1 in
ZSH
    while read -r page; do
        # shellcheck disable=SC2086
        print_table $page | awk -F'\t' -v page="$page" '
            function escape(text) {
                gsub(/\047/, "\047\\\047\047", text)
                gsub(/\[/, "\\[", text)
                gsub(/\]/, "\\]", text)
                gsub(/:/, "\\:", text)
                return text
            }
            function get_action(value, choices) {
                gsub(/\|/, " ", choices)
                return choices != "" ? "(" choices ")" : value ~ /FILE|DIR|PATH/ ? "_files" : ""
            }
            BEGIN { printf "    \047%s\047)\n        _arguments", page }
            $1 == "usage" { settings = $2 ~ /section\.key=value/ }
            $1 == "option" {
                printf " \\\n            \047%s--%s[%s]%s\047", $4 == "list" ? "*" : "", $2,
                    escape($8), $3 != "" ? ":" escape($3) ":" get_action($3, $7) : ""
            }
            $1 == "subcommand" { subcommands = subcommands " " $2 "\\:\"" escape($3) "\"" }
            $1 == "operand" {
                action = $2 ~ /[A-Z]/ ? "_files" : get_action("", $2)
                if (settings && action == "_files") action = "_bireme_operand"
                if (settings && action != "_bireme_operand")
                    printf " \\\n            \0471:%s:%s\047", escape($2), action
                if (settings) { $2 = "RECIPE"; action = "_bireme_operand" }
                printf " \\\n            \047*:%s:%s\047", escape($2), action
            }
            END {
                if (subcommands != "")
                    printf " \\\n            \0471:subcommand:((%s))\047", substr(subcommands, 2)
                print " \\\n            \047--help[show the help and exit]\047"
                print "        ;;"
            }'
    done <<<"$pages"
    cat <<ZSH
    esac
}

# A recipe, or a setting that overrides one of its settings.
_bireme_operand() {
    _files
    compadd -S '' -- $(print_settings | tr '\n' ' ')
}

_bireme() {
    local -a commands
    commands=(
$(print_table | awk -F'\t' '{ gsub(/:/, "\\:", $3); printf "        \047%s:%s\047\n", $2, $3 }')
    )
ZSH
    cat <<'ZSH'
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local page=$words[2]
    shift words
    ((CURRENT--))
    case "$page $words[2]" in
ZSH
    awk '
        NF == 2 { list = list (list != "" ? " | " : "") "\047" $0 "\047" }
        END { print "    " list ")" }' <<<"$pages"
    cat <<'ZSH'
        if ((CURRENT > 2)); then
            page+=" $words[2]"
            shift words
            ((CURRENT--))
        fi
        ;;
    esac
    _bireme_page "$page"
}

_bireme "$@"
ZSH
}

pages=$(list_pages)
readonly pages
write_main_page
while read -r page; do
    # shellcheck disable=SC2086
    write_page $page
done <<<"$pages"
write_bash >"$folder/bireme"
write_zsh >"$folder/_bireme"
