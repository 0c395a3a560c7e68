/* A text's vector: the mean of its tokens' hidden states at unit length, so that the cosine of two texts is the
 * product of their vectors.
 *
 * Source    Reimers and Gurevych 2019, arXiv:1908.10084 */
#pragma once

#include "base/status.h"
#include "base/tensor.h"

/* text_vector_pool - of all rows of hidden.
 *
 * Shapes    hidden [T, C] f32|bf16 on the host; vector [C]
 * Errors    STATUS_NOT_FINITE where the mean has no direction */
status text_vector_pool(struct tensor hidden, float *vector);

/* text_vector_cosine - of two such vectors. */
double text_vector_cosine(const float *a, const float *b, int64_t width);
