#!/usr/bin/env bash
# Compares Bireme with lm-evaluation-harness, transformers, llama.cpp and the Python package openai,
# in one complete run.
#
#   scripts/peers/check_ecosystem.sh [FOLDER] [PART...]
#
# FOLDER is the build folder (default: build). By default all parts run, in this order:
#
#   tasks      `bireme evaluate --task` against lm-eval with transformers, question by question
#   served     lm-eval's local-completions through `bireme serve` against the same results
#   gguf       exported GGUF files in llama.cpp against transformers
#   openai     the client of the package openai against `bireme serve`
#
# BIREME_PYTHON is the Python to use. Without it, the script installs the packages lm-eval[api],
# torch, transformers, sentencepiece, gguf, openai and llama-cpp-python, which is built from source,
# into FOLDER/ecosystem. The versions are printed first. Exit code 77: a package is missing, and the
# other parts passed. docs/benchmarks/ecosystem_*.md has the results of one run.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-build}
shift || true
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(tasks served gguf openai)
program=$(cd "$folder" && pwd)/trainer/bireme
python=${BIREME_PYTHON:-$PWD/$folder/ecosystem/bin/python}
packages=('lm-eval[api]' torch transformers sentencepiece gguf openai llama-cpp-python)
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

if [ -z "${BIREME_PYTHON:-}" ] && [ ! -x "$python" ]; then
    python3 -m venv "$folder/ecosystem"
    "$python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
fi

print_versions() {
    "$program" --version | head -n 1
    "$python" - "${packages[@]}" <<'END'
import importlib.metadata as metadata, sys
for name in (argument.split("[")[0] for argument in sys.argv[1:]):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "is missing")
END
}

# check_openai: start a server with the model of tests/reference/tasks and use the client.
check_openai() {
    "$python" -c 'import openai' 2>/dev/null || return 77
    "$program" import tests/reference/tasks/model --output "$work/model" >/dev/null 2>&1
    "$program" serve --checkpoint "$work/model" --port 0 >"$work/address" 2>/dev/null &
    server=$!
    until grep -q '^listening on ' "$work/address"; do
        kill -0 $server
        sleep 0.1
    done
    "$python" scripts/clients/check_openai.py "$(sed 's/^listening on //' "$work/address")/v1"
    kill $server
    wait $server
    server=''
}

run_part() {
    case $1 in
    tasks) "$python" scripts/peers/check_lm_eval.py "$program" ;;
    served) "$python" scripts/peers/check_lm_eval.py "$program" --serve ;;
    gguf) "$python" scripts/peers/check_gguf.py --program "$program" ;;
    openai) check_openai ;;
    *)
        sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
        exit 64
        ;;
    esac
}

print_versions
result=0
for part in "${parts[@]}"; do
    echo "== $part"
    code=0
    run_part "$part" 2>"$work/errors" || code=$? # lm-eval writes progress bars there
    case $code in
    0) echo "$part: passed" ;;
    77)
        echo "$part: skipped"
        [ $result != 0 ] || result=77
        ;;
    *)
        tail -n 20 "$work/errors"
        echo "$part: failed with exit code $code"
        result=1
        ;;
    esac
done
exit $result
