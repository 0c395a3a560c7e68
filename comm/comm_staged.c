/* Device memory through the host: what a collective needs is copied into memory of the control communicator,
 * summed there in rank order and f32, and copied back. For ranks that share a GPU, which NCCL refuses, and for
 * machines without NCCL: the same bits as the ranks would make on the CPU.
 *
 * Memory that this communicator gives has a twin of the same size on the host, in which the control communicator
 * works fastest; anything else passes through memory that is made for the occasion and kept. Both are page-locked, so that
 * a copy goes at the speed of the bus. A start waits until the
 * device has finished what was queued before it; the sums themselves travel behind what is queued afterwards. */
#include <stdlib.h>

#include "comm/comm_device.h"
#include "comm/comm_impl.h"

struct twin {
    struct twin *next;
    char *device, *host;
    size_t bytes;
    bool registered;
};

/* Page-locked memory for the occasion, kept for the next one. */
struct spare {
    struct spare *next;
    void *host;
    size_t bytes;
};

/* A collective on the host, and the range that goes back to the device. */
struct comm_request {
    struct comm_request *next;
    struct comm_request *work; /* the control's */
    char *device, *host;
    size_t bytes;
    struct spare *spare; /* NULL: host is a twin's */
    struct range *ranges;
};

struct staged_state {
    struct comm_device_options options;
    struct twin *twins;
    struct spare *spares; /* that no collective uses */
};

/* ---- collectives ---- */

/* The span of bytes that the collective reads and writes, from data on. */
static struct range span_of(const struct comm *comm, const struct comm_work *work)
{
    int64_t first = work->ranges != NULL ? INT64_MAX : 0, end = work->count;
    for (int r = 0; r < comm->size && work->ranges != NULL; r++) {
        struct range range = work->ranges[r];
        if (range.count > 0) {
            first = range.first < first ? range.first : first;
            end = range.first + range.count > end ? range.first + range.count : end;
        }
    }
    first = first < end ? first : end;
    int64_t unit = (int64_t)work->element_bytes;
    return (struct range){first * unit, (end - first) * unit};
}

static char *twin_of(const struct staged_state *s, const char *data, size_t bytes)
{
    for (const struct twin *t = s->twins; t != NULL; t = t->next) {
        if (data >= t->device && data + bytes <= t->device + t->bytes) {
            return t->host + (data - t->device);
        }
    }
    return NULL;
}

static status spare_take(struct staged_state *s, size_t bytes, struct spare **out)
{
    struct spare **best = NULL;
    for (struct spare **at = &s->spares; *at != NULL; at = &(*at)->next) {
        if ((*at)->bytes >= bytes && (best == NULL || (*at)->bytes < (*best)->bytes)) {
            best = at;
        }
    }
    if (best != NULL) {
        *out = *best;
        *best = (*best)->next;
        return STATUS_OK;
    }
    struct spare *spare = calloc(1, sizeof *spare);
    REQUIRE(spare != NULL, STATUS_INTERNAL, "out of memory: a collective");
    spare->bytes = bytes;
    status result = device_host_allocate(s->options.device, bytes, "communication", &spare->host);
    if (result != STATUS_OK) {
        free(spare);
        return result;
    }
    *out = spare;
    return STATUS_OK;
}

static void request_free(struct staged_state *s, struct comm_request *request)
{
    if (request->spare != NULL) {
        request->spare->next = s->spares;
        s->spares = request->spare;
    }
    free(request->ranges);
    free(request);
}

/* Where the collective's bytes lie on the host, and its ranges counted from there. */
static status request_create(const struct comm *comm, const struct comm_work *work,
                             struct comm_request **out)
{
    struct staged_state *s = comm->state;
    struct range span = span_of(comm, work);
    struct comm_request *request = calloc(1, sizeof *request);
    REQUIRE(request != NULL, STATUS_INTERNAL, "out of memory: a collective");
    request->bytes = (size_t)span.count;
    request->device = work->data + span.first;
    request->host = twin_of(s, request->device, request->bytes);
    status result = STATUS_OK;
    if (request->host == NULL) {
        TRY_GOTO(result, fail, spare_take(s, request->bytes, &request->spare));
        request->host = request->spare->host;
    }
    size_t ranks = (size_t)comm->size;
    if (work->ranges != NULL) {
        request->ranges = malloc(ranks * sizeof *request->ranges);
        REQUIRE_GOTO(result, fail, request->ranges != NULL, STATUS_INTERNAL,
                     "out of memory: a collective");
    }
    for (size_t r = 0; r < ranks && work->ranges != NULL; r++) {
        request->ranges[r] = work->ranges[r];
        request->ranges[r].first -= span.first / (int64_t)work->element_bytes;
        request->ranges[r].first *= request->ranges[r].count > 0;
    }
    *out = request;
    return STATUS_OK;
fail:
    request_free(s, request);
    return result;
}

static status finish_copies(const struct comm *comm)
{
    const struct staged_state *s = comm->state;
    return device_wait(s->options.device, s->options.stream, comm->deadline_seconds);
}

static status staged_start(struct comm *comm, const struct comm_work *work,
                           struct comm_request **out)
{
    struct staged_state *s = comm->state;
    struct comm *control = comm->control;
    struct comm_request *request = NULL;
    TRY(request_create(comm, work, &request));
    struct comm_work host = *work;
    host.data = request->host;
    host.ranges = request->ranges;
    status result = device_copy(s->options.device, s->options.stream, request->host,
                                request->device, request->bytes);
    KEEP_FIRST(result, finish_copies(comm));
    if (result == STATUS_OK) {
        comm_work_started(comm);
        result = control->operations->start(control, &host, &request->work);
    }
    if (result != STATUS_OK) {
        request_free(s, request);
        return result;
    }
    *out = request;
    return STATUS_OK;
}

static status staged_progress(struct comm *comm)
{
    return comm->control->operations->progress(comm->control);
}

static status staged_wait(struct comm *comm, struct comm_request **out)
{
    struct staged_state *s = comm->state;
    struct comm_request *request = *out;
    TRY(comm_wait(comm->control, &request->work));
    comm_work_finished(comm);
    TRY(device_copy(s->options.device, s->options.stream, request->device, request->host,
                    request->bytes));
    TRY(finish_copies(comm)); /* the next collective writes what they read */
    *out = NULL;
    request_free(s, request);
    return STATUS_OK;
}

/* ---- memory ---- */

static status staged_allocate(struct comm *comm, size_t bytes, void **out)
{
    struct staged_state *s = comm->state;
    struct twin *twin = calloc(1, sizeof *twin);
    REQUIRE(twin != NULL, STATUS_INTERNAL, "out of memory: a buffer's name");
    twin->bytes = bytes;
    status result = comm_allocate(comm->control, bytes, (void **)&twin->host);
    KEEP_FIRST(result,
               device_allocate(s->options.device, bytes, "communication", (void **)&twin->device));
    if (result != STATUS_OK) {
        free(twin);
        return result;
    }
    twin->registered = device_host_register(s->options.device, twin->host, bytes);
    twin->next = s->twins;
    s->twins = twin;
    *out = twin->device;
    return STATUS_OK;
}

static status twin_free(struct comm *comm, struct twin *twin)
{
    struct staged_state *s = comm->state;
    if (twin->registered) {
        device_host_unregister(s->options.device, twin->host);
    }
    status result = comm_free(comm->control, twin->host);
    device_release(s->options.device, twin->device, twin->bytes);
    free(twin);
    return result;
}

static status staged_release(struct comm *comm, void *memory)
{
    struct staged_state *s = comm->state;
    TRY(finish_copies(comm));
    for (struct twin **t = &s->twins; *t != NULL; t = &(*t)->next) {
        if ((*t)->device == memory) {
            struct twin *found = *t;
            *t = found->next;
            return twin_free(comm, found);
        }
    }
    RAISE(STATUS_INTERNAL, "comm_free of memory that this communicator did not give");
}

/* ---- making and leaving ---- */

static status staged_destroy(struct comm **comm)
{
    struct staged_state *s = (*comm)->state;
    struct comm *control = (*comm)->control;
    TRY(finish_copies(*comm));
    while (s->twins != NULL) {
        struct twin *twin = s->twins;
        s->twins = twin->next;
        TRY(twin_free(*comm, twin));
    }
    while (s->spares != NULL) {
        struct spare *spare = s->spares;
        s->spares = spare->next;
        device_host_release(s->options.device, spare->host, spare->bytes);
        free(spare);
    }
    free(s);
    comm_release(comm);
    return comm_destroy(&control);
}

static status staged_split(struct comm *comm, int colour, int key, struct comm **out)
{
    struct staged_state *s = comm->state;
    struct comm *control = NULL;
    TRY(comm_split(comm->control, colour, key, &control));
    return comm_staged_create(control, &s->options, out);
}

static const struct comm_operations operations = {.kind = "staged",
                                                  .destroy = staged_destroy,
                                                  .split = staged_split,
                                                  .allocate = staged_allocate,
                                                  .release = staged_release,
                                                  .start = staged_start,
                                                  .progress = staged_progress,
                                                  .wait = staged_wait};

status comm_staged_create(struct comm *control, const struct comm_device_options *options,
                          struct comm **out)
{
    *out = NULL;
    struct staged_state *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory: a communicator");
    s->options = *options;
    status result = comm_around(&operations, control, s, out);
    if (result != STATUS_OK) {
        free(s);
    }
    return result;
}
