/* An array that the host writes and a device reads, or the other way round: its two sides, and the copies between
 * them. On the CPU both sides are one, and nothing is copied. */
#pragma once

#include "base/device.h"

struct mirror {
    struct device *device;
    struct stream *stream; /* of the copies */
    size_t bytes;
    void *host, *placed; /* placed: where the device has it */
};

/* mirror_create - both sides, zero. Memory: page-locked on the host. */
status mirror_create(struct device *dev, struct stream *stream, size_t bytes, const char *what,
                     struct mirror *out);
void mirror_destroy(struct mirror *m);

/* mirror_push - queue the way to the device of these bytes from `first` on; the host's side stays as it is until the
 * stream is through. */
status mirror_push(const struct mirror *m, size_t first, size_t bytes);

/* mirror_fetch - queue the way to the host of these bytes from `first` on: they are there once the stream was waited for. */
status mirror_fetch(const struct mirror *m, size_t first, size_t bytes);

/* mirror_pull - wait for what is queued, and for these bytes from `first` on.  Errors: STATUS_HANG */
status mirror_pull(const struct mirror *m, size_t first, size_t bytes);
