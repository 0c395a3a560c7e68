#include "base/device/device.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/memory.h"

/* A wait polls at first, then yields the core, then sleeps for a twentieth of the time that it
 * has waited. */
#define SPIN_SECONDS 20e-6
#define YIELD_SECONDS 1e-3
#define SLEEP_SECONDS_MAX 500e-6

struct device {
    enum device_kind kind;
    const struct device_operations *operations;
    void *state;
};

static const struct device_driver *drivers[2];

/* ---- the CPU ---- */

static status cpu_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    (void)dev;
    *out = memory_allocate_aligned(bytes);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for %s: %zu bytes", what, bytes);
    return STATUS_OK;
}

static void cpu_release(struct device *dev, void *memory, size_t bytes)
{
    (void)dev;
    (void)bytes;
    free(memory);
}

static status cpu_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                       size_t bytes)
{
    (void)dev;
    (void)stream;
    memcpy(to, from, bytes);
    return STATUS_OK;
}

static status cpu_zero(struct device *dev, struct stream *stream, void *to, size_t bytes)
{
    (void)dev;
    (void)stream;
    memset(to, 0, bytes);
    return STATUS_OK;
}

static status cpu_stream_create(struct device *dev, int priority, struct stream **out)
{
    (void)dev;
    (void)priority;
    *out = NULL;
    return STATUS_OK;
}

static status cpu_stream_destroy(struct device *dev, struct stream *stream)
{
    (void)dev;
    (void)stream;
    return STATUS_OK;
}

static status cpu_stream_done(struct device *dev, struct stream *stream, bool *done)
{
    (void)dev;
    (void)stream;
    *done = true;
    return STATUS_OK;
}

static status cpu_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    (void)dev;
    (void)stream;
    (void)event;
    return STATUS_OK;
}

static status cpu_event_create(struct device *dev, bool timed, struct event **out)
{
    (void)dev;
    (void)timed;
    *out = NULL;
    return STATUS_OK;
}

static status cpu_event_record(struct device *dev, struct event *event, struct stream *stream)
{
    (void)dev;
    (void)event;
    (void)stream;
    return STATUS_OK;
}

static status cpu_event_done(struct device *dev, struct event *event, bool *done)
{
    (void)dev;
    (void)event;
    *done = true;
    return STATUS_OK;
}

static status cpu_event_seconds(struct device *dev, struct event *from, struct event *to,
                                double *out)
{
    (void)dev;
    (void)from;
    (void)to;
    *out = 0;
    return STATUS_OK;
}

static status cpu_memory(struct device *dev, size_t *free_bytes, size_t *all_bytes)
{
    (void)dev;
    *free_bytes = *all_bytes = 0;
    RAISE(STATUS_UNAVAILABLE, "the CPU has no device memory; it uses host memory");
}

static void *cpu_stream_handle(struct device *dev, struct stream *stream)
{
    (void)dev;
    (void)stream;
    return NULL;
}

static void cpu_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES])
{
    (void)dev;
    memset(out, 0, DEVICE_IDENTITY_BYTES);
}

static const char *cpu_name(const struct device *dev)
{
    (void)dev;
    return "cpu";
}

static const struct device_operations cpu_operations = {
    .allocate = cpu_allocate,
    .release = cpu_release,
    .host_allocate = cpu_allocate,
    .host_release = cpu_release,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_done = cpu_stream_done,
    .stream_wait = cpu_stream_wait,
    .event_create = cpu_event_create,
    .stream_handle = cpu_stream_handle,
    .event_record = cpu_event_record,
    .event_done = cpu_event_done,
    .event_seconds = cpu_event_seconds,
    .memory = cpu_memory,
    .name = cpu_name,
    .identity = cpu_identity,
};

/* ---- any device ---- */

void device_register(enum device_kind kind, const struct device_driver *driver)
{
    drivers[kind] = driver;
}

int device_count(enum device_kind kind)
{
    int count = kind == DEVICE_CPU;
    if (drivers[kind] != NULL && drivers[kind]->count(&count) != STATUS_OK) {
        status_clear();
        count = 0;
    }
    return count;
}

static status open_driver(enum device_kind kind, int index, struct device *dev)
{
    int count = 0;
    REQUIRE(drivers[kind] != NULL, STATUS_UNAVAILABLE,
            "device cuda: this build has no CUDA back-end; set train.device to cpu or auto");
    TRY(drivers[kind]->count(&count));
    REQUIRE(index >= 0 && index < count, STATUS_UNAVAILABLE,
            "device cuda: GPU %d is requested, but the number of visible GPUs is %d; set "
            "train.device to cpu or auto",
            index, count);
    return drivers[kind]->open(index, dev, &dev->operations, &dev->state);
}

status device_create(enum device_kind kind, int index, struct device **out)
{
    *out = NULL;
    struct device *dev;
    TRY(ALLOCATE(dev, 1, "a device"));
    dev->kind = kind;
    dev->operations = &cpu_operations;
    status result = kind == DEVICE_CPU ? STATUS_OK : open_driver(kind, index, dev);
    if (result != STATUS_OK) {
        free(dev);
        return result;
    }
    *out = dev;
    return STATUS_OK;
}

status device_destroy(struct device **dev)
{
    if (*dev != NULL) {
        if ((*dev)->operations->destroy != NULL) {
            (*dev)->operations->destroy(*dev);
        }
        free(*dev);
        *dev = NULL;
    }
    return STATUS_OK;
}

enum device_kind device_kind_of(const struct device *dev)
{
    return dev->kind;
}

void *device_state(const struct device *dev)
{
    return dev->state;
}

const char *device_name(const struct device *dev)
{
    return dev->operations->name(dev);
}

void device_set_profiler_range(struct device *dev, const char *name)
{
    if (dev->operations->range != NULL) {
        dev->operations->range(dev, name);
    }
}

void device_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES])
{
    dev->operations->identity(dev, out);
}

bool device_is_host(const struct device *dev)
{
    return device_kind_is_host(dev->kind);
}

status device_memory(struct device *dev, size_t *free_bytes, size_t *all_bytes)
{
    return dev->operations->memory(dev, free_bytes, all_bytes);
}

/* ---- memory ---- */

status device_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    *out = NULL;
    return dev->operations->allocate(dev, bytes, what, out);
}

void device_release(struct device *dev, void *memory, size_t bytes)
{
    if (memory != NULL) {
        dev->operations->release(dev, memory, bytes);
    }
}

status device_host_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    *out = NULL;
    return dev->operations->host_allocate(dev, bytes, what, out);
}

void device_host_release(struct device *dev, void *memory, size_t bytes)
{
    if (memory != NULL) {
        dev->operations->host_release(dev, memory, bytes);
    }
}

bool device_host_register(struct device *dev, void *memory, size_t bytes)
{
    const struct device_operations *o = dev->operations;
    return bytes > 0 && (o->host_register == NULL || o->host_register(dev, memory, bytes));
}

void device_host_unregister(struct device *dev, void *memory)
{
    if (dev->operations->host_unregister != NULL) {
        dev->operations->host_unregister(dev, memory);
    }
}

status device_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes)
{
    return dev->operations->copy(dev, stream, to, from, bytes);
}

status device_zero(struct device *dev, struct stream *stream, void *to, size_t bytes)
{
    return dev->operations->zero(dev, stream, to, bytes);
}

status device_read(struct device *dev, struct stream *stream, void *host, const void *from,
                   size_t bytes)
{
    TRY(dev->operations->copy(dev, stream, host, from, bytes));
    return device_wait(dev, stream, DEADLINE_DEVICE_SECONDS);
}

status device_write(struct device *dev, struct stream *stream, void *to, const void *host,
                    size_t bytes)
{
    TRY(dev->operations->copy(dev, stream, to, host, bytes));
    return device_wait(dev, stream, DEADLINE_DEVICE_SECONDS);
}

/* ---- streams and events ---- */

status device_stream_create(struct device *dev, int priority, struct stream **out)
{
    return dev->operations->stream_create(dev, priority, out);
}

status device_stream_destroy(struct device *dev, struct stream **stream)
{
    status result = STATUS_OK;
    if (*stream != NULL) {
        result = dev->operations->stream_destroy(dev, *stream);
        *stream = NULL;
    }
    return result;
}

/* Pauses between two polls. Polls without a pause take a core from other threads, and the lock of
 * the driver from the threads that launch collectives. */
static void pause_poll(double waited_seconds)
{
    double sleep_seconds = waited_seconds / 20;
    if (waited_seconds > YIELD_SECONDS) {
        clock_sleep(sleep_seconds < SLEEP_SECONDS_MAX ? sleep_seconds : SLEEP_SECONDS_MAX);
    } else if (waited_seconds > SPIN_SECONDS) {
        sched_yield();
    }
}

/* Waits by polling, so that a lost device does not block the host forever. */
static status poll_until(struct device *dev, struct stream *stream, struct event *event,
                         double deadline_seconds)
{
    double start = clock_seconds();
    for (;;) {
        bool done = false;
        TRY(event != NULL ? dev->operations->event_done(dev, event, &done)
                          : dev->operations->stream_done(dev, stream, &done));
        if (done) {
            return STATUS_OK;
        }
        double waited_seconds = clock_seconds() - start;
        REQUIRE(waited_seconds < deadline_seconds, STATUS_HANG,
                "%s did not finish its queue in %.0f s", device_name(dev), deadline_seconds);
        pause_poll(waited_seconds);
    }
}

status device_wait(struct device *dev, struct stream *stream, double deadline_seconds)
{
    return poll_until(dev, stream, NULL, deadline_seconds);
}

status device_event_create(struct device *dev, struct event **out)
{
    *out = NULL;
    return dev->operations->event_create(dev, false, out);
}

status device_event_create_timed(struct device *dev, struct event **out)
{
    *out = NULL;
    return dev->operations->event_create(dev, true, out);
}

status device_event_seconds(struct device *dev, struct event *from, struct event *to, double *out)
{
    return dev->operations->event_seconds(dev, from, to, out);
}

status device_event_destroy(struct device *dev, struct event **event)
{
    status result = STATUS_OK;
    if (*event != NULL) {
        result = dev->operations->event_destroy(dev, *event);
        *event = NULL;
    }
    return result;
}

status device_event_record(struct device *dev, struct event *event, struct stream *stream)
{
    return dev->operations->event_record(dev, event, stream);
}

status device_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    return dev->operations->stream_wait(dev, stream, event);
}

void *device_stream_handle(struct device *dev, struct stream *stream)
{
    return dev->operations->stream_handle(dev, stream);
}

status device_event_wait(struct device *dev, struct event *event, double deadline_seconds)
{
    return event == NULL ? STATUS_OK : poll_until(dev, NULL, event, deadline_seconds);
}

status device_event_done(struct device *dev, struct event *event, bool *done)
{
    return dev->operations->event_done(dev, event, done);
}

bool device_in_graph(struct device *dev, struct stream *stream)
{
    return dev->operations->in_graph != NULL && dev->operations->in_graph(stream);
}

status device_queue_work(struct device *dev, struct stream *stream, const struct device_work *work,
                         const void *argument, size_t bytes)
{
    return dev->operations->queue_work != NULL
               ? dev->operations->queue_work(dev, stream, work, argument, bytes)
               : work->queue(work->user, argument, false);
}
