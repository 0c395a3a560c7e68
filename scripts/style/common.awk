# Functions that the other programs of this folder share. They run with mawk, gawk and busybox awk.
#
# The variable `list` names a file with the paths to read, one per line. All of them are read by one
# process, so that a rule can compare files.
BEGIN {
    if (list != "") {
        while ((getline path < list) > 0) {
            ARGV[ARGC++] = path
        }
        close(list)
        if (ARGC == 1) {
            exit
        }
    }
}

# report RULE, LINE, MESSAGE: print a finding in the current file.
function report(rule, line, message)
{
    print rule "\t" FILENAME ":" line ": " message
}

# columns TEXT: the width of a line in columns. A multibyte character of UTF-8 is one column.
function columns(text)
{
    gsub(/[\200-\277]/, "", text)
    return length(text)
}

# read_c_line LINE: split a line of C, C++ or CUDA. Sets `code` (the line without comments, with
# empty strings), `comment` and `strings` (the text of the comments and of the string literals).
function read_c_line(line, rest, at, quote)
{
    if (FNR == 1) {
        in_comment = 0
    }
    code = comment = strings = ""
    rest = line
    while (rest != "") {
        if (in_comment) {
            at = index(rest, "*/")
            if (at == 0) {
                comment = comment rest
                return
            }
            comment = comment substr(rest, 1, at - 1)
            rest = substr(rest, at + 2)
            in_comment = 0
            continue
        }
        if (!match(rest, /\/\*|\/\/|"|'/)) {
            code = code rest
            return
        }
        code = code substr(rest, 1, RSTART - 1)
        quote = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (quote == "/*") {
            in_comment = 1
            comment = comment " "
        } else if (quote == "//") {
            comment = comment rest
            return
        } else {
            code = code quote
            if (quote == "'") {
                match(rest, /^([^'\\]|\\.)*'/)
            } else {
                match(rest, /^([^"\\]|\\.)*"/)
            }
            if (RSTART > 0) {
                strings = strings " " substr(rest, 1, RLENGTH - 1)
                code = code quote
                rest = substr(rest, RLENGTH + 1)
            }
        }
    }
}

# read_declaration: pass the code of one line on; returns 1 at the end of a function's prototype or
# of a function definition's head. Sets `name`, `declared_at` (the line where it begins),
# `is_static` (not visible to other files) and `is_prototype`. The format of the sources makes this
# possible without a compiler: a declaration outside of functions begins in the first column, and so
# does the brace of a function's body.
function read_declaration()
{
    if (FNR == 1 || $0 ~ /^ *$/) {
        declaration = "" # a macro without a semicolon is no declaration
        in_macro = 0
    }
    if (in_macro || code ~ /^ *#/) {
        in_macro = code ~ /\\$/
        return 0
    }
    sub(/ +$/, "", code)
    if (declaration == "") {
        if (code !~ /^[A-Za-z_]/ || code ~ /^[A-Za-z_0-9]+:($|[^:])/) {
            return 0
        }
        declaration = code
        declared_at = FNR
    } else if (code ~ /^[{]/) {
        return end_declaration(0)
    } else {
        declaration = declaration " " code
    }
    if (code ~ /;$/) {
        return end_declaration(1)
    }
    if (code ~ /[{]$/) {
        declaration = ""
    }
    return 0
}

# end_declaration PROTOTYPE: find the name of a function; returns 0 if it is another declaration.
function end_declaration(prototype, text, head, at)
{
    text = declaration
    declaration = ""
    gsub(/__attribute__ *\(\(([^()]|\([^()]*\))*\)\)/, "", text)
    gsub(/(__launch_bounds__|alignas|_Alignas) *\([^()]*\)/, "", text)
    at = index(text, "(")
    head = substr(text, 1, at - 1)
    if (at == 0 || substr(text, at + 1, 1) == "*" || head ~ /=|^typedef/ ||
        !match(head, /[A-Za-z_][A-Za-z_0-9]*$/)) {
        return 0
    }
    name = substr(head, RSTART)
    head = substr(head, 1, RSTART - 1)
    if (head ~ /^ *$/ || head ~ /::$/ || name !~ /[a-z]/) {
        return 0 # a macro's use, or a member of a class
    }
    is_static = head ~ /(^|[^a-z_])static[^a-z_]|INLINE|__global__|__device__/
    is_prototype = prototype
    return 1
}
