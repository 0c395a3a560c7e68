# Rule `docstrings`: a comment of the form "name - what it does" stands directly above every
# prototype and every inline function of a public header. The part after the hyphen begins with a
# verb. An inline function with a prototype above it needs no second comment. A comment may cover
# several prototypes in a row if it names all of them. Its fields have the order of CONTRIBUTING.md.
# Headers that are private to their folder (*_impl.h) are exempt.
BEGIN {
    refers = "^ [A-Za-z_0-9, ]+ - (the same|as|like|see|also) "
    fields = "Shapes Units Memory Order Numerics Returns Errors Source"
}

FNR == 1 {
    heading = 0
    text = ""
}

{
    continues = in_comment && FNR > 1
    read_c_line($0)
    if (continues || /^\/\*/) {
        if (!continues) {
            text = ""
            last_field = 0
        }
        sub(/^ *\*/, "", comment)
        if (text ~ /^ [A-Za-z_0-9, ]+ - / &&
            comment ~ /^ (Shapes|Units|Memory|Order|Numerics|Returns|Errors|Source)  /) {
            split(comment, part, " ")
            if (index(fields, part[1]) <= last_field) {
                report("docstrings", FNR, "the field " part[1] " follows a later field; see " \
                    "CONTRIBUTING.md")
            }
            last_field = index(fields, part[1])
        }
        if (comment ~ /^ (Shapes|Units|Memory|Order|Numerics)  (.*; )? *returns /) {
            report("docstrings", FNR, "the returned value belongs in the field Returns")
        }
        text = text " " comment
        if (!in_comment) {
            gsub(/ +/, " ", text)
            heading = text ~ /^ [A-Za-z_0-9]+(,( and)? [A-Za-z_0-9]+)* - /
        }
        if (code ~ /^ *$/) {
            next
        }
    }
    if (read_declaration()) {
        named = (" " text " ") ~ "[^A-Za-z_0-9]" name "[^A-Za-z_0-9]"
        if (heading && named) {
            documented[FILENAME, name] = 1
            if (text ~ refers) {
                report("docstrings", declared_at, "begin with a verb: \"" name " - return ...\"")
            }
        } else if (!((FILENAME, name) in documented)) {
            report("docstrings", declared_at, "no comment \"" name " - ...\" above the function")
        }
        if (!is_prototype) {
            heading = 0
        }
    } else if (declaration == "") {
        heading = 0
    }
}
