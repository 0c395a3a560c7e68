#!/usr/bin/env bash
# Tests `bireme serve` with its clients, the Python package openai and the browser Chromium, the
# page of `bireme attention` in this browser, and the completion for zsh.
#
#   scripts/clients/test_clients.sh [FOLDER]
#
# FOLDER is the build folder (default: build). Installs openai into a virtual environment there, and
# Chromium and zsh with `setup.sh --clients`. Exit code 77: one of them cannot be installed; the
# others are still tested.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-build}
python=$PWD/$folder/clients/bin/python
tests='serve_page|attention_page|manual' code=0
install_openai() {
    timeout 120 python3 -m venv "$folder/clients" &&
        timeout 300 "$python" -m pip install --quiet --disable-pip-version-check openai
}
if "$python" -c 'import openai' 2>/dev/null || install_openai >"$folder/clients.log" 2>&1; then
    tests+='|serve_openai'
else
    tail -n 3 "$folder/clients.log" >&2
    echo "test_clients: skipped: pip did not install the package openai"
    code=77
fi
./scripts/setup.sh --clients || {
    echo "test_clients: skipped: Chromium or zsh is not installed"
    code=77
}
BIREME_PYTHON=$python ctest --test-dir "$folder" --output-on-failure --no-tests=error \
    -R "^($tests)\$" || exit 1
exit $code
