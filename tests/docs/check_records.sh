#!/bin/bash
# Checks the benchmark records: each begins with the fields of docs/benchmarks/README.md in their
# order, and the index there has a row for each of its questions, with the date of its name.
# usage: check_records.sh [FOLDER]; the default is docs/benchmarks of BIREME_SOURCE_DIR
set -euo pipefail
cd "${1:-${BIREME_SOURCE_DIR:?}/docs/benchmarks}"

fields='Main result,Prediction,Measured,Hardware,Software,Runs and spread,Date,Commit,Command'
broken=0 count=0

report() {
    echo "$1"
    broken=$((broken + 1))
}

for record in *_*_*.md; do
    count=$((count + 1))
    found=$(sed -n 's/^- \*\*\([^*]*\):\*\* .*/\1/p' "$record" | head -n 9 | paste -sd,)
    [ "$found" = "$fields" ] || report "$record: its first fields are $found instead of $fields"
    date=${record##*_}
    rows=$(grep -c "($record).*| ${date%.md} |\$" README.md || true)
    [ "$rows" -ge 1 ] || report "$record: no row of the index has its link and date"
done
echo "check_records: $count records, $broken errors"
[ "$count" -gt 0 ] && [ "$broken" = 0 ]
