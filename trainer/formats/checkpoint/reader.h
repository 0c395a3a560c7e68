/* Reading any block of any tensor of a checkpoint, without a model (diff, reshard, export).
 *
 * The layout that wrote the checkpoint does not matter. Memory does not depend on its size. */
#pragma once

#include "trainer/formats/checkpoint/manifest.h"

enum { CHECKPOINT_READ_ELEMENTS = 1 << 20 }; /* maximum number of elements of a block: 4 MiB */

struct checkpoint_reader;

/* checkpoint_reader_open - open a folder that checkpoint_resolve has verified.
 *
 * Errors    STATUS_CHECKPOINT if its manifest is not valid; STATUS_INTERNAL out of memory */
status checkpoint_reader_open(const char *folder, struct checkpoint_reader **out);

/* checkpoint_reader_close - close all files; *reader may be NULL. */
void checkpoint_reader_close(struct checkpoint_reader **reader);

/* checkpoint_reader_manifest - return the manifest, which the reader owns. */
const struct manifest *checkpoint_reader_manifest(const struct checkpoint_reader *reader);

/* checkpoint_reader_read - read a block of a tensor into out[shape[0], shape[1]].
 *
 * `tensor` belongs to the reader's manifest. A vector is a matrix with one column.
 *
 * Errors    STATUS_CHECKPOINT naming file and tensor */
status checkpoint_reader_read(struct checkpoint_reader *reader,
                              const struct manifest_tensor *tensor, const int64_t offset[2],
                              const int64_t shape[2], float *out);

/* checkpoint_reader_block - compute the shape of the block at `offset`, in the order of the file.
 *
 * Start at offset {0, 0} and advance with checkpoint_reader_next_block. Returns false after the
 * last block. */
bool checkpoint_reader_block(const struct manifest_tensor *tensor, const int64_t offset[2],
                             int64_t shape[2]);

/* checkpoint_reader_next_block - advance `offset` past a block of the given shape. */
void checkpoint_reader_next_block(const struct manifest_tensor *tensor, int64_t offset[2],
                                  const int64_t shape[2]);
