/* A mock of libnccl without GPUs. It implements NCCL's functions on host memory, between processes
 * of one host that find each other through a file in /dev/shm named by the unique id.
 *
 * A thread carries out the calls of a communicator, as a non-blocking communicator does: a call
 * returns ncclInProgress, and a second call before its completion is an error. Streams are ignored:
 * queued work is complete when the communicator is no longer in progress. Sums use rank order.
 *
 * The environment variable NCCL_MOCK injects faults, separated by commas. NAME@R injects a fault
 * only on rank R of the first communicator:
 *   version=N    version that ncclGetVersion returns
 *   memory       ncclMemAlloc fails (memory=R: on rank R)
 *   init_hang    initialization hangs
 *   init_fail    initialization fails with ncclSystemError
 *   hang         the third collective hangs
 *   fail         the third collective fails with ncclRemoteError
 *   later        the third collective succeeds, and an error follows later
 *   slow         every call takes 50 ms
 *   abort_hang   ncclCommAbort hangs
 *   window_none  registration succeeds without a window (as if NCCL does not use windows)
 *   window_no    registration is refused at once
 *   window_fail  registration fails with ncclSystemError
 *
 * As in NCCL, each rank computes window offsets by itself and takes the lowest gap. The mock detects
 * errors that NCCL does not. Registered memory must come from ncclMemAlloc, with the same size and
 * offset on all ranks. The data of a collective must have the same window offset on all ranks, or no
 * window. Memory and communicators with an open window must not be released. */
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
#define YIELDS 100 /* iterations of a wait before it sleeps; most waits end earlier */
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

enum kind { INIT, SPLIT, FINALIZE, REGISTER, REDUCE, SCATTER, GATHER, BROADCAST };

struct nccl_window {
    struct nccl_window *next; /* sorted by offset */
    const char *memory;
    size_t bytes, offset;
};

struct job {
    enum kind kind;
    const char *from;
    char *to;
    size_t count;
    enum nccl_type type;
    int root; /* REDUCE: -1: all-reduce */
    int color, key;
    struct nccl_comm *child;
    struct nccl_window **window;
};

enum { JOBS = 64 };

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
    unsigned submitted, accepted; /* numbers of calls */
    _Atomic int result;
    atomic_bool aborted;
    struct job jobs[JOBS];
    int job_count;
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
enum { MEMORIES = 64 };
static struct {
    void *memory;
    size_t bytes;
    _Atomic int windows;
} memories[MEMORIES];

static int find_memory(const void *memory)
{
    int i = 0;
    while (i < MEMORIES && memories[i].memory != memory) {
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

static enum nccl_result fail(enum nccl_result result, const char *text)
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

static enum nccl_result synchronize(struct nccl_comm *c)
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
            return fail(NCCL_REMOTE_ERROR, "a process does not exist");
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
        return fail(NCCL_SYSTEM_ERROR, "no space in /dev/shm");
    }
    c->rendezvous = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (c->rendezvous == MAP_FAILED) {
        c->rendezvous = NULL;
        return fail(NCCL_SYSTEM_ERROR, "no space in /dev/shm");
    }
    atomic_store(&c->rendezvous->pids[c->rank], (int)getpid());
    enum nccl_result result = synchronize(c);
    unlink(
        c->path); /* the first rank that arrives here removes the file: all ranks have mapped it */
    return result;
}

/* ---- windows ---- */

/* Checks that all ranks pass the same bytes. */
static enum nccl_result check_same_on_all_ranks(struct nccl_comm *c, const size_t *own,
                                                size_t bytes, const char *message)
{
    memcpy(c->rendezvous->stage[c->rank], own, bytes);
    enum nccl_result result = synchronize(c);
    bool is_same = true;
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        is_same = is_same && memcmp(c->rendezvous->stage[r], own, bytes) == 0;
    }
    result = result == NCCL_SUCCESS ? synchronize(c) : result;
    return result != NCCL_SUCCESS || is_same ? result : fail(NCCL_INVALID_USAGE, message);
}

static enum nccl_result register_window(struct nccl_comm *c, const struct job *job)
{
    if (has_fault(c, "window_fail")) {
        return fail(NCCL_SYSTEM_ERROR, "injected failure");
    }
    size_t offset = 0;
    struct nccl_window **at = &c->windows;
    for (; *at != NULL && (*at)->offset < offset + job->count; at = &(*at)->next) {
        offset = (*at)->offset + (*at)->bytes;
    }
    enum nccl_result result =
        check_same_on_all_ranks(c, (size_t[]){offset, job->count}, 2 * sizeof offset,
                                "ranks register windows of different sizes or in different orders");
    if (result != NCCL_SUCCESS || has_fault(c, "window_none")) {
        return result;
    }
    struct nccl_window *window = malloc(sizeof *window);
    if (window == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    *window = (struct nccl_window){*at, job->from, job->count, offset};
    *at = window;
    *job->window = window;
    atomic_fetch_add(&memories[find_memory(job->from)].windows, 1);
    return NCCL_SUCCESS;
}

/* Checks that the data has the same window offset on all ranks, or is in no window. */
static enum nccl_result check_windows(struct nccl_comm *c, const struct job *job)
{
    size_t offset = SIZE_MAX;
    for (const struct nccl_window *w = c->windows; w != NULL; w = w->next) {
        if (job->to >= w->memory && job->to < w->memory + w->bytes) {
            offset = w->offset + (size_t)(job->to - w->memory);
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

/* Runs one chunk: every rank writes its input to its stage, synchronizes, reads its output, and
 * synchronizes again. */
static enum nccl_result run_chunk(struct nccl_comm *c, const struct job *job, size_t first,
                                  size_t count)
{
    size_t element_bytes = get_type_bytes(job->type), at = first * element_bytes,
           bytes = count * element_bytes;
    if (job->kind != BROADCAST || job->root == c->rank) {
        memcpy(c->rendezvous->stage[c->rank], job->from + at, bytes);
    }
    enum nccl_result result = synchronize(c);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (job->kind == REDUCE && (job->root < 0 || job->root == c->rank)) {
        sum_stages(c, job->to + at, count, job->type);
    } else if (job->kind == BROADCAST) {
        memcpy(job->to + at, c->rendezvous->stage[job->root], bytes);
    } else if (job->kind == GATHER) {
        for (int r = 0; r < c->size; r++) {
            memcpy(job->to + (size_t)r * job->count * element_bytes + at, c->rendezvous->stage[r],
                   bytes);
        }
    }
    return synchronize(c);
}

static enum nccl_result run_in_chunks(struct nccl_comm *c, const struct job *job)
{
    size_t chunk_elems = STAGE_BYTES / get_type_bytes(job->type);
    enum nccl_result result = NCCL_SUCCESS;
    for (size_t done = 0; done < job->count && result == NCCL_SUCCESS; done += chunk_elems) {
        result = run_chunk(c, job, done,
                           job->count - done < chunk_elems ? job->count - done : chunk_elems);
    }
    return result;
}

static enum nccl_result run_collective(struct nccl_comm *c, const struct job *job)
{
    if (++c->collectives == FAULTY_COLLECTIVE && has_fault(c, "hang")) {
        return wait_for_abort(c);
    }
    if (c->collectives == FAULTY_COLLECTIVE && has_fault(c, "fail")) {
        return fail(NCCL_REMOTE_ERROR, "injected failure");
    }
    enum nccl_result result = job->count > 0 ? check_windows(c, job) : NCCL_SUCCESS;
    if (job->kind != SCATTER) {
        return result == NCCL_SUCCESS ? run_in_chunks(c, job) : result;
    }
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        struct job shard_job = *job;
        shard_job.kind = REDUCE;
        shard_job.root = r;
        shard_job.from = job->from + (size_t)r * job->count * get_type_bytes(job->type);
        shard_job.to = job->to + (size_t)r * job->count * get_type_bytes(job->type);
        result = run_in_chunks(c, &shard_job);
    }
    return result;
}

/* ---- split ---- */

static enum nccl_result run_split(struct nccl_comm *c, const struct job *job)
{
    struct nccl_comm *child = job->child;
    int own[2] = {job->color, job->key};
    memcpy(c->rendezvous->stage[c->rank], own, sizeof own);
    enum nccl_result result = synchronize(c);
    for (int r = 0; r < c->size; r++) {
        int other[2];
        memcpy(other, c->rendezvous->stage[r], sizeof other);
        bool before = other[1] < job->key || (other[1] == job->key && r < c->rank);
        child->size += other[0] == job->color;
        child->rank += other[0] == job->color && before;
    }
    snprintf(child->path, sizeof child->path, "%.150s-%d-%d", c->path, ++c->splits, job->color);
    result = result == NCCL_SUCCESS ? synchronize(c) : result;
    result = result == NCCL_SUCCESS ? join_rendezvous(child) : result;
    atomic_store(&child->result, result);
    return result;
}

static enum nccl_result run_init(struct nccl_comm *c)
{
    if (has_fault(c, "init_fail")) {
        return fail(NCCL_SYSTEM_ERROR, "injected failure");
    }
    return has_fault(c, "init_hang") ? wait_for_abort(c) : join_rendezvous(c);
}

/* ---- the worker thread ---- */

static void run_jobs(struct nccl_comm *c)
{
    enum nccl_result result = NCCL_SUCCESS;
    if (find_fault("slow") != NULL) {
        clock_sleep(SLOW_SECONDS);
    }
    for (int i = 0; i < c->job_count && result == NCCL_SUCCESS; i++) {
        const struct job *job = &c->jobs[i];
        result = job->kind == INIT       ? run_init(c)
                 : job->kind == SPLIT    ? run_split(c, job)
                 : job->kind == FINALIZE ? synchronize(c)
                 : job->kind == REGISTER ? register_window(c, job)
                                         : run_collective(c, job);
    }
    bool fails_later = c->collectives == FAULTY_COLLECTIVE && has_fault(c, "later");
    atomic_store(&c->result, result);
    if (fails_later) {
        clock_sleep(LATER_SECONDS);
        atomic_store(&c->result, fail(NCCL_REMOTE_ERROR, "injected failure"));
    }
}

static void *run_worker(void *comm)
{
    struct nccl_comm *c = comm;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->submitted == c->accepted && !c->stop) {
            pthread_cond_wait(&c->wake, &c->lock);
        }
        if (c->stop) {
            break;
        }
        c->accepted++;
        pthread_mutex_unlock(&c->lock);
        run_jobs(c);
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

static enum nccl_result submit_jobs(struct nccl_comm *c)
{
    atomic_store(&c->result, NCCL_IN_PROGRESS);
    if (!c->has_worker) {
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->wake, NULL);
        if (pthread_create(&c->worker, NULL, run_worker, c) != 0) {
            return fail(NCCL_SYSTEM_ERROR, "cannot start the worker thread");
        }
        c->has_worker = true;
    }
    pthread_mutex_lock(&c->lock);
    c->submitted++;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NCCL_IN_PROGRESS;
}

static enum nccl_result add_job(struct nccl_comm *c, struct job job)
{
    if (atomic_load(&c->result) == NCCL_IN_PROGRESS) {
        return fail(NCCL_INVALID_USAGE, "a call while another call is in progress");
    }
    if (group_depth == 0 || group_comm != c) {
        c->job_count = 0;
    }
    if (c->job_count == JOBS) {
        return fail(NCCL_INVALID_USAGE, "too many calls in a group");
    }
    c->jobs[c->job_count++] = job;
    group_comm = c;
    return group_depth > 0 ? NCCL_SUCCESS : submit_jobs(c);
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
    return group_comm != NULL ? submit_jobs(group_comm) : NCCL_SUCCESS;
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
        return fail(NCCL_INVALID_ARGUMENT, "a configuration that the mock does not support");
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
    return add_job(c, (struct job){.kind = INIT});
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
    return add_job(comm, (struct job){.kind = SPLIT, .color = color, .key = key, .child = *out});
}
#endif

enum nccl_result ncclCommGetAsyncError(struct nccl_comm *comm, enum nccl_result *error)
{
    *error = (enum nccl_result)atomic_load(&comm->result);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommFinalize(struct nccl_comm *comm)
{
    return add_job(comm, (struct job){.kind = FINALIZE});
}

enum nccl_result ncclCommDestroy(struct nccl_comm *comm)
{
    stop_worker(comm);
    if (comm->windows != NULL && !atomic_load(&comm->aborted)) {
        return fail(NCCL_INVALID_USAGE, "a communicator is destroyed with an open window");
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
        is_failing || i == MEMORIES ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == NULL) {
        return fail(NCCL_CUDA_ERROR, "out of memory");
    }
    memories[i].memory = *memory;
    memories[i].bytes = bytes;
    return NCCL_SUCCESS;
}

enum nccl_result ncclMemFree(void *memory)
{
    int i = find_memory(memory);
    if (i == MEMORIES || atomic_load(&memories[i].windows) > 0) {
        return fail(NCCL_INVALID_USAGE, "memory of another allocator, or with an open window");
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
    if (i == MEMORIES || bytes > memories[i].bytes || flags != NCCL_WINDOW_SYMMETRIC) {
        return fail(NCCL_INVALID_ARGUMENT, "not a whole allocation of ncclMemAlloc");
    }
    if (has_fault(comm, "window_no")) {
        return fail(NCCL_INVALID_USAGE, "injected refusal");
    }
    return add_job(comm,
                   (struct job){.kind = REGISTER, .from = memory, .count = bytes, .window = out});
}

enum nccl_result ncclCommWindowDeregister(struct nccl_comm *comm, struct nccl_window *window)
{
    struct nccl_window **at = &comm->windows;
    while (*at != NULL && *at != window) {
        at = &(*at)->next;
    }
    if (*at == NULL || atomic_load(&comm->result) == NCCL_IN_PROGRESS) {
        return fail(NCCL_INVALID_USAGE, "not a window of this communicator, or a window in use");
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
        return fail(NCCL_INVALID_ARGUMENT, "only sums of f32 and bf16 are supported");
    }
    return add_job(comm, (struct job){REDUCE, from, to, count, type, .root = root});
}

enum nccl_result ncclReduceScatter(const void *from, void *to, size_t each, enum nccl_type type,
                                   enum nccl_operator sum, struct nccl_comm *comm, void *stream)
{
    (void)stream;
    (void)sum;
    char *data = (char *)to - (size_t)comm->rank * each * get_type_bytes(type);
    if (data != from) {
        return fail(NCCL_INVALID_ARGUMENT, "not in place");
    }
    return add_job(comm, (struct job){SCATTER, from, data, each, type});
}

enum nccl_result ncclAllGather(const void *from, void *to, size_t each, enum nccl_type type,
                               struct nccl_comm *comm, void *stream)
{
    (void)stream;
    return add_job(comm, (struct job){GATHER, from, to, each, type});
}

enum nccl_result ncclBroadcast(const void *from, void *to, size_t count, enum nccl_type type,
                               int root, struct nccl_comm *comm, void *stream)
{
    (void)stream;
    return add_job(comm, (struct job){BROADCAST, from, to, count, type, .root = root});
}
