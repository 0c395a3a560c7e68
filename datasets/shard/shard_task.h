/* Reads examples of the task kinds from a shard: EXAMPLE_CLASSIFY and all later kinds
 * of example.h. */
#pragma once

#include "datasets/shard/shard.h"

/* shard_task_read - read example `index`: its tokens, texts, token types and labels, and the
 * positions of the tokens that the head reads.
 *
 * The positions depend on the kind. classify and regress have one position, and choose has one for
 * each text; the caller sets these positions. The positions of classify_tokens are the tokens with
 * a label. The positions of answer and embed are all tokens.
 *
 * Shapes    labels: classify 1, classify_tokens one per position, answer 2, choose 1
 * Errors    STATUS_DATA: inconsistent values in the shard, or a text longer than sequence_tokens */
status shard_task_read(struct shard *shard, int64_t index, int64_t sequence_tokens,
                       struct example *out);
