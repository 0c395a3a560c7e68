/* The world communicator of the communicator tests. BIREME_TEST_COMM=nccl|staged creates that
 * device communicator over it, on CPU memory. Otherwise the world is that of comm_world_create. */
#pragma once

#include "comm/comm_device.h"
#include "tests/check.h"

static inline const char *test_comm(void)
{
    const char *name = getenv("BIREME_TEST_COMM");
    return name == NULL ? "" : name;
}

/* Creates the world. deadline_seconds 0: the default deadline. */
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
    status result = strcmp(test_comm(), "nccl") == 0 ? comm_nccl_create(control, &options, out)
                                                     : comm_staged_create(control, &options, out);
    if (result != STATUS_OK) {
        *out = control; /* for comm_abort */
    }
    return result;
}
