/* The attention weights of a text, or of a source and its target: softmax(scale q k^T) of every
 * layer and head. */
#pragma once

#include "trainer/model/model.h"

/* The attentions of a model. A model of one stack has the first one only. */
enum attention_kind {
    ATTENTION_SELF,    /* self-attention of the model, or of the encoder */
    ATTENTION_DECODER, /* self-attention of the decoder */
    ATTENTION_CROSS,   /* attention of the decoder to the encoder's output */
    ATTENTION_KINDS
};

struct attention_weights {
    int64_t layers, heads, queries, keys;
    float *values; /* [layers, heads, queries, keys] */
};

/* attention_weights_compute - run the model on one text, or on one source and its target, and
 * compute all attention weights.
 *
 * The sum of a row is 1. Weights of keys that a query does not see are 0. An attention that the
 * model does not have has the sizes 0 and the values NULL.
 *
 * Shapes    input has one segment and no output rows
 * Memory    the caller calls attention_weights_free, also after an error; all data is in host
 *           memory, so the model must be on the CPU and on one rank
 * Numerics  the weights are computed from the model's queries and keys in double precision
 * Errors    as model_forward; STATUS_INTERNAL if memory is exhausted; STATUS_NOT_FINITE
 * Source    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1 */
status attention_weights_compute(struct model *m, const struct model_input *input,
                                 struct attention_weights out[ATTENTION_KINDS]);

/* attention_weights_row - return the weights [keys] of a query over all keys. */
const float *attention_weights_row(const struct attention_weights *w, int64_t layer, int64_t head,
                                   int64_t query);

/* attention_weights_free - free the values of all kinds and set them to NULL. */
void attention_weights_free(struct attention_weights weights[ATTENTION_KINDS]);
