/* The world that a test of communicators runs in. BIREME_TEST_COMM=nccl|staged puts that communicator for devices
 * around it, on the CPU's memory; without it the world is what comm_world_create makes. */
#pragma once

#include "comm/comm_device.h"
#include "tests/check.h"

static inline const char *test_comm(void)
{
    const char *name = getenv("BIREME_TEST_COMM");
    return name == NULL ? "" : name;
}

/* deadline_seconds 0: the default */
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
        *out = control; /* for the end of the job */
    }
    return result;
}
