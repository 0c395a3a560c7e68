/* Devices: memory, streams and events, independent of the vendor.
 *
 * On the CPU, a stream is NULL, device memory is host memory, and every operation is complete when
 * its call returns. A GPU back-end queues operations, and the host must not access device memory.
 * Each back-end registers a table of functions (struct device_operations), so that other modules
 * need no #ifdef.
 *
 * Errors    unless stated otherwise, STATUS_INTERNAL if a call of the vendor's library fails; on
 *           the CPU nothing fails */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum device_kind { DEVICE_CPU = 0, DEVICE_CUDA = 1 };

struct device;
struct stream; /* a queue that runs its operations in order; NULL on the CPU */
struct event;  /* a position in a stream; NULL on the CPU */

#define DEVICE_IDENTITY_BYTES 16

/* Work of another library that a graph may contain (see device_queue_work). A group of ranks queues
 * the same work at the same places. `opens` is 1 for work on another stream, and -1 for the later
 * wait of the computing stream for that work. */
struct device_work {
    /* queues the work. `captured`: the work becomes part of a graph and is not executed now */
    status (*queue)(void *user, const void *argument, bool captured);
    /* sets *all if every rank of the group passes true. Every rank calls it at the same places */
    status (*agree)(void *user, bool own, bool *all);
    /* called after each launch of a graph that contains work of this user */
    status (*launched)(void *user);
    void *user;
    int opens;
};

struct device_operations {
    status (*allocate)(struct device *dev, size_t bytes, const char *what, void **out);
    void (*release)(struct device *dev, void *memory, size_t bytes);
    status (*host_allocate)(struct device *dev, size_t bytes, const char *what, void **out);
    void (*host_release)(struct device *dev, void *memory, size_t bytes);
    bool (*host_register)(struct device *dev, void *memory, size_t bytes); /* NULL: not needed */
    void (*host_unregister)(struct device *dev, void *memory);
    status (*copy)(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes);
    status (*zero)(struct device *dev, struct stream *stream, void *to, size_t bytes);
    status (*stream_create)(struct device *dev, int priority, struct stream **out);
    status (*stream_destroy)(struct device *dev, struct stream *stream);
    status (*stream_done)(struct device *dev, struct stream *stream, bool *done);
    status (*stream_wait)(struct device *dev, struct stream *stream, struct event *event);
    /* returns the vendor's handle of a stream, for its other libraries; NULL on the CPU */
    void *(*stream_handle)(struct device *dev, struct stream *stream);
    status (*event_create)(struct device *dev, bool timed, struct event **out);
    status (*event_destroy)(struct device *dev, struct event *event);
    status (*event_record)(struct device *dev, struct event *event, struct stream *stream);
    status (*event_done)(struct device *dev, struct event *event, bool *done);
    status (*event_seconds)(struct device *dev, struct event *from, struct event *to, double *out);
    status (*memory)(struct device *dev, size_t *free_bytes, size_t *all_bytes);
    const char *(*name)(const struct device *dev);
    void (*range)(struct device *dev, const char *name); /* NULL: no profiler support */
    /* writes an identifier that no other device on any host has (the UUID of a GPU) */
    void (*identity)(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES]);
    void (*destroy)(struct device *dev);
    bool (*in_graph)(const struct stream *stream); /* NULL: there are no graphs */
    status (*queue_work)(struct device *dev, struct stream *stream, const struct device_work *work,
                         const void *argument, size_t bytes); /* NULL: there are no graphs */
};

/* A back-end. count and open may fail if the hardware is missing. If count fails, device_create
 * reports its reason. */
struct device_driver {
    status (*count)(int *out);
    status (*open)(int index, struct device *dev, const struct device_operations **operations,
                   void **state);
};

/* device_register - register the back-end of a device kind. Call it once, before device_create. */
void device_register(enum device_kind kind, const struct device_driver *driver);

/* device_count - return the number of devices of this kind that this process may use. Returns 0,
 * without an error, if no driver is registered or the driver finds no device. */
int device_count(enum device_kind kind);

/* device_create - open a device.
 *
 * Units     index counts the devices of this kind on this host; the CPU has index 0 only
 * Errors    STATUS_UNAVAILABLE if this build or machine has no such device */
status device_create(enum device_kind kind, int index, struct device **out);

/* device_destroy - close the device and set *dev to NULL. Always returns STATUS_OK. */
status device_destroy(struct device **dev);

/* device_kind_is_host - return whether the host may read and write the memory of this kind of
 * device directly. */
static inline bool device_kind_is_host(enum device_kind kind)
{
    return kind == DEVICE_CPU;
}

/* device_kind_of - return the kind of this device. */
enum device_kind device_kind_of(const struct device *dev);

/* device_state - return the private state of the back-end. */
void *device_state(const struct device *dev);

/* device_name - return a name for people: "cpu", "GPU 0 (NVIDIA H100 80GB HBM3)". */
const char *device_name(const struct device *dev);

/* device_is_host - return whether the host may read and write this device's memory directly. */
bool device_is_host(const struct device *dev);

/* device_set_profiler_range - set the name that a profiler shows for all operations that the
 * calling thread queues after this call; NULL ends the range. */
void device_set_profiler_range(struct device *dev, const char *name);

/* device_identity - write an identifier that is equal for ranks that use the same device, and
 * different otherwise. On the CPU it is all zeros. */
void device_identity(struct device *dev, unsigned char out[DEVICE_IDENTITY_BYTES]);

/* device_memory - return the free and total memory of the device, including use by other processes.
 *
 * Errors    STATUS_UNAVAILABLE on the CPU */
status device_memory(struct device *dev, size_t *free_bytes, size_t *all_bytes);

/* ---- memory ---- */

/* device_allocate - allocate memory filled with zeros, aligned to at least 64 bytes.
 *
 * Order     waits for the device
 * Errors    STATUS_INTERNAL with the bytes and their purpose, and on a GPU the memory left */
status device_allocate(struct device *dev, size_t bytes, const char *what, void **out);

/* device_release - release memory from device_allocate; NULL is allowed. */
void device_release(struct device *dev, void *memory, size_t bytes);

/* device_host_allocate - allocate zeroed host memory for asynchronous copies (page-locked
 * for GPUs).
 *
 * Errors    as device_allocate */
status device_host_allocate(struct device *dev, size_t bytes, const char *what, void **out);

/* device_host_release - release memory from device_host_allocate; NULL is allowed. */
void device_host_release(struct device *dev, void *memory, size_t bytes);

/* device_host_register - page-lock existing host memory, such as memory shared with other
 * processes. Returns false if that is not possible. Copies from and to the memory are then
 * synchronous and slower. */
bool device_host_register(struct device *dev, void *memory, size_t bytes);

/* device_host_unregister - undo device_host_register. Call it before the memory is released. */
void device_host_unregister(struct device *dev, void *memory);

/* device_copy - queue a copy. Either side may be host memory.
 *
 * Memory    host memory must come from device_host_allocate or device_host_register, and neither
 *           side may be accessed until the stream has finished. With other host memory the
 *           call blocks. */
status device_copy(struct device *dev, struct stream *stream, void *to, const void *from,
                   size_t bytes);

/* device_zero - queue an operation that fills memory with zeros. */
status device_zero(struct device *dev, struct stream *stream, void *to, size_t bytes);

/* device_read - copy from the device to any host memory, after the work queued on stream, and wait.
 *
 * Errors    STATUS_HANG */
status device_read(struct device *dev, struct stream *stream, void *host, const void *from,
                   size_t bytes);

/* device_write - copy any host memory to the device, after the work queued on stream, and wait.
 *
 * Errors    STATUS_HANG */
status device_write(struct device *dev, struct stream *stream, void *to, const void *host,
                    size_t bytes);

/* ---- streams ---- */

/* device_stream_create - create a stream.
 *
 * Units     priority 0: computation; 1: work that must not wait for computation (communication) */
status device_stream_create(struct device *dev, int priority, struct stream **out);

/* device_stream_destroy - destroy the stream and set *stream to NULL. */
status device_stream_destroy(struct device *dev, struct stream **stream);

/* device_stream_handle - return the vendor's handle, for libraries of the same vendor (NCCL). */
void *device_stream_handle(struct device *dev, struct stream *stream);

/* device_wait - poll until all work queued on stream is done.
 *
 * Errors    STATUS_HANG after deadline_seconds; STATUS_INTERNAL with the reason if the
 *           device failed */
status device_wait(struct device *dev, struct stream *stream, double deadline_seconds);

/* ---- events: positions in a stream that another stream or the host can wait for ----
 *
 * Any thread may query an event. */

/* device_event_create - create an event. It counts as complete until it is recorded. */
status device_event_create(struct device *dev, struct event **out);

/* device_event_create_timed - create an event that also stores the time at which the device reaches
 * it, for device_event_seconds. */
status device_event_create_timed(struct device *dev, struct event **out);

/* device_event_seconds - return the time between two timed events, which must be complete; 0 on
 * the CPU. */
status device_event_seconds(struct device *dev, struct event *from, struct event *to, double *out);

/* device_event_destroy - destroy the event and set *event to NULL. */
status device_event_destroy(struct device *dev, struct event **event);

/* device_event_record - set the event to the work queued on stream so far. */
status device_event_record(struct device *dev, struct event *event, struct stream *stream);

/* device_event_done - set *done to whether the event is complete. Does not block. */
status device_event_done(struct device *dev, struct event *event, bool *done);

/* device_event_wait - block the host until the event is complete.
 *
 * Errors    as device_wait */
status device_event_wait(struct device *dev, struct event *event, double deadline_seconds);

/* device_stream_wait - let the work queued on stream after this call wait for the event. Does not
 * block the host. */
status device_stream_wait(struct device *dev, struct stream *stream, struct event *event);

/* ---- work of other libraries in graphs ---- */

/* device_in_graph - return whether the calling thread is in a graph region of this stream
 * (kernels_graph_begin). */
bool device_in_graph(struct device *dev, struct stream *stream);

/* device_queue_work - queue work on the stream, or on other streams that fork from it and join it.
 *
 * In a graph region the back-end may defer the work, capture it in a graph, or replay a graph that
 * contains it instead of calling work->queue. All ranks of the group take the same decision.
 *
 * Memory    argument [bytes] is copied. Two calls are equal if `work` and these bytes are equal, so
 *           every byte must be defined. *work must outlive the graphs of the stream
 * Order     as if work->queue were called here
 * Errors    errors of the functions of *work */
status device_queue_work(struct device *dev, struct stream *stream, const struct device_work *work,
                         const void *argument, size_t bytes);
