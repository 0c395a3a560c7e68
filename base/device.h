/* Where numbers live and work is queued, with no vendor's name in it.
 *
 * A device has memory and streams. On the CPU a stream is nothing and every operation is done when
 * its call returns; a GPU back-end queues. Back-ends register a table (device_operations), so that
 * rooms above need no #ifdef. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum device_kind { DEVICE_CPU = 0, DEVICE_CUDA = 1 };

struct device;
struct stream; /* NULL is the CPU's */

struct device_operations {
    status (*allocate)(struct device *dev, size_t bytes, void **out);
    void (*release)(struct device *dev, void *memory, size_t bytes);
    status (*copy)(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes);
    status (*zero)(struct device *dev, struct stream *stream, void *to, size_t bytes);
    status (*stream_create)(struct device *dev, int priority, struct stream **out);
    status (*stream_destroy)(struct device *dev, struct stream *stream);
    status (*stream_done)(struct device *dev, struct stream *stream, bool *done);
    void (*destroy)(struct device *dev);
};

/* device_create - open a device of this kind.
 *
 * Units     index counts the devices of that kind on this host; the CPU has only 0
 * Errors    STATUS_UNAVAILABLE where this build or machine has none */
status device_create(enum device_kind kind, int index, struct device **out);
status device_destroy(struct device **dev);

/* device_register - how a back-end makes itself known; called once before device_create. */
typedef status (*device_opener)(int index, struct device *dev,
                                const struct device_operations **operations, void **state);
void device_register(enum device_kind kind, device_opener open);

enum device_kind device_kind_of(const struct device *dev);
void *device_state(const struct device *dev); /* the back-end's own */

/* device_allocate - memory aligned to 64 bytes or more, filled with zeros.
 *
 * Errors    STATUS_INTERNAL naming the bytes and what they were for */
status device_allocate(struct device *dev, size_t bytes, const char *what, void **out);
void device_release(struct device *dev, void *memory, size_t bytes);

/* device_copy - queue a copy; either side may be host memory. */
status device_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes);
status device_zero(struct device *dev, struct stream *stream, void *to, size_t bytes);

status device_stream_create(struct device *dev, int priority, struct stream **out);
status device_stream_destroy(struct device *dev, struct stream **stream);

/* device_wait - poll until all work queued on stream is done.
 *
 * Errors    STATUS_HANG after deadline_seconds */
status device_wait(struct device *dev, struct stream *stream, double deadline_seconds);
