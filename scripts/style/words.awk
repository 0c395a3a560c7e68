# Rule `words`: words and phrases that plain technical English does not use (docs/glossary.md lists
# the terms of the project). The rule checks comments and strings of C, C++ and CUDA, and all text
# of other files. It also finds a phrase that is split over two lines. Messages put names in single
# quotes.
BEGIN {
    words = "told|tells|knows|shall|thus|whose|whatever|anew|likewise|beside|behind" \
        "|modelling|behaviours?|colours?|coloured|catalogues?|favours?" \
        "|licences?|labell(ed|ing)|neighbour(s|ing)?|(un)?optimis(e|es|ed|ing|ations?)" # spelling
    phrases = "of its own|has not got|known by"
    # Legitimate uses, for example a public identifier: this text is not checked.
    allowed = "thus causing" # a message of mpirun
    outside = "[^a-z0-9_]"
}

# check TEXT: report the words of a line.
function check(text, lower, joined, start)
{
    sub(/^[ \t]*([*#]+|-)? */, "", text)
    lower = " " tolower(text) " "
    if (allowed != "") {
        gsub(allowed, "", lower)
    }
    joined = last == FNR - 1 ? tail lower : lower
    gsub(/[ \t]+/, " ", joined)
    while (lower ~ words && match(lower, outside "(" words ")" outside)) {
        report("words", FNR, substr(lower, RSTART + 1, RLENGTH - 2))
        lower = substr(lower, RSTART + RLENGTH - 1)
    }
    while (joined ~ phrases && match(joined, outside "(" phrases ")" outside)) {
        report("words", FNR, substr(joined, RSTART + 1, RLENGTH - 2))
        joined = substr(joined, RSTART + RLENGTH - 1)
    }
    if (text ~ /What|Of|So/ && text !~ /\?/ && !(FILENAME ~ /\.md$/ && /^#/)) {
        text = " " text
        if (match(text, /[^A-Za-z0-9_"'`(\/](What|Of|So) [a-z`]/) &&
            substr(text, RSTART + 1, 5) != "So et") {
            text = substr(text, RSTART + 1, RLENGTH - 3)
            report("words", FNR, "a sentence that begins with \"" text "\"")
        }
    }
    match(joined, /([^ ]+ )?([^ ]+ )? *$/)
    tail = substr(joined, RSTART)
    sub(/ +$/, "", tail)
    tail = " " tail
    last = FNR
}

FNR == 1 {
    last = -1
}

FILENAME ~ /\.(c|h|cc|cu|cuh|inc|proto)$/ {
    read_c_line($0)
    if (match($0, /\\"%[.0-9*]*s\\"[ ;)]/)) {
        report("words", FNR, "a name in double quotes; messages have single quotes")
    }
    if (comment != "" || strings != "") {
        check(comment (strings == "" ? "" : " " strings))
    }
    next
}

{
    check($0)
}
