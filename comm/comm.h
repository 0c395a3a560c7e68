/* Ranks that work together: collectives, one verdict on errors, deadlines, and the end of the job.
 *
 * A comm is a group of ranks. comm_self is a world of one; comm_mpi is host memory over MPI (with
 * shared memory between ranks of one node); comm_nccl is device memory (another issue). All have
 * this interface, so that the layers above are written once.
 *
 * Order     collectives are called by all ranks of the comm in the same order, from the main thread
 * Waiting   every wait polls with the comm's deadline: a missed deadline ends the whole job with
 *           STATUS_HANG naming the ranks that did not come and the phase they were last seen in
 * Numerics  sums are made in rank order: the same layout gives the same bits, on every rank
 * Errors    a broken communicator is never agreed on: comm_abort ends all ranks with the code */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/exact.h"
#include "base/status.h"
#include "base/tensor.h"

struct comm;
struct comm_request; /* a started collective; NULL once it is complete */

/* comm_self_create - a world of one rank. */
status comm_self_create(struct comm **out);

/* comm_world_create - the ranks that mpirun or srun started; a world of one without a launcher (then
 * MPI is not even initialised). Sets the identity in error lines (status.h).
 *
 * Environment  BIREME_INIT_SECONDS: how long MPI may take to start (300); BIREME_COMM_NODES=k: treat each
 *           host's ranks as if they lived on k hosts, for tests
 * Errors    STATUS_UNAVAILABLE if started by a launcher but built without MPI; STATUS_USAGE if srun
 *           started tasks that cannot find each other */
status comm_world_create(int *argc, char ***argv, struct comm **out);

/* comm_launched_first - false in all processes that mpirun or srun started but one. */
bool comm_launched_first(void);

/* comm_destroy - leave the group; for the world: an agreed end of the job (MPI_Finalize). */
status comm_destroy(struct comm **comm);

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
int comm_local_ranks(const struct comm *comm);  /* ranks of this comm on this host */
int comm_local_rank(const struct comm *comm);   /* this rank's place among them */
const char *comm_kind(const struct comm *comm); /* "self", "mpi", "nccl" */

/* comm_split - the ranks of one colour, ordered by key. */
status comm_split(struct comm *comm, int colour, int key, struct comm **out);

/* comm_allocate, comm_free - zeroed memory, of equal size on all ranks, in which collectives of this comm run fastest (a
 * shared-memory window between the ranks of one node; registered device memory), where data lie at the same place of it on all
 * ranks. Collective, both. Aligned to 64 bytes or more.
 *
 * Errors    STATUS_INTERNAL naming the bytes */
status comm_allocate(struct comm *comm, size_t bytes, void **out);
status comm_free(struct comm *comm, void *memory);

/* ---- collectives ---- */

/* A contiguous range of elements: what one rank owns (partition.h). */
struct range {
    int64_t first;
    int64_t count;
};

status comm_barrier(struct comm *comm);
status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root);

/* comm_all_gather_bytes - all[size][bytes] from each rank's mine[bytes]. Small data. */
status comm_all_gather_bytes(struct comm *comm, void *all, const void *mine, size_t bytes);

/* comm_sum_doubles - element sums in rank order, in place. Small data: the step's one reduction. */
status comm_sum_doubles(struct comm *comm, double *data, int64_t count);

/* comm_sum_exact - sums that are the same bits however their parts are divided over ranks, in place. */
status comm_sum_exact(struct comm *comm, struct exact_sum *sums, int count);

/* comm_all_reduce - f32 sums in rank order, in place. */
status comm_all_reduce(struct comm *comm, float *data, int64_t count);

/* comm_all_reduce_start - the same, started: data is not touched by the caller until comm_wait.
 * Several may be under way; they complete in order. */
status comm_all_reduce_start(struct comm *comm, float *data, int64_t count,
                             struct comm_request **out);

/* comm_reduce_scatter_start - afterwards data[ranges[rank]] holds the sum; the rest is undefined.
 *
 * Shapes    ranges [size], in data's elements; together they may leave holes */
status comm_reduce_scatter_start(struct comm *comm, float *data, const struct range *ranges,
                                 struct comm_request **out);

/* comm_all_reduce_bf16_start, comm_reduce_scatter_bf16_start - the same of bf16 sums: half the bytes. All ranks get the
 * same bits.
 *
 * Numerics  a host's ranks are added as f32 and rounded once, and so are the hosts' sums; NCCL rounds as its algorithm
 *           does, at every rank of a ring */
status comm_all_reduce_bf16_start(struct comm *comm, bf16 *data, int64_t count,
                                  struct comm_request **out);
status comm_reduce_scatter_bf16_start(struct comm *comm, bf16 *data, const struct range *ranges,
                                      struct comm_request **out);

/* What comm_add_start adds to on each rank: sums[k] for element ranges[rank].first + k of data. */
struct comm_addition {
    float *sums;
    bool fresh;  /* the first rank's elements are set, not added */
    int addends; /* ranks that have something to add: the first so many; others' data is not read */
};

/* comm_add_start - sums += each rank's data[ranges[rank]], one rank after the other in rank order: the same bits
 * as if one rank had added them all. Costs more than comm_reduce_scatter_start where ranks are on several hosts.
 *
 * Shapes    ranges as in comm_reduce_scatter_start; sums [ranges[rank].count] */
status comm_add_start(struct comm *comm, const struct comm_addition *addition, float *data,
                      const struct range *ranges, struct comm_request **out);

/* comm_all_gather_start - every rank's data[ranges[r]] reaches all ranks, in place.
 *
 * Units     element_bytes of the ranges' elements */
status comm_all_gather_start(struct comm *comm, void *data, size_t element_bytes,
                             const struct range *ranges, struct comm_request **out);

/* comm_lend_start - an all-gather in which nobody waits for who comes later: each rank's part is laid at once
 * where the other ranks of its host see it, and each of these fetches it when it comes by. Elsewhere, as
 * comm_all_gather_start.
 *
 * Shapes    lent (memory of comm_allocate) [places[r]]: where rank r's part lies in its own, in elements like
 *           data's; it is not written before comm_wait */
status comm_lend_start(struct comm *comm, void *data, size_t element_bytes,
                       const struct range *ranges, void *lent, const struct range *places,
                       struct comm_request **out);

/* comm_fetch - until data are here. The request stays: comm_wait waits until all have what they need of this rank. */
status comm_fetch(struct comm *comm, struct comm_request **request);

/* comm_progress - push started collectives on; called between operations of backward. */
status comm_progress(struct comm *comm);

/* comm_wait - until the collective is complete; *request becomes NULL. */
status comm_wait(struct comm *comm, struct comm_request **request);

/* What communication cost since the last call. */
struct comm_times {
    double
        alone_seconds; /* that the large data would take with nobody computing: bytes at the rehearsed rates */
    double
        exposed_seconds; /* that the caller spent for large data inside this room: moving, adding, waiting */
    double small_seconds; /* and for small data: waiting for the others, mostly */
    int64_t bytes;        /* sent by this rank */
};
void comm_take_times(struct comm *comm, struct comm_times *out);

/* comm_hidden_share - 1 - exposed / alone, at least 0: how much of the time that communication needs passed while
 * the caller computed. 0 also where another rank was waited for longer than that. */
double comm_hidden_share(const struct comm_times *times);

/* comm_rehearse - measure at what rates data move alone. act starts collectives of one kind on large data and waits for
 * them; it is called several times, and the fastest counts. What it moves is not accounted. Collective. */
status comm_rehearse(struct comm *comm, status (*act)(void *user), void *user);

/* ---- errors and the end ---- */

/* comm_agree - one verdict for all ranks: the worst news of any rank (the lowest rank that failed).
 *
 * Every rank passes its own status; all get the verdict. The rank whose error it is prints its
 * pending note (status.h), once; other ranks' notes are dropped. Collective. */
status comm_agree(struct comm *comm, status mine);

/* comm_agree_flag - whether any rank passes true (a stop was asked for). Collective. */
status comm_agree_flag(struct comm *comm, bool mine, bool *any);

/* comm_check_equal - whether all ranks have the same value (a build's id, a recipe's hash; its first 64
 * characters count). Collective; all ranks get the same answer.
 *
 * Errors    STATUS_RECIPE naming `what`, the ranks that differ and both values */
status comm_check_equal(struct comm *comm, const char *what, const char *value);

/* comm_abort - print this rank's pending note and end the whole job with this code. Any thread.
 * Does not return. Of several ranks of a host that meet the end at once, the first one speaks.
 * comm may be NULL: this process alone ends. */
_Noreturn void comm_abort(struct comm *comm, status code);

/* comm_set_deadline - how long a wait may take before it counts as a hang; > 0; 300 s until set. Groups
 * split off later inherit it. A rank of this host that is in a phase with a longer limit of its own
 * (watchdog_phase), this rank included, is given that time. Over TCP it must be 15 s or more: a lost
 * host is noticed by the launcher after 11 s, and a job that ends itself before hangs in mpirun. */
void comm_set_deadline(struct comm *comm, double seconds);

/* comm_watch_end - `ending` is asked in every turn of a wait: whether this process is about to be killed by its
 * launcher, as mpirun does a second after its SIGTERM where it lost a host. A rank that has waited for
 * others by then ends at once with STATUS_LOST, and tells in which operation for whom: the launcher
 * knows neither. */
void comm_watch_end(bool (*ending)(void));

/* ---- watchdog (comm/watchdog.c) ----
 *
 * A thread beside the main one that sees when the main thread stays in one phase for too long, and
 * ends the job naming rank, phase and seconds. Ranks of a host see each other's phases, so that one
 * that is stopped is named by the others; ranks that wait in a collective are not judged (the wait's
 * deadline is). Durations are counted so that a suspended machine makes nobody late. Limits must stay
 * above 15 s where the job spans hosts (comm_set_deadline). */

/* watchdog_start - watch; the first limit is for start-up.
 *
 * Units     limit_seconds for phases that name no own limit */
status watchdog_start(struct comm *world, double limit_seconds);

/* watchdog_phase - what the main thread does from now on ("data", "forward", "gradient reduction",
 * "checkpoint", ...). Cheap: a store. Resets the time. limit_seconds 0: the default. */
void watchdog_phase(const char *phase, double limit_seconds);
void watchdog_stop(void);
