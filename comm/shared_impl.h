/* Collectives between ranks that see each other's memory, and by messages between the nodes they form.
 *
 * A node is a set of ranks with common memory (one host; a rank alone is a node too, so that plain
 * message passing is the case of one rank a node). comm_mpi.c makes the memory and carries messages;
 * everything else is plain C and knows no MPI. */
#pragma once

#include "comm/comm_impl.h"

#define SHARED_STAGE_BYTES                                                                         \
    ((size_t)1 << 20)  /* memory that is not in a window passes through this */
#define SHARED_RING 64 /* collectives of one comm under way at once */

/* What a rank says that it started, so that ranks that are out of order find out. */
struct shared_notice {
    uint64_t kind;
    uint64_t bytes;
    uint64_t check; /* of everything that must be equal on all ranks */
};

/* One rank's words to the others of its node. Numbers only grow. */
struct shared_control {
    _Alignas(128) _Atomic uint64_t ready; /* collectives started */
    _Alignas(128) _Atomic uint64_t done;  /* collectives whose memory this rank is through with */
    _Alignas(128) _Atomic uint64_t came;  /* exchanges entered */
    _Alignas(128) _Atomic uint64_t answered; /* exchanges whose answer lies in answer[] (place 0) */
    _Alignas(128) struct shared_notice notices[SHARED_RING];
    char small[2][COMM_SMALL_BYTES];
    char stage[SHARED_STAGE_BYTES];
    char answer[]; /* [2][size][COMM_SMALL_BYTES] */
};

/* shared_control_bytes - of one rank's control in a comm of so many ranks. */
size_t shared_control_bytes(int size);

/* ---- messages between nodes ---- */

struct shared_batch; /* messages under way */
enum shared_channel { SHARED_DATA = 0, SHARED_SMALL = 1 };

struct shared_link {
    status (*batch_create)(void *state, struct shared_batch **out);
    void (*batch_destroy)(struct shared_batch *batch);
    status (*send)(struct shared_batch *batch, enum shared_channel channel, int rank, int tag,
                   const void *data, size_t bytes);
    status (*receive)(struct shared_batch *batch, enum shared_channel channel, int rank, int tag,
                      void *data, size_t bytes);
    /* whether all are complete; the batch is empty then */
    status (*test)(struct shared_batch *batch, bool *done);
    /* ranks whose messages have not come, at most `limit` */
    int (*missing)(struct shared_batch *batch, int *ranks, int limit);
};

/* ---- the group ---- */

struct shared_window {
    struct shared_window *next;
    uint64_t id;
    size_t bytes;
    char **base;  /* [locals]: where this process sees each local rank's part */
    void *memory; /* what the caller got: base[place] */
    void *handle; /* the maker's own */
};

struct shared_group {
    struct comm *comm;
    int rank, size;
    int nodes, node; /* number of nodes, which one is ours */
    int place, locals;
    int *node_of;                    /* [size] */
    int *first;                      /* [nodes + 1] into member */
    int *member;                     /* [size] ranks in the order of nodes */
    int *world_rank;                 /* [size] */
    bool staged;                     /* some node has several ranks: memory must lie in a window */
    struct shared_control **control; /* [locals] */
    const struct shared_link *link;
    void *link_state;
    struct shared_window *windows;
    uint64_t windows_made;

    /* the collectives under way, oldest first (shared.c) */
    struct comm_request *head, *tail, *unpublished, *spare;
    int outstanding;
    uint64_t started;
    uint64_t exchanged;
    struct shared_batch *exchange_batch;
    struct range *cut; /* [size] ranges of a piece */
    char **stages;     /* [locals] */
    struct shared_group *next_group;
};

/* shared_open - when everything above `the collectives under way` is filled in. */
status shared_open(struct shared_group *group);
void shared_close(struct shared_group *group);

status shared_exchange(struct shared_group *group, void *all, const void *mine, size_t bytes);
status shared_start(struct shared_group *group, const struct comm_work *work,
                    struct comm_request **out);
status shared_progress(void);
status shared_wait(struct shared_group *group, struct comm_request **request);
status shared_fetch(struct shared_group *group, struct comm_request *request);

/* shared_launch - start on memory that all local ranks see at base[], `offset` bytes into window `id`. */
status shared_launch(struct shared_group *group, const struct comm_work *work, char *const *base,
                     size_t offset, uint64_t id, struct comm_request **out);

/* shared_through_stage - the whole collective on memory outside of windows, of `total` elements (shared_stage.c). */
status shared_through_stage(struct shared_group *group, const struct comm_work *work,
                            int64_t total);

/* ---- the engine and its waits (shared.c, shared_wait.c) ---- */

enum shared_event {
    SHARED_CAME,     /* all local ranks entered exchange `sequence` */
    SHARED_ANSWERED, /* its answer is there */
    SHARED_MESSAGES, /* a batch is complete */
    SHARED_COMPLETE, /* a request is complete */
    SHARED_ROOM,     /* fewer than SHARED_RING collectives are under way */
};

struct shared_wish {
    enum shared_event event;
    const char *operation; /* for people */
    uint64_t sequence;
    struct shared_batch *batch;
    const bool *complete;
};

/* shared_until - wait until the wish comes true, pushing everything on; does not return where the
 * deadline is missed. */
status shared_until(struct shared_group *group, const struct shared_wish *wish);

bool shared_all_reached(const struct shared_group *group, size_t counter_offset, uint64_t sequence);

/* ---- sums (sum.c) ---- */

/* sum_spread - the sum of parts[i][first .. first + count) in the order of i, into every part.
 *
 * Units     unit 4: f32; 2: bf16, added as f32 and rounded once */
void sum_spread(char *const *parts, int count_of_parts, int64_t first, int64_t count, size_t unit);

/* sum_into - the same, into out[0 .. count); out may be parts[i] + first for one i. */
void sum_into(void *out, char *const *parts, int count_of_parts, int64_t first, int64_t count,
              size_t unit);
