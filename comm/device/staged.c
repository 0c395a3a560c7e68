/* Collectives on device memory through the host. The data is copied to host memory of the control
 * communicator, reduced there in f32 and in a fixed order, and copied back. It serves ranks that
 * share a GPU, which NCCL does not support, and machines without NCCL. The sums have the same bits
 * as sums of the same ranks on the CPU.
 *
 * Memory of comm_allocate has a mirror of the same size on the host, from comm_allocate of the
 * control communicator. Other memory uses pooled host buffers. Both are page-locked for full copy
 * speed. The start of a collective waits until the device has finished the work that was queued
 * before it. The reduction then overlaps with work that is queued later. */
#include <stdlib.h>

#include "base/memory.h"
#include "comm/comm_impl.h"
#include "comm/device/device.h"

struct host_mirror {
    struct host_mirror *next;
    char *device, *host;
    size_t bytes;
    bool registered;
};

/* Page-locked host memory that is reused by later collectives. */
struct pooled_buffer {
    struct pooled_buffer *next;
    void *host;
    size_t bytes;
};

/* A collective on the host, and the range that is copied back to the device. */
struct comm_request {
    struct comm_request *next;
    struct comm_request *work; /* request of the control communicator */
    char *device, *host;
    size_t bytes;
    struct pooled_buffer *pooled_buffer; /* NULL: host is in a mirror */
    struct comm_range *ranges;
};

struct staged_state {
    struct comm_device_options options;
    struct host_mirror *mirrors;
    struct pooled_buffer *free_buffers; /* not used by a collective */
};

/* ---- collectives ---- */

/* Returns the range of bytes that the collective reads and writes, relative to data. */
static struct comm_range get_span(const struct comm *comm, const struct comm_work *work)
{
    int64_t first = work->ranges != NULL ? INT64_MAX : 0, end = work->count;
    for (int r = 0; r < comm->size && work->ranges != NULL; r++) {
        struct comm_range range = work->ranges[r];
        if (range.count > 0) {
            first = range.first < first ? range.first : first;
            end = range.first + range.count > end ? range.first + range.count : end;
        }
    }
    first = first < end ? first : end;
    int64_t element_bytes = (int64_t)work->element_bytes;
    return (struct comm_range){first * element_bytes, (end - first) * element_bytes};
}

static char *find_host_mirror(const struct staged_state *s, const char *data, size_t bytes)
{
    for (const struct host_mirror *t = s->mirrors; t != NULL; t = t->next) {
        if (data >= t->device && data + bytes <= t->device + t->bytes) {
            return t->host + (data - t->device);
        }
    }
    return NULL;
}

static status get_pooled_buffer(struct staged_state *s, size_t bytes, struct pooled_buffer **out)
{
    struct pooled_buffer **best = NULL;
    for (struct pooled_buffer **link = &s->free_buffers; *link != NULL; link = &(*link)->next) {
        if ((*link)->bytes >= bytes && (best == NULL || (*link)->bytes < (*best)->bytes)) {
            best = link;
        }
    }
    if (best != NULL) {
        *out = *best;
        *best = (*best)->next;
        return STATUS_OK;
    }
    struct pooled_buffer *pooled_buffer = NULL;
    TRY(ALLOCATE(pooled_buffer, 1, "a collective"));
    pooled_buffer->bytes = bytes;
    status result =
        device_host_allocate(s->options.device, bytes, "communication", &pooled_buffer->host);
    if (result != STATUS_OK) {
        free(pooled_buffer);
        return result;
    }
    *out = pooled_buffer;
    return STATUS_OK;
}

static void free_request(struct staged_state *s, struct comm_request *request)
{
    if (request->pooled_buffer != NULL) {
        request->pooled_buffer->next = s->free_buffers;
        s->free_buffers = request->pooled_buffer;
    }
    free(request->ranges);
    free(request);
}

/* Chooses the host memory of the collective and shifts its ranges to the start of that memory. */
static status create_request(const struct comm *comm, const struct comm_work *work,
                             struct comm_request **out)
{
    struct staged_state *s = comm->state;
    struct comm_range span = get_span(comm, work);
    struct comm_request *request = NULL;
    TRY(ALLOCATE(request, 1, "a collective"));
    request->bytes = (size_t)span.count;
    request->device = work->data + span.first;
    request->host = find_host_mirror(s, request->device, request->bytes);
    status result = STATUS_OK;
    if (request->host == NULL) {
        TRY_GOTO(result, fail, get_pooled_buffer(s, request->bytes, &request->pooled_buffer));
        request->host = request->pooled_buffer->host;
    }
    size_t ranks = (size_t)comm->size;
    if (work->ranges != NULL) {
        TRY_GOTO(result, fail, ALLOCATE(request->ranges, ranks, "a collective"));
    }
    for (size_t r = 0; r < ranks && work->ranges != NULL; r++) {
        request->ranges[r] = work->ranges[r];
        request->ranges[r].first -= span.first / (int64_t)work->element_bytes;
        request->ranges[r].first *= request->ranges[r].count > 0;
    }
    *out = request;
    return STATUS_OK;
fail:
    free_request(s, request);
    return result;
}

static status wait_for_copies(const struct comm *comm)
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
    TRY(create_request(comm, work, &request));
    struct comm_work host = *work;
    host.data = request->host;
    host.ranges = request->ranges;
    status result = device_copy(s->options.device, s->options.stream, request->host,
                                request->device, request->bytes);
    KEEP_FIRST(result, wait_for_copies(comm));
    if (result == STATUS_OK) {
        comm_work_started(comm);
        result = control->operations->start(control, &host, &request->work);
    }
    if (result != STATUS_OK) {
        free_request(s, request);
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
    TRY(wait_for_copies(comm)); /* the next collective writes the memory that they read */
    *out = NULL;
    free_request(s, request);
    return STATUS_OK;
}

/* ---- memory ---- */

/* Allocates a mirror and its device memory. After an error, the caller releases *out. */
static status create_host_mirror(const struct staged_state *s, size_t bytes,
                                 struct host_mirror **out)
{
    TRY(ALLOCATE(*out, 1, "a host mirror"));
    (*out)->bytes = bytes;
    return device_allocate(s->options.device, bytes, "communication", (void **)&(*out)->device);
}

static status staged_allocate(struct comm *comm, size_t bytes, void **out)
{
    struct staged_state *s = comm->state;
    struct host_mirror *host_mirror = NULL;
    status result = comm_agree(comm->control, create_host_mirror(s, bytes, &host_mirror));
    if (result == STATUS_OK) {
        result = comm_allocate(comm->control, bytes, (void **)&host_mirror->host);
    }
    if (result != STATUS_OK) {
        if (host_mirror != NULL) {
            device_release(s->options.device, host_mirror->device, bytes);
        }
        free(host_mirror);
        return result;
    }
    host_mirror->registered = device_host_register(s->options.device, host_mirror->host, bytes);
    host_mirror->next = s->mirrors;
    s->mirrors = host_mirror;
    *out = host_mirror->device;
    return STATUS_OK;
}

static status free_host_mirror(struct comm *comm, struct host_mirror *host_mirror)
{
    struct staged_state *s = comm->state;
    if (host_mirror->registered) {
        device_host_unregister(s->options.device, host_mirror->host);
    }
    status result = comm_free(comm->control, host_mirror->host);
    device_release(s->options.device, host_mirror->device, host_mirror->bytes);
    free(host_mirror);
    return result;
}

static status staged_release(struct comm *comm, void *memory)
{
    struct staged_state *s = comm->state;
    TRY(wait_for_copies(comm));
    for (struct host_mirror **t = &s->mirrors; *t != NULL; t = &(*t)->next) {
        if ((*t)->device == memory) {
            struct host_mirror *found = *t;
            *t = found->next;
            return free_host_mirror(comm, found);
        }
    }
    RAISE(STATUS_INTERNAL, "comm_free of memory that this communicator did not allocate");
}

/* ---- creation and destruction ---- */

static status staged_destroy(struct comm **comm)
{
    struct staged_state *s = (*comm)->state;
    struct comm *control = (*comm)->control;
    TRY(wait_for_copies(*comm));
    while (s->mirrors != NULL) {
        struct host_mirror *host_mirror = s->mirrors;
        s->mirrors = host_mirror->next;
        TRY(free_host_mirror(*comm, host_mirror));
    }
    while (s->free_buffers != NULL) {
        struct pooled_buffer *pooled_buffer = s->free_buffers;
        s->free_buffers = pooled_buffer->next;
        device_host_release(s->options.device, pooled_buffer->host, pooled_buffer->bytes);
        free(pooled_buffer);
    }
    free(s);
    comm_release(comm);
    return comm_destroy(&control);
}

static status staged_split(struct comm *comm, int color, int key, struct comm **out)
{
    struct staged_state *s = comm->state;
    struct comm *control = NULL;
    TRY(comm_split(comm->control, color, key, &control));
    return comm_abort_on_error(comm->control, comm_staged_create(control, &s->options, out));
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
    struct staged_state *s = NULL;
    TRY(ALLOCATE(s, 1, "a communicator"));
    s->options = *options;
    status result = comm_create_over_control(&operations, control, s, out);
    if (result != STATUS_OK) {
        free(s);
    }
    return result;
}
