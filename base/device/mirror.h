/* A mirror: an array with a host copy and a device copy. One side writes it and the other reads it.
 * On the CPU both copies are the same memory and nothing is copied.
 *
 * Calls     mirror_create; if the host writes: mirror_upload; if the device writes:
 *           mirror_download_and_wait, or mirror_download and a later wait; mirror_destroy */
#pragma once

#include "base/device/device.h"

struct mirror {
    struct device *device;
    struct stream *stream; /* the stream of the copies */
    size_t bytes;
    void *host, *device_data; /* equal on the CPU */
};

/* mirror_create - allocate both copies, filled with zeros.
 *
 * Memory    the host copy is page-locked; release both with mirror_destroy
 * Errors    as device_allocate */
status mirror_create(struct device *dev, struct stream *stream, size_t bytes, const char *what,
                     struct mirror *out);

/* mirror_destroy - release both copies and set *m to zeros. */
void mirror_destroy(struct mirror *m);

/* mirror_upload - queue a copy of bytes [first, first + bytes) to the device. The host copy must
 * not change until the stream has finished. */
status mirror_upload(const struct mirror *m, size_t first, size_t bytes);

/* mirror_download - queue a copy of bytes [first, first + bytes) to the host. The host copy is
 * valid after the caller has waited for the stream. */
status mirror_download(const struct mirror *m, size_t first, size_t bytes);

/* mirror_download_and_wait - copy bytes [first, first + bytes) to the host, after the work queued
 * on the stream, and wait.
 *
 * Errors    STATUS_HANG */
status mirror_download_and_wait(const struct mirror *m, size_t first, size_t bytes);
