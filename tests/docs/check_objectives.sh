#!/bin/bash
# Each objective occurs in the places that docs/adding/objective.md names.
# usage: check_objectives.sh [FOLDER]; the default is BIREME_SOURCE_DIR
set -euo pipefail
cd "${1:-${BIREME_SOURCE_DIR:?}}"

# The names, from recipes/README.md, which a test compares with the settings table.
names=$(awk -F'|' '/^\| `objective`/ { gsub(/[ ]/, "", $3); gsub(/,/, "\n", $3); print $3 }' \
    recipes/README.md)
places='README.md CHANGELOG.md docs/guide/data.md docs/reference/architectures.md
    tests/simt/test_train.sh'
wrong=0 count=0
for name in $names; do
    count=$((count + 1))
    for place in $places; do
        grep -qE "(^|[^[:alnum:]_])$name([^[:alnum:]_]|\$)" "$place" || {
            echo "$place: no objective $name"
            wrong=1
        }
    done
done
echo "check_objectives: $count names"
[ "$count" -gt 10 ] && [ "$wrong" = 0 ]
