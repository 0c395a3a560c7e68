#!/bin/bash
# Sourced by shell tests: changes to a temporary folder, which is removed at the end.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

# fail TEXT: end the test.
fail() {
    echo "failed: $1" >&2
    exit 1
}
