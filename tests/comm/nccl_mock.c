/* A mock of libnccl without GPUs. It implements NCCL's functions in host memory, between processes
 * of one host. They find each other through a file in /dev/shm that is named after the unique id.
 *
 * The mock behaves as a non-blocking communicator: a call returns ncclInProgress, a worker thread
 * executes it, and a second call before its completion is an error. Streams are ignored: the work
 * is complete when the communicator is no longer in progress. Sums are added in rank order.
 *
 * The environment variable NCCL_MOCK lists faults, separated by commas. NAME@R injects a fault only
 * on rank R of the first communicator:
 *   version=N       ncclGetVersion returns N
 *   memory          ncclMemAlloc fails (memory=R: on rank R)
 *   init_hang       initialization hangs
 *   init_fail       initialization fails with ncclSystemError
 *   hang            the third collective hangs
 *   fail            the third collective fails with ncclRemoteError
 *   fail_later      the third collective succeeds; an error follows 0.3 s later
 *   slow            every call takes at least 50 ms
 *   abort_hang      ncclCommAbort hangs
 *   window_none     registration succeeds without a window, as in an NCCL that uses no windows
 *   window_refused  registration is refused at once
 *   window_fail     registration fails with ncclSystemError
 *
 * As in NCCL, each rank assigns the lowest gap to a window, without communication. The mock also
 * detects errors that NCCL does not detect. Registered memory must come from ncclMemAlloc and have
 * the same size and offset on all ranks. The data of a collective must have the same window offset
 * on all ranks, or no window. Memory and communicators with an open window must not be released. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/tensor.h"
#include "comm/comm_nccl_impl.h"
#include "tests/comm/nccl_mock.h"

#define STAGE_BYTES ((size_t)1 << 18)
#define MAX_RANKS 16
#define YIELDS 100 /* polls of a wait before it sleeps; most waits end earlier */
#define POLL_SECONDS 50e-6
#define SLOW_SECONDS 0.05
#define LATER_SECONDS 0.3
#define FAULTY_COLLECTIVE 3

struct rendezvous {
    _Atomic int arrived;
    _Atomic unsigned generation;
    _Atomic int pids[MAX_RANKS];
    _Alignas(64) char stage[][STAGE_BYTES];
};

enum call_kind { INIT, SPLIT, FINALIZE, REGISTER, REDUCE, SCATTER, GATHER, BROADCAST };

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
    int root; /* -1 in REDUCE: all-reduce */
    int color, key;
    struct nccl_comm *child;
    struct nccl_window **window;
};

enum { MAX_CALLS = 64 };

struct nccl_comm {
    int rank, size;
    bool first;
    char path[192];
    struct rendezvous *rendezvous;
    size_t bytes;
    pthread_t worker;
    bool has_worker, stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    unsigned submitted, started; /* groups of calls */
    _Atomic int result;
    atomic_bool aborted;
    struct call calls[MAX_CALLS];
    int call_count;
    int collectives, splits;
    struct nccl_window *windows;
};

static _Thread_local int group_depth;
static _Thread_local struct nccl_comm *group_comm;
static struct nccl_config last_config;
static char last_error[160];
static int first_rank;             /* rank in the first communicator */
static _Atomic int windowed_count; /* collectives with data in a window */

/* Allocations of ncclMemAlloc. */
enum { MAX_MEMORIES = 64 };
static struct {
    void *memory;
    size_t bytes;
    _Atomic int windows;
} memories[MAX_MEMORIES];

static int find_memory(const void *memory)
{
    int i = 0;
    while (i < MAX_MEMORIES && memories[i].memory != memory) {
        i++;
    }
    return i;
}

#define DECLARE(member, name, arguments) enum nccl_result name arguments;
NCCL_FUNCTIONS(DECLARE)
const char *ncclGetErrorString(enum nccl_result result);
const char *ncclGetLastError(struct nccl_comm *comm);

const struct nccl_config *nccl_mock_config(void)
{
    return &last_config;
}

int nccl_mock_count_windowed(void)
{
    return atomic_load(&windowed_count);
}

/* ---- faults ---- */

static const char *find_fault(const char *name)
{
    const char *all = getenv("NCCL_MOCK");
    size_t length = strlen(name);
    for (const char *at = all; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && strchr("@=,", at[length]) != NULL) {
            return at + length;
        }
    }
    return NULL;
}

static bool has_fault(const struct nccl_comm *c, const char *name)
{
    const char *text = find_fault(name);
    return text != NULL && c->first && (*text != '@' || (int)strtol(text + 1, NULL, 10) == c->rank);
}

static enum nccl_result set_error(enum nccl_result result, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return result;
}

/* ---- synchronization of ranks ---- */

static bool is_peer_dead(const struct nccl_comm *c)
{
    for (int r = 0; r < c->size; r++) {
        int pid = atomic_load(&c->rendezvous->pids[r]);
        if (pid != 0 && kill(pid, 0) != 0 && errno == ESRCH) {
            return true;
        }
    }
    return false;
}

static enum nccl_result synchronize_ranks(struct nccl_comm *c)
{
    struct rendezvous *m = c->rendezvous;
    unsigned generation = atomic_load(&m->generation);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == c->size) {
        atomic_store(&m->arrived, 0);
        atomic_fetch_add(&m->generation, 1);
        return NCCL_SUCCESS;
    }
    for (int i = 1; atomic_load(&m->generation) == generation; i++) {
        if (atomic_load(&c->aborted)) {
            return NCCL_INTERNAL_ERROR;
        }
        if (i % 200 == 0 && is_peer_dead(c)) {
            return set_error(NCCL_REMOTE_ERROR, "a process does not exist");
        }
        i < YIELDS ? (void)sched_yield() : clock_sleep(POLL_SECONDS);
    }
    return NCCL_SUCCESS;
}

static enum nccl_result wait_for_abort(struct nccl_comm *c)
{
    while (!atomic_load(&c->aborted)) {
        clock_sleep(0.01);
    }
    return NCCL_INTERNAL_ERROR;
}

static enum nccl_result join_rendezvous(struct nccl_comm *c)
{
    c->bytes = sizeof(struct rendezvous) + (size_t)c->size * STAGE_BYTES;
    int file = open(c->path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)c->bytes) != 0) {
        return set_error(NCCL_SYSTEM_ERROR, "no space in /dev/shm");
    }
    c->rendezvous = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (c->rendezvous == MAP_FAILED) {
        c->rendezvous = NULL;
        return set_error(NCCL_SYSTEM_ERROR, "no space in /dev/shm");
    }
    atomic_store(&c->rendezvous->pids[c->rank], (int)getpid());
    enum nccl_result result = synchronize_ranks(c);
    unlink(c->path); /* all ranks have mapped the file */
    return result;
}

/* ---- windows ---- */

/* Checks that all ranks pass the same bytes. */
static enum nccl_result check_same_on_all_ranks(struct nccl_comm *c, const size_t *own,
                                                size_t bytes, const char *message)
{
    memcpy(c->rendezvous->stage[c->rank], own, bytes);
    enum nccl_result result = synchronize_ranks(c);
    bool is_same = true;
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        is_same = is_same && memcmp(c->rendezvous->stage[r], own, bytes) == 0;
    }
    result = result == NCCL_SUCCESS ? synchronize_ranks(c) : result;
    return result != NCCL_SUCCESS || is_same ? result : set_error(NCCL_INVALID_USAGE, message);
}

static enum nccl_result register_window(struct nccl_comm *c, const struct call *call)
{
    if (has_fault(c, "window_fail")) {
        return set_error(NCCL_SYSTEM_ERROR, "injected failure");
    }
    size_t offset = 0;
    struct nccl_window **at = &c->windows;
    for (; *at != NULL && (*at)->offset < offset + call->count; at = &(*at)->next) {
        offset = (*at)->offset + (*at)->bytes;
    }
    enum nccl_result result =
        check_same_on_all_ranks(c, (size_t[]){offset, call->count}, 2 * sizeof offset,
                                "ranks register windows of different sizes or in different orders");
    if (result != NCCL_SUCCESS || has_fault(c, "window_none")) {
        return result;
    }
    struct nccl_window *window = malloc(sizeof *window);
    if (window == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    *window = (struct nccl_window){*at, call->from, call->count, offset};
    *at = window;
    *call->window = window;
    atomic_fetch_add(&memories[find_memory(call->from)].windows, 1);
    return NCCL_SUCCESS;
}

/* Checks that the data has the same window offset on all ranks, or is in no window. */
static enum nccl_result check_windows(struct nccl_comm *c, const struct call *call)
{
    size_t offset = SIZE_MAX;
    for (const struct nccl_window *w = c->windows; w != NULL; w = w->next) {
        if (call->to >= w->memory && call->to < w->memory + w->bytes) {
            offset = w->offset + (size_t)(call->to - w->memory);
        }
    }
    atomic_fetch_add(&windowed_count, offset != SIZE_MAX ? 1 : 0);
    return check_same_on_all_ranks(c, &offset, sizeof offset,
                                   "data at different window offsets on the ranks");
}

/* ---- collectives ---- */

static size_t get_type_bytes(enum nccl_type type)
{
    return type == NCCL_FLOAT32 ? 4 : type == NCCL_BFLOAT16 ? 2 : 1;
}

static void sum_stages(const struct nccl_comm *c, char *to, size_t count, enum nccl_type type)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < c->size; r++) {
            const char *stage = c->rendezvous->stage[r];
            float value = type == NCCL_FLOAT32
                              ? ((const float *)(const void *)stage)[i]
                              : bf16_to_f32(((const bf16 *)(const void *)stage)[i]);
            sum = r == 0 ? value : sum + value;
        }
        if (type == NCCL_FLOAT32) {
            ((float *)(void *)to)[i] = sum;
        } else {
            ((bf16 *)(void *)to)[i] = f32_to_bf16(sum);
        }
    }
}

/* Every rank copies its input to its stage. After a barrier it computes its output from the stages.
 * After a second barrier the stages can be overwritten. */
static enum nccl_result run_chunk(struct nccl_comm *c, const struct call *call, size_t first,
                                  size_t count)
{
    size_t element_bytes = get_type_bytes(call->type), at = first * element_bytes,
           bytes = count * element_bytes;
    if (call->kind != BROADCAST || call->root == c->rank) {
        memcpy(c->rendezvous->stage[c->rank], call->from + at, bytes);
    }
    enum nccl_result result = synchronize_ranks(c);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (call->kind == REDUCE && (call->root < 0 || call->root == c->rank)) {
        sum_stages(c, call->to + at, count, call->type);
    } else if (call->kind == BROADCAST) {
        memcpy(call->to + at, c->rendezvous->stage[call->root], bytes);
    } else if (call->kind == GATHER) {
        for (int r = 0; r < c->size; r++) {
            memcpy(call->to + (size_t)r * call->count * element_bytes + at, c->rendezvous->stage[r],
                   bytes);
        }
    }
    return synchronize_ranks(c);
}

static enum nccl_result run_in_chunks(struct nccl_comm *c, const struct call *call)
{
    size_t chunk_elems = STAGE_BYTES / get_type_bytes(call->type);
    enum nccl_result result = NCCL_SUCCESS;
    for (size_t done = 0; done < call->count && result == NCCL_SUCCESS; done += chunk_elems) {
        result = run_chunk(c, call, done,
                           call->count - done < chunk_elems ? call->count - done : chunk_elems);
    }
    return result;
}

static enum nccl_result run_collective(struct nccl_comm *c, const struct call *call)
{
    if (++c->collectives == FAULTY_COLLECTIVE && has_fault(c, "hang")) {
        return wait_for_abort(c);
    }
    if (c->collectives == FAULTY_COLLECTIVE && has_fault(c, "fail")) {
        return set_error(NCCL_REMOTE_ERROR, "injected failure");
    }
    enum nccl_result result = call->count > 0 ? check_windows(c, call) : NCCL_SUCCESS;
    if (call->kind != SCATTER) {
        return result == NCCL_SUCCESS ? run_in_chunks(c, call) : result;
    }
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        struct call shard_call = *call;
        shard_call.kind = REDUCE;
        shard_call.root = r;
        shard_call.from = call->from + (size_t)r * call->count * get_type_bytes(call->type);
        shard_call.to = call->to + (size_t)r * call->count * get_type_bytes(call->type);
        result = run_in_chunks(c, &shard_call);
    }
    return result;
}

/* ---- split ---- */

static enum nccl_result run_split(struct nccl_comm *c, const struct call *call)
{
    struct nccl_comm *child = call->child;
    int own[2] = {call->color, call->key};
    memcpy(c->rendezvous->stage[c->rank], own, sizeof own);
    enum nccl_result result = synchronize_ranks(c);
    for (int r = 0; r < c->size; r++) {
        int other[2];
        memcpy(other, c->rendezvous->stage[r], sizeof other);
        bool before = other[1] < call->key || (other[1] == call->key && r < c->rank);
        child->size += other[0] == call->color;
        child->rank += other[0] == call->color && before;
    }
    snprintf(child->path, sizeof child->path, "%.150s-%d-%d", c->path, ++c->splits, call->color);
    result = result == NCCL_SUCCESS ? synchronize_ranks(c) : result;
    result = result == NCCL_SUCCESS ? join_rendezvous(child) : result;
    atomic_store(&child->result, result);
    return result;
}

static enum nccl_result run_init(struct nccl_comm *c)
{
    if (has_fault(c, "init_fail")) {
        return set_error(NCCL_SYSTEM_ERROR, "injected failure");
    }
    return has_fault(c, "init_hang") ? wait_for_abort(c) : join_rendezvous(c);
}

/* ---- worker thread ---- */

static void run_calls(struct nccl_comm *c)
{
    enum nccl_result result = NCCL_SUCCESS;
    if (find_fault("slow") != NULL) {
        clock_sleep(SLOW_SECONDS);
    }
    for (int i = 0; i < c->call_count && result == NCCL_SUCCESS; i++) {
        const struct call *call = &c->calls[i];
        result = call->kind == INIT       ? run_init(c)
                 : call->kind == SPLIT    ? run_split(c, call)
                 : call->kind == FINALIZE ? synchronize_ranks(c)
                 : call->kind == REGISTER ? register_window(c, call)
                                          : run_collective(c, call);
    }
    bool fails_later = c->collectives == FAULTY_COLLECTIVE && has_fault(c, "fail_later");
    atomic_store(&c->result, result);
    if (fails_later) {
        clock_sleep(LATER_SECONDS);
        atomic_store(&c->result, set_error(NCCL_REMOTE_ERROR, "injected failure"));
    }
}

static void *run_worker(void *comm)
{
    struct nccl_comm *c = comm;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->submitted == c->started && !c->stop) {
            pthread_cond_wait(&c->wake, &c->lock);
        }
        if (c->stop) {
            break;
        }
        c->started++;
        pthread_mutex_unlock(&c->lock);
        run_calls(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void stop_worker(struct nccl_comm *c)
{
    if (c->has_worker) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->worker, NULL);
    }
}

static enum nccl_result submit_calls(struct nccl_comm *c)
{
    atomic_store(&c->result, NCCL_IN_PROGRESS);
    if (!c->has_worker) {
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->wake, NULL);
        if (pthread_create(&c->worker, NULL, run_worker, c) != 0) {
            return set_error(NCCL_SYSTEM_ERROR, "cannot start the worker thread");
        }
        c->has_worker = true;
    }
    pthread_mutex_lock(&c->lock);
    c->submitted++;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NCCL_IN_PROGRESS;
}

static enum nccl_result add_call(struct nccl_comm *c, struct call call)
{
    if (atomic_load(&c->result) == NCCL_IN_PROGRESS) {
        return set_error(NCCL_INVALID_USAGE, "a call while another call is in progress");
    }
    if (group_depth == 0 || group_comm != c) {
        c->call_count = 0;
    }
    if (c->call_count == MAX_CALLS) {
        return set_error(NCCL_INVALID_USAGE, "too many calls in a group");
    }
    c->calls[c->call_count++] = call;
    group_comm = c;
    return group_depth > 0 ? NCCL_SUCCESS : submit_calls(c);
}

enum nccl_result ncclGroupStart(void)
{
    group_depth++;
    group_comm = NULL;
    return NCCL_SUCCESS;
}

enum nccl_result ncclGroupEnd(void)
{
    group_depth--;
    return group_comm != NULL ? submit_calls(group_comm) : NCCL_SUCCESS;
}

/* ---- functions of NCCL ---- */

enum nccl_result ncclGetVersion(int *version)
{
    const char *text = find_fault("version");
    *version = text != NULL ? (int)strtol(text + 1, NULL, 10) : NCCL_OLDEST_VERSION;
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(enum nccl_result result)
{
    static const char *const texts[] = {"no error",       "unhandled cuda error", "system error",
                                        "internal error", "invalid argument",     "invalid usage",
                                        "remote error",   "in progress"};
    return texts[result];
}

const char *ncclGetLastError(struct nccl_comm *comm)
{
    (void)comm;
    return last_error;
}

enum nccl_result ncclGetUniqueId(struct nccl_id *id)
{
    static int made;
    snprintf(id->bytes, sizeof id->bytes, "bireme-nccl-%ld-%.0f-%d", (long)getpid(),
             1e6 * clock_epoch_seconds(), made++);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommInitRankConfig(struct nccl_comm **out, int ranks, struct nccl_id id,
                                        int rank, struct nccl_config *config)
{
    if (config->size != sizeof *config || config->magic != NCCL_CONFIG_MAGIC ||
        config->blocking != 0 || ranks > MAX_RANKS) {
        return set_error(NCCL_INVALID_ARGUMENT, "a configuration that the mock does not support");
    }
    struct nccl_comm *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    last_config = *config;
    c->rank = rank;
    c->size = ranks;
    c->first = true;
    first_rank = rank;
    snprintf(c->path, sizeof c->path, "/dev/shm/%.127s", id.bytes);
    *out = c;
    return add_call(c, (struct call){.kind = INIT});
}

#ifndef NCCL_MOCK_WITHOUT_SPLIT
enum nccl_result ncclCommSplit(struct nccl_comm *comm, int color, int key, struct nccl_comm **out,
                               struct nccl_config *config)
{
    last_config = *config;
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    atomic_store(&(*out)->result, NCCL_IN_PROGRESS);
    return add_call(comm, (struct call){.kind = SPLIT, .color = color, .key = key, .child = *out});
}
#endif

enum nccl_result ncclCommGetAsyncError(struct nccl_comm *comm, enum nccl_result *error)
{
    *error = (enum nccl_result)atomic_load(&comm->result);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommFinalize(struct nccl_comm *comm)
{
    return add_call(comm, (struct call){.kind = FINALIZE});
}

enum nccl_result ncclCommDestroy(struct nccl_comm *comm)
{
    stop_worker(comm);
    if (comm->windows != NULL && !atomic_load(&comm->aborted)) {
        return set_error(NCCL_INVALID_USAGE, "a communicator is destroyed with an open window");
    }
    if (comm->rendezvous != NULL) {
        munmap(comm->rendezvous, comm->bytes);
    }
    free(comm);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommAbort(struct nccl_comm *comm)
{
    if (has_fault(comm, "abort_hang")) {
        clock_sleep(60);
    }
    atomic_store(&comm->aborted, true);
    unlink(comm->path);
    return ncclCommDestroy(comm);
}

enum nccl_result ncclMemAlloc(void **memory, size_t bytes)
{
    const char *text = find_fault("memory");
    int i = find_memory(NULL);
    bool is_failing =
        text != NULL && (*text != '=' || (int)strtol(text + 1, NULL, 10) == first_rank);
    *memory =
        is_failing || i == MAX_MEMORIES ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == NULL) {
        return set_error(NCCL_CUDA_ERROR, "out of memory");
    }
    memories[i].memory = *memory;
    memories[i].bytes = bytes;
    return NCCL_SUCCESS;
}

enum nccl_result ncclMemFree(void *memory)
{
    int i = find_memory(memory);
    if (i == MAX_MEMORIES || atomic_load(&memories[i].windows) > 0) {
        return set_error(NCCL_INVALID_USAGE, "memory of another allocator, or with an open window");
    }
    memories[i].memory = NULL;
    free(memory);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommWindowRegister(struct nccl_comm *comm, void *memory, size_t bytes,
                                        struct nccl_window **out, int flags)
{
    int i = find_memory(memory);
    *out = NULL;
    if (i == MAX_MEMORIES || bytes > memories[i].bytes || flags != NCCL_WINDOW_SYMMETRIC) {
        return set_error(NCCL_INVALID_ARGUMENT, "not a whole allocation of ncclMemAlloc");
    }
    if (has_fault(comm, "window_refused")) {
        return set_error(NCCL_INVALID_USAGE, "injected refusal");
    }
    return add_call(comm,
                    (struct call){.kind = REGISTER, .from = memory, .count = bytes, .window = out});
}

enum nccl_result ncclCommWindowDeregister(struct nccl_comm *comm, struct nccl_window *window)
{
    struct nccl_window **at = &comm->windows;
    while (*at != NULL && *at != window) {
        at = &(*at)->next;
    }
    if (*at == NULL || atomic_load(&comm->result) == NCCL_IN_PROGRESS) {
        return set_error(NCCL_INVALID_USAGE,
                         "not a window of this communicator, or a window in use");
    }
    *at = window->next;
    atomic_fetch_sub(&memories[find_memory(window->memory)].windows, 1);
    free(window);
    return NCCL_SUCCESS;
}

enum nccl_result ncclAllReduce(const void *from, void *to, size_t count, enum nccl_type type,
                               enum nccl_operator sum, struct nccl_comm *comm, void *stream)
{
    return ncclReduce(from, to, count, type, sum, -1, comm, stream);
}

enum nccl_result ncclReduce(const void *from, void *to, size_t count, enum nccl_type type,
                            enum nccl_operator sum, int root, struct nccl_comm *comm, void *stream)
{
    (void)stream;
    if (sum != NCCL_SUM || get_type_bytes(type) == 1) {
        return set_error(NCCL_INVALID_ARGUMENT, "only sums of f32 and bf16 are supported");
    }
    return add_call(comm, (struct call){REDUCE, from, to, count, type, .root = root});
}

enum nccl_result ncclReduceScatter(const void *from, void *to, size_t each, enum nccl_type type,
                                   enum nccl_operator sum, struct nccl_comm *comm, void *stream)
{
    (void)stream;
    (void)sum;
    char *data = (char *)to - (size_t)comm->rank * each * get_type_bytes(type);
    if (data != from) {
        return set_error(NCCL_INVALID_ARGUMENT, "not in place");
    }
    return add_call(comm, (struct call){SCATTER, from, data, each, type});
}

enum nccl_result ncclAllGather(const void *from, void *to, size_t each, enum nccl_type type,
                               struct nccl_comm *comm, void *stream)
{
    (void)stream;
    return add_call(comm, (struct call){GATHER, from, to, each, type});
}

enum nccl_result ncclBroadcast(const void *from, void *to, size_t count, enum nccl_type type,
                               int root, struct nccl_comm *comm, void *stream)
{
    (void)stream;
    return add_call(comm, (struct call){BROADCAST, from, to, count, type, .root = root});
}
