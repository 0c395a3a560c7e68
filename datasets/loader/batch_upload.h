/* Copies micro-batches from the loader to the device, through page-locked memory and on a separate
 * stream, while the device works on the previous micro-batch. On the CPU nothing is copied.
 *
 * Calls     batch_upload_create; batch_upload_begin and batch_upload_end for each micro-batch;
 *           batch_upload_destroy */
#pragma once

#include "base/device/device.h"
#include "datasets/loader/batch.h"

struct batch_upload;

/* batch_upload_create - allocate memory for batches of at most `rows` rows. `stream` is the stream
 * that reads them.
 *
 * Memory    batch_upload_bytes on the device, and as much page-locked memory on the host
 * Errors    STATUS_INTERNAL out of memory; errors of the device */
status batch_upload_create(struct device *dev, struct stream *stream, int64_t rows,
                           struct batch_upload **out);

/* batch_upload_destroy - release the memory and set *u to NULL. *u may be NULL. */
status batch_upload_destroy(struct batch_upload **u);

/* batch_upload_bytes - return the bytes that batch_upload_create allocates on the device, and again
 * on the host; 0 on the CPU. */
size_t batch_upload_bytes(enum device_kind kind, int64_t rows);

/* batch_upload_begin - start to copy a batch.
 *
 * Memory    the caller may change the batch after the return
 * Order     queued on a separate stream; at most one upload is in progress */
status batch_upload_begin(struct batch_upload *u, const struct batch *batch);

/* batch_upload_end - return the uploaded batch.
 *
 * Memory    the arrays of *device_batch that kernels read are device memory, valid until the second
 *           batch_upload_begin after this call
 * Order     work that is queued on the stream after this call reads the uploaded data */
status batch_upload_end(struct batch_upload *u, const struct batch *batch,
                        struct batch *device_batch);
