#!/bin/bash
# Each recipe key in a code span or block of the documentation exists.
# usage: check_keys.sh [FOLDER]; the default is BIREME_SOURCE_DIR
set -euo pipefail
cd "${1:-${BIREME_SOURCE_DIR:?}}"

# print_known: print section.key of every key, from recipes/README.md, which a test compares with
# the settings table.
print_known() {
    awk '/^## `/ { gsub(/[#` ]/, ""); section = $0 }
        section != "" && /^\| `/ { split($0, cell, "`"); print section "." cell[2] }' \
        recipes/README.md | sort -u
}

known=$(print_known)
sections=$(echo "$known" | cut -d. -f1 | sort -u | paste -sd'|')
# In code spans and blocks: `section.key`, `section.key: value` or section.key=value.
wrong=$(grep -rnoE "(^|[\` (])($sections)\.[a-z][a-z0-9_]*(: |=|\`)" --include='*.md' \
    README.md CHANGELOG.md CONTRIBUTING.md docs recipes |
    while IFS=: read -r file line text; do
        key=$(echo "$text" | grep -oE "($sections)\.[a-z0-9_]+" | head -n 1)
        case $key in
        *.[ch] | *.cu | *.py | *.txt | *.safetensors) continue ;; # files
        parallel.pipeline | log.wandb) continue ;; # missing features
        optimizer.learning_rat | train.max_stps) continue ;; # examples of typing errors
        esac
        grep -qxF -e "$key" <<<"$known" || echo "$file:$line: no such recipe key: $key"
    done)
count=$(wc -l <<<"$known")
echo "check_keys: $count keys"
[ -z "$wrong" ] || echo "$wrong"
[ "$count" -gt 50 ] && [ -z "$wrong" ]
