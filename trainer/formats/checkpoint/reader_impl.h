/* Reading the part of a stored shard that overlaps a tensor in memory; for load.c and reader.c. */
#pragma once

#include "datasets/shard/h5file.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/manifest.h"

/* checkpoint_reader_overlaps - return whether a stored shard and a tensor share elements. */
bool checkpoint_reader_overlaps(const struct checkpoint_tensor *tensor,
                                const struct manifest_shard *shard);

/* checkpoint_reader_open_file - open a file of a checkpoint. The oldest format of HDF5 is refused,
 * because its metadata has no checksums and Bireme never wrote it.
 *
 * Memory    the caller closes *out with h5file_close
 * Errors    STATUS_CHECKPOINT naming file and reason; STATUS_NO_INPUT, STATUS_PERMISSION */
status checkpoint_reader_open_file(const char *path, hid_t *out);

/* checkpoint_reader_read_overlap - read the shared elements from an open file into tensor->data.
 *
 * Does nothing if there are none. The data of `tensor` is in host memory.
 *
 * Memory    buffer[CHECKPOINT_READ_ELEMENTS]
 * Errors    STATUS_CHECKPOINT naming file and tensor; STATUS_INTERNAL out of memory */
status checkpoint_reader_read_overlap(hid_t file, const char *path,
                                      const struct checkpoint_tensor *tensor,
                                      const struct manifest_tensor *stored,
                                      const struct manifest_shard *shard, float *buffer);
