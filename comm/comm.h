/* Communicators: collectives over a group of ranks, agreement on errors, deadlines and job abort.
 *
 * A communicator is a group of ranks that exchange data. There are four kinds:
 *   self    one rank, host memory (host/self.c)
 *   mpi     host memory. Ranks of a node use shared memory; nodes exchange MPI
 *           messages (host/mpi.c)
 *   nccl    device memory over NCCL, one rank per GPU (device/nccl.c)
 *   staged  device memory, copied to the host and reduced there (device/staged.c)
 * device/device.h creates the last two. All kinds share this interface. The code that uses a
 * communicator does not depend on its kind.
 *
 * Terms
 *   node                  Ranks that share memory, normally the ranks of a host.
 *   control communicator  The communicator in host memory from which an nccl or staged communicator
 *                         is created. It serves small data, agreement on errors and job abort.
 *   request               A collective in flight. A function with the suffix _start creates it.
 *   lazy gather           An all-gather in which each rank publishes its range immediately. The
 *                         other ranks copy the range when they need it.
 *   pending note          The message of an error that a thread has stored but not
 *                         printed (status.h).
 *
 * Calls     comm_world_create once, comm_split for further groups, comm_allocate for the data. Each
 *           large collective: a function with the suffix _start, then comm_progress at any time,
 *           then comm_wait. At the end: comm_free, comm_destroy.
 * Order     Every rank of the communicator calls its collectives in the same order, from the main
 *           thread. Collectives of nccl and staged are stream-ordered (device/device.h).
 * Waiting   Every wait polls and has the deadline of the communicator. After the deadline the whole
 *           job ends with STATUS_HANG. The error names the late ranks and their last
 *           reported phase.
 * Numerics  Every rank gets the same bits. self, mpi and staged add in a fixed order: by rank
 *           within a node, then by node. On one node this is the rank order. comm_accumulate_start
 *           adds in rank order on any number of nodes. In nccl, NCCL's algorithm chooses the order.
 * Errors    If a collective fails on a rank, that rank must call comm_abort, which ends the whole
 *           job. The other ranks are not notified in any other way. A function with the suffix
 *           _start returns STATUS_INTERNAL for wrong arguments. If it fails later on one of several
 *           ranks, it ends the job itself. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/exact.h"
#include "base/number.h"
#include "base/status.h"
#include "base/tensor.h"

struct comm;
struct comm_request; /* a collective in flight; NULL when it is complete */

/* comm_self_create - create a communicator of one rank. */
status comm_self_create(struct comm **out);

/* comm_world_create - create the communicator of all ranks that mpirun or srun started.
 *
 * Without a launcher it creates a communicator of one rank and does not initialize MPI. It also
 * sets the rank and host that error lines print (status.h). The environment variable
 * BIREME_INIT_SECONDS is the time limit of the MPI start-up in seconds. The default is the limit of
 * watchdog_set_startup_limit, or 300. For tests, BIREME_COMM_NODES=k divides the ranks of each host
 * into k nodes.
 *
 * Order     collective
 * Errors    STATUS_UNAVAILABLE if a launcher started a build without MPI; STATUS_USAGE if srun
 *           started several tasks without a process manager that connects them */
status comm_world_create(int *argc, char ***argv, struct comm **out);

/* comm_is_launched - return whether Open MPI, PMIx or PMI started this process. Only environment
 * variables are read. */
bool comm_is_launched(void);

/* comm_is_first_process - return true in exactly one of the processes that mpirun or srun started.
 * Without a launcher, return true. Only environment variables are read. */
bool comm_is_first_process(void);

/* comm_identify_process - set the rank of the error lines before comm_world_create, from the
 * environment variables of the launcher. */
void comm_identify_process(void);

/* comm_destroy - leave the group; for the world communicator, also finalize MPI.
 *
 * Order     collective */
status comm_destroy(struct comm **comm);

/* comm_rank - return the rank of this process in the communicator. */
int comm_rank(const struct comm *comm);

/* comm_size - return the number of ranks of the communicator. */
int comm_size(const struct comm *comm);

/* comm_local_size - return the number of ranks of the communicator on this host. */
int comm_local_size(const struct comm *comm);

/* comm_local_rank - return the index of this rank among the ranks of this host. */
int comm_local_rank(const struct comm *comm);

/* comm_kind - return "self", "mpi", "nccl" or "staged". */
const char *comm_kind(const struct comm *comm);

/* comm_split - create a communicator of the ranks with the same color, ordered by key.
 *
 * Order     collective */
status comm_split(struct comm *comm, int color, int key, struct comm **out);

/* comm_allocate - allocate zeroed memory for the data of collectives: memory that the ranks of a
 * node share, or registered device memory. Collectives on other memory are slower.
 *
 * Every rank passes the same size. A collective uses the same offset in this memory on every rank.
 *
 * Memory    aligned to 64 bytes or more; the caller frees it with comm_free
 * Order     collective
 * Errors    STATUS_INTERNAL with the number of bytes. Either all ranks return the error, or the job
 *           ends */
status comm_allocate(struct comm *comm, size_t bytes, void **out);

/* comm_free - free memory of comm_allocate; NULL is allowed.
 *
 * Order     collective */
status comm_free(struct comm *comm, void *memory);

/* ---- collectives ---- */

/* A contiguous range of elements, for example the shard of a rank (partition.h). */
struct comm_range {
    int64_t first;
    int64_t count;
};

/* comm_range_intersect - return the common elements of two ranges; count is 0 if there are none. */
static inline struct comm_range comm_range_intersect(struct comm_range a, struct comm_range b)
{
    int64_t a_end = a.first + a.count, b_end = b.first + b.count;
    int64_t first = number_max(a.first, b.first), end = number_min(a_end, b_end);
    return (struct comm_range){first, end > first ? end - first : 0};
}

/* comm_barrier - wait until every rank has called it.
 *
 * Order     collective */
status comm_barrier(struct comm *comm);

/* comm_broadcast - copy data[bytes] of rank `root` to every rank, in place.
 *
 * Order     collective */
status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root);

/* comm_all_gather_bytes - gather own[bytes] of each rank into all[size][bytes]. For small data.
 *
 * Order     collective */
status comm_all_gather_bytes(struct comm *comm, void *all, const void *own, size_t bytes);

/* comm_sum_doubles - all-reduce doubles in rank order, in place.
 *
 * For small data, such as the single reduction of a step's statistics.
 *
 * Order     collective */
status comm_sum_doubles(struct comm *comm, double *data, int64_t count);

/* comm_sum_exact - all-reduce exact sums (base/exact.h), in place.
 *
 * Order     collective
 * Numerics  same bits for any distribution of the terms over ranks */
status comm_sum_exact(struct comm *comm, struct exact_sum *sums, int count);

/* comm_all_reduce - all-reduce f32 sums, in place.
 *
 * Order     collective */
status comm_all_reduce(struct comm *comm, float *data, int64_t count);

/* comm_all_reduce_start - start an all-reduce of f32 sums, in place.
 *
 * Memory    the caller does not access data until comm_wait returns
 * Order     collective; several may be in flight, and they complete in the order of their start */
status comm_all_reduce_start(struct comm *comm, float *data, int64_t count,
                             struct comm_request **out);

/* comm_reduce_scatter_start - start a reduce-scatter of f32 sums, in place.
 *
 * Afterwards data[ranges[rank]] holds the sums of this rank. The rest of data is undefined.
 *
 * Shapes    ranges [size], in elements of data; there may be gaps between them
 * Memory    as in comm_all_reduce_start
 * Order     collective */
status comm_reduce_scatter_start(struct comm *comm, float *data, const struct comm_range *ranges,
                                 struct comm_request **out);

/* comm_all_reduce_bf16_start - start an all-reduce of bf16 sums, in place: half the bytes of f32.
 *
 * Memory    as in comm_all_reduce_start
 * Order     collective
 * Numerics  every rank gets the same bits. On host memory, the ranks of a node are added in f32 and
 *           rounded once, then the sums of the nodes are added in f32 and rounded once. NCCL rounds
 *           as its algorithm requires: a ring rounds at every rank. */
status comm_all_reduce_bf16_start(struct comm *comm, bf16 *data, int64_t count,
                                  struct comm_request **out);

/* comm_reduce_scatter_bf16_start - start a reduce-scatter of bf16 sums, in place.
 *
 * Shapes    ranges as in comm_reduce_scatter_start
 * Memory    as in comm_all_reduce_start
 * Order     collective
 * Numerics  as in comm_all_reduce_bf16_start */
status comm_reduce_scatter_bf16_start(struct comm *comm, bf16 *data,
                                      const struct comm_range *ranges, struct comm_request **out);

/* The accumulator of comm_accumulate_start on this rank. */
struct comm_accumulation {
    float *sums;      /* sums[k] belongs to element ranges[rank].first + k of data */
    bool overwrite;   /* the elements of rank 0 replace sums instead of being added */
    int contributors; /* the data of ranks [0, contributors) is added */
};

/* comm_accumulate_start - start an ordered reduce-scatter into a separate accumulator.
 *
 * It adds data[ranges[rank]] of every contributor to sums, in rank order. Between nodes it sends
 * more bytes than comm_reduce_scatter_start. Only for host memory.
 *
 * Shapes    ranges as in comm_reduce_scatter_start; sums [ranges[rank].count]
 * Memory    as in comm_all_reduce_start
 * Order     collective
 * Numerics  rank order: same bits as if a single rank had added all elements
 * Errors    STATUS_UNAVAILABLE for nccl and staged communicators */
status comm_accumulate_start(struct comm *comm, const struct comm_accumulation *accumulation,
                             float *data, const struct comm_range *ranges,
                             struct comm_request **out);

/* comm_all_gather_start - start an all-gather of data[ranges[r]] of every rank r, in place.
 *
 * Shapes    ranges as in comm_reduce_scatter_start
 * Units     element_bytes: size of the elements that ranges count
 * Memory    as in comm_all_reduce_start
 * Order     collective */
status comm_all_gather_start(struct comm *comm, void *data, size_t element_bytes,
                             const struct comm_range *ranges, struct comm_request **out);

/* comm_lazy_gather_start - start a lazy gather: an all-gather in which no rank waits for
 * later ranks.
 *
 * Each rank copies its range to shared_source, which the other ranks of its node can read. They
 * copy the range from there when they call comm_gather_pull. On several nodes, and for nccl and
 * staged communicators, this function equals comm_all_gather_start.
 *
 * Shapes    source_ranges [size]: position of rank r's range in its shared_source, in elements
 * Memory    shared_source comes from comm_allocate; the caller does not write it until
 *           comm_wait returns
 * Order     collective */
status comm_lazy_gather_start(struct comm *comm, void *data, size_t element_bytes,
                              const struct comm_range *ranges, void *shared_source,
                              const struct comm_range *source_ranges, struct comm_request **out);

/* ---- collectives in flight ---- */

/* comm_gather_pull - wait until this rank has all data of an all-gather.
 *
 * The request of a lazy gather stays in flight: comm_wait then waits until every rank has copied
 * the range of this rank. Any other all-gather is complete afterwards.
 *
 * Order     not collective */
status comm_gather_pull(struct comm *comm, struct comm_request **request);

/* comm_progress - advance the collectives in flight without waiting; called during backward.
 *
 * Order     not collective */
status comm_progress(struct comm *comm);

/* comm_wait - wait until the collective is complete and set *request to NULL.
 *
 * Order     every rank waits for the same requests in the order of their start */
status comm_wait(struct comm *comm, struct comm_request **request);

/* ---- times ---- */

/* Cost of communication since the last call of comm_take_times. */
struct comm_times {
    /* estimated time of the large collectives without computation: bytes / calibrated rate */
    double alone_seconds;
    /* time of the caller in calls for large collectives: copying, adding and waiting. With NCCL on
     * GPUs: time for which the computing stream waited, as far as the device has reached it */
    double exposed_seconds;
    double small_seconds; /* time in calls for small data, mostly waiting for other ranks */
    int64_t bytes;        /* sent by this rank */
};

/* comm_take_times - return the accumulated times and reset them to zero. */
void comm_take_times(struct comm *comm, struct comm_times *out);

/* comm_hidden_share - return the fraction of the communication time that overlapped with
 * computation: 1 - exposed / alone, at least 0. Waiting for a slow rank counts as exposed. */
double comm_hidden_share(const struct comm_times *times);

/* comm_calibrate - measure the transfer rate of one kind of collective without computation.
 *
 * It calls `run` several times and uses the fastest run. `run` starts collectives of one kind on
 * large data and waits for them. comm_take_times does not include these runs.
 *
 * Order     collective */
status comm_calibrate(struct comm *comm, status (*run)(void *user), void *user);

/* ---- errors and job abort ---- */

/* comm_agree - return the same status on every rank: the status of the lowest rank that failed.
 *
 * Every rank passes its own status. The lowest rank that failed prints its pending note. The notes
 * of the other ranks are dropped.
 *
 * Order     collective */
status comm_agree(struct comm *comm, status own);

/* comm_agree_flag - set *any if at least one rank passes true, for example a stop request.
 *
 * Order     collective */
status comm_agree_flag(struct comm *comm, bool own, bool *any);

/* comm_check_equal - check that all ranks pass the same value, such as a build id or recipe hash.
 *
 * Only the first 127 characters are compared. Every rank gets the same result.
 *
 * Order     collective
 * Errors    STATUS_RECIPE with `name`, the ranks that differ and both values */
status comm_check_equal(struct comm *comm, const char *name, const char *value);

/* comm_abort - print this rank's pending note and end the whole job with this exit code.
 *
 * It does not return and may be called from any thread. If several ranks of a host end at the same
 * time, only the first one prints. With comm NULL only this process ends. */
_Noreturn void comm_abort(struct comm *comm, status code);

/* comm_abort_on_error - end the whole job after an error, if comm has several ranks.
 *
 * For a rank that fails between two collectives of a function: the other ranks wait in the second
 * one, so that this rank cannot agree with them on its error.
 *
 * Returns   result, if it is STATUS_OK or comm has one rank */
status comm_abort_on_error(struct comm *comm, status result);

/* comm_set_deadline - set the time after which a wait counts as a hang (default 300 s).
 *
 * Communicators that are split from this one later inherit it. If a rank of this host is in a phase
 * with a longer limit (comm/watchdog/watchdog.h), waits use that limit.
 *
 * Units     seconds > 0; over TCP 15 s or more, because the launcher detects a lost host after 11 s
 *           and mpirun hangs if the job ends before that */
void comm_set_deadline(struct comm *comm, double seconds);

/* comm_set_termination_check - set a function that returns true after the launcher has requested
 * the end of this process (SIGTERM).
 *
 * Every wait calls the function. If it returns true, the rank ends with STATUS_LOST, and its error
 * names the operation and the missing ranks. After mpirun has lost a host, it sends SIGTERM, and
 * SIGKILL one second later, without an error that names the missing ranks. */
void comm_set_termination_check(bool (*is_terminating)(void));
