/* A dataset of one dimension, read chunk by chunk; each chunk is compared with its Fletcher32 checksum
 * each time that it is read. Only for the shard files.
 *
 * HDF5 delivers the chunk as it is stored (H5Dread_chunk) and the checksum is computed here, because
 * HDF5's own filter takes more time than all else together; it also accepts two values for each chunk
 * (a compatibility with HDF5 1.6.2), and data without a checksum where the file says so. Here these are
 * refused. The last chunk stays, so that reading in order reads each chunk once. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/h5file.h"

struct chunks;

/* chunks_open - type as in h5file_dataset, which checks the dataset first.
 *
 * Memory    one chunk; path is kept and must stay valid
 * Errors    STATUS_DATA: no such dataset, another type, not one dimension, no chunks with Fletcher32 alone,
 *           chunks of more than 4 MiB */
status chunks_open(hid_t file, const char *path, const char *name, hid_t type, struct chunks **out);
void chunks_close(struct chunks **chunks);

int64_t chunks_items(const struct chunks *chunks);
int chunks_item_bytes(const struct chunks *chunks);

/* chunks_at - the items from `first` on that are in the same chunk, as they are stored.
 *
 * Memory    *items stays valid until the next call
 * Errors    STATUS_DATA: a checksum that does not fit, a chunk that is not there; with file and place */
status chunks_at(struct chunks *chunks, int64_t first, const void **items, int64_t *count);
