/* Where numbers live and work is queued, with no vendor's name in it.
 *
 * A device has memory and streams. On the CPU a stream is nothing, its memory is the host's and every
 * operation is done when its call returns; a GPU back-end queues, and the host may not touch its memory.
 * Back-ends register a table (device_operations), so that rooms above need no #ifdef. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum device_kind { DEVICE_CPU = 0, DEVICE_CUDA = 1 };

struct device;
struct stream; /* a queue, in order; NULL is the CPU's */
struct event;  /* a place in a queue, likewise */

#define DEVICE_IDENTITY_BYTES 16

struct device_operations {
    status (*allocate)(struct device *dev, size_t bytes, const char *what, void **out);
    void (*release)(struct device *dev, void *memory, size_t bytes);
    status (*host_allocate)(struct device *dev, size_t bytes, const char *what, void **out);
    void (*host_release)(struct device *dev, void *memory, size_t bytes);
    bool (*host_register)(struct device *dev, void *memory, size_t bytes); /* NULL: no need */
    void (*host_unregister)(struct device *dev, void *memory);
    status (*copy)(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes);
    status (*zero)(struct device *dev, struct stream *stream, void *to, size_t bytes);
    status (*stream_create)(struct device *dev, int priority, struct stream **out);
    status (*stream_destroy)(struct device *dev, struct stream *stream);
    status (*stream_done)(struct device *dev, struct stream *stream, bool *done);
    status (*stream_wait)(struct device *dev, struct stream *stream, struct event *event);
    /* the vendor's own handle of a stream, for its other libraries; NULL on the CPU */
    void *(*stream_handle)(struct device *dev, struct stream *stream);
    status (*event_create)(struct device *dev, struct event **out);
    status (*event_destroy)(struct device *dev, struct event *event);
    status (*event_record)(struct device *dev, struct event *event, struct stream *stream);
    status (*event_done)(struct device *dev, struct event *event, bool *done);
    status (*memory)(struct device *dev, size_t *free_bytes, size_t *all_bytes);
    const char *(*name)(const struct device *dev);
    void (*range)(struct device *dev, const char *name); /* NULL: nobody looks */
    /* what tells this device from every other one, on whatever host (a GPU's UUID) */
    void (*identity)(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES]);
    void (*destroy)(struct device *dev);
};

/* device_register - how a back-end makes itself known; called once before device_create. open and count may
 * fail without the hardware: count's reason is told where a device is asked for. */
struct device_driver {
    status (*count)(int *out);
    status (*open)(int index, struct device *dev, const struct device_operations **operations,
                   void **state);
};
void device_register(enum device_kind kind, const struct device_driver *driver);

/* device_count - the devices of a kind that this process may use; 0, and no error, where there is no
 * driver for them. */
int device_count(enum device_kind kind);

/* device_create - open a device of this kind.
 *
 * Units     index counts the devices of that kind on this host; the CPU has only 0
 * Errors    STATUS_UNAVAILABLE where this build or machine has none */
status device_create(enum device_kind kind, int index, struct device **out);
status device_destroy(struct device **dev);

enum device_kind device_kind_of(const struct device *dev);
void *device_state(const struct device *dev);      /* the back-end's own */
const char *device_name(const struct device *dev); /* "cpu", "GPU 0 (NVIDIA H100 80GB HBM3)" */

/* device_is_host - whether the host may read and write this device's memory itself. */
bool device_is_host(const struct device *dev);

/* device_range - what the calling thread queues from now on has this name in a profiler's time line; NULL: none. */
void device_range(struct device *dev, const char *name);

/* device_identity - equal for ranks that use the same device, and for no others; zeros on the CPU. */
void device_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES]);

/* device_memory - of the whole device, others' use included.  Errors: STATUS_UNAVAILABLE on the CPU */
status device_memory(struct device *dev, size_t *free_bytes, size_t *all_bytes);

/* ---- memory ---- */

/* device_allocate - memory aligned to 64 bytes or more, filled with zeros. Waits for the device.
 *
 * Errors    STATUS_INTERNAL naming the bytes and what they were for, and on a GPU what it has left */
status device_allocate(struct device *dev, size_t bytes, const char *what, void **out);
void device_release(struct device *dev, void *memory, size_t bytes);

/* device_host_allocate - the host's memory that copies go to and from behind the host's back (page-locked
 * for a GPU), filled with zeros. */
status device_host_allocate(struct device *dev, size_t bytes, const char *what, void **out);
void device_host_release(struct device *dev, void *memory, size_t bytes);

/* device_host_register - make device_host_allocate's of memory that the host has from elsewhere (shared with other
 * processes); false where that is not to be had: copies wait, and are slower. device_host_unregister: before it goes. */
bool device_host_register(struct device *dev, void *memory, size_t bytes);
void device_host_unregister(struct device *dev, void *memory);

/* device_copy - queue a copy; either side may be the host's memory.
 *
 * Memory    the host's must be device_host_allocate's, and neither side is touched until the stream is
 *           through; other memory of the host makes the call wait */
status device_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes);
status device_zero(struct device *dev, struct stream *stream, void *to, size_t bytes);

/* device_read, device_write - copy from or to the device behind what is queued, and wait: host is any memory
 * of the host.
 *
 * Errors    STATUS_HANG */
status device_read(struct device *dev, struct stream *stream, void *host, const void *from,
                   size_t bytes);
status device_write(struct device *dev, struct stream *stream, void *to, const void *host,
                    size_t bytes);

/* ---- streams ---- */

/* device_stream_create - a queue of its own.
 *
 * Units     priority 0 for computing; 1 for what must not wait behind it (communication) */
status device_stream_create(struct device *dev, int priority, struct stream **out);
status device_stream_destroy(struct device *dev, struct stream **stream);

/* device_stream_handle - the vendor's own handle, for libraries of the same vendor (NCCL). */
void *device_stream_handle(struct device *dev, struct stream *stream);

/* device_wait - poll until all work queued on stream is done.
 *
 * Errors    STATUS_HANG after deadline_seconds; STATUS_INTERNAL: the device stopped, with its reason */
status device_wait(struct device *dev, struct stream *stream, double deadline_seconds);

/* ---- events: a place in a stream's queue, for another stream or the host to wait for. Any thread may ask. ---- */

/* device_event_create - it counts as past until it is recorded. */
status device_event_create(struct device *dev, struct event **out);
status device_event_destroy(struct device *dev, struct event **event);

/* device_event_record - the event is what has been queued on stream so far. */
status device_event_record(struct device *dev, struct event *event, struct stream *stream);
status device_event_done(struct device *dev, struct event *event, bool *done);

/* device_event_wait - the host waits until the event is past.  Errors: as device_wait */
status device_event_wait(struct device *dev, struct event *event, double deadline_seconds);

/* device_stream_wait - what is queued on stream from now on comes after the event; does not block. */
status device_stream_wait(struct device *dev, struct stream *stream, struct event *event);
