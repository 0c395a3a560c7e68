# Rule `width`: at most 100 columns. In Markdown, tables, code blocks and lines without a blank
# where they could be wrapped are exempt.
BEGIN {
    limit = 100
}

FNR == 1 {
    fenced = indented = in_list = 0
    blank = 1
}

FILENAME ~ /\.md$/ {
    if (/^ *(```|~~~)/) {
        fenced = !fenced
        next
    }
    if (fenced) {
        next
    }
    if (/^ *$/) {
        blank = 1
        next
    }
    indented = /^    / && !in_list && (blank || indented)
    if (/^[^ ]/) {
        in_list = /^([-*+]|[0-9]+[.)]) /
    }
    blank = 0
    if (indented || /^ *\|/) {
        next
    }
}

length($0) > limit && columns($0) > limit {
    if (FILENAME ~ /\.md$/) {
        text = $0
        sub(/^ *(([-*+>]|[0-9]+[.)]|\[[^ ]*\]:) +)?/, "", text)
        if (substr(text, 1, limit + length(text) - length($0)) !~ / /) {
            next
        }
    }
    report("width", FNR, columns($0) " columns; at most " limit)
}
