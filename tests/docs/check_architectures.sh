#!/bin/bash
# Each name of model.architecture occurs in docs/reference/architectures.md, in the README (the name
# of the family or of the architecture) and in the first comment of architecture.c.
# usage: check_architectures.sh [FOLDER]; the default is BIREME_SOURCE_DIR
set -euo pipefail
cd "${1:-${BIREME_SOURCE_DIR:?}}"

# The names, from recipes/README.md, which a test compares with the settings table.
names=$(awk -F'|' '/^\| `architecture`/ { gsub(/[ ]/, "", $3); gsub(/,/, "\n", $3); print $3 }' \
    recipes/README.md)
comment=$(sed -nE 's/^ \* ([a-z][^ ]*(, [^ ]+)*)  .*/\1/p' trainer/model/architecture.c)
reference=$(sed -nE 's/^\| `([^`]*)`.*/\1/p' docs/reference/architectures.md)
families=$(grep '^|' README.md | tr -d ' -')
wrong=0

# expect PLACE TEXT NAME ARCHITECTURE: fail unless the text has the name as a whole word.
expect() {
    grep -qiE "(^|[^[:alnum:]_-])$3([^[:alnum:]_-]|\$)" <<<"$2" || {
        echo "$1: no architecture $4"
        wrong=1
    }
}

count=0
for name in $names; do
    count=$((count + 1))
    case $name in
    openai-gpt) family=GPT1 ;;
    *) family=$(tr -d - <<<"${name%_text}") ;;
    esac
    expect docs/reference/architectures.md "$reference" "$name" "$name"
    expect trainer/model/architecture.c "$comment" "$name" "$name"
    expect README.md "$families" "$family" "$name"
done
echo "check_architectures: $count names"
[ "$count" -gt 20 ] && [ "$wrong" = 0 ]
