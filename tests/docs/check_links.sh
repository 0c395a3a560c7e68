#!/bin/bash
# Checks that each relative link of the Markdown files leads to a file and, if it has a fragment, to
# a heading.
# usage: check_links.sh [FOLDER]; the default is BIREME_SOURCE_DIR
set -euo pipefail
cd "${1:-${BIREME_SOURCE_DIR:?}}"

# print_headings FILE: print the fragments that GitHub makes of its headings, one per line.
print_headings() {
    awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ +/, ""); print tolower($0) }' "$1" |
        sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# print_links FILE: print "line target" of each relative link outside of code blocks.
print_links() {
    awk '/^ *```/ { code = !code; next }
        !code {
            gsub(/`[^`]*`/, "")
            while (match($0, /\]\([^)]*\)/)) {
                print NR, substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
            }
        }' "$1" | grep -vE '^[0-9]+ [a-z]+:' || true
}

broken=0 count=0
while IFS= read -r file; do
    while read -r line target; do
        count=$((count + 1))
        path=${target%%#*} fragment=
        [ "$path" = "$target" ] || fragment=${target#*#}
        path=${path:+$(dirname "$file")/$path}
        if [ ! -e "${path:-$file}" ]; then
            echo "$file:$line: no such file: $target"
            broken=$((broken + 1))
        elif [ -n "$fragment" ] && ! print_headings "${path:-$file}" |
            grep -xqF -e "$fragment"; then
            echo "$file:$line: no such heading: $target"
            broken=$((broken + 1))
        fi
    done < <(print_links "$file")
done < <(find . -name '*.md' -not -path './build*' -not -path './data/*' -not -path './runs/*' \
    -not -path './.venv*' | sort)
echo "check_links: $count links, $broken broken"
[ "$count" -gt 0 ] && [ "$broken" = 0 ]
