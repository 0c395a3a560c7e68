#!/bin/bash
# Threads use different models at the same time (models_in_threads.c).
# usage: test_threads.sh PROGRAM
source "${BIREME_SOURCE_DIR:=$PWD}/tests/trainer/tiny_training.sh"
# shellcheck source=tests/trainer/library/small_models.sh
source "$source/tests/trainer/library/small_models.sh"
make_models
"$1" >out 2>stderr || fail "models_in_threads ended with $?: $(head -n 30 stderr)"
