/* Internals of the NCCL communicator: the part of NCCL's binary interface that it uses, and
 * its waits.
 *
 * The interface is declared here because nccl.h needs CUDA's headers. Every build can then use NCCL
 * if the machine has it. tests/comm/device/test_nccl_interface.c compares it with nccl.h, if that
 * is installed.
 *
 * Errors    unless stated otherwise, STATUS_INTERNAL or STATUS_LOST with the text of NCCL, and
 *           STATUS_HANG after the deadline */
#pragma once

#include <pthread.h>
#include <stddef.h>

#include "comm/comm_impl.h"
#include "comm/device/device.h"

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

#define NCCL_WINDOW_SYMMETRIC 1 /* the same memory offset in the windows of all ranks */

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

/* NCCL's functions: X(member of struct nccl_library, name in the library, arguments). `stream` is a
 * device_stream_handle. */
/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(get_version, ncclGetVersion, (int *version))                                                 \
    X(get_unique_id, ncclGetUniqueId, (struct nccl_id *id))                                        \
    X(comm_init, ncclCommInitRankConfig,                                                           \
      (struct nccl_comm **out, int ranks, struct nccl_id id, int rank,                             \
       struct nccl_config *config))                                                                \
    X(comm_split, ncclCommSplit,                                                                   \
      (struct nccl_comm *comm, int color, int key, struct nccl_comm **out,                         \
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

/* Functions that a library may lack: NULL then. */
#define NCCL_OPTIONAL_FUNCTIONS(X)                                                                 \
    X(comm_init_scalable, ncclCommInitRankScalable,                                                \
      (struct nccl_comm **out, int ranks, int rank, int id_count, struct nccl_id *ids,             \
       struct nccl_config *config))
/* clang-format on */

struct nccl_library {
    int version;
    const char *path;
    const char *(*last_error)(struct nccl_comm *comm);
    const char *(*result_text)(enum nccl_result result);
#define NCCL_MEMBER(member, name, arguments) enum nccl_result(*member) arguments;
    NCCL_FUNCTIONS(NCCL_MEMBER)
    NCCL_OPTIONAL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* nccl_open - open the library once (device.h documents its path).
 *
 * Errors    STATUS_UNAVAILABLE; *missing is true if the library is not installed or switched off,
 *           and false if it is unusable */
status nccl_open(const struct nccl_library **out, bool *missing);

/* ---- the communicator ---- */

#define NCCL_RING 64               /* maximum collectives in flight per communicator */
#define NCCL_WAITS (4 * NCCL_RING) /* maximum measured waits that are not read yet */

#define NCCL_GRAPH_RANKS 64 /* maximum ranks of a communicator with collectives in graphs */
#define NCCL_GRAPH_SLOTS 4  /* maximum collectives in a graph at a time */

/* A started collective. It is an entry of the communicator's ring, valid until its event
 * is complete. In a graph region it is a slot instead, valid until comm_wait. */
struct comm_request {
    uint64_t number;
    enum comm_collective kind;
    bool is_graph; /* stands for all collectives of a graph */
    struct event *done;
    bool is_used; /* a slot: started and not waited for */
};

/* Waits of the computing stream. Number n is between the timed events begin[n % NCCL_WAITS] and
 * end[n % NCCL_WAITS]; the times of the first `read` waits are added up. */
struct nccl_waits {
    struct event *begin[NCCL_WAITS], *end[NCCL_WAITS];
    uint64_t recorded, read;
};

struct nccl_memory {
    struct nccl_memory *next;
    void *memory;
    size_t bytes;
    bool from_nccl;
    struct nccl_window *window; /* NULL: not registered; valid when the registration completed */
};

struct nccl_state {
    struct nccl_state *next; /* in the registry of communicators */
    struct comm *comm;
    struct comm_device_options options;
    struct nccl_comm *handle;
    struct stream *stream; /* runs the collectives; options.stream computes */
    struct event *ready;
    struct comm_request ring[NCCL_RING];
    uint64_t started, finished; /* collectives; number n is ring[n % NCCL_RING] */
    uint64_t last_finished;     /* `finished` at the last check of the watchdog */
    double age_seconds;         /* time since a collective last completed */
    struct nccl_waits waits;
    struct nccl_memory *memories;
    bool in_graphs;             /* collectives may be in graphs; equal on all ranks */
    uint64_t graph_collectives; /* started in graph regions */
    struct device_work graph_start, graph_wait;
    struct comm_request slots[NCCL_GRAPH_SLOTS]; /* of collectives in graph regions */
};

extern struct nccl_world {
    const struct nccl_library *library;
    struct nccl_state *communicators;
} nccl_world;

/* nccl_lock - lock NCCL and the communicators' state for the main thread or the watchdog.
 *
 * While the job ends, it blocks forever. */
void nccl_lock(void);

/* nccl_unlock - release nccl_lock. */
void nccl_unlock(void);

/* nccl_wait_result - wait until the operation that a call started is complete.
 *
 * `result` is the value that the call returned. If it is no error, the communicator is polled,
 * because a call may return NCCL_SUCCESS while its operation is still in progress. The outputs of
 * ncclCommSplit and ncclCommWindowRegister are valid after this wait.
 *
 * Errors    STATUS_LOST or STATUS_INTERNAL with NCCL's message; the job ends after the deadline */
status nccl_wait_result(struct nccl_state *state, enum nccl_result result, const char *operation);

/* nccl_raise - return the status of a failed call, with NCCL's message. */
status nccl_raise(const struct nccl_state *state, enum nccl_result result, const char *operation);

/* nccl_wait_event - wait until the event is complete; the deadline as in nccl_wait_result. */
status nccl_wait_event(struct nccl_state *state, struct event *event, const char *operation);

/* nccl_limit_in_flight - wait until at most `max_in_flight` collectives are in flight (nccl.c). */
status nccl_limit_in_flight(struct nccl_state *state, uint64_t max_in_flight);

/* nccl_count_started - record the event of a new entry of the ring on a stream.
 *
 * Calls     nccl_limit_in_flight(state, NCCL_RING - 1) before the work is queued */
status nccl_count_started(struct nccl_state *state, enum comm_collective kind, bool is_graph,
                          struct stream *stream, struct comm_request **out);

/* nccl_enqueue - queue a collective on state->stream after the work of the computing stream, and
 * wait until NCCL has queued it. */
status nccl_enqueue(struct nccl_state *state, const struct comm_work *work, const char *operation);

/* nccl_graph_create - create the slots of collectives in graph regions (nccl_graph.c). */
status nccl_graph_create(struct nccl_state *state);

/* nccl_graph_destroy - destroy the slots. */
void nccl_graph_destroy(struct nccl_state *state);

/* nccl_graph_enable - implement comm_device_enable_graphs. */
status nccl_graph_enable(struct nccl_state *state);

/* nccl_graph_start - start a collective if a graph may contain it; otherwise *out is NULL. */
status nccl_graph_start(struct nccl_state *state, const struct comm_work *work,
                        struct comm_request **out);

/* nccl_graph_owns - return whether a request is a slot. */
bool nccl_graph_owns(const struct nccl_state *state, const struct comm_request *request);

/* nccl_graph_wait - let the computing stream wait for the collective of a slot, and release it. */
status nccl_graph_wait(struct nccl_state *state, struct comm_request *slot);

/* nccl_waits_create - create the timed events, unless the device is the CPU (nccl_times.c). */
status nccl_waits_create(struct nccl_state *state);

/* nccl_waits_destroy - destroy the timed events. */
void nccl_waits_destroy(struct nccl_state *state);

/* nccl_waits_queue - let the computing stream wait for the event, and measure how long it waits.
 *
 * The host does not block. A wait is not measured if the device has not reached the last NCCL_WAITS
 * of them. */
status nccl_waits_queue(struct nccl_state *state, struct event *event);

/* nccl_waits_read - implement read_waits of comm_impl.h. */
status nccl_waits_read(struct comm *comm, bool discard);

/* nccl_memory_create - implement comm_allocate (nccl_memory.c). */
status nccl_memory_create(struct nccl_state *state, size_t bytes, void **out);

/* nccl_memory_destroy - implement comm_free; no collective may be in flight. */
status nccl_memory_destroy(struct nccl_state *state, void *memory);

/* nccl_memory_destroy_all - free all memory of the communicator. */
status nccl_memory_destroy_all(struct nccl_state *state);

/* nccl_watchdog_start - start the thread that detects NCCL errors and hangs.
 *
 * It checks while the main thread computes or waits for the device. It also installs the hook that
 * aborts all communicators before the job ends. */
status nccl_watchdog_start(void);

/* nccl_watchdog_stop - stop the thread and remove the hook. */
void nccl_watchdog_stop(void);
