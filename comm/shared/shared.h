/* Collectives between ranks that share memory, and messages between the nodes that they form.
 *
 *   node           A set of ranks with shared memory, normally the ranks of a host. With one rank
 *                  per node all data moves in messages.
 *   window         Memory of comm_allocate: a segment for each rank, which its node can access.
 *   control block  Counters and small data of a rank in shared memory.
 *   staging        Memory outside of windows is copied to a buffer in the control block, in chunks.
 *   link           The functions that send messages between nodes.
 *
 * host/mpi.c creates the memory and provides the link. All other files are plain C without MPI.
 *
 * Calls     shared_open; shared_start, shared_progress and shared_wait for each
 *           collective; shared_close
 * Errors    unless stated otherwise, STATUS_HANG after the deadline, and as the functions of
 *           the link */
#pragma once

#include "comm/comm_impl.h"

#define SHARED_STAGE_BYTES ((size_t)1 << 20) /* staging buffer for memory outside of windows */
#define SHARED_RING 64                       /* maximum collectives in flight per communicator */

/* Description of a started collective, to detect ranks that call collectives in
 * different orders. */
struct shared_signature {
    uint64_t kind;
    uint64_t bytes;
    uint64_t hash; /* of all values that must be equal on all ranks */
};

/* Control block of a rank, visible to its node. The counters only increase. */
struct shared_control {
    _Alignas(128) _Atomic uint64_t ready; /* collectives started */
    _Alignas(128) _Atomic uint64_t done; /* collectives with memory that this rank no longer uses */
    _Alignas(128) _Atomic uint64_t exchange_entered; /* exchanges entered */
    /* rank 0 of the node: exchanges with a result in exchange_result */
    _Alignas(128) _Atomic uint64_t exchange_answered;
    _Alignas(128) struct shared_signature signatures[SHARED_RING];
    char exchange_data[2][COMM_SMALL_BYTES];
    char stage[SHARED_STAGE_BYTES];
    char exchange_result[]; /* [2][size][COMM_SMALL_BYTES] */
};

/* shared_control_bytes - return the size of a control block in a communicator of `size` ranks. */
size_t shared_control_bytes(int size);

/* ---- messages between nodes ---- */

struct shared_batch; /* messages in flight */
enum shared_channel { SHARED_DATA = 0, SHARED_SMALL = 1 };

struct shared_link {
    status (*batch_create)(void *state, struct shared_batch **out);
    void (*batch_destroy)(struct shared_batch *batch);
    status (*send)(struct shared_batch *batch, enum shared_channel channel, int rank, int tag,
                   const void *data, size_t bytes);
    status (*receive)(struct shared_batch *batch, enum shared_channel channel, int rank, int tag,
                      void *data, size_t bytes);
    /* tests whether all messages are complete; the batch is then empty */
    status (*test)(struct shared_batch *batch, bool *done);
    /* lists the source ranks of incomplete messages, at most `limit` */
    int (*late_sources)(struct shared_batch *batch, int *ranks, int limit);
};

/* ---- the group ---- */

struct shared_window {
    struct shared_window *next;
    uint64_t id;
    size_t bytes;
    char **base;  /* [local_size]: address of each local rank's segment in this process */
    void *memory; /* base[local_rank], which the caller received */
    void *handle; /* private data of host/mpi.c */
};

struct shared_group {
    struct comm *comm;
    int rank, size;
    int nodes, node; /* number of nodes, index of this node */
    int local_rank, local_size;
    int *node_of;       /* [size] */
    int *node_first;    /* [nodes + 1]: first index of a node in members */
    int *members;       /* [size]: ranks in the order of nodes */
    int *world_rank;    /* [size] */
    bool needs_staging; /* a node has several ranks: memory outside of windows is staged */
    struct shared_control **control; /* [local_size] */
    const struct shared_link *link;
    void *link_state;
    struct shared_window *windows;
    uint64_t window_count;

    /* the collectives in flight, oldest first (shared.c) */
    struct comm_request *head, *tail, *first_unpublished, *free_requests;
    int in_flight;
    uint64_t started_count;
    uint64_t exchange_count;
    struct shared_batch *exchange_batch;
    struct comm_range *chunk_ranges; /* [size]: ranges of a chunk */
    char **stages;                   /* [local_size] */
    struct shared_group *next_group;
};

/* shared_open - initialize a group. The caller has set all fields up to window_count. */
status shared_open(struct shared_group *group);

/* shared_close - free what shared_open allocated, and all requests. */
void shared_close(struct shared_group *group);

/* shared_exchange - gather own[bytes] of every rank into all[size][bytes]. */
status shared_exchange(struct shared_group *group, void *all, const void *own, size_t bytes);

/* shared_start - start a collective on any memory. */
status shared_start(struct shared_group *group, const struct comm_work *work,
                    struct comm_request **out);

/* shared_progress - advance the collectives of all groups of this process without waiting. */
status shared_progress(void);

/* shared_wait - wait until a collective is complete. */
status shared_wait(struct shared_group *group, struct comm_request **request);

/* shared_gather_pull - wait until this rank has copied all data of a lazy gather. */
status shared_gather_pull(struct shared_group *group, struct comm_request *request);

/* shared_launch - start a collective on memory at base[i] + offset of each local rank i.
 *
 * The memory belongs to window `id`; 0 for memory outside of windows. */
status shared_launch(struct shared_group *group, const struct comm_work *work, char *const *base,
                     size_t offset, uint64_t id, struct comm_request **out);

/* shared_run_staged - run a whole collective of `total` elements on memory outside of windows. */
status shared_run_staged(struct shared_group *group, const struct comm_work *work, int64_t total);

/* ---- waits (wait.c) ---- */

enum shared_event {
    SHARED_EXCHANGE_ENTERED,  /* all local ranks have entered exchange `sequence` */
    SHARED_EXCHANGE_ANSWERED, /* the result of exchange `sequence` is available */
    SHARED_MESSAGES_DONE,     /* all messages of a batch are complete */
    SHARED_REQUEST_DONE,      /* a request is complete */
    SHARED_RING_HAS_ROOM,     /* fewer than SHARED_RING collectives are in flight */
};

struct shared_wait_condition {
    enum shared_event event;
    const char *operation; /* name for error messages */
    uint64_t sequence;
    struct shared_batch *batch;
    const bool *is_complete;
};

/* shared_wait_until - wait until the condition holds, and advance all collectives meanwhile.
 *
 * Errors    errors of the collectives; after the deadline it ends the job and does not return */
status shared_wait_until(struct shared_group *group, const struct shared_wait_condition *condition);

/* shared_all_reached - return whether the counter of every local rank is at least `sequence`.
 *
 * Units     counter_offset: offset of the counter in struct shared_control */
bool shared_all_reached(const struct shared_group *group, size_t counter_offset, uint64_t sequence);
