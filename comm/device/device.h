/* Communicators for device memory.
 *
 * They are created from a control communicator: a communicator in host memory with the same ranks.
 * It serves collectives on small data, comm_agree and the end of the job. Both kinds have the
 * interface of comm.h:
 *
 *   nccl    NCCL between GPUs, with one rank per GPU
 *   staged  copies data to the host and adds there, in f32 and in a fixed order. It serves ranks
 *           that share a GPU and machines without NCCL
 *
 * Calls     comm_device_create after comm_world_create or comm_split; then the functions of comm.h
 * Order     Large collectives are stream-ordered. A collective starts after the work that was
 *           queued on options.stream before it. Work that is queued there after comm_wait runs
 *           after the collective. The host may read the data after device_wait (on the CPU:
 *           after comm_wait).
 * Memory    data is device memory; comm_allocate returns device memory */
#pragma once

#include "base/device/device.h"
#include "comm/comm.h"

struct comm_device_options {
    struct device *device;
    struct stream *stream; /* stream that computes the gradients */
    /* equal calls give equal bits: NCCL does not reduce in the switch (NVLS), because the order of
     * its sums differs between calls */
    bool deterministic;
    int ranks_per_id; /* ranks that NCCL connects through one unique id; 0: 128 */
};

/* comm_device_create - create the communicator that suits the devices of the ranks.
 *
 * It uses NCCL if there are several ranks and each has a separate device. It uses staged for one
 * rank, and, with a warning (W-COMM-STAGED), if ranks share a device or NCCL is missing. The
 * environment variable BIREME_NCCL is the path of the library (default libnccl.so.2) or `off`.
 *
 * Memory    on success the new communicator owns `control` and destroys it
 * Order     collective over `control`
 * Errors    STATUS_UNAVAILABLE if NCCL is unusable (too old, incomplete, different versions on the
 *           ranks) or if the file named by BIREME_NCCL cannot be opened */
status comm_device_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out);

/* comm_device_enable_graphs - allow collectives of this communicator in CUDA graphs.
 *
 * Graphs contain the collectives that are started and waited for in a graph region
 * (kernels_graph_begin). It has no effect on staged communicators, on ranks of several hosts, and
 * with NCCL_GRAPH_MIXING_SUPPORT=0.
 *
 * Calls     In graph regions all ranks must queue the same operations, in the same order. Discard
 *           the graphs (kernels_graphs_enable) before memory of the communicator is released and
 *           before it is destroyed
 * Order     collective */
status comm_device_enable_graphs(struct comm *comm);

/* comm_nccl_create - create an NCCL communicator; otherwise like comm_device_create. */
status comm_nccl_create(struct comm *control, const struct comm_device_options *options,
                        struct comm **out);

/* comm_staged_create - create a staged communicator; otherwise like comm_device_create. */
status comm_staged_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out);
