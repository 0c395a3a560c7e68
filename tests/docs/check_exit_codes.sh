#!/bin/bash
# The codes and words of errors are the same in base/status.h, base/status.c and
# docs/reference/exit_codes.md, and each E-WORD of the sources, scripts, tests and pages exists.
set -u
cd "${BIREME_SOURCE_DIR:?}" || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
page=docs/reference/exit_codes.md

# Lines "CODE WORD" of the program; the code 0 has no word on the page.
sed -nE 's/^ +STATUS_([A-Z_]+) = ([0-9]+),.*/\1 \2/p' base/status.h | sort >"$folder/codes"
sed -nE '/^ +case STATUS_/{N;s/.*STATUS_([A-Z_]+):.*return "([A-Z-]+)";/\1 \2/p}' base/status.c |
    sort >"$folder/words"
join "$folder/codes" "$folder/words" | awk '{ print $2, ($2 == 0 ? "" : $3) }' |
    sort >"$folder/program"
sed -nE 's/^\| ([0-9]+) \| ([A-Z-]*) ?\|.*/\1 \2/p' $page | sort >"$folder/page"
[ "$(wc -l <"$folder/codes")" = "$(wc -l <"$folder/program")" ] && [ -s "$folder/program" ] || {
    echo 'base/status.c has no word for a code of base/status.h' >&2
    exit 1
}
diff "$folder/program" "$folder/page" || {
    echo "the program (<) and $page (>) have different codes or words" >&2
    exit 1
}

# The words in use. E-WORD and E-CODE stand for any of them.
{
    cut -d' ' -f2 "$folder/program" | sed '/^$/d; s/^/E-/'
    printf '%s\n' E-CODE E-WORD
} | sort >"$folder/known"
grep -rhoE --include='*.[ch]' --include='*.cu' --include='*.sh' --include='*.sbatch' \
    --include='*.py' --include='*.md' --include='*.tsv' --include='*.txt' \
    '\bE-[A-Z]+(-[A-Z]+)*\b' base comm datasets kernels trainer scripts tests docs recipes \
    README.md SECURITY.md CONTRIBUTING.md CHANGELOG.md | sort -u >"$folder/used"
unknown=$(comm -13 "$folder/known" "$folder/used")
[ -z "$unknown" ] || {
    echo "$unknown: no such error; see $page" >&2
    exit 1
}

# The codes of the fault matrix exist; those from 128 on are signals.
awk -F'\t' '!/^#/ { print $5 }' tests/faults/matrix.tsv | grep -owE '[0-9]+' | sort -un |
    awk '$1 < 128' | sort >"$folder/matrix"
cut -d' ' -f1 "$folder/program" | sort >"$folder/known"
unknown=$(comm -23 "$folder/matrix" "$folder/known")
[ -z "$unknown" ] || {
    echo "tests/faults/matrix.tsv has the code $unknown, which is not on $page" >&2
    exit 1
}
