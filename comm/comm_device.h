/* Communicators for a device's memory, around the one that the job was started with (its control).
 *
 * comm_nccl: NCCL between GPUs, one rank on each. comm_staged: through host memory, in rank order and f32,
 * for ranks that share a GPU and where there is no NCCL. Both have comm.h's interface; collectives on small
 * data, agreements and the end of the job stay with the control communicator.
 *
 * Order     the large collectives are in the order of the device: one that was started comes after all that
 *           was queued on options.stream, and what is queued there after comm_wait comes after it. The host
 *           may read their data after device_wait (on the CPU: after comm_wait).
 * Memory    data is the device's; comm_allocate gives memory of the device */
#pragma once

#include "base/device.h"
#include "comm/comm.h"

struct comm_device_options {
    struct device *device;
    struct stream *stream; /* where gradients are computed */
    bool
        reproducible; /* NCCL adds without the switch's help, whose order differs from call to call */
};

/* comm_device_create - the communicator that fits where the ranks' devices are. Collective over control, which is
 * the new one's once this has succeeded, and is destroyed with it.
 *
 * NCCL where every rank has a device of its own; comm_staged, with a warning (W-COMM-STAGED), where ranks share
 * one or NCCL is missing.
 *
 * Environment  BIREME_NCCL: path of the library (libnccl.so.2), or `off`
 * Errors    STATUS_UNAVAILABLE where NCCL is there and cannot be used (too old, not whole, not the same on
 *           all ranks), or not where BIREME_NCCL says */
status comm_device_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out);

/* comm_nccl_create, comm_staged_create - one of them by name; as above. */
status comm_nccl_create(struct comm *control, const struct comm_device_options *options,
                        struct comm **out);
status comm_staged_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out);
