/* Collectives between GPUs over NCCL, one rank per GPU.
 *
 * Collectives are queued on a separate high-priority stream, after an event of the computing
 * stream. Their completion is an event for which the computing stream waits (comm_wait) and which
 * the host polls. Therefore gradients are reduced while backward continues, and no call waits for
 * the device.
 *
 * Equal, adjacent ranges are one in-place reduce-scatter or all-gather. If the range of rank 0 is
 * longer (bucket.h), the rest is one reduction or broadcast in the same group. Other ranges are a
 * group of one reduction or broadcast per rank. NCCL adds f32 and bf16: the sums are the same on
 * all ranks, in an order that depends on the layout. With options.deterministic, reduction in the
 * switch (NVLS) is off, because its order differs between calls (NCCL issue 1497). Collectives in
 * CUDA graphs register no buffers (NCCL_GRAPH_REGISTER), so that NCCL chooses the same algorithm
 * for them (enqueue.cc, topoGetAlgoInfo). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "comm/device/nccl_impl.h"
#include "comm/partition.h"

#define MAX_CTAS 16 /* maximum multiprocessors that communication takes from computation */
#define OPERATION_BYTES 96
#define RANKS_PER_ID 128 /* as in PyTorch (TORCH_NCCL_RANKS_PER_ROOT) */

static const char *const collective_names[] = {
    [COMM_ALL_REDUCE] = "all-reduce",
    [COMM_REDUCE_SCATTER] = "reduce-scatter",
    [COMM_ALL_GATHER] = "all-gather",
    [COMM_BROADCAST] = "broadcast",
};

/* ---- collectives ---- */

/* Returns whether the ranges are adjacent and equal, except that the first one may be longer. */
static bool are_equal_after_rest(const struct comm_range *ranges, int size)
{
    int64_t each = ranges[size - 1].count;
    for (int r = 1; r < size; r++) {
        if (ranges[r].count != each ||
            ranges[r].first != ranges[r - 1].first + ranges[r - 1].count) {
            return false;
        }
    }
    return ranges[0].count >= each;
}

/* Returns the type of the elements to add. */
static enum nccl_type get_type(const struct comm_work *work)
{
    return work->element_bytes == sizeof(bf16) ? NCCL_BFLOAT16 : NCCL_FLOAT32;
}

/* Queues the collective of one range, to or from the rank that owns it. */
static enum nccl_result enqueue_rooted(const struct nccl_state *s, const struct comm_work *work,
                                       struct comm_range range, int root)
{
    const struct nccl_library *nccl = nccl_world.library;
    void *stream = device_stream_handle(s->options.device, s->stream);
    char *data = work->data + range.first * (int64_t)work->element_bytes;
    if (range.count == 0) {
        return NCCL_SUCCESS;
    }
    return work->kind == COMM_REDUCE_SCATTER
               ? nccl->reduce(data, data, (size_t)range.count, get_type(work), NCCL_SUM, root,
                              s->handle, stream)
               : nccl->broadcast(data, data, (size_t)range.count * work->element_bytes, NCCL_UINT8,
                                 root, s->handle, stream);
}

/* Queues the collective of equal, adjacent ranges of `each` elements from `first` on. */
static enum nccl_result enqueue_equal(const struct nccl_state *s, const struct comm_work *work,
                                      int64_t first, int64_t each)
{
    const struct nccl_library *nccl = nccl_world.library;
    void *stream = device_stream_handle(s->options.device, s->stream);
    int64_t element_bytes = (int64_t)work->element_bytes;
    char *all = work->data + first * element_bytes;
    char *own = all + s->comm->rank * each * element_bytes;
    return work->kind == COMM_REDUCE_SCATTER
               ? nccl->reduce_scatter(all, own, (size_t)each, get_type(work), NCCL_SUM, s->handle,
                                      stream)
               : nccl->all_gather(own, all, (size_t)(each * element_bytes), NCCL_UINT8, s->handle,
                                  stream);
}

/* Queues a reduce-scatter or an all-gather. */
static enum nccl_result enqueue_ranges(const struct nccl_state *s, const struct comm_work *work)
{
    const struct nccl_library *nccl = nccl_world.library;
    const struct comm_range *ranges = work->ranges;
    int size = s->comm->size;
    enum nccl_result result = nccl->group_start();
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (are_equal_after_rest(ranges, size)) {
        int64_t each = ranges[size - 1].count, rest = ranges[0].count - each;
        result = enqueue_equal(s, work, ranges[0].first + rest, each);
        if (result == NCCL_SUCCESS) {
            result = enqueue_rooted(s, work, (struct comm_range){ranges[0].first, rest}, 0);
        }
    } else {
        for (int r = 0; r < size && result == NCCL_SUCCESS; r++) {
            result = enqueue_rooted(s, work, ranges[r], r);
        }
    }
    enum nccl_result end_result = nccl->group_end();
    return result == NCCL_SUCCESS ? end_result : result;
}

static enum nccl_result enqueue_collective(const struct nccl_state *s, const struct comm_work *work)
{
    const struct nccl_library *nccl = nccl_world.library;
    void *stream = device_stream_handle(s->options.device, s->stream);
    switch (work->kind) {
    case COMM_ALL_REDUCE:
        return nccl->all_reduce(work->data, work->data, (size_t)work->count, get_type(work),
                                NCCL_SUM, s->handle, stream);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER:
        return enqueue_ranges(s, work);
    case COMM_ACCUMULATE: /* rejected in comm_accumulate_start */
        break;
    case COMM_BROADCAST:
        return nccl->broadcast(work->data, work->data, (size_t)work->count * work->element_bytes,
                               NCCL_UINT8, work->root, s->handle, stream);
    }
    return NCCL_INVALID_ARGUMENT;
}

/* ---- collectives in flight ---- */

static struct comm_request *get_request(struct nccl_state *s, uint64_t number)
{
    return &s->ring[number % NCCL_RING];
}

static void describe_collective(const struct nccl_state *s, const struct comm_request *request,
                                char *text)
{
    snprintf(text, OPERATION_BYTES, "%s number %" PRIu64 " of %d ranks",
             request->is_graph ? "graph with collectives" : collective_names[request->kind],
             request->number, s->comm->size);
}

/* Removes completed collectives from the ring; they complete in the order of their start. */
static status retire_finished(struct nccl_state *s)
{
    bool done = true;
    status result = STATUS_OK;
    nccl_lock();
    while (done && result == STATUS_OK && s->finished < s->started) {
        result = device_event_done(s->options.device, get_request(s, s->finished + 1)->done, &done);
        if (done && result == STATUS_OK) {
            s->finished++;
            comm_work_finished(s->comm);
        }
    }
    nccl_unlock();
    return result;
}

status nccl_limit_in_flight(struct nccl_state *s, uint64_t max_in_flight)
{
    TRY(retire_finished(s));
    while (s->started - s->finished > max_in_flight) {
        char operation[OPERATION_BYTES];
        struct comm_request *oldest = get_request(s, s->finished + 1);
        describe_collective(s, oldest, operation);
        TRY(nccl_wait_event(s, oldest->done, operation));
        TRY(retire_finished(s));
    }
    return STATUS_OK;
}

status nccl_count_started(struct nccl_state *s, enum comm_collective kind, bool is_graph,
                          struct stream *stream, struct comm_request **out)
{
    struct comm_request *request = get_request(s, s->started + 1);
    request->number = s->started + 1;
    request->kind = kind;
    request->is_graph = is_graph;
    TRY(device_event_record(s->options.device, request->done, stream));
    comm_work_started(s->comm);
    nccl_lock();
    s->started++;
    nccl_unlock();
    *out = request;
    return STATUS_OK;
}

status nccl_enqueue(struct nccl_state *s, const struct comm_work *work, const char *operation)
{
    struct device *dev = s->options.device;
    TRY(device_event_record(dev, s->ready, s->options.stream));
    TRY(device_stream_wait(dev, s->stream, s->ready));
    nccl_lock();
    enum nccl_result result = enqueue_collective(s, work);
    nccl_unlock();
    return nccl_wait_result(s, result, operation);
}

static status nccl_start(struct comm *comm, const struct comm_work *work, struct comm_request **out)
{
    struct nccl_state *s = comm->state;
    TRY(nccl_graph_start(s, work, out));
    if (*out != NULL) {
        return STATUS_OK;
    }
    TRY(nccl_limit_in_flight(s, NCCL_RING - 1));
    char operation[OPERATION_BYTES];
    const struct comm_request next = {.number = s->started + 1, .kind = work->kind};
    describe_collective(s, &next, operation);
    comm->exposed = true; /* the time of this call counts */
    TRY(nccl_enqueue(s, work, operation));
    return nccl_count_started(s, work->kind, false, s->stream, out);
}

static status nccl_progress(struct comm *comm)
{
    return retire_finished(comm->state);
}

/* Lets the computing stream wait; the host does not block. If the ring entry was reused, it belongs
 * to a later collective, which completes after this one. */
static status nccl_wait(struct comm *comm, struct comm_request **request)
{
    struct nccl_state *s = comm->state;
    TRY(nccl_graph_owns(s, *request) ? nccl_graph_wait(s, *request)
                                     : nccl_waits_queue(s, (*request)->done));
    *request = NULL;
    return retire_finished(s);
}

/* ---- memory ---- */

static status nccl_allocate(struct comm *comm, size_t bytes, void **out)
{
    return nccl_memory_create(comm->state, bytes, out);
}

static status nccl_release(struct comm *comm, void *memory)
{
    TRY(nccl_limit_in_flight(comm->state, 0));
    return nccl_memory_destroy(comm->state, memory);
}

/* ---- creation and destruction ---- */

static void free_state(struct nccl_state *s)
{
    struct device *dev = s->options.device;
    for (int i = 0; i < NCCL_RING; i++) {
        (void)device_event_destroy(dev, &s->ring[i].done);
    }
    nccl_waits_destroy(s);
    nccl_graph_destroy(s);
    (void)device_event_destroy(dev, &s->ready);
    (void)device_stream_destroy(dev, &s->stream);
    free(s);
}

static status create_state(const struct comm_device_options *options, struct nccl_state **out)
{
    struct nccl_state *s = NULL;
    TRY(ALLOCATE(s, 1, "a communicator"));
    s->options = *options;
    status result = device_stream_create(options->device, 1, &s->stream);
    KEEP_FIRST(result, device_event_create(options->device, &s->ready));
    for (int i = 0; i < NCCL_RING && result == STATUS_OK; i++) {
        result = device_event_create(options->device, &s->ring[i].done);
    }
    KEEP_FIRST(result, nccl_waits_create(s));
    KEEP_FIRST(result, nccl_graph_create(s));
    if (result != STATUS_OK) {
        free_state(s);
        return result;
    }
    *out = s;
    return STATUS_OK;
}

static void registry_add(struct nccl_state *s)
{
    nccl_lock();
    s->next = nccl_world.communicators;
    nccl_world.communicators = s;
    nccl_unlock();
}

static void registry_remove(struct nccl_state *s)
{
    nccl_lock();
    struct nccl_state **link = &nccl_world.communicators;
    while (*link != NULL && *link != s) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        *link = s->next;
    }
    bool is_last = nccl_world.communicators == NULL;
    nccl_unlock();
    if (is_last) {
        nccl_watchdog_stop();
    }
}

static status nccl_destroy(struct comm **comm)
{
    struct nccl_state *s = (*comm)->state;
    struct comm *control = s->comm->control;
    TRY(comm_barrier(control));
    TRY(nccl_limit_in_flight(s, 0));
    TRY(nccl_memory_destroy_all(s));
    nccl_lock();
    enum nccl_result result = nccl_world.library->comm_finalize(s->handle);
    nccl_unlock();
    TRY(nccl_wait_result(s, result, "destroying a communicator"));
    registry_remove(s);
    nccl_lock();
    result = nccl_world.library->comm_destroy(s->handle);
    nccl_unlock();
    if (result != NCCL_SUCCESS) {
        return nccl_raise(s, result, "destroying a communicator");
    }
    free_state(s);
    comm_release(comm);
    return comm_destroy(&control);
}

static status nccl_split(struct comm *comm, int color, int key, struct comm **out);

static const struct comm_operations operations = {.kind = "nccl",
                                                  .destroy = nccl_destroy,
                                                  .split = nccl_split,
                                                  .allocate = nccl_allocate,
                                                  .release = nccl_release,
                                                  .start = nccl_start,
                                                  .progress = nccl_progress,
                                                  .wait = nccl_wait,
                                                  .read_waits = nccl_waits_read};

static struct nccl_config make_config(const struct comm_device_options *options)
{
    const int undefined = NCCL_UNDEFINED_INT;
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = NCCL_OLDEST_VERSION,
                                .blocking = 0,
                                .cga_cluster_size = undefined,
                                .min_ctas = undefined,
                                .max_ctas = MAX_CTAS,
                                /* communicators with shared resources must not run concurrently */
                                .split_share = undefined,
                                .traffic_class = undefined,
                                .collnet_enable = options->deterministic ? 0 : undefined,
                                .cta_policy = undefined,
                                .shrink_share = undefined,
                                .nvls_ctas = undefined,
                                .channels_per_net_peer = undefined,
                                .nvlink_centric_sched = undefined};
}

/* Creates the state and registers it before NCCL uses it, so that the end of the job always aborts
 * it. Errors after this call end the job. */
static status create_registered(struct comm *control, const struct comm_device_options *options,
                                struct nccl_state **out)
{
    TRY(create_state(options, out));
    struct nccl_state *s = *out;
    status result = comm_create_over_control(&operations, control, s, &s->comm);
    if (result != STATUS_OK) {
        free_state(s);
        return result;
    }
    s->comm->waits_on_device = !device_is_host(options->device);
    registry_add(s);
    return STATUS_OK;
}

/* Returns the number of unique ids. Each id has a server on the rank that created it, with which
 * the ranks connect to each other; a single server takes long for thousands of ranks. */
static int count_unique_ids(const struct nccl_state *s)
{
    int ranks_per_id = s->options.ranks_per_id > 0 ? s->options.ranks_per_id : RANKS_PER_ID;
    return nccl_world.library->comm_init_scalable != NULL
               ? (int)number_divide_up(s->comm->size, ranks_per_id)
               : 1;
}

static status create_unique_id(struct nccl_id *id)
{
    const struct nccl_state no_state = {0};
    enum nccl_result result = nccl_world.library->get_unique_id(id);
    return result == NCCL_SUCCESS ? STATUS_OK
                                  : nccl_raise(&no_state, result, "creating the unique id");
}

/* Creates each unique id on the first of the ranks that NCCL assigns to it (bootstrap.cc,
 * rootIdFromRank), and broadcasts it. */
static status broadcast_unique_ids(struct comm *control, struct nccl_id *ids, int count)
{
    status own = STATUS_OK;
    for (int i = 0; i < count; i++) {
        if (comm_rank(control) == partition_shard(comm_size(control), 1, count, i).first) {
            own = create_unique_id(&ids[i]);
        }
    }
    TRY(comm_agree(control, own));
    for (int i = 0; i < count; i++) {
        int root = (int)partition_shard(comm_size(control), 1, count, i).first;
        TRY(comm_broadcast(control, &ids[i], sizeof *ids, root));
    }
    return STATUS_OK;
}

static status init_with_ids(struct nccl_state *s, struct nccl_id *ids, int count)
{
    const struct nccl_library *nccl = nccl_world.library;
    struct nccl_config config = make_config(&s->options);
    int rank = s->comm->rank, size = s->comm->size;
    TRY(broadcast_unique_ids(s->comm->control, ids, count));
    /* reports missing ranks; NCCL would wait for them without a message */
    TRY(comm_barrier(s->comm->control));
    nccl_lock();
    enum nccl_result result =
        count > 1 ? nccl->comm_init_scalable(&s->handle, size, rank, count, ids, &config)
                  : nccl->comm_init(&s->handle, size, ids[0], rank, &config);
    nccl_unlock();
    return nccl_wait_result(s, result, "communicator creation");
}

static status init_comm(struct nccl_state *s)
{
    int count = count_unique_ids(s);
    struct nccl_id *ids = NULL;
    TRY(comm_abort_on_error(s->comm->control, ALLOCATE(ids, count, "unique ids")));
    status result = init_with_ids(s, ids, count);
    free(ids);
    return result;
}

static status open_library(const struct comm_device_options *options)
{
    bool missing = false;
    TRY(nccl_open(&nccl_world.library, &missing));
    REQUIRE((!options->deterministic || setenv("NCCL_NVLS_ENABLE", "0", 1) == 0) &&
                setenv("NCCL_GRAPH_REGISTER", "0", 0) == 0,
            STATUS_INTERNAL, "out of memory for an environment variable");
    return STATUS_OK;
}

status comm_nccl_create(struct comm *control, const struct comm_device_options *options,
                        struct comm **out)
{
    *out = NULL;
    struct nccl_state *s = NULL;
    TRY(comm_agree(control, open_library(options)));
    TRY(comm_agree(control, nccl_watchdog_start()));
    TRY(comm_agree(control, create_registered(control, options, &s)));
    TRY(init_comm(s));
    *out = s->comm;
    return STATUS_OK;
}

static status nccl_split(struct comm *comm, int color, int key, struct comm **out)
{
    struct nccl_state *parent = comm->state, *s = NULL;
    struct nccl_config config = make_config(&parent->options);
    struct comm *control = NULL;
    struct nccl_comm *child = NULL; /* valid when the parent is no longer in progress */
    TRY(nccl_limit_in_flight(parent, 0));
    TRY(comm_split(comm->control, color, key, &control));
    TRY(comm_agree(comm->control, create_registered(control, &parent->options, &s)));
    nccl_lock();
    enum nccl_result result =
        nccl_world.library->comm_split(parent->handle, color, key, &child, &config);
    nccl_unlock();
    TRY(nccl_wait_result(parent, result, "splitting a communicator"));
    nccl_lock();
    s->handle = child;
    nccl_unlock();
    TRY(nccl_wait_result(s, NCCL_SUCCESS, "splitting a communicator"));
    *out = s->comm;
    return STATUS_OK;
}

status comm_device_enable_graphs(struct comm *comm)
{
    return comm->operations == &operations && comm->size > 1 ? nccl_graph_enable(comm->state)
                                                             : STATUS_OK;
}
