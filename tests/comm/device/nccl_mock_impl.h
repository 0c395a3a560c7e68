/* Internals of the NCCL mock: the state of a communicator, and the calls that its worker thread
 * runs (nccl_mock_run.c) for the functions of NCCL (nccl_mock.c). */
#pragma once

#include <pthread.h>

#include "comm/device/nccl_impl.h"
#include "tests/comm/device/nccl_mock.h"

#define NCCL_MOCK_MAX_RANKS 16
#define NCCL_MOCK_MAX_CALLS 64 /* in a group */
#define NCCL_MOCK_NO_COLOR (-1)

enum call_kind { INIT, SPLIT, FINALIZE, REGISTER, ALL_REDUCE, REDUCE, SCATTER, GATHER, BROADCAST };

struct nccl_window {
    struct nccl_window *next; /* sorted by offset */
    const char *memory;
    size_t bytes, offset;
};

struct call {
    enum call_kind kind;
    const char *from;
    char *to;
    size_t count;
    enum nccl_type type;
    int root;
    int color, key;
    struct nccl_comm *child, **child_out;
    struct nccl_window **window;
    void *stream;
    unsigned long capture; /* of the stream; 0: none */
};

struct nccl_comm {
    int rank, size;
    bool first; /* the first communicator of the process */
    char path[192];
    struct rendezvous *rendezvous;
    size_t bytes;
    pthread_t worker;
    bool has_worker, stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    unsigned submitted, started; /* groups of calls */
    _Atomic int result;          /* of ncclCommGetAsyncError */
    _Atomic int failure;         /* of a collective on an emulated GPU; NCCL_SUCCESS: none */
    /* captured collectives so far, and those in graphs that still exist */
    unsigned captures;
    _Atomic int persistent;
    atomic_bool aborted;
    struct nccl_comm *parent; /* during a split: its abort also aborts this communicator */
    bool finalize_called;
    struct nccl_id *ids; /* until the communicator is initialized */
    int id_count;
    struct call calls[NCCL_MOCK_MAX_CALLS];
    int call_count;
    int collectives, splits;
    struct nccl_window *windows;
};

/* nccl_mock_state - return the counts of the process, which its threads update. */
struct nccl_mock_counts *nccl_mock_state(void);

/* nccl_mock_set_error - set the text of ncclGetLastError and return `result`. */
enum nccl_result nccl_mock_set_error(enum nccl_result result, const char *text);

/* nccl_mock_error - return that text. */
const char *nccl_mock_error(void);

/* nccl_mock_find_fault - return the text after the name of a fault in NCCL_MOCK, or NULL. */
const char *nccl_mock_find_fault(const char *name);

/* nccl_mock_has_fault - return whether a fault applies to this rank of this communicator. */
bool nccl_mock_has_fault(const struct nccl_comm *comm, const char *name);

/* nccl_mock_type_bytes - return the bytes of an element. */
size_t nccl_mock_type_bytes(enum nccl_type type);

/* nccl_mock_submit - let the worker thread run comm->calls. The communicator is in progress until
 * they are complete.
 *
 * Errors    NCCL_SYSTEM_ERROR; otherwise it returns NCCL_IN_PROGRESS */
enum nccl_result nccl_mock_submit(struct nccl_comm *comm);

/* nccl_mock_run_collective - run a collective in the calling thread. `capture` is its number among
 * the captured collectives of the communicator, 0 if it is not captured. */
enum nccl_result nccl_mock_run_collective(struct nccl_comm *comm, const struct call *call,
                                          unsigned capture);

/* nccl_mock_has_gpus - return whether the program emulates GPUs (nccl_mock_gpu.c). */
bool nccl_mock_has_gpus(void);

/* nccl_mock_get_capture - return a number for the capture of a stream, 0 for none. */
unsigned long nccl_mock_get_capture(const void *stream);

/* nccl_mock_queue - queue a collective on the stream of an emulated GPU. */
enum nccl_result nccl_mock_queue(struct nccl_comm *comm, const struct call *call);

/* nccl_mock_wait_for_graphs - wait until no graph contains a collective of the communicator. It
 * returns early if the communicator is aborted, unless `always`. */
void nccl_mock_wait_for_graphs(struct nccl_comm *comm, bool always);

/* nccl_mock_gpu_allocate - allocate memory of an emulated GPU; NULL if there is none. */
void *nccl_mock_gpu_allocate(size_t bytes);

/* nccl_mock_gpu_release - release that memory. */
void nccl_mock_gpu_release(void *memory);

/* nccl_mock_release - stop the worker thread and free the communicator. */
void nccl_mock_release(struct nccl_comm *comm);

/* nccl_mock_remove_window - close a window of the communicator. Return false if it has none. */
bool nccl_mock_remove_window(struct nccl_comm *comm, struct nccl_window *window);

/* nccl_mock_memory_create - allocate memory; NULL if there is none. */
void *nccl_mock_memory_create(size_t bytes);

/* nccl_mock_memory_destroy - free memory.
 *
 * Errors    NCCL_CUDA_ERROR for other memory; NCCL_INVALID_USAGE if a window is open in it */
enum nccl_result nccl_mock_memory_destroy(void *memory);
