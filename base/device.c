#define _GNU_SOURCE
#include "base/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"

struct device {
    enum device_kind kind;
    const struct device_operations *operations;
    void *state;
};

static device_opener openers[2];

/* ---- the CPU ---- */

/* Large blocks start on a huge page's boundary, so that the kernel can back them with huge pages
 * (fewer misses of the address cache in the optimizer's pass over all weights). */
enum { HUGE_PAGE_BYTES = 2 << 20, LINE_BYTES = 64 };

static size_t rounded(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static status cpu_allocate(struct device *dev, size_t bytes, void **out)
{
    (void)dev;
    size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : LINE_BYTES;
    size_t size = rounded(bytes == 0 ? 1 : bytes, alignment);
    void *memory = aligned_alloc(alignment, size);
    if (memory == NULL) {
        return STATUS_INTERNAL;
    }
    if (alignment == HUGE_PAGE_BYTES) {
        (void)madvise(memory, size, MADV_HUGEPAGE); /* a hint: refused is fine */
    }
    memset(memory, 0, size);
    *out = memory;
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

static status cpu_event_create(struct device *dev, struct event **out)
{
    (void)dev;
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

static status cpu_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    (void)dev;
    (void)stream;
    (void)event;
    return STATUS_OK;
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

static const struct device_operations cpu_operations = {
    .allocate = cpu_allocate,
    .release = cpu_release,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_done = cpu_stream_done,
    .event_create = cpu_event_create,
    .event_record = cpu_event_record,
    .event_done = cpu_event_done,
    .stream_wait = cpu_stream_wait,
    .stream_handle = cpu_stream_handle,
    .identity = cpu_identity,
};

/* ---- any device ---- */

void device_register(enum device_kind kind, device_opener open)
{
    openers[kind] = open;
}

status device_create(enum device_kind kind, int index, struct device **out)
{
    *out = NULL;
    REQUIRE(kind == DEVICE_CPU || openers[kind] != NULL, STATUS_UNAVAILABLE,
            "device cuda: this build has no CUDA back-end; set train.device to cpu or auto");
    struct device *dev = calloc(1, sizeof *dev);
    REQUIRE(dev != NULL, STATUS_INTERNAL, "out of memory for a device");
    dev->kind = kind;
    dev->operations = &cpu_operations;
    status result = STATUS_OK;
    if (kind != DEVICE_CPU) {
        TRY_GOTO(result, fail, openers[kind](index, dev, &dev->operations, &dev->state));
    }
    *out = dev;
    return STATUS_OK;
fail:
    free(dev);
    return result;
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

status device_allocate(struct device *dev, size_t bytes, const char *what, void **out)
{
    *out = NULL;
    status result = dev->operations->allocate(dev, bytes, out);
    REQUIRE(result == STATUS_OK, result, "out of memory: %zu bytes for %s", bytes, what);
    return STATUS_OK;
}

void device_release(struct device *dev, void *memory, size_t bytes)
{
    if (memory != NULL) {
        dev->operations->release(dev, memory, bytes);
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

status device_wait(struct device *dev, struct stream *stream, double deadline_seconds)
{
    double start = clock_seconds();
    for (;;) {
        bool done = false;
        TRY(dev->operations->stream_done(dev, stream, &done));
        if (done) {
            return STATUS_OK;
        }
        REQUIRE(clock_seconds() - start < deadline_seconds, STATUS_HANG,
                "the device did not finish its queue in %.0f s", deadline_seconds);
    }
}

status device_event_create(struct device *dev, struct event **out)
{
    return dev->operations->event_create(dev, out);
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

status device_event_done(struct device *dev, struct event *event, bool *done)
{
    return dev->operations->event_done(dev, event, done);
}

status device_stream_wait(struct device *dev, struct stream *stream, struct event *event)
{
    return dev->operations->stream_wait(dev, stream, event);
}

void *device_stream_handle(struct device *dev, struct stream *stream)
{
    return dev->operations->stream_handle(dev, stream);
}

void device_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES])
{
    dev->operations->identity(dev, out);
}
