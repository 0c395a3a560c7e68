/* FLOPs of a training step per token, for plan.h (docs/reference/flops.md).
 *
 * An encoder-decoder has two lengths: the encoder reads the source, the decoder the target, and the
 * keys and values of cross-attention have the rows of the source. A token is then a token of either
 * side. */
#pragma once

#include "trainer/recipe/recipe.h"
#include "trainer/setup/derive.h"

/* FLOPs of the GEMMs per token, forward and backward. */
struct flops_gemms {
    double all;
    double fp8; /* the part of `all` with FP8 operands */
};

/* flops_count_gemms - count the FLOPs of the GEMMs.
 *
 * Shapes    parameters [count], of model_layout */
struct flops_gemms flops_count_gemms(const struct recipe *recipe, const struct model_config *config,
                                     const struct sample_lengths *lengths,
                                     const struct model_parameter *parameters, int count);

/* flops_count_attention - count the FLOPs of the attention per token, forward and backward. The
 * layers before first_trained have no backward pass.
 *
 * visible: count only the scores that a causal mask or a window leaves; without it, all scores */
double flops_count_attention(const struct model_config *config,
                             const struct sample_lengths *lengths, int64_t first_trained,
                             bool visible);
