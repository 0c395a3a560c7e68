/* The feed-forward network (feed_forward.c): the activations of a layer. */
#pragma once

#include "trainer/model/model_impl.h"

struct sublayer_type;

extern const struct sublayer_type model_feed_forward;

/* Activations of the feed-forward network that forward keeps for backward. */
struct feed_forward_activations {
    struct tensor saved_for_backward; /* [N, F/t] value that the backward pass of the activation
                                       * reads; with a gate [N, 2F/t], the output of the GEMM.
                                       * Absent without training and gate */
    struct tensor inner;              /* [N, F/t] output of the activation */
};
