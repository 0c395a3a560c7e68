#!/bin/bash
# Sourced by the tests of scripts/launch_mpirun.sh. The first argument of the test is the program of
# test_fault.c. Sets `program` and `launch`, and changes to a temporary folder.
set -u
program=$1
launch=${BIREME_SOURCE_DIR:?}/scripts/launch_mpirun.sh
source "$BIREME_SOURCE_DIR/tests/temporary_folder.sh"

# wait_for TEXT [SECONDS]: wait until the file `output` contains this text, at most 10 s or SECONDS.
wait_for() {
    local i
    for ((i = 0; i < 10 * ${2:-10}; i++)); do
        grep -q -- "$1" output && break
        sleep 0.1
    done
}
