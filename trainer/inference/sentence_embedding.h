/* Sentence embeddings: the mean of a sequence's hidden states, scaled to unit length. The dot
 * product of two embeddings is their cosine similarity.
 *
 * Source    Reimers and Gurevych 2019, arXiv:1908.10084 */
#pragma once

#include "base/status.h"
#include "base/tensor.h"

/* sentence_embedding_pool - compute the embedding from all rows of hidden.
 *
 * Shapes    hidden [T, C] f32|bf16, in host memory; vector [C]
 * Errors    STATUS_NOT_FINITE if the mean is zero or not finite */
status sentence_embedding_pool(struct tensor hidden, float *vector);

/* sentence_embedding_cosine - compute the cosine similarity of two embeddings of unit length. */
double sentence_embedding_cosine(const float *a, const float *b, int64_t width);
