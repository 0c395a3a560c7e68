#!/bin/bash
# The Python package gives the results of the commands (python_test.py).
# usage: test_python.sh LIBRARY
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
# shellcheck source=tests/trainer/library/small_models.sh
source "$source/tests/trainer/library/small_models.sh"
[ -z "${TSAN_OPTIONS:-}${ASAN_OPTIONS:-}" ] || {
    echo 'skipped: Python and the library of a sanitizer must both be loaded first'
    exit 77
}
python=''
for candidate in ${BIREME_PYTHON:-python3 /usr/bin/python3}; do
    [ -n "$python" ] || ! "$candidate" -c 'import numpy, pytest' 2>stderr || python=$candidate
done
[ -n "$python" ] || {
    echo 'skipped: python3 is missing, or has no numpy or no pytest'
    exit 77
}
make_models
export BIREME_LIBRARY=$1 PYTHONPATH=$source/scripts/python PYTHONDONTWRITEBYTECODE=1
timeout 200 "$python" -m pytest -q -p no:cacheprovider \
    "$source/tests/trainer/library/python_test.py" >out 2>stderr || {
    cat out
    fail 'pytest failed'
}
tail -n 1 out
