/* The choice between NCCL and staged, for device.c and its test. */
#pragma once

#include <stddef.h>

#include "base/device/device.h"
#include "base/status.h"

enum comm_device_choice {
    COMM_DEVICE_STAGED,
    COMM_DEVICE_NCCL,
    COMM_DEVICE_BROKEN, /* NCCL is needed, but unusable on some rank */
};

struct comm_device_facts {
    unsigned char identity[DEVICE_IDENTITY_BYTES];
    int version; /* of NCCL, in the format of NCCL_OLDEST_VERSION; 0: not installed; -1: unusable */
};

/* comm_device_choose - choose a communicator from the facts of all ranks.
 *
 * Shapes    facts [size]; reason [bytes] receives the text of the warning, "" for none
 * Errors    STATUS_UNAVAILABLE if the ranks have different versions of NCCL */
status comm_device_choose(const struct comm_device_facts *facts, int size,
                          enum comm_device_choice *out, char *reason, size_t bytes);
