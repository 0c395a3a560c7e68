/* A dataset of one dimension that is read chunk by chunk. Each read compares the chunk with its
 * Fletcher32 checksum. Only the shard files include this header.
 *
 * HDF5 returns the chunk as stored (H5Dread_chunk), and this module computes the checksum. The
 * filter of HDF5 is not used for two reasons:
 *
 *   - It takes more time than all other steps together.
 *   - It accepts too much: a second checksum value, for compatibility with HDF5 1.6.2, and chunks
 *     without a checksum if the file declares them. This module refuses both.
 *
 * The last chunk read is cached, so that a sequential reader reads each chunk once.
 *
 * Calls     chunks_open, chunks_read in a loop, chunks_close */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/h5file.h"

struct chunks;

/* chunks_open - open a dataset; type as in h5file_open_dataset, which checks the dataset first.
 *
 * Memory    one chunk; path and name are not copied and must stay valid
 * Errors    STATUS_DATA: no such dataset, another type, not one dimension, not stored in chunks
 *           with Fletcher32 as the only filter, chunks of more than 4 MiB */
status chunks_open(hid_t file, const char *path, const char *name, hid_t type, struct chunks **out);

/* chunks_close - close the dataset and set *chunks to NULL; NULL is allowed. */
void chunks_close(struct chunks **chunks);

/* chunks_item_count - return the number of items in the dataset. */
int64_t chunks_item_count(const struct chunks *chunks);

/* chunks_item_bytes - return the size of one item. */
int chunks_item_bytes(const struct chunks *chunks);

/* chunks_read - return the items from `first` to the end of their chunk, as stored.
 *
 * Memory    *items stays valid until the next call
 * Errors    STATUS_DATA with file and position: a wrong checksum or a missing chunk */
status chunks_read(struct chunks *chunks, int64_t first, const void **items, int64_t *count);
