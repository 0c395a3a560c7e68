/* Shards of BERT examples as NVIDIA's DeepLearningExamples writes them
 * (create_pretraining_data.py). Their tokens were masked once, when the shards were made.
 *
 *   /input_ids            int32 [n, T]  masked tokens, padded
 *   /input_mask           int8  [n, T]  1 for each token, 0 for padding
 *   /segment_ids          int8  [n, T]
 *   /masked_lm_positions  int32 [n, P]  positions of the predictions, padded with 0
 *   /masked_lm_ids        int32 [n, P]  original ids at these positions
 *   /next_sentence_labels int8  [n]     0: B follows A, 1: B is random
 *
 * The number of predictions is the index of the first 0 in the positions, or P if there is none.
 * Position 0 is [CLS] and is never predicted. The datasets are in the root group and may be
 * compressed with deflate. They have no checksums. The reader therefore checks that all values are
 * valid, and its errors name the row of the example.
 *
 * A band is the examples of one row of chunks. They are decompressed together and cached. A
 * sequential reader decompresses each chunk once. Reading a random example costs one band, a
 * few milliseconds.
 *
 * Calls     nvidia_shard_detect, nvidia_shard_open, nvidia_shard_read for each example,
 *           nvidia_shard_close */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/example.h"

struct nvidia_shard;

/* nvidia_shard_detect - set *out to whether the file is an NVIDIA shard: it has /input_ids.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA if it is not an HDF5 file */
status nvidia_shard_detect(const char *path, bool *out);

/* nvidia_shard_open - open a shard and check its datasets.
 *
 * Memory    one band and one chunk of each dataset, each at most 64 MiB
 * Errors    STATUS_DATA: a dataset that is missing or has another type or shape, a filter other
 *           than deflate and Fletcher32, more than 64 Ki tokens in an example */
status nvidia_shard_open(const char *path, struct nvidia_shard **out);

/* nvidia_shard_close - close the shard and set *shard to NULL; NULL is allowed. */
void nvidia_shard_close(struct nvidia_shard **shard);

/* nvidia_shard_examples - return the number of examples. */
int64_t nvidia_shard_examples(const struct nvidia_shard *shard);

/* nvidia_shard_tokens - return T, the padded length of an example. */
int64_t nvidia_shard_tokens(const struct nvidia_shard *shard);

/* nvidia_shard_read - read example `row`.
 *
 * Errors    STATUS_DATA with file and row: ids outside of the vocabulary, a mask with holes,
 *           positions outside of the tokens or not increasing, more tokens or predictions than the
 *           example can hold */
status nvidia_shard_read(struct nvidia_shard *shard, int64_t row, int64_t vocab_size,
                         struct example *out);
