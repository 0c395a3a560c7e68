/* A micro-batch on its way from the loader to the device: what kernels read of it is copied through page-locked
 * memory on a stream of its own, while the device works on the micro-batch before. On the CPU nothing is done. */
#pragma once

#include "base/device.h"
#include "datasets/loader/batch.h"

struct feed;

/* feed_create - for batches of up to `rows` rows that work on `stream` reads. */
status feed_create(struct device *dev, struct stream *stream, int64_t rows, struct feed **out);
status feed_destroy(struct feed **feed);

/* feed_bytes - what one of those takes, on the device and as much page-locked memory on the host; 0 on the CPU. */
size_t feed_bytes(enum device_kind kind, int64_t rows);

/* feed_start - begin to copy; the batch may change once this returns. At most one is under way. */
status feed_start(struct feed *feed, const struct batch *batch);

/* feed_take - the batch that was started, with its arrays where kernels read them: what is queued on the stream
 * from now on finds them there. batch gives what the host reads. Good until the second feed_start after this. */
status feed_take(struct feed *feed, const struct batch *batch, struct batch *placed);
