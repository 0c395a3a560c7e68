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
# In code spans and blocks: `section.key`, `section.key: value` or section.key=value. Not checked:
# files, missing features, and examples of typing errors.
wrong=$(grep -rnoE "(^|[\` (])($sections)\.[a-z][a-z0-9_]*(: |=|\`)" --include='*.md' \
    README.md CHANGELOG.md CONTRIBUTING.md docs recipes |
    awk -v pattern="($sections)\\.[a-z0-9_]+" 'NR == FNR { known[$0]; next }
        match($0, ":[0-9]+:") {
            place = substr($0, 1, RSTART + RLENGTH - 1)
            text = substr($0, RSTART + RLENGTH)
            match(text, pattern)
            key = substr(text, RSTART, RLENGTH)
            if (key !~ /\.([ch]|cu|py|txt|safetensors)$/ && !(key in known)) {
                print place " no such recipe key: " key
            }
        }' <(printf '%s\n' "$known" parallel.pipeline log.wandb optimizer.learning_rat \
        train.max_stps) -)
count=$(wc -l <<<"$known")
echo "check_keys: $count keys"
[ -z "$wrong" ] || echo "$wrong"
[ "$count" -gt 50 ] && [ -z "$wrong" ]
