/* The attention weights of a text: softmax(scale q k^T) of every layer and head. */
#pragma once

#include "trainer/model/model.h"

struct attention_weights {
    int64_t layers, heads, tokens;
    float *values; /* [layers, heads, tokens, tokens]: query, then key */
};

/* attention_weights_compute - run the model on one text and compute all attention weights.
 *
 * The sum of a row is 1. Weights of keys that a query does not see are 0.
 *
 * Shapes    input has one segment and no output rows
 * Memory    the caller calls attention_weights_free, also after an error; all data is in host
 *           memory, so the model must be on the CPU and on one rank
 * Numerics  the weights are computed from the model's queries and keys in double precision
 * Errors    those of model_forward; STATUS_INTERNAL if memory is exhausted;
 *           STATUS_NOT_FINITE
 * Source    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1 */
status attention_weights_compute(struct model *m, const struct model_input *input,
                                 struct attention_weights *out);

/* attention_weights_row - return the weights [tokens] of a query over all keys. */
const float *attention_weights_row(const struct attention_weights *w, int64_t layer, int64_t head,
                                   int64_t query);

/* attention_weights_free - free the values and set them to NULL. */
void attention_weights_free(struct attention_weights *w);
