/* How comm_device.c decides, for it and its test. */
#pragma once

#include <stddef.h>

#include "base/device.h"
#include "base/status.h"

enum comm_device_choice {
    COMM_DEVICE_STAGED,
    COMM_DEVICE_NCCL,
    COMM_DEVICE_BROKEN, /* NCCL is needed, and some rank's cannot be used */
};

struct comm_device_facts {
    unsigned char identity[DEVICE_IDENTITY_BYTES];
    int version; /* of NCCL, as NCCL_OLDEST_VERSION; 0: there is none; -1: it cannot be used */
};

/* comm_device_choose - of all ranks' facts [size]; why[bytes] is what the user is warned of, "" for nothing.
 *
 * Errors    STATUS_UNAVAILABLE where ranks have different versions of NCCL */
status comm_device_choose(const struct comm_device_facts *facts, int size,
                          enum comm_device_choice *out, char *why, size_t bytes);
