/* Any box of any tensor of a checkpoint, whatever layout wrote it: for what looks at a checkpoint without a
 * model (compare two, cut one anew). Memory does not depend on the checkpoint's size. */
#pragma once

#include "trainer/checkpoint/manifest.h"

enum { CHECKPOINT_READ_ELEMENTS = 1 << 20 }; /* a box holds at most so many */

struct checkpoint_reader;

/* checkpoint_reader_open - a folder that checkpoint_choose has found whole.
 *
 * Errors    STATUS_CHECKPOINT if its manifest does not hold */
status checkpoint_reader_open(const char *folder, struct checkpoint_reader **out);
void checkpoint_reader_close(struct checkpoint_reader **reader);

/* checkpoint_reader_manifest - Memory: the reader's. */
const struct manifest *checkpoint_reader_manifest(const struct checkpoint_reader *reader);

/* checkpoint_reader_read - out [shape[0], shape[1]] of a tensor of its manifest; a vector is a column.
 *
 * Errors    STATUS_CHECKPOINT naming file and tensor */
status checkpoint_reader_read(struct checkpoint_reader *reader,
                              const struct manifest_tensor *tensor, const int64_t offset[2],
                              const int64_t shape[2], float *out);

/* checkpoint_block - the next box of a tensor in the order of its file, from offset[2] = {0, 0} on.
 *
 * false: there is none. Advance with checkpoint_block_next. */
bool checkpoint_block(const struct manifest_tensor *tensor, const int64_t offset[2],
                      int64_t shape[2]);
void checkpoint_block_next(const struct manifest_tensor *tensor, int64_t offset[2],
                           const int64_t shape[2]);
