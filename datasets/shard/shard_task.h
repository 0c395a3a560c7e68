/* Reading examples of a task's kinds (example.h) out of a shard. */
#pragma once

#include "datasets/shard/shard.h"

/* shard_task_read - example `index`: its tokens, texts and segments, what is right, and the tokens that the head reads
 * (positions, labels). Of classify and regress this is one token of the text, whose place is the caller's to choose; of
 * choose likewise, one a text; of classify_tokens those with a label, of answer and embed all.
 *
 * Labels    classify 1, classify_tokens one each, answer 2, choose 1
 * Errors    STATUS_DATA: what the shard says contradicts itself, or a text is longer than sequence_tokens */
status shard_task_read(struct shard *shard, int64_t index, int64_t sequence_tokens,
                       struct example *out);
