/* What the files of the NCCL communicator share: as much of NCCL's binary interface as it uses, and its waits.
 *
 * The interface is written down here because nccl.h needs CUDA's headers: so every build can open NCCL
 * where the machine has it. tests/comm/test_nccl_interface.c holds it against nccl.h where that is found. */
#pragma once

#include <pthread.h>
#include <stddef.h>

#include "comm/comm_device.h"
#include "comm/comm_impl.h"

/* ---- NCCL's binary interface, 2.28 ---- */

#define NCCL_OLDEST_VERSION 22800 /* 10000 major + 100 minor + patch */
#define NCCL_UNDEFINED_INT ((int)0x80000000)

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
};

enum nccl_type { NCCL_UINT8 = 1, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum nccl_operator { NCCL_SUM = 0 };

#define NCCL_WINDOW_SYMMETRIC 1 /* the same bytes at the same place of every rank's window */

struct nccl_comm;
struct nccl_window;

struct nccl_id {
    char bytes[128];
};

struct nccl_config {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class;
    const char *comm_name;
    int collnet_enable;
    int cta_policy;
    int shrink_share;
    int nvls_ctas;
    int channels_per_net_peer;
    int nvlink_centric_sched;
};

#define NCCL_CONFIG_MAGIC 0xcafebeefu

/* NCCL's functions: X(member below, name in the library, arguments). stream: device_stream_handle. */
/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(get_version, ncclGetVersion, (int *version))                                                 \
    X(get_unique_id, ncclGetUniqueId, (struct nccl_id *id))                                        \
    X(comm_init, ncclCommInitRankConfig,                                                           \
      (struct nccl_comm **out, int ranks, struct nccl_id id, int rank, struct nccl_config *config)) \
    X(comm_split, ncclCommSplit,                                                                   \
      (struct nccl_comm *comm, int colour, int key, struct nccl_comm **out,                        \
       struct nccl_config *config))                                                                \
    X(comm_finalize, ncclCommFinalize, (struct nccl_comm *comm))                                   \
    X(comm_destroy, ncclCommDestroy, (struct nccl_comm *comm))                                     \
    X(comm_abort, ncclCommAbort, (struct nccl_comm *comm))                                         \
    X(get_async_error, ncclCommGetAsyncError,                                                      \
      (struct nccl_comm *comm, enum nccl_result *error))                                           \
    X(mem_alloc, ncclMemAlloc, (void **memory, size_t bytes))                                      \
    X(mem_free, ncclMemFree, (void *memory))                                                       \
    X(window_register, ncclCommWindowRegister,                                                     \
      (struct nccl_comm *comm, void *memory, size_t bytes, struct nccl_window **out, int flags))   \
    X(window_deregister, ncclCommWindowDeregister,                                                 \
      (struct nccl_comm *comm, struct nccl_window *window))                                        \
    X(group_start, ncclGroupStart, (void))                                                         \
    X(group_end, ncclGroupEnd, (void))                                                             \
    X(all_reduce, ncclAllReduce,                                                                   \
      (const void *from, void *to, size_t count, enum nccl_type type, enum nccl_operator sum,      \
       struct nccl_comm *comm, void *stream))                                                      \
    X(reduce, ncclReduce,                                                                          \
      (const void *from, void *to, size_t count, enum nccl_type type, enum nccl_operator sum,      \
       int root, struct nccl_comm *comm, void *stream))                                            \
    X(reduce_scatter, ncclReduceScatter,                                                           \
      (const void *from, void *to, size_t each, enum nccl_type type, enum nccl_operator sum,       \
       struct nccl_comm *comm, void *stream))                                                      \
    X(all_gather, ncclAllGather,                                                                   \
      (const void *from, void *to, size_t each, enum nccl_type type, struct nccl_comm *comm,       \
       void *stream))                                                                              \
    X(broadcast, ncclBroadcast,                                                                    \
      (const void *from, void *to, size_t count, enum nccl_type type, int root,                    \
       struct nccl_comm *comm, void *stream))
/* clang-format on */

struct nccl_library {
    int version;
    const char *path;
    const char *(*last_error)(struct nccl_comm *comm);
    const char *(*result_text)(enum nccl_result result);
#define NCCL_MEMBER(member, name, arguments) enum nccl_result(*member) arguments;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* nccl_open - the library, opened once; comm_device.h says where it is looked for.
 *
 * Errors    STATUS_UNAVAILABLE: *missing says whether there is none, rather than one that cannot be used */
status nccl_open(const struct nccl_library **out, bool *missing);

/* ---- the communicator ---- */

#define NCCL_UNDER_WAY 64 /* collectives of one communicator whose end was not yet seen */

/* A started collective: a row of its communicator's ring, for as long as its event has not come. */
struct comm_request {
    uint64_t number;
    enum comm_collective kind;
    struct event *done;
};

struct nccl_memory {
    struct nccl_memory *next;
    void *memory;
    size_t bytes;
    bool from_nccl;
    struct nccl_window *window; /* NULL: not registered; NCCL writes it when the call has ended */
};

struct nccl_state {
    struct nccl_state *next; /* of all living ones */
    struct comm *comm;
    struct comm_device_options options;
    struct nccl_comm *handle;
    struct stream *stream; /* of the collectives; options.stream computes */
    struct event *ready;
    struct comm_request ring[NCCL_UNDER_WAY];
    uint64_t started, finished; /* collectives; number n lies in ring[n % NCCL_UNDER_WAY] */
    uint64_t watched;           /* what `finished` was when the watch looked last */
    double age_seconds;         /* for so long no collective has ended though one is under way */
    struct nccl_memory *memories;
};

extern struct nccl_world {
    const struct nccl_library *library;
    struct nccl_state *living;
} nccl_world;

/* nccl_lock - one thread at a time may use NCCL and what is said about it: the main one or the watch. Does not
 * return once the job ends. */
void nccl_lock(void);
void nccl_unlock(void);

/* nccl_settle - what a call answered, once it is no longer under way.
 *
 * Errors    STATUS_LOST, STATUS_INTERNAL with NCCL's own words; ends the job after the comm's deadline */
status nccl_settle(struct nccl_state *state, enum nccl_result result, const char *what);

/* nccl_raise - the status of a call that failed. */
status nccl_raise(const struct nccl_state *state, enum nccl_result result, const char *what);

/* nccl_wait_event - until it has come; the deadline as in nccl_settle. */
status nccl_wait_event(struct nccl_state *state, struct event *event, const char *what);

/* nccl_memory_create, nccl_memory_destroy - comm_allocate and comm_free (comm_nccl_memory.c); nothing may be under way where
 * memory is given back. */
status nccl_memory_create(struct nccl_state *state, size_t bytes, void **out);
status nccl_memory_destroy(struct nccl_state *state, void *memory);
status nccl_memory_destroy_all(struct nccl_state *state);

/* nccl_watch_start, nccl_watch_stop - the thread that sees errors and silence while the main one is busy or
 * waits for the device; and the end of all communicators before the end of the job. */
status nccl_watch_start(void);
void nccl_watch_stop(void);
