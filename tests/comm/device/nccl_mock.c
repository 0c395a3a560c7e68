/* A mock of libnccl 2.28.9 without GPUs: NCCL's functions and their return codes. nccl_mock_run.c
 * executes the calls in host memory, between processes of one host.
 *
 * The return codes follow NCCL's sources at the tag v2.28.9-1; comments name file and line. The
 * communicators are non-blocking. A call starts an operation, which a worker thread executes, and
 * ncclCommGetAsyncError returns ncclInProgress until it is complete. Until then, another call
 * returns ncclInvalidArgument. Without emulated GPUs the work is complete when the communicator is
 * no longer in progress. On emulated GPUs (tests/simt) it is queued on the stream, or captured.
 * Finalizing and aborting a communicator wait until its graphs are destroyed.
 *
 * The environment variable NCCL_MOCK lists faults, separated by commas. NAME@R injects a fault only
 * on rank R of the first communicator:
 *   version=N       ncclGetVersion returns N
 *   memory          ncclMemAlloc fails (memory=R: on rank R)
 *   init_hang       initialization hangs
 *   init_fail       initialization fails with ncclSystemError
 *   split_hang      a split hangs
 *   split_fail      a split fails with ncclSystemError
 *   hang            the third collective hangs
 *   fail            the third collective fails with ncclRemoteError
 *   fail_later      the third collective succeeds; an error follows 0.3 s later
 *   slow            every call takes at least 50 ms
 *   abort_hang      ncclCommAbort hangs
 *   window_off      NCCL uses no windows: registration returns ncclSuccess and does nothing
 *   window_none     windows are not symmetric: registration is local, and returns no window on
 *                   this rank
 *   window_refused  registration fails before it starts
 *   window_fail     registration fails with ncclSystemError
 *
 * The mock supports less than NCCL: communicators that are not blocking, sums of f32 and bf16,
 * reduce-scatter in place, groups with one communicator, and destruction outside of groups. Other
 * calls return ncclInvalidUsage. The mock detects errors that NCCL does not detect, and returns
 * ncclInvalidUsage for them too. Registered memory must come from ncclMemAlloc and have the same
 * size and offset on all ranks. The data of a collective must have the same window offset on all
 * ranks, or no window. Memory and communicators with an open window must not be released. The
 * unique ids must be the same on all ranks, and different from each other. A collective must be
 * captured on all ranks or on none, and all ranks must launch graphs of the same capture. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/comm/device/nccl_mock_impl.h"

#define VERSION 22809
#define ABORT_SECONDS 60

#define DECLARE(member, name, arguments) enum nccl_result name arguments;
NCCL_FUNCTIONS(DECLARE)
NCCL_OPTIONAL_FUNCTIONS(DECLARE)
const char *ncclGetErrorString(enum nccl_result result);
const char *ncclGetLastError(struct nccl_comm *comm);

/* Returns an error to the caller, as NCCLCHECK does (checks.h:122). */
#define CHECK_RESULT(call)                                                                         \
    do {                                                                                           \
        enum nccl_result check_result = (call);                                                    \
        if (check_result != NCCL_SUCCESS && check_result != NCCL_IN_PROGRESS) {                    \
            return check_result;                                                                   \
        }                                                                                          \
    } while (false)

static struct nccl_config last_config;
static int first_rank; /* rank in the first communicator */

const struct nccl_config *nccl_mock_config(void)
{
    return &last_config;
}

const struct nccl_mock_counts *nccl_mock_count(void)
{
    return nccl_mock_state();
}

static enum nccl_result refuse_call(const char *text)
{
    return nccl_mock_set_error(NCCL_INVALID_USAGE, text);
}

/* argcheck.cc:28 */
static enum nccl_result check_pointer(const void *pointer)
{
    return pointer != NULL ? NCCL_SUCCESS
                           : nccl_mock_set_error(NCCL_INVALID_ARGUMENT, "an argument is NULL");
}

/* ncclCommEnsureReady, init.cc:373 */
static enum nccl_result ensure_ready(struct nccl_comm *comm)
{
    enum nccl_result result = (enum nccl_result)atomic_load(&comm->result);
    if (atomic_load(&comm->aborted)) {
        return NCCL_SUCCESS;
    }
    return result == NCCL_IN_PROGRESS
               ? nccl_mock_set_error(NCCL_INVALID_ARGUMENT,
                                     "Attempt to use communicator before the previous operation "
                                     "returned ncclSuccess")
               : result;
}

/* ---- groups ---- */

/* The group of this thread. Every call is a group itself, in the group of the caller. */
static _Thread_local struct {
    int depth;
    enum nccl_result error;
    struct nccl_comm *comm; /* has calls in the group */
} group;

static void begin_group(void)
{
    group.depth++;
}

/* ncclGroupErrCheck, group.h:89 */
static enum nccl_result note_error(enum nccl_result result)
{
    if (group.depth > 0 && result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) {
        group.error = result;
    }
    return result;
}

/* ncclGroupEndInternal, group.cc:646: only the outermost end starts the calls. After an error in
 * the group none of its calls runs, and its communicator has the error (groupCleanup, 340). */
static enum nccl_result end_group(void)
{
    if (group.depth == 0) {
        return refuse_call("ncclGroupEnd: not in a group call.");
    }
    if (--group.depth > 0) {
        return NCCL_SUCCESS;
    }
    struct nccl_comm *comm = group.comm;
    enum nccl_result error = group.error;
    group.comm = NULL;
    group.error = NCCL_SUCCESS;
    if (comm != NULL && error != NCCL_SUCCESS) {
        atomic_store(&comm->result, error);
    }
    return error != NCCL_SUCCESS || comm == NULL ? error : nccl_mock_submit(comm);
}

static enum nccl_result add_call(struct nccl_comm *comm, struct call call)
{
    if (group.comm != NULL && group.comm != comm) {
        return refuse_call("the mock supports one communicator in a group");
    }
    if (group.comm == NULL) {
        comm->call_count = 0;
    }
    if (comm->call_count == NCCL_MOCK_MAX_CALLS) {
        return refuse_call("the mock supports fewer calls in a group");
    }
    comm->calls[comm->call_count++] = call;
    group.comm = comm;
    return NCCL_SUCCESS;
}

enum nccl_result ncclGroupStart(void)
{
    begin_group();
    return NCCL_SUCCESS;
}

enum nccl_result ncclGroupEnd(void) /* group.cc:104 */
{
    return end_group();
}

/* ---- library ---- */

enum nccl_result ncclGetVersion(int *version) /* init.cc:151 */
{
    if (version == NULL) {
        return NCCL_INVALID_ARGUMENT;
    }
    const char *text = nccl_mock_find_fault("version");
    *version = text != NULL ? (int)strtol(text + 1, NULL, 10) : VERSION;
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(enum nccl_result result) /* init.cc:2683 */
{
    switch (result) {
    case NCCL_SUCCESS:
        return "no error";
    case NCCL_CUDA_ERROR:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case NCCL_SYSTEM_ERROR:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case NCCL_INTERNAL_ERROR:
        return "internal error - please report this issue to the NCCL developers";
    case NCCL_INVALID_ARGUMENT:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case NCCL_INVALID_USAGE:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case NCCL_REMOTE_ERROR:
        return "remote process exited or there was a network error";
    case NCCL_IN_PROGRESS:
        return "NCCL operation in progress";
    }
    return "unknown result code";
}

const char *ncclGetLastError(struct nccl_comm *comm) /* init.cc:2701 */
{
    (void)comm;
    return nccl_mock_error();
}

#define FILE_FOLDER "/dev/shm"
#define FILE_PREFIX "bireme-nccl-" /* the process of the id follows */

/* Removes the files of processes that were killed before all ranks had mapped them. */
static void remove_unused_files(void)
{
    DIR *files = opendir(FILE_FOLDER);
    for (struct dirent *entry; files != NULL && (entry = readdir(files)) != NULL;) {
        bool is_id = strncmp(entry->d_name, FILE_PREFIX, strlen(FILE_PREFIX)) == 0;
        long pid = is_id ? strtol(entry->d_name + strlen(FILE_PREFIX), NULL, 10) : 0;
        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH) {
            unlinkat(dirfd(files), entry->d_name, 0);
        }
    }
    if (files != NULL) {
        closedir(files);
    }
}

enum nccl_result ncclGetUniqueId(struct nccl_id *id) /* init.cc:158 */
{
    CHECK_RESULT(check_pointer(id));
    remove_unused_files();
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, FILE_PREFIX "%ld-%.0f-%d", (long)getpid(),
             1e6 * clock_epoch_seconds(), nccl_mock_state()->ids_created++);
    return NCCL_SUCCESS;
}

/* ---- communicators ---- */

/* parseCommConfig, init.cc:1804 */
static enum nccl_result check_config(const struct nccl_config *config)
{
    CHECK_RESULT(check_pointer(config));
    if (config->magic != NCCL_CONFIG_MAGIC) {
        return nccl_mock_set_error(NCCL_INVALID_ARGUMENT, "ncclConfig_t argument not initialized");
    }
    if (config->size != sizeof *config || config->blocking != 0) {
        return refuse_call("the mock supports complete configurations with blocking = 0");
    }
    last_config = *config;
    return NCCL_SUCCESS;
}

/* ncclCommInitRankDev, init.cc:1964 */
static enum nccl_result start_init(struct nccl_comm **out, int ranks, int rank, int id_count,
                                   const struct nccl_id *ids, const struct nccl_config *config)
{
    if (id_count <= 0 || id_count > ranks) {
        return nccl_mock_set_error(NCCL_INVALID_ARGUMENT, "improper number of unique ids");
    }
    CHECK_RESULT(check_pointer(out));
    *out = NULL; /* after an error, init.cc:2040 */
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        return nccl_mock_set_error(NCCL_INVALID_ARGUMENT, "Invalid rank requested");
    }
    CHECK_RESULT(check_config(config));
    struct nccl_comm *comm = calloc(1, sizeof *comm);
    struct nccl_id *copy = calloc((size_t)id_count, sizeof *copy);
    if (comm == NULL || copy == NULL || ranks > NCCL_MOCK_MAX_RANKS) {
        free(comm);
        free(copy);
        return nccl_mock_set_error(NCCL_SYSTEM_ERROR, "out of memory, or too many ranks");
    }
    memcpy(copy, ids, (size_t)id_count * sizeof *ids);
    *comm = (struct nccl_comm){
        .rank = rank, .size = ranks, .first = true, .ids = copy, .id_count = id_count};
    snprintf(comm->path, sizeof comm->path, FILE_FOLDER "/%.127s", ids[0].bytes);
    first_rank = rank;
    nccl_mock_state()->ids_used = id_count;
    *out = comm;
    return add_call(comm, (struct call){.kind = INIT});
}

/* init.cc:2177; all of the functions that initialize a communicator are the same */
static enum nccl_result init_rank(struct nccl_comm **out, int ranks, int rank, int id_count,
                                  const struct nccl_id *ids, const struct nccl_config *config)
{
    begin_group();
    enum nccl_result result = note_error(start_init(out, ranks, rank, id_count, ids, config));
    CHECK_RESULT(end_group());
    if (out != NULL && *out != NULL) {
        (void)ncclCommGetAsyncError(*out, &result);
    }
    return result;
}

enum nccl_result ncclCommInitRankConfig(struct nccl_comm **out, int ranks, struct nccl_id id,
                                        int rank, struct nccl_config *config)
{
    return init_rank(out, ranks, rank, 1, &id, config);
}

#ifndef NCCL_MOCK_WITHOUT_SCALABLE
enum nccl_result ncclCommInitRankScalable(struct nccl_comm **out, int ranks, int rank, int id_count,
                                          struct nccl_id *ids, struct nccl_config *config)
{
    return init_rank(out, ranks, rank, id_count, ids, config);
}
#endif

#ifndef NCCL_MOCK_WITHOUT_SPLIT
/* ncclCommInitChildComm, init.cc:2550 */
static enum nccl_result start_split(struct nccl_comm *comm, int color, int key,
                                    struct nccl_comm **out, const struct nccl_config *config)
{
    struct nccl_comm *child = NULL;
    CHECK_RESULT(check_pointer(comm));
    CHECK_RESULT(check_pointer(out));
    CHECK_RESULT(ensure_ready(comm));
    *out = NULL; /* until the split is complete */
    if (color != NCCL_MOCK_NO_COLOR) {
        CHECK_RESULT(check_config(config));
        child = calloc(1, sizeof *child);
        if (child == NULL) {
            return NCCL_SYSTEM_ERROR;
        }
    }
    return add_call(
        comm,
        (struct call){.kind = SPLIT, .color = color, .key = key, .child = child, .child_out = out});
}

/* init.cc:2666; it returns success while the split is in progress */
enum nccl_result ncclCommSplit(struct nccl_comm *comm, int color, int key, struct nccl_comm **out,
                               struct nccl_config *config)
{
    begin_group();
    enum nccl_result result = note_error(start_split(comm, color, key, out, config));
    CHECK_RESULT(end_group());
    return result;
}
#endif

enum nccl_result ncclCommGetAsyncError(struct nccl_comm *comm,
                                       enum nccl_result *error) /* init.cc:2706 */
{
    CHECK_RESULT(check_pointer(comm));
    CHECK_RESULT(check_pointer(error));
    *error = (enum nccl_result)atomic_load(&comm->result);
    return NCCL_SUCCESS;
}

static enum nccl_result start_finalize(struct nccl_comm *comm)
{
    CHECK_RESULT(ensure_ready(comm));
    if (comm->finalize_called) {
        return NCCL_INVALID_ARGUMENT;
    }
    comm->finalize_called = true;
    return add_call(comm, (struct call){.kind = FINALIZE});
}

enum nccl_result ncclCommFinalize(struct nccl_comm *comm) /* init.cc:2264 */
{
    begin_group();
    enum nccl_result result = comm != NULL ? start_finalize(comm) : NCCL_SUCCESS;
    if (result != NCCL_SUCCESS) {
        atomic_store(&comm->result, result);
    }
    note_error(result);
    CHECK_RESULT(end_group());
    return comm != NULL ? (enum nccl_result)atomic_load(&comm->result) : result;
}

/* init.cc:2358; without an error it is complete on return, because of destroyFlag (group.cc:52).
 * After a call that comes too early the group stays open (line 2381), as in NCCL. */
enum nccl_result ncclCommDestroy(struct nccl_comm *comm)
{
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    begin_group();
    CHECK_RESULT(ensure_ready(comm));
    if (comm->windows != NULL) {
        return refuse_call("a communicator is destroyed with an open window");
    }
    nccl_mock_release(comm);
    return end_group();
}

enum nccl_result ncclCommAbort(struct nccl_comm *comm) /* init.cc:2503 */
{
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    if (nccl_mock_has_fault(comm, "abort_hang")) {
        clock_sleep(ABORT_SECONDS);
    }
    begin_group();
    atomic_store(&comm->aborted, true);
    nccl_mock_wait_for_graphs(comm, true); /* commReclaim, init.cc:2305 */
    unlink(comm->path);
    nccl_mock_release(comm);
    return end_group();
}

/* ---- memory ---- */

enum nccl_result ncclMemAlloc(void **memory, size_t bytes) /* allocator.cc:13 */
{
    const char *text = nccl_mock_find_fault("memory");
    bool is_failing =
        text != NULL && (*text != '=' || (int)strtol(text + 1, NULL, 10) == first_rank);
    void *allocated = is_failing ? NULL : nccl_mock_memory_create(bytes);
    if (allocated == NULL) {
        return nccl_mock_set_error(NCCL_CUDA_ERROR, "out of memory");
    }
    *memory = allocated;
    return NCCL_SUCCESS;
}

enum nccl_result ncclMemFree(void *memory) /* allocator.cc:101 */
{
    return nccl_mock_memory_destroy(memory);
}

static enum nccl_result start_registration(struct nccl_comm *comm, void *memory, size_t bytes,
                                           struct nccl_window **out, int flags)
{
    if (memory == NULL || bytes == 0 || nccl_mock_has_fault(comm, "window_off")) {
        return NCCL_SUCCESS; /* dev_runtime.cc:902 */
    }
    CHECK_RESULT(ensure_ready(comm));
    if (nccl_mock_has_fault(comm, "window_refused")) {
        return nccl_mock_set_error(NCCL_CUDA_ERROR, "injected refusal"); /* dev_runtime.cc:905 */
    }
    if (flags != NCCL_WINDOW_SYMMETRIC) {
        return refuse_call("the mock supports symmetric windows");
    }
    return add_call(comm,
                    (struct call){.kind = REGISTER, .from = memory, .count = bytes, .window = out});
}

/* dev_runtime.cc:891; it returns success while the registration is in progress, and does not write
 * *out before. An error before the start is not an error of the communicator. */
enum nccl_result ncclCommWindowRegister(struct nccl_comm *comm, void *memory, size_t bytes,
                                        struct nccl_window **out, int flags)
{
    begin_group();
    enum nccl_result result = note_error(start_registration(comm, memory, bytes, out, flags));
    CHECK_RESULT(end_group());
    return result;
}

/* dev_runtime.cc:927; complete on return. NCCL does not check that the communicator is ready. */
enum nccl_result ncclCommWindowDeregister(struct nccl_comm *comm, struct nccl_window *window)
{
    if (window == NULL) {
        return NCCL_SUCCESS;
    }
    if (atomic_load(&comm->result) == NCCL_IN_PROGRESS) {
        return refuse_call("a window in use");
    }
    return nccl_mock_remove_window(comm, window)
               ? NCCL_SUCCESS
               : nccl_mock_set_error(NCCL_INTERNAL_ERROR, /* allocator.cc:457 */
                                     "Device object does not exist in shadow pool.");
}

/* ---- collectives ---- */

/* ArgsCheck (argcheck.cc:45), then taskAppend (enqueue.cc:2548): collectives without data do
 * nothing, and collectives of one rank are complete at once. */
static enum nccl_result append_collective(struct nccl_comm *comm, const struct call *call)
{
    bool is_rooted = call->kind == BROADCAST || call->kind == REDUCE;
    if (is_rooted && (call->root < 0 || call->root >= comm->size)) {
        return nccl_mock_set_error(NCCL_INVALID_ARGUMENT, "invalid root");
    }
    if (call->count == 0) {
        return NCCL_SUCCESS;
    }
    size_t bytes = call->count * nccl_mock_type_bytes(call->type);
    struct nccl_mock_counts *counts = nccl_mock_state();
    atomic_fetch_add(&counts->rooted, is_rooted ? 1 : 0);
    atomic_fetch_add(&counts->rooted_bytes, is_rooted ? (int64_t)bytes : 0);
    if (comm->size == 1) {
        memmove(call->to, call->from, bytes);
        return NCCL_SUCCESS;
    }
    return add_call(comm, *call);
}

/* ncclPlannerSetCapturingGraph, enqueue.cc:2340 */
static enum nccl_result check_capture(const struct nccl_comm *comm, const struct call *call)
{
    return group.comm == comm && comm->calls[0].capture != call->capture
               ? nccl_mock_set_error(NCCL_INVALID_USAGE,
                                     "Streams given to a communicator within a NCCL group must "
                                     "either be all uncaptured or all captured by the same graph.")
               : NCCL_SUCCESS;
}

/* ncclEnqueueCheck, enqueue.cc:2620; an error is also an error of the communicator */
static enum nccl_result enqueue_collective(struct nccl_comm *comm, void *stream, struct call call)
{
    enum nccl_result result = check_pointer(comm);
    if (result != NCCL_SUCCESS) {
        return note_error(result);
    }
    call.stream = stream;
    call.capture = stream != NULL ? nccl_mock_get_capture(stream) : 0;
    begin_group();
    result = ensure_ready(comm);
    if (result == NCCL_SUCCESS) {
        result = check_capture(comm, &call);
    }
    if (result == NCCL_SUCCESS) {
        result = append_collective(comm, &call);
    }
    if (result != NCCL_SUCCESS) {
        atomic_store(&comm->result, result);
    }
    note_error(result);
    CHECK_RESULT(end_group());
    return (enum nccl_result)atomic_load(&comm->result);
}

enum nccl_result ncclAllReduce(const void *from, void *to, size_t count, enum nccl_type type,
                               enum nccl_operator sum, struct nccl_comm *comm, void *stream)
{
    return sum != NCCL_SUM || type == NCCL_UINT8
               ? refuse_call("the mock supports sums of f32 and bf16")
               : enqueue_collective(comm, stream, (struct call){ALL_REDUCE, from, to, count, type});
}

enum nccl_result ncclReduce(const void *from, void *to, size_t count, enum nccl_type type,
                            enum nccl_operator sum, int root, struct nccl_comm *comm, void *stream)
{
    return sum != NCCL_SUM || type == NCCL_UINT8
               ? refuse_call("the mock supports sums of f32 and bf16")
               : enqueue_collective(comm, stream,
                                    (struct call){REDUCE, from, to, count, type, .root = root});
}

enum nccl_result ncclReduceScatter(const void *from, void *to, size_t each, enum nccl_type type,
                                   enum nccl_operator sum, struct nccl_comm *comm, void *stream)
{
    char *data =
        comm != NULL ? (char *)to - (size_t)comm->rank * each * nccl_mock_type_bytes(type) : to;
    return sum != NCCL_SUM || type == NCCL_UINT8 || data != from
               ? refuse_call("the mock supports sums of f32 and bf16 in place")
               : enqueue_collective(comm, stream, (struct call){SCATTER, from, data, each, type});
}

enum nccl_result ncclAllGather(const void *from, void *to, size_t each, enum nccl_type type,
                               struct nccl_comm *comm, void *stream)
{
    return enqueue_collective(comm, stream, (struct call){GATHER, from, to, each, type});
}

enum nccl_result ncclBroadcast(const void *from, void *to, size_t count, enum nccl_type type,
                               int root, struct nccl_comm *comm, void *stream)
{
    return enqueue_collective(comm, stream,
                              (struct call){BROADCAST, from, to, count, type, .root = root});
}
