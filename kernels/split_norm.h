/* RMS norm of rows that are split by columns over tensor-parallel ranks. kernels.h includes
 * this header.
 *
 * A rank has C of the W columns. Each pass has two operations. The first one computes a sum of each
 * row over the columns of this rank. The caller adds the sums of all ranks. The second operation
 * reads the result. The same operations on one rank, with C = W, are an RMS norm. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"

struct kernels;

/* split_norm_forward_sums - compute sums[n] = sum over c of x[n, c]^2.
 *
 * Shapes    sums f32 [N, 1];  x [N, C] */
status split_norm_forward_sums(struct kernels *k, struct tensor sums, struct tensor x);

/* split_norm_forward - compute y = x r gamma with r = 1 / sqrt(sums / W + epsilon).
 *
 * Shapes    y, x [N, C];  gamma f32 [1, C];  sums f32 [N, 1] over all ranks;  statistics f32
 *           [N, 2]: 0 and r, kept for the backward pass;  whole_columns is W
 * Units     epsilon is added to the mean of the squares; > 0
 * Source    Zhang, Sennrich 2019, arXiv:1910.07467 */
status split_norm_forward(struct kernels *k, struct tensor y, struct tensor statistics,
                          struct tensor x, struct tensor sums, struct tensor gamma,
                          int64_t whole_columns, float epsilon);

/* split_norm_backward_sums - compute sums[n] = sum over c of dy gamma x r, and add the sum over n
 * of dy x r to dgamma.
 *
 * Shapes    sums f32 [N, 1];  dgamma, gamma f32 [1, C];  dy, x [N, C];  statistics f32 [N, 2] of
 *           split_norm_forward
 * Numerics  f32 sums, in an order that depends on N and C only */
status split_norm_backward_sums(struct kernels *k, struct tensor sums, struct tensor dgamma,
                                struct tensor dy, struct tensor x, struct tensor statistics,
                                struct tensor gamma);

/* split_norm_backward - compute dx = r (dy gamma - x r sums / W).
 *
 * Shapes    dx, dy, x [N, C];  sums f32 [N, 1] over all ranks;  the others as in
 *           split_norm_backward_sums
 * Memory    dx may alias dy */
status split_norm_backward(struct kernels *k, struct tensor dx, struct tensor dy, struct tensor x,
                           struct tensor statistics, struct tensor sums, struct tensor gamma,
                           int64_t whole_columns);
