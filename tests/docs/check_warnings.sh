#!/bin/bash
# Each warning of the program is on docs/reference/warnings.md, and each one there exists.
# usage: check_warnings.sh [FOLDER]; the default is BIREME_SOURCE_DIR
set -euo pipefail
cd "${1:-${BIREME_SOURCE_DIR:?}}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The first argument of each call, which must be a string.
find base comm datasets kernels trainer -name '*.c*' -exec cat {} + | tr '\n' ' ' |
    grep -oE 'log_warning\( *[^ ,]*' | sed 's/.*( *//' | grep -vx const >"$folder/arguments"
if grep -vE '^"[A-Z-]+"$' "$folder/arguments"; then
    echo 'log_warning: its first argument must be the name of a warning' >&2
    exit 1
fi
sed 's/"\(.*\)"/W-\1/' "$folder/arguments" | sort -u >"$folder/program"
sed -n 's/^| `\([A-Z-]*\)`.*/\1/p' docs/reference/warnings.md | sort >"$folder/page"
diff "$folder/program" "$folder/page" || {
    echo 'the program (<) and docs/reference/warnings.md (>) name different warnings' >&2
    exit 1
}

# W-LOCK: the guide must name the oldest version of HDF5 that the code can use without locks.
parts='([0-9]+), ([0-9]+), ([0-9]+)'
version=$(sed -nE "s/^#if H5_VERSION_GE\($parts\)/\1.\2.\3/p" datasets/shard/h5file.c)
grep -qF "HDF5 $version or newer" docs/guide/multi_node.md || {
    echo "docs/guide/multi_node.md does not name HDF5 $version" >&2
    exit 1
}
