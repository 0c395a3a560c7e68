/* Cross-attention (cross_attention.c): the activations of a layer, and the function that generation
 * shares. */
#pragma once

#include "trainer/model/model_impl.h"

struct sublayer_type;

extern const struct sublayer_type model_cross_attention;

/* Activations of cross-attention that forward keeps for backward. S is the number of rows of the
 * sources. */
struct cross_attention_activations {
    struct tensor query;     /* [N, H D / t] */
    struct tensor key_value; /* [S, 2 H D / t] */
    struct tensor lse;       /* f32 [H/t, N]; absent without training */
    struct tensor attended;  /* [N, H D / t] output of attention */
};

/* model_project_source - compute the keys and values of cross-attention from the output of the
 * encoder. `source` is the input of the encoder.
 *
 * Shapes    key_value [S, 2 H D / t] */
status model_project_source(struct model *m, const struct model_input *source, int64_t layer,
                            struct tensor key_value);
