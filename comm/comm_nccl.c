/* Collectives between GPUs by NCCL, one rank a GPU.
 *
 * They are queued on a stream of their own, of high priority, behind an event of the computing stream; their
 * end is an event that the computing stream waits for (comm_wait) and that the host asks about. So gradients
 * travel while backward goes on, and no call waits for the device.
 *
 * Shares that are equal and lie side by side are one reduce-scatter or all-gather in place; any others are a
 * group of one reduction or broadcast for each rank. Sums of f32 and bf16 are NCCL's: the same on all ranks, in an order
 * that depends on the layout. Reproducible: without the switch's reduction (NVLS), whose order differs from call
 * to call (NCCL issue 1497). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_nccl_impl.h"

#define MOST_CTAS 16 /* the multiprocessors that communication may take from computing */
#define WHAT_BYTES 96

static const char *const names[] = {
    [COMM_ALL_REDUCE] = "all-reduce",
    [COMM_REDUCE_SCATTER] = "reduce-scatter",
    [COMM_ALL_GATHER] = "all-gather",
    [COMM_BROADCAST] = "broadcast",
};

/* ---- collectives ---- */

static bool side_by_side(const struct range *ranges, int size)
{
    for (int r = 1; r < size; r++) {
        if (ranges[r].count != ranges[0].count ||
            ranges[r].first != ranges[0].first + r * ranges[0].count) {
            return false;
        }
    }
    return true;
}

/* Of what is summed. */
static enum nccl_type type_of(const struct comm_work *work)
{
    return work->element_bytes == sizeof(bf16) ? NCCL_BFLOAT16 : NCCL_FLOAT32;
}

static enum nccl_result reduce_scatter(const struct nccl_state *s, const struct comm_work *work)
{
    const struct nccl_library *nccl = nccl_world.library;
    void *stream = device_stream_handle(s->options.device, s->stream);
    const struct range *ranges = work->ranges;
    int64_t unit = (int64_t)work->element_bytes;
    if (side_by_side(ranges, s->comm->size)) {
        return nccl->reduce_scatter(
            work->data + ranges[0].first * unit, work->data + ranges[s->comm->rank].first * unit,
            (size_t)ranges[0].count, type_of(work), NCCL_SUM, s->handle, stream);
    }
    enum nccl_result result = nccl->group_start();
    for (int r = 0; r < s->comm->size && result == NCCL_SUCCESS; r++) {
        char *part = work->data + ranges[r].first * unit;
        result = nccl->reduce(part, part, (size_t)ranges[r].count, type_of(work), NCCL_SUM, r,
                              s->handle, stream);
    }
    enum nccl_result end = nccl->group_end();
    return result == NCCL_SUCCESS ? end : result;
}

static enum nccl_result all_gather(const struct nccl_state *s, const struct comm_work *work)
{
    const struct nccl_library *nccl = nccl_world.library;
    void *stream = device_stream_handle(s->options.device, s->stream);
    const struct range *ranges = work->ranges;
    size_t unit = work->element_bytes;
    if (side_by_side(ranges, s->comm->size)) {
        return nccl->all_gather(work->data + (size_t)ranges[s->comm->rank].first * unit,
                                work->data + (size_t)ranges[0].first * unit,
                                (size_t)ranges[0].count * unit, NCCL_UINT8, s->handle, stream);
    }
    enum nccl_result result = nccl->group_start();
    for (int r = 0; r < s->comm->size && result == NCCL_SUCCESS; r++) {
        char *part = work->data + (size_t)ranges[r].first * unit;
        result = nccl->broadcast(part, part, (size_t)ranges[r].count * unit, NCCL_UINT8, r,
                                 s->handle, stream);
    }
    enum nccl_result end = nccl->group_end();
    return result == NCCL_SUCCESS ? end : result;
}

static enum nccl_result enqueue(const struct nccl_state *s, const struct comm_work *work)
{
    const struct nccl_library *nccl = nccl_world.library;
    void *stream = device_stream_handle(s->options.device, s->stream);
    switch (work->kind) {
    case COMM_ALL_REDUCE:
        return nccl->all_reduce(work->data, work->data, (size_t)work->count, type_of(work),
                                NCCL_SUM, s->handle, stream);
    case COMM_REDUCE_SCATTER:
        return reduce_scatter(s, work);
    case COMM_ALL_GATHER:
        return all_gather(s, work);
    case COMM_ADD: /* refused before */
        break;
    case COMM_BROADCAST:
        return nccl->broadcast(work->data, work->data, (size_t)work->count * work->element_bytes,
                               NCCL_UINT8, work->root, s->handle, stream);
    }
    return NCCL_INVALID_ARGUMENT;
}

/* ---- what is under way ---- */

static struct comm_request *row(struct nccl_state *s, uint64_t number)
{
    return &s->ring[number % NCCL_UNDER_WAY];
}

static void describe(const struct nccl_state *s, const struct comm_request *request, char *text)
{
    snprintf(text, WHAT_BYTES, "%s number %llu of %d ranks", names[request->kind],
             (unsigned long long)request->number, s->comm->size);
}

/* Forget the collectives whose end has come; they end in the order in which they were started. */
static status retire(struct nccl_state *s)
{
    bool done = true;
    status result = STATUS_OK;
    nccl_lock();
    while (done && result == STATUS_OK && s->finished < s->started) {
        result = device_event_done(s->options.device, row(s, s->finished + 1)->done, &done);
        if (done && result == STATUS_OK) {
            s->finished++;
            comm_work_finished(s->comm);
        }
    }
    nccl_unlock();
    return result;
}

/* Until at most `most` are under way. */
static status finish(struct nccl_state *s, uint64_t most)
{
    TRY(retire(s));
    while (s->started - s->finished > most) {
        char what[WHAT_BYTES];
        struct comm_request *oldest = row(s, s->finished + 1);
        describe(s, oldest, what);
        TRY(nccl_wait_event(s, oldest->done, what));
        TRY(retire(s));
    }
    return STATUS_OK;
}

static status nccl_start(struct comm *comm, const struct comm_work *work, struct comm_request **out)
{
    struct nccl_state *s = comm->state;
    struct device *dev = s->options.device;
    TRY(finish(s, NCCL_UNDER_WAY - 1));
    struct comm_request *request = row(s, s->started + 1);
    request->number = s->started + 1;
    request->kind = work->kind;
    TRY(device_event_record(dev, s->ready, s->options.stream));
    TRY(device_stream_wait(dev, s->stream, s->ready));
    comm_work_started(comm);
    nccl_lock();
    enum nccl_result result = enqueue(s, work);
    nccl_unlock();
    char what[WHAT_BYTES];
    describe(s, request, what);
    TRY(nccl_settle(s, result, what));
    TRY(device_event_record(dev, request->done, s->stream));
    nccl_lock();
    s->started++;
    nccl_unlock();
    *out = request;
    return STATUS_OK;
}

static status nccl_progress(struct comm *comm)
{
    return retire(comm->state);
}

/* Nothing blocks: the computing stream waits. A row that was used again since stands for a later collective,
 * behind which the one meant has ended too. */
static status nccl_wait(struct comm *comm, struct comm_request **request)
{
    struct nccl_state *s = comm->state;
    TRY(device_stream_wait(s->options.device, s->options.stream, (*request)->done));
    *request = NULL;
    return retire(s);
}

/* ---- memory ---- */

static status nccl_allocate(struct comm *comm, size_t bytes, void **out)
{
    return nccl_memory_create(comm->state, bytes, out);
}

static status nccl_release(struct comm *comm, void *memory)
{
    TRY(finish(comm->state, 0));
    return nccl_memory_destroy(comm->state, memory);
}

/* ---- making and leaving ---- */

static void state_free(struct nccl_state *s)
{
    struct device *dev = s->options.device;
    for (int i = 0; i < NCCL_UNDER_WAY; i++) {
        (void)device_event_destroy(dev, &s->ring[i].done);
    }
    (void)device_event_destroy(dev, &s->ready);
    (void)device_stream_destroy(dev, &s->stream);
    free(s);
}

static status state_create(const struct comm_device_options *options, struct nccl_state **out)
{
    struct nccl_state *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory: a communicator");
    s->options = *options;
    status result = device_stream_create(options->device, 1, &s->stream);
    KEEP_FIRST(result, device_event_create(options->device, &s->ready));
    for (int i = 0; i < NCCL_UNDER_WAY && result == STATUS_OK; i++) {
        result = device_event_create(options->device, &s->ring[i].done);
    }
    if (result != STATUS_OK) {
        state_free(s);
        return result;
    }
    *out = s;
    return STATUS_OK;
}

static void live(struct nccl_state *s)
{
    nccl_lock();
    s->next = nccl_world.living;
    nccl_world.living = s;
    nccl_unlock();
}

static void die(struct nccl_state *s)
{
    nccl_lock();
    struct nccl_state **at = &nccl_world.living;
    while (*at != NULL && *at != s) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = s->next;
    }
    bool last = nccl_world.living == NULL;
    nccl_unlock();
    if (last) {
        nccl_watch_stop();
    }
}

static status nccl_destroy(struct comm **comm)
{
    struct nccl_state *s = (*comm)->state;
    struct comm *control = s->comm->control;
    TRY(comm_barrier(control));
    TRY(finish(s, 0));
    TRY(nccl_memory_destroy_all(s));
    nccl_lock();
    enum nccl_result result = nccl_world.library->comm_finalize(s->handle);
    nccl_unlock();
    TRY(nccl_settle(s, result, "leaving a communicator"));
    die(s);
    nccl_lock();
    result = nccl_world.library->comm_destroy(s->handle);
    nccl_unlock();
    if (result != NCCL_SUCCESS) {
        return nccl_raise(s, result, "leaving a communicator");
    }
    state_free(s);
    comm_release(comm);
    return comm_destroy(&control);
}

static status nccl_split(struct comm *comm, int colour, int key, struct comm **out);

static const struct comm_operations operations = {.kind = "nccl",
                                                  .destroy = nccl_destroy,
                                                  .split = nccl_split,
                                                  .allocate = nccl_allocate,
                                                  .release = nccl_release,
                                                  .start = nccl_start,
                                                  .progress = nccl_progress,
                                                  .wait = nccl_wait};

static struct nccl_config make_config(const struct comm_device_options *options)
{
    const int otherwise = NCCL_UNDEFINED_INT;
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = NCCL_OLDEST_VERSION,
                                .blocking = 0,
                                .cga_cluster_size = otherwise,
                                .min_ctas = otherwise,
                                .max_ctas = MOST_CTAS,
                                .split_share = otherwise, /* shared ones must not work at once */
                                .traffic_class = otherwise,
                                .collnet_enable = options->reproducible ? 0 : otherwise,
                                .cta_policy = otherwise,
                                .shrink_share = otherwise,
                                .nvls_ctas = otherwise,
                                .channels_per_net_peer = otherwise,
                                .nvlink_centric_sched = otherwise};
}

/* It lives before it works, so that it is let go of whatever becomes of it: errors from here on end the job. */
static status create(struct comm *control, const struct comm_device_options *options,
                     struct nccl_state **out)
{
    TRY(state_create(options, out));
    struct nccl_state *s = *out;
    status result = comm_around(&operations, control, s, &s->comm);
    if (result != STATUS_OK) {
        state_free(s);
        return result;
    }
    live(s);
    return STATUS_OK;
}

/* Rank 0 makes the name under which all meet. */
static status share_id(struct comm *control, struct nccl_id *id)
{
    status mine = STATUS_OK;
    if (comm_rank(control) == 0) {
        enum nccl_result result = nccl_world.library->get_unique_id(id);
        if (result != NCCL_SUCCESS) {
            const struct nccl_state nobody = {0};
            mine = nccl_raise(&nobody, result, "choosing a meeting place");
        }
    }
    TRY(comm_agree(control, mine));
    return comm_broadcast(control, id, sizeof *id, 0);
}

static status join(struct nccl_state *s)
{
    struct nccl_id id = {{0}};
    struct nccl_config config = make_config(&s->options);
    TRY(share_id(s->comm->control, &id));
    TRY(comm_barrier(
        s->comm->control)); /* names whoever is not there; NCCL would wait and not say */
    nccl_lock();
    enum nccl_result result =
        nccl_world.library->comm_init(&s->handle, s->comm->size, id, s->comm->rank, &config);
    nccl_unlock();
    return nccl_settle(s, result, "the start");
}

status comm_nccl_create(struct comm *control, const struct comm_device_options *options,
                        struct comm **out)
{
    *out = NULL;
    bool missing = false;
    TRY(comm_agree(control, nccl_open(&nccl_world.library, &missing)));
    if (options->reproducible) {
        REQUIRE(setenv("NCCL_NVLS_ENABLE", "0", 1) == 0, STATUS_INTERNAL, "out of memory");
    }
    struct nccl_state *s = NULL;
    TRY(comm_agree(control, nccl_watch_start()));
    TRY(comm_agree(control, create(control, options, &s)));
    TRY(join(s));
    *out = s->comm;
    return STATUS_OK;
}

static status nccl_split(struct comm *comm, int colour, int key, struct comm **out)
{
    struct nccl_state *parent = comm->state, *s = NULL;
    struct nccl_config config = make_config(&parent->options);
    struct comm *control = NULL;
    TRY(finish(parent, 0));
    TRY(comm_split(comm->control, colour, key, &control));
    TRY(comm_agree(comm->control, create(control, &parent->options, &s)));
    nccl_lock();
    enum nccl_result result =
        nccl_world.library->comm_split(parent->handle, colour, key, &s->handle, &config);
    nccl_unlock();
    TRY(nccl_settle(parent, result, "splitting a communicator"));
    TRY(nccl_settle(s, NCCL_IN_PROGRESS, "splitting a communicator"));
    *out = s->comm;
    return STATUS_OK;
}
