#!/bin/bash
# Each warning of the program is on docs/reference/warnings.md, and each one there exists.
set -u
cd "${BIREME_SOURCE_DIR:?}" || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
find base comm datasets kernels trainer -name '*.c' -exec cat {} + | tr '\n' ' ' |
    grep -oE 'log_warning\( *"[A-Z-]+"' | cut -d'"' -f2 | sort -u >"$folder/program"
sed -n 's/^| `\([A-Z-]*\)`.*/\1/p' docs/reference/warnings.md | sort >"$folder/page"
[ -s "$folder/program" ] && diff "$folder/program" "$folder/page" || {
    echo 'the program (<) and docs/reference/warnings.md (>) name different warnings' >&2
    exit 1
}
