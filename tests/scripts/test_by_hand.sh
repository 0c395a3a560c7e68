#!/bin/bash
# Shell tests of the program run by hand, without the variables that ctest sets (CONTRIBUTING.md).
source "${BIREME_SOURCE_DIR:=$PWD}/tests/temporary_folder.sh"
program=${BIREME_PROGRAM:?}
unset BIREME_PROGRAM BIREME_TINY_DATA
ln -s "$BIREME_SOURCE_DIR/tests" "$BIREME_SOURCE_DIR/LICENSE" .
unset BIREME_SOURCE_DIR

! tests/trainer/cli/test_evaluate_texts.sh >log 2>&1 || fail 'a test passed without a program'
grep -q "no program $folder/build/trainer/bireme; build it" log || fail 'another error is reported'

mkdir -p build/trainer
ln -s "$program" build/trainer/bireme
tests/trainer/cli/test_evaluate_texts.sh >log 2>&1 || fail 'a test fails by hand'
