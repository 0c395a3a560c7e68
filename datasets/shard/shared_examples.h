/* Counts validation examples that are training examples too. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* shared_examples_count - count the validation examples, among the first 2^20, that have the same
 * tokens as a training example. The shards are train-* and validation-* in the folder.
 *
 * Memory    16 MB at most
 * Errors    as shard_open and shard_read */
status shared_examples_count(const char *folder, int train_shards, int validation_shards,
                             int64_t validation_examples, int64_t *out);
