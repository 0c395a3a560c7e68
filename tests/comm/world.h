/* The world communicator of the communicator tests. With BIREME_TEST_COMM=nccl or staged it is that
 * device communicator, on CPU memory. Otherwise comm_world_create creates it.
 * BIREME_TEST_RANKS_PER_ID sets the ranks per unique id of NCCL. */
#pragma once

#include "comm/device/device.h"
#include "tests/check.h"

/* test_comm - return the value of BIREME_TEST_COMM, or "". */
static inline const char *test_comm(void)
{
    const char *name = getenv("BIREME_TEST_COMM");
    return name == NULL ? "" : name;
}

/* test_world_create - create the world communicator.
 *
 * Units     deadline_seconds: deadline of waits; 0: the default
 * Errors    *out is the control communicator if the device communicator cannot be created */
static inline status test_world_create(int *argc, char ***argv, double deadline_seconds,
                                       struct comm **out)
{
    static struct comm_device_options options;
    struct comm *control = NULL;
    TRY(comm_world_create(argc, argv, &control));
    *out = control;
    if (deadline_seconds > 0) {
        comm_set_deadline(control, deadline_seconds);
    }
    if (test_comm()[0] == '\0') {
        return STATUS_OK;
    }
    TRY(device_create(DEVICE_CPU, 0, &options.device));
    const char *ranks_per_id = getenv("BIREME_TEST_RANKS_PER_ID");
    options.ranks_per_id = ranks_per_id == NULL ? 0 : (int)strtol(ranks_per_id, NULL, 10);
    status result = strcmp(test_comm(), "nccl") == 0 ? comm_nccl_create(control, &options, out)
                                                     : comm_staged_create(control, &options, out);
    if (result != STATUS_OK) {
        *out = control;
    }
    return result;
}
