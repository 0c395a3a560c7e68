#!/bin/bash
# Two ranks with a small /dev/shm. MPI hangs if it allocates shared memory that does not fit, so the
# program must find this out before and go without shared memory.
#
#   test_shared_memory.sh PROGRAM      the program of test_world.c
#
# A mount namespace is needed to replace /dev/shm.
# ctest: name comm_shared_memory
# ctest: targets test_program_comm_1
# ctest: timeout 300
set -u
program=${1:?}
source "${BIREME_SOURCE_DIR:=$PWD}/tests/mount_namespace.sh"
enter_mount_namespace "$0" "$@"
export TMPDIR=/tmp # not in the folder that the test replaces
source "$BIREME_SOURCE_DIR/tests/temporary_folder.sh"
trap 'umount /dev/shm 2>/dev/null; remove_folder' EXIT
mpirun=(mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2)

# KiB of /dev/shm, and whether both windows fit: 1 MiB for each rank to exchange data, and 1.2 MB
# for each rank with the data of the test. Into 3000 KiB only the first one fits.
for case in '4 no' '1024 no' '3000 no' '40960 yes' '65536 yes'; do
    read -r kib fits <<<"$case"
    mount -t tmpfs -o "size=${kib}k,mode=1777" none /dev/shm 2>/dev/null || {
        echo 'skipped: mounting is not permitted'
        exit 77
    }
    little=()
    [ "$fits" = yes ] || little=(-x BIREME_TEST_LITTLE_SHARED_MEMORY=1)
    timeout 100 "${mpirun[@]}" "${little[@]}" "$program" >out 2>stderr
    code=$?
    [ "$code" = 0 ] || fail "$kib KiB of /dev/shm: exit code $code"
    warnings=$(grep -c '/dev/shm has [0-9]* bytes free, but [0-9]* bytes.*W-SHARED-MEMORY]' stderr)
    [ "$warnings" = "$([ "$fits" = yes ] && echo 0 || echo 1)" ] ||
        fail "$kib KiB of /dev/shm: $warnings warnings"
    umount /dev/shm
done

# A segment of an ended job is named.
mount -t tmpfs -o size=3000k,mode=1777 none /dev/shm
head -c 1000000 /dev/zero >/dev/shm/vader_segment.host.0.1.0
timeout 100 "${mpirun[@]}" -x BIREME_TEST_LITTLE_SHARED_MEMORY=1 "$program" >out 2>stderr
grep -q 'files of ended MPI jobs use .*/dev/shm/vader_segment.host.0.1.0' stderr ||
    fail 'the file of an ended job is not named'

# A segment in the folder of a killed launch_mpirun.sh is named too.
rm /dev/shm/vader_segment.host.0.1.0
mkdir /dev/shm/launch_mpirun.abcdef
head -c 1000000 /dev/zero >/dev/shm/launch_mpirun.abcdef/vader_segment.host.0.1.1
timeout 100 "${mpirun[@]}" -x BIREME_TEST_LITTLE_SHARED_MEMORY=1 "$program" >out 2>stderr
grep -q 'files of ended MPI jobs use .*/dev/shm/launch_mpirun.abcdef/vader_segment' stderr ||
    fail 'the file of a killed launch_mpirun.sh is not named'
