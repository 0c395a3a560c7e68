/* Reads examples of the task kinds (example.h) from a shard. */
#pragma once

#include "datasets/shard/shard.h"

/* shard_task_read - read example `index`: its tokens, texts, token types and labels, and the
 * positions of the tokens that the head reads.
 *
 * The number of positions depends on the kind. classify and regress have one, and choose has one
 * for each text; the caller sets these positions. classify_tokens has the tokens with a label.
 * answer and embed have all tokens.
 *
 * Shapes    labels: classify 1, classify_tokens one per position, answer 2, choose 1
 * Errors    STATUS_DATA: inconsistent values in the shard, or a text longer than sequence_tokens */
status shard_task_read(struct shard *shard, int64_t index, int64_t sequence_tokens,
                       struct example *out);
