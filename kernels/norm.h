/* Residual addition and norm in one pass, forward and backward. */
#pragma once

#include "base/status.h"
#include "base/tensor.h"
#include "kernels/bias_gradient.h"
#include "kernels/dropout.h"

struct kernels;

enum norm_kind { NORM_LAYER = 0, NORM_RMS };

/* residual_norm_forward - compute z = x + drop(delta), then y = norm(z) * gamma + beta.
 *
 * Shapes    z, y, x, delta [N, C];  gamma, beta f32 [1, C], beta absent: no bias, as always for
 *           RMS; gamma absent: no weight;  statistics f32 [N, 2]: mean (0 for RMS) and reciprocal
 *           standard deviation, kept for the backward pass
 * Units     epsilon is added to the variance, not to the deviation; > 0
 * Memory    delta absent: z is not written and y = norm(x); y absent: only z is computed; z may
 *           alias x
 * Numerics  two passes over a row, f32 sums; the norm reads z after it is rounded to its dtype
 * Source    Ba, Kiros, Hinton 2016, arXiv:1607.06450; Zhang, Sennrich 2019, arXiv:1910.07467 */
status residual_norm_forward(struct kernels *k, struct tensor z, struct tensor y,
                             struct tensor statistics, struct tensor x, struct tensor delta,
                             struct tensor gamma, struct tensor beta, enum norm_kind kind,
                             float epsilon, struct dropout dropout);

/* Which tensor continues as the residual stream. It determines where the stream's
 * gradient enters. */
enum norm_residual {
    NORM_RESIDUAL_PRE = 0, /* z, the input of the norm (pre-norm): dz += norm'(dy) */
    NORM_RESIDUAL_NONE,    /* none: dz = norm'(dy) */
    NORM_RESIDUAL_POST,    /* y, the output of the norm (post-norm): dz = norm'(dy + dz) */
};

/* residual_norm_backward - compute dz (+)= norm'(dy), then ddelta = drop'(dz).
 *
 * dbias is the gradient of the bias of the linear layer that computed delta.
 *
 * Shapes    dz, ddelta, dy, z [N, C];  gamma, dgamma, dbeta f32 [1, C], dbeta absent for RMS,
 *           gamma and dgamma absent: no weight;  statistics f32 [N, 2] from the forward pass
 * Memory    dz holds the gradient of the residual stream on entry and the gradient of z on return;
 *           dgamma and dbeta are added to; ddelta absent: there was no dropout and ddelta equals
 *           dz; with NORM_RESIDUAL_NONE, dz may alias dy
 * Numerics  f32 sums, in an order that depends on N only; dbias is the sum of ddelta after it is
 *           rounded to its dtype
 * Source    as residual_norm_forward */
status residual_norm_backward(struct kernels *k, struct tensor dz, struct tensor ddelta,
                              struct tensor dgamma, struct tensor dbeta, struct bias_gradient dbias,
                              struct tensor dy, struct tensor z, struct tensor statistics,
                              struct tensor gamma, enum norm_kind kind, enum norm_residual residual,
                              struct dropout dropout);
