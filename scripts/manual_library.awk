# Functions of the awk programs in manual_pairs.sh and manual_tasks.sh.

# Returns a text as printable ASCII with single blanks.
function clean(text) {
    gsub(/[\t\r]/, " ", text)
    gsub(/[^ -~]/, "", text)
    gsub(/  +/, " ", text)
    sub(/^ +/, "", text)
    sub(/ +$/, "", text)
    return text
}

# Returns a text as a JSON string, with byte 1 as a line break. gsub() is not used here, because
# implementations of awk treat its backslashes differently.
function quoted(text,    out, mark) {
    out = "\""
    while (match(text, /["\\\001]/)) {
        mark = substr(text, RSTART, 1)
        out = out substr(text, 1, RSTART - 1) "\\" (mark == "\001" ? "n" : mark)
        text = substr(text, RSTART + 1)
    }
    return out text "\""
}
