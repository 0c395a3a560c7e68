/* The most probable labels or tokens of a row of logits. */
#pragma once

#include <stdint.h>

struct top_score {
    int64_t index;
    double probability; /* softmax over all logits */
};

/* top_scores_select - find the largest logits in descending order. Equal logits are in the
 * order of their indices.
 *
 * Shapes    logits [count], finite;  out [count of the result]
 * Returns   the number of results: the smaller of top_k and count */
int64_t top_scores_select(const float *logits, int64_t count, int64_t top_k, struct top_score *out);
