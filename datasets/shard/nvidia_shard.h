/* NVIDIA's shards of BERT examples (their DeepLearningExamples, create_pretraining_data.py), as they are: masked
 * once and for all when they were made.
 *
 *   /input_ids            int32 [n, T]  masked; padded
 *   /input_mask           int8  [n, T]  1 for each token, then 0
 *   /segment_ids          int8  [n, T]
 *   /masked_lm_positions  int32 [n, P]  places of the predictions, padded with 0
 *   /masked_lm_ids        int32 [n, P]  what was there
 *   /next_sentence_labels int8  [n]     0: B follows A, 1: random
 *
 * The number of predictions is the index of the first 0 in the positions, P where there is none (place 0 is
 * [CLS]). The datasets lie in the root and may be compressed with deflate. They bear no checksum of their own: what
 * is read is checked for sense, and an example is read by name of its row.
 *
 * The rows of one band of chunks are decompressed together and kept, so that reading in order inflates each chunk
 * once; a row at random costs a band, a few milliseconds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/example.h"

struct nvidia_shard;

/* nvidia_shard_is - whether the file is one of these rather than one of ours: it has /input_ids.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA: no HDF5 */
status nvidia_shard_is(const char *path, bool *out);

/* nvidia_shard_open - Memory    one band of chunks of each dataset, bounded by 64 MiB
 *
 * Errors    STATUS_DATA: a dataset that is missing or of another type or shape, filters but deflate and Fletcher32,
 *           more than 64 Ki tokens in an example */
status nvidia_shard_open(const char *path, struct nvidia_shard **out);
void nvidia_shard_close(struct nvidia_shard **shard);

int64_t nvidia_shard_examples(const struct nvidia_shard *shard);
int64_t nvidia_shard_tokens(const struct nvidia_shard *shard); /* T */

/* nvidia_shard_read - example `row`.
 *
 * Errors    STATUS_DATA: ids outside of vocab_size, a mask with holes, places outside of the tokens or not of
 *           distinct tokens, more tokens or predictions than the example has room for; with file and row */
status nvidia_shard_read(struct nvidia_shard *shard, int64_t row, int64_t vocab_size,
                         struct example *out);
