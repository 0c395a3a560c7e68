/* The calls of the NCCL mock (nccl_mock.c), executed in host memory between processes of one host.
 *
 * The processes find each other through a file in /dev/shm that is named after the unique id. Each
 * communicator has a worker thread. Sums are added in rank order. As in NCCL, each rank assigns the
 * lowest gap to a window, without communication. On emulated GPUs the worker thread only queues the
 * collectives (nccl_mock_gpu.c). */
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
#include "tests/comm/device/nccl_mock_impl.h"

#define STAGE_BYTES ((size_t)1 << 18)
#define YIELDS 100 /* polls of a wait before it sleeps; most waits end earlier */
#define POLL_SECONDS 50e-6
#define SLOW_SECONDS 0.2
#define LATER_SECONDS 0.3
#define FAULTY_COLLECTIVE 3

struct rendezvous {
    _Atomic int arrived;
    _Atomic unsigned generation;
    _Atomic int pids[NCCL_MOCK_MAX_RANKS];
    _Alignas(64) char stage[][STAGE_BYTES];
};

static struct nccl_mock_counts counts;
static char last_error[240];

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

void *nccl_mock_memory_create(size_t bytes)
{
    int i = find_memory(NULL);
    void *memory = i == MAX_MEMORIES      ? NULL
                   : nccl_mock_has_gpus() ? nccl_mock_gpu_allocate(bytes)
                                          : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (memory != NULL) {
        memories[i].memory = memory;
        memories[i].bytes = bytes;
    }
    return memory;
}

enum nccl_result nccl_mock_memory_destroy(void *memory)
{
    int i = find_memory(memory);
    if (i == MAX_MEMORIES) { /* allocator.cc:113 */
        return nccl_mock_set_error(NCCL_CUDA_ERROR, "memory of another allocator");
    }
    if (atomic_load(&memories[i].windows) > 0) {
        return nccl_mock_set_error(NCCL_INVALID_USAGE, "memory with an open window");
    }
    memories[i].memory = NULL;
    nccl_mock_has_gpus() ? nccl_mock_gpu_release(memory) : free(memory);
    return NCCL_SUCCESS;
}

struct nccl_mock_counts *nccl_mock_state(void)
{
    return &counts;
}

/* ---- faults ---- */

const char *nccl_mock_find_fault(const char *name)
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

bool nccl_mock_has_fault(const struct nccl_comm *c, const char *name)
{
    const char *text = nccl_mock_find_fault(name);
    return text != NULL && c->first && (*text != '@' || (int)strtol(text + 1, NULL, 10) == c->rank);
}

enum nccl_result nccl_mock_set_error(enum nccl_result result, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    return result;
}

const char *nccl_mock_error(void)
{
    return last_error;
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

/* During a split, the abort of the parent also aborts the child (init.cc:2594). */
static bool is_aborted(const struct nccl_comm *c)
{
    return atomic_load(&c->aborted) || (c->parent != NULL && atomic_load(&c->parent->aborted));
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
        if (is_aborted(c)) {
            return NCCL_INTERNAL_ERROR;
        }
        if (i % 200 == 0 && is_peer_dead(c)) {
            return nccl_mock_set_error(NCCL_REMOTE_ERROR, "a process does not exist");
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
        return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "no space in /dev/shm");
    }
    c->rendezvous = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (c->rendezvous == MAP_FAILED) {
        c->rendezvous = NULL;
        return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "no space in /dev/shm");
    }
    atomic_store(&c->rendezvous->pids[c->rank], (int)getpid());
    enum nccl_result result = synchronize_ranks(c);
    unlink(c->path); /* all ranks have mapped the file */
    return result;
}

/* ---- windows ---- */

/* Checks that all ranks pass the same bytes. */
static enum nccl_result check_same_on_all_ranks(struct nccl_comm *c, const void *own, size_t bytes,
                                                const char *message)
{
    memcpy(c->rendezvous->stage[c->rank], own, bytes);
    enum nccl_result result = synchronize_ranks(c);
    bool is_same = true;
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        is_same = is_same && memcmp(c->rendezvous->stage[r], own, bytes) == 0;
    }
    result = result == NCCL_SUCCESS ? synchronize_ranks(c) : result;
    return result != NCCL_SUCCESS || is_same ? result
                                             : nccl_mock_set_error(NCCL_INVALID_USAGE, message);
}

/* ncclDevrWindowRegisterInGroup, dev_runtime.cc:578 */
static enum nccl_result register_window(struct nccl_comm *c, const struct call *call)
{
    int memory = find_memory(call->from);
    __atomic_store_n(call->window, NULL, __ATOMIC_RELEASE);
    if (memory == MAX_MEMORIES || call->count > memories[memory].bytes) { /* line 605 */
        return nccl_mock_set_error(NCCL_CUDA_ERROR, "not an allocation of ncclMemAlloc");
    }
    if (nccl_mock_has_fault(c, "window_fail")) {
        return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "injected failure");
    }
    if (nccl_mock_has_fault(c, "window_none")) { /* line 596 */
        return NCCL_SUCCESS;
    }
    size_t offset = 0;
    struct nccl_window **at = &c->windows;
    for (; *at != NULL && (*at)->offset < offset + call->count; at = &(*at)->next) {
        offset = (*at)->offset + (*at)->bytes;
    }
    bool is_symmetric = nccl_mock_find_fault("window_none") == NULL || !c->first;
    enum nccl_result result =
        is_symmetric ? check_same_on_all_ranks(
                           c, (size_t[]){offset, call->count}, 2 * sizeof offset,
                           "ranks register windows of different sizes or in different orders")
                     : NCCL_SUCCESS;
    if (result != NCCL_SUCCESS) {
        return result;
    }
    struct nccl_window *window = malloc(sizeof *window);
    if (window == NULL) {
        return NCCL_SYSTEM_ERROR;
    }
    *window = (struct nccl_window){*at, call->from, call->count, offset};
    *at = window;
    __atomic_store_n(call->window, window, __ATOMIC_RELEASE);
    atomic_fetch_add(&memories[memory].windows, 1);
    return NCCL_SUCCESS;
}

bool nccl_mock_remove_window(struct nccl_comm *c, struct nccl_window *window)
{
    struct nccl_window **at = &c->windows;
    while (*at != NULL && *at != window) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return false;
    }
    *at = window->next;
    atomic_fetch_sub(&memories[find_memory(window->memory)].windows, 1);
    free(window);
    return true;
}

/* Checks that the data has the same window offset on all ranks, or is in no window, and that the
 * collective comes from the same capture on all ranks, or from none. */
static enum nccl_result check_call(struct nccl_comm *c, const struct call *call, unsigned capture)
{
    size_t offset = SIZE_MAX;
    for (const struct nccl_window *w = c->windows; w != NULL; w = w->next) {
        if (call->to >= w->memory && call->to < w->memory + w->bytes) {
            offset = w->offset + (size_t)(call->to - w->memory);
        }
    }
    atomic_fetch_add(&counts.windowed, offset != SIZE_MAX ? 1 : 0);
    return check_same_on_all_ranks(
        c, (size_t[]){offset, capture}, 2 * sizeof offset,
        "data at different window offsets on the ranks, or a collective that only some ranks have "
        "captured, or graphs of different captures");
}

/* ---- collectives ---- */

size_t nccl_mock_type_bytes(enum nccl_type type)
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
    size_t element_bytes = nccl_mock_type_bytes(call->type), at = first * element_bytes,
           bytes = count * element_bytes;
    if (call->kind != BROADCAST || call->root == c->rank) {
        memcpy(c->rendezvous->stage[c->rank], call->from + at, bytes);
    }
    enum nccl_result result = synchronize_ranks(c);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (call->kind == ALL_REDUCE || (call->kind == REDUCE && call->root == c->rank)) {
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
    size_t chunk_elems = STAGE_BYTES / nccl_mock_type_bytes(call->type);
    enum nccl_result result = NCCL_SUCCESS;
    for (size_t done = 0; done < call->count && result == NCCL_SUCCESS; done += chunk_elems) {
        result = run_chunk(c, call, done,
                           call->count - done < chunk_elems ? call->count - done : chunk_elems);
    }
    return result;
}

enum nccl_result nccl_mock_run_collective(struct nccl_comm *c, const struct call *call,
                                          unsigned capture)
{
    if (++c->collectives == FAULTY_COLLECTIVE && nccl_mock_has_fault(c, "hang")) {
        return wait_for_abort(c);
    }
    if (c->collectives == FAULTY_COLLECTIVE && nccl_mock_has_fault(c, "fail")) {
        return nccl_mock_set_error(NCCL_REMOTE_ERROR, "injected failure");
    }
    enum nccl_result result = check_call(c, call, capture);
    if (call->kind != SCATTER) {
        return result == NCCL_SUCCESS ? run_in_chunks(c, call) : result;
    }
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        struct call shard_call = *call;
        shard_call.kind = REDUCE;
        shard_call.root = r;
        shard_call.from = call->from + (size_t)r * call->count * nccl_mock_type_bytes(call->type);
        shard_call.to = call->to + (size_t)r * call->count * nccl_mock_type_bytes(call->type);
        result = run_in_chunks(c, &shard_call);
    }
    return result;
}

/* ---- split ---- */

/* ncclCommInitRankFunc, init.cc:1512: the caller gets the child when the split is complete, even if
 * it failed. */
static enum nccl_result run_split(struct nccl_comm *c, const struct call *call)
{
    struct nccl_comm ignored = {0}, *child = call->child != NULL ? call->child : &ignored;
    int own[2] = {call->color, call->key};
    if (nccl_mock_has_fault(c, "split_hang")) {
        return wait_for_abort(c);
    }
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
    if (result == NCCL_SUCCESS && nccl_mock_has_fault(c, "split_fail")) {
        result = nccl_mock_set_error(NCCL_SYSTEM_ERROR, "injected failure");
    }
    child->parent = c;
    if (result == NCCL_SUCCESS && call->child != NULL) {
        result = join_rendezvous(child);
    }
    child->parent = NULL;
    __atomic_store_n(call->child_out, call->child, __ATOMIC_RELEASE);
    return result;
}

/* Checks what NCCL does not: a rank with other unique ids, or with an id that is used twice, hangs
 * there. */
static enum nccl_result check_ids(struct nccl_comm *c)
{
    for (int i = 0; i < c->id_count; i++) {
        for (int j = 0; j < i; j++) {
            if (memcmp(&c->ids[i], &c->ids[j], sizeof *c->ids) == 0) {
                return nccl_mock_set_error(NCCL_INVALID_USAGE, "a unique id is used twice");
            }
        }
    }
    enum nccl_result result =
        check_same_on_all_ranks(c, &c->id_count, sizeof c->id_count, "other numbers of unique ids");
    return result != NCCL_SUCCESS
               ? result
               : check_same_on_all_ranks(c, c->ids, (size_t)c->id_count * sizeof *c->ids,
                                         "different unique ids on the ranks");
}

static enum nccl_result run_init(struct nccl_comm *c)
{
    if (nccl_mock_has_fault(c, "init_fail")) {
        return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "injected failure");
    }
    if (nccl_mock_has_fault(c, "init_hang")) {
        return wait_for_abort(c);
    }
    enum nccl_result result = join_rendezvous(c);
    result = result == NCCL_SUCCESS ? check_ids(c) : result;
    free(c->ids);
    c->ids = NULL;
    return result;
}

/* ---- worker thread ---- */

/* commDestroySync, init.cc:2232 */
static enum nccl_result run_finalize(struct nccl_comm *c)
{
    nccl_mock_wait_for_graphs(c, false);
    return synchronize_ranks(c);
}

static void run_calls(struct nccl_comm *c)
{
    enum nccl_result result = NCCL_SUCCESS;
    if (nccl_mock_find_fault("slow") != NULL) {
        clock_sleep(SLOW_SECONDS);
    }
    for (int i = 0; i < c->call_count && result == NCCL_SUCCESS; i++) {
        const struct call *call = &c->calls[i];
        result = call->kind == INIT       ? run_init(c)
                 : call->kind == SPLIT    ? run_split(c, call)
                 : call->kind == FINALIZE ? run_finalize(c)
                 : call->kind == REGISTER ? register_window(c, call)
                 : nccl_mock_has_gpus()   ? nccl_mock_queue(c, call)
                                          : nccl_mock_run_collective(c, call, 0);
    }
    if (result == NCCL_SUCCESS) {
        result = (enum nccl_result)atomic_load(&c->failure);
    }
    bool fails_later = c->collectives == FAULTY_COLLECTIVE && nccl_mock_has_fault(c, "fail_later");
    atomic_store(&c->result, result);
    if (fails_later) {
        clock_sleep(LATER_SECONDS);
        atomic_store(&c->result, nccl_mock_set_error(NCCL_REMOTE_ERROR, "injected failure"));
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

void nccl_mock_release(struct nccl_comm *c)
{
    if (c->has_worker) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->worker, NULL);
    }
    while (c->windows != NULL) {
        (void)nccl_mock_remove_window(c, c->windows);
    }
    if (c->rendezvous != NULL) {
        munmap(c->rendezvous, c->bytes);
    }
    free(c->ids);
    free(c);
}

enum nccl_result nccl_mock_submit(struct nccl_comm *c)
{
    atomic_store(&c->result, NCCL_IN_PROGRESS);
    if (!c->has_worker) {
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->wake, NULL);
        if (pthread_create(&c->worker, NULL, run_worker, c) != 0) {
            return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "cannot start the worker thread");
        }
        c->has_worker = true;
    }
    pthread_mutex_lock(&c->lock);
    c->submitted++;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NCCL_IN_PROGRESS;
}
