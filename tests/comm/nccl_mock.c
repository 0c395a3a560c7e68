/* A libnccl without GPUs, for tests: NCCL's names over memory of the host, between processes of one host that
 * meet in a file of /dev/shm named by the unique id. Every call of a communicator is carried out by a thread, as
 * a non-blocking communicator may: it answers ncclInProgress, and a second call before its end is an error.
 * A stream is nothing: what NCCL would queue is done once the communicator is no longer in progress. Sums are
 * made in rank order.
 *
 * NCCL_DOUBLE in the environment plays faults, a comma between them; NAME@R is one of rank R of the first
 * communicator alone:
 *   version=N   what ncclGetVersion tells      memory     ncclMemAlloc fails (memory=R: of rank R)
 *   init_hang   the start does not end         init_fail  the start ends with ncclSystemError
 *   hang        the third collective does not end         fail  it ends with ncclRemoteError
 *   later       it ends well, and then there is an error
 *   slow        every call takes a while       deaf       ncclCommAbort does not return
 *   window_none registering ends well and there is no window (as where NCCL has no use for one)
 *   window_no   it is refused at once          window_fail  it ends with ncclSystemError
 *
 * Windows are placed as NCCL places them, by counting: each rank alone, in the lowest hole. What is registered must be of
 * ncclMemAlloc and the same bytes at the same place on all ranks, and a collective's data must lie in a window at the same place
 * on all ranks or on none: NCCL would not notice, the double fails. Memory is not freed, and no communicator left,
 * with a window open. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
#define RANKS_MOST 16
#define NAP_SECONDS 50e-6
#define SLOW_SECONDS 0.05
#define LATER_SECONDS 0.3
#define FAULTY_COLLECTIVE 3

struct meeting {
    _Atomic int arrived;
    _Atomic unsigned turn;
    _Atomic int pids[RANKS_MOST];
    _Alignas(64) char stage[][STAGE_BYTES];
};

enum kind { INIT, SPLIT, FINALIZE, REGISTER, REDUCE, SCATTER, GATHER, BROADCAST };

struct nccl_window {
    struct nccl_window *next; /* by place */
    const char *memory;
    size_t bytes, place;
};

struct job {
    enum kind kind;
    const char *from;
    char *to;
    size_t count;
    enum nccl_type type;
    int root; /* REDUCE: -1: all */
    int colour, key;
    struct nccl_comm *child;
    struct nccl_window **window;
};

enum { JOBS = 64 };

struct nccl_comm {
    int rank, size;
    bool first;
    char path[192];
    struct meeting *meeting;
    size_t bytes;
    pthread_t worker;
    bool works, stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    unsigned given, taken; /* calls */
    _Atomic int result;
    atomic_bool aborted;
    struct job jobs[JOBS];
    int job_count;
    int collectives, splits;
    struct nccl_window *windows;
};

static _Thread_local int depth;
static _Thread_local struct nccl_comm *grouped;
static struct nccl_config last_config;
static char last_error[160];
static int first_rank;       /* of the first communicator */
static _Atomic int windowed; /* collectives in windows */

/* What ncclMemAlloc gave. */
enum { MEMORIES = 64 };
static struct {
    void *memory;
    size_t bytes;
    _Atomic int windows;
} memories[MEMORIES];

static int memory_of(const void *memory)
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

const struct nccl_config *nccl_double_config(void)
{
    return &last_config;
}

int nccl_double_windowed(void)
{
    return atomic_load(&windowed);
}

/* ---- faults ---- */

static const char *fault_text(const char *name)
{
    const char *all = getenv("NCCL_DOUBLE");
    size_t length = strlen(name);
    for (const char *at = all; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && strchr("@=,", at[length]) != NULL) {
            return at + length;
        }
    }
    return NULL;
}

static bool fault(const struct nccl_comm *c, const char *name)
{
    const char *text = fault_text(name);
    return text != NULL && c->first && (*text != '@' || (int)strtol(text + 1, NULL, 10) == c->rank);
}

static enum nccl_result failed(enum nccl_result result, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return result;
}

/* ---- meeting ---- */

static bool somebody_died(const struct nccl_comm *c)
{
    for (int r = 0; r < c->size; r++) {
        int pid = atomic_load(&c->meeting->pids[r]);
        if (pid != 0 && kill(pid, 0) != 0 && errno == ESRCH) {
            return true;
        }
    }
    return false;
}

static enum nccl_result meet(struct nccl_comm *c)
{
    struct meeting *m = c->meeting;
    unsigned turn = atomic_load(&m->turn);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == c->size) {
        atomic_store(&m->arrived, 0);
        atomic_fetch_add(&m->turn, 1);
        return NCCL_SUCCESS;
    }
    for (int i = 1; atomic_load(&m->turn) == turn; i++) {
        if (atomic_load(&c->aborted)) {
            return NCCL_INTERNAL_ERROR;
        }
        if (i % 200 == 0 && somebody_died(c)) {
            return failed(NCCL_REMOTE_ERROR, "a process is gone");
        }
        clock_sleep(NAP_SECONDS);
    }
    return NCCL_SUCCESS;
}

static enum nccl_result hang(struct nccl_comm *c)
{
    while (!atomic_load(&c->aborted)) {
        clock_sleep(0.01);
    }
    return NCCL_INTERNAL_ERROR;
}

static enum nccl_result enter(struct nccl_comm *c)
{
    c->bytes = sizeof(struct meeting) + (size_t)c->size * STAGE_BYTES;
    int file = open(c->path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)c->bytes) != 0) {
        return failed(NCCL_SYSTEM_ERROR, "no room in /dev/shm");
    }
    c->meeting = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (c->meeting == MAP_FAILED) {
        c->meeting = NULL;
        return failed(NCCL_SYSTEM_ERROR, "no room in /dev/shm");
    }
    atomic_store(&c->meeting->pids[c->rank], (int)getpid());
    enum nccl_result result = meet(c);
    unlink(c->path); /* whoever comes first: all are in */
    return result;
}

/* ---- windows ---- */

/* Whether all ranks show the same. */
static enum nccl_result compare(struct nccl_comm *c, const size_t *mine, size_t bytes,
                                const char *what)
{
    memcpy(c->meeting->stage[c->rank], mine, bytes);
    enum nccl_result result = meet(c);
    bool same = true;
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        same = same && memcmp(c->meeting->stage[r], mine, bytes) == 0;
    }
    result = result == NCCL_SUCCESS ? meet(c) : result;
    return result != NCCL_SUCCESS || same ? result : failed(NCCL_INVALID_USAGE, what);
}

static enum nccl_result open_window(struct nccl_comm *c, const struct job *job)
{
    if (fault(c, "window_fail")) {
        return failed(NCCL_SYSTEM_ERROR, "the double was told to fail");
    }
    size_t place = 0;
    struct nccl_window **at = &c->windows;
    for (; *at != NULL && (*at)->place < place + job->count; at = &(*at)->next) {
        place = (*at)->place + (*at)->bytes;
    }
    enum nccl_result result = compare(c, (size_t[]){place, job->count}, 2 * sizeof place,
                                      "ranks register other windows or in another order");
    if (result != NCCL_SUCCESS || fault(c, "window_none")) {
        return result;
    }
    struct nccl_window *window = malloc(sizeof *window);
    if (window == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    *window = (struct nccl_window){*at, job->from, job->count, place};
    *at = window;
    *job->window = window;
    atomic_fetch_add(&memories[memory_of(job->from)].windows, 1);
    return NCCL_SUCCESS;
}

/* Where data lie in the ranks' windows: at the same place of all, or in none. */
static enum nccl_result look_up(struct nccl_comm *c, const struct job *job)
{
    size_t place = SIZE_MAX;
    for (const struct nccl_window *w = c->windows; w != NULL; w = w->next) {
        if (job->to >= w->memory && job->to < w->memory + w->bytes) {
            place = w->place + (size_t)(job->to - w->memory);
        }
    }
    atomic_fetch_add(&windowed, place != SIZE_MAX ? 1 : 0);
    return compare(c, &place, sizeof place, "data lie at other places of the ranks' windows");
}

/* ---- collectives ---- */

static size_t unit_of(enum nccl_type type)
{
    return type == NCCL_FLOAT32 ? 4 : type == NCCL_BFLOAT16 ? 2 : 1;
}

static void add(const struct nccl_comm *c, char *to, size_t count, enum nccl_type type)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < c->size; r++) {
            const char *stage = c->meeting->stage[r];
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

/* One piece: all lay theirs down, meet, take what is theirs, and meet again. */
static enum nccl_result piece(struct nccl_comm *c, const struct job *job, size_t first,
                              size_t count)
{
    size_t unit = unit_of(job->type), at = first * unit, bytes = count * unit;
    if (job->kind != BROADCAST || job->root == c->rank) {
        memcpy(c->meeting->stage[c->rank], job->from + at, bytes);
    }
    enum nccl_result result = meet(c);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (job->kind == REDUCE && (job->root < 0 || job->root == c->rank)) {
        add(c, job->to + at, count, job->type);
    } else if (job->kind == BROADCAST) {
        memcpy(job->to + at, c->meeting->stage[job->root], bytes);
    } else if (job->kind == GATHER) {
        for (int r = 0; r < c->size; r++) {
            memcpy(job->to + (size_t)r * job->count * unit + at, c->meeting->stage[r], bytes);
        }
    }
    return meet(c);
}

static enum nccl_result pieces(struct nccl_comm *c, const struct job *job)
{
    size_t most = STAGE_BYTES / unit_of(job->type);
    enum nccl_result result = NCCL_SUCCESS;
    for (size_t done = 0; done < job->count && result == NCCL_SUCCESS; done += most) {
        result = piece(c, job, done, job->count - done < most ? job->count - done : most);
    }
    return result;
}

static enum nccl_result collective(struct nccl_comm *c, const struct job *job)
{
    if (++c->collectives == FAULTY_COLLECTIVE && fault(c, "hang")) {
        return hang(c);
    }
    if (c->collectives == FAULTY_COLLECTIVE && fault(c, "fail")) {
        return failed(NCCL_REMOTE_ERROR, "the double was told to fail");
    }
    enum nccl_result result = job->count > 0 ? look_up(c, job) : NCCL_SUCCESS;
    if (job->kind != SCATTER) {
        return result == NCCL_SUCCESS ? pieces(c, job) : result;
    }
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        struct job part = *job;
        part.kind = REDUCE;
        part.root = r;
        part.from = job->from + (size_t)r * job->count * unit_of(job->type);
        part.to = job->to + (size_t)r * job->count * unit_of(job->type);
        result = pieces(c, &part);
    }
    return result;
}

/* ---- splitting ---- */

static enum nccl_result split(struct nccl_comm *c, const struct job *job)
{
    struct nccl_comm *child = job->child;
    int mine[2] = {job->colour, job->key};
    memcpy(c->meeting->stage[c->rank], mine, sizeof mine);
    enum nccl_result result = meet(c);
    for (int r = 0; r < c->size; r++) {
        int other[2];
        memcpy(other, c->meeting->stage[r], sizeof other);
        bool before = other[1] < job->key || (other[1] == job->key && r < c->rank);
        child->size += other[0] == job->colour;
        child->rank += other[0] == job->colour && before;
    }
    snprintf(child->path, sizeof child->path, "%.150s-%d-%d", c->path, ++c->splits, job->colour);
    result = result == NCCL_SUCCESS ? meet(c) : result;
    result = result == NCCL_SUCCESS ? enter(child) : result;
    atomic_store(&child->result, result);
    return result;
}

static enum nccl_result start(struct nccl_comm *c)
{
    if (fault(c, "init_fail")) {
        return failed(NCCL_SYSTEM_ERROR, "the double was told to fail");
    }
    return fault(c, "init_hang") ? hang(c) : enter(c);
}

/* ---- the thread that carries calls out ---- */

static void carry_out(struct nccl_comm *c)
{
    enum nccl_result result = NCCL_SUCCESS;
    if (fault_text("slow") != NULL) {
        clock_sleep(SLOW_SECONDS);
    }
    for (int i = 0; i < c->job_count && result == NCCL_SUCCESS; i++) {
        const struct job *job = &c->jobs[i];
        result = job->kind == INIT       ? start(c)
                 : job->kind == SPLIT    ? split(c, job)
                 : job->kind == FINALIZE ? meet(c)
                 : job->kind == REGISTER ? open_window(c, job)
                                         : collective(c, job);
    }
    bool later = c->collectives == FAULTY_COLLECTIVE && fault(c, "later");
    atomic_store(&c->result, result);
    if (later) {
        clock_sleep(LATER_SECONDS);
        atomic_store(&c->result, failed(NCCL_REMOTE_ERROR, "the double was told to fail"));
    }
}

static void *work(void *comm)
{
    struct nccl_comm *c = comm;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->given == c->taken && !c->stop) {
            pthread_cond_wait(&c->wake, &c->lock);
        }
        if (c->stop) {
            break;
        }
        c->taken++;
        pthread_mutex_unlock(&c->lock);
        carry_out(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void stop_work(struct nccl_comm *c)
{
    if (c->works) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->worker, NULL);
    }
}

static enum nccl_result begin(struct nccl_comm *c)
{
    atomic_store(&c->result, NCCL_IN_PROGRESS);
    if (!c->works) {
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->wake, NULL);
        if (pthread_create(&c->worker, NULL, work, c) != 0) {
            return failed(NCCL_SYSTEM_ERROR, "no thread");
        }
        c->works = true;
    }
    pthread_mutex_lock(&c->lock);
    c->given++;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NCCL_IN_PROGRESS;
}

static enum nccl_result add_job(struct nccl_comm *c, struct job job)
{
    if (atomic_load(&c->result) == NCCL_IN_PROGRESS) {
        return failed(NCCL_INVALID_USAGE, "a call while another one is in progress");
    }
    if (depth == 0 || grouped != c) {
        c->job_count = 0;
    }
    if (c->job_count == JOBS) {
        return failed(NCCL_INVALID_USAGE, "too many calls in a group");
    }
    c->jobs[c->job_count++] = job;
    grouped = c;
    return depth > 0 ? NCCL_SUCCESS : begin(c);
}

enum nccl_result ncclGroupStart(void)
{
    depth++;
    grouped = NULL;
    return NCCL_SUCCESS;
}

enum nccl_result ncclGroupEnd(void)
{
    depth--;
    return grouped != NULL ? begin(grouped) : NCCL_SUCCESS;
}

/* ---- NCCL's names ---- */

enum nccl_result ncclGetVersion(int *version)
{
    const char *text = fault_text("version");
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
        config->blocking != 0 || ranks > RANKS_MOST) {
        return failed(NCCL_INVALID_ARGUMENT, "a configuration that the double does not know");
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

#ifndef NCCL_DOUBLE_WITHOUT_SPLIT
enum nccl_result ncclCommSplit(struct nccl_comm *comm, int colour, int key, struct nccl_comm **out,
                               struct nccl_config *config)
{
    last_config = *config;
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    atomic_store(&(*out)->result, NCCL_IN_PROGRESS);
    return add_job(comm, (struct job){.kind = SPLIT, .colour = colour, .key = key, .child = *out});
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
    stop_work(comm);
    if (comm->windows != NULL && !atomic_load(&comm->aborted)) {
        return failed(NCCL_INVALID_USAGE, "a communicator is left with a window open");
    }
    if (comm->meeting != NULL) {
        munmap(comm->meeting, comm->bytes);
    }
    free(comm);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommAbort(struct nccl_comm *comm)
{
    if (fault(comm, "deaf")) {
        clock_sleep(60);
    }
    atomic_store(&comm->aborted, true);
    unlink(comm->path);
    return ncclCommDestroy(comm);
}

enum nccl_result ncclMemAlloc(void **memory, size_t bytes)
{
    const char *text = fault_text("memory");
    int i = memory_of(NULL);
    bool fails = text != NULL && (*text != '=' || (int)strtol(text + 1, NULL, 10) == first_rank);
    *memory = fails || i == MEMORIES ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*memory == NULL) {
        return failed(NCCL_CUDA_ERROR, "out of memory");
    }
    memories[i].memory = *memory;
    memories[i].bytes = bytes;
    return NCCL_SUCCESS;
}

enum nccl_result ncclMemFree(void *memory)
{
    int i = memory_of(memory);
    if (i == MEMORIES || atomic_load(&memories[i].windows) > 0) {
        return failed(NCCL_INVALID_USAGE, "memory of somebody else, or with a window open");
    }
    memories[i].memory = NULL;
    free(memory);
    return NCCL_SUCCESS;
}

enum nccl_result ncclCommWindowRegister(struct nccl_comm *comm, void *memory, size_t bytes,
                                        struct nccl_window **out, int flags)
{
    int i = memory_of(memory);
    *out = NULL;
    if (i == MEMORIES || bytes > memories[i].bytes || flags != NCCL_WINDOW_SYMMETRIC) {
        return failed(NCCL_INVALID_ARGUMENT, "not a whole window of ncclMemAlloc's memory");
    }
    if (fault(comm, "window_no")) {
        return failed(NCCL_INVALID_USAGE, "the double was told to refuse");
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
        return failed(NCCL_INVALID_USAGE, "no window of this communicator, or one in use");
    }
    *at = window->next;
    atomic_fetch_sub(&memories[memory_of(window->memory)].windows, 1);
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
    if (sum != NCCL_SUM || unit_of(type) == 1) {
        return failed(NCCL_INVALID_ARGUMENT, "neither a sum of f32 nor of bf16");
    }
    return add_job(comm, (struct job){REDUCE, from, to, count, type, .root = root});
}

enum nccl_result ncclReduceScatter(const void *from, void *to, size_t each, enum nccl_type type,
                                   enum nccl_operator sum, struct nccl_comm *comm, void *stream)
{
    (void)stream;
    (void)sum;
    char *whole = (char *)to - (size_t)comm->rank * each * unit_of(type);
    if (whole != from) {
        return failed(NCCL_INVALID_ARGUMENT, "not in place");
    }
    return add_job(comm, (struct job){SCATTER, from, whole, each, type});
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
