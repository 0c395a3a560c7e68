/* Reads a chunk of a dataset that may be compressed. Only the shard files include this header.
 *
 * HDF5 1.10 does not check the size of a chunk after its filters. If the chunk is too short, it
 * reads beyond its end. This module therefore reads the chunk as stored (H5Dread_chunk) and
 * decompresses it with zlib.
 *
 * Calls     h5file_open_deflated_dataset, then deflated_chunk_read for each chunk */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "datasets/shard/h5file.h"

/* deflated_chunk_read - read the chunk at `offset` into out[bytes]. The dataset was opened with
 * h5file_open_deflated_dataset and is stored in chunks of this size.
 *
 * Memory    allocates the stored chunk, at most about twice its size
 * Errors    STATUS_DATA with file, dataset and reason: the chunk is missing or damaged, or has
 *           another size */
status deflated_chunk_read(hid_t dataset, const char *path, const char *name, const hsize_t *offset,
                           void *out, size_t bytes);
