/* FP8 linear layers.
 *
 * The operations are those of linear_*, but the GEMM multiplies operands that are rounded to FP8: x
 * and w to E4M3, dy to E5M2. An operand u is rounded to q(scale u) / scale: q rounds to nearest
 * even and saturates at 448 or 57344. An infinite u becomes NaN. A scale is a power of two, so
 * q / scale is exact.
 *
 * Shapes    scales f32 [3, 2]: of x, w and dy the scale and its reciprocal; absent: the operands
 *           are not rounded.  maxima f32 [1, 3]: of x, w and dy; maxima = max(maxima, |operand|);
 *           absent: the operands are not measured.  K and M are multiples of 16
 * Numerics  f32 sums. On a GPU cuBLASLt multiplies FP8 numbers; the sums differ from those of a CPU
 *           only in their order. dbias is the sum of dy before rounding. The maximum of an operand
 *           that contains NaN is NaN
 * Errors    STATUS_INTERNAL if the limits of the context have no FP8 layer of this size
 * Source    Micikevicius et al. 2022, arXiv:2209.05433 */
#pragma once

#include "kernels/kernels.h"

enum fp8_operand { FP8_X = 0, FP8_W, FP8_DY, FP8_OPERANDS };

enum { FP8_MULTIPLE = 16 }; /* K and M are multiples of this number */

/* FP8_MAX_E4M3, FP8_MAX_E5M2 - the largest numbers of the two types. */
#define FP8_MAX_E4M3 448.0f
#define FP8_MAX_E5M2 57344.0f

/* fp8_linear_forward - compute linear_forward with rounded x and w, and measure both. */
status fp8_linear_forward(struct kernels *k, struct tensor y, struct tensor saved,
                          struct tensor maxima, struct tensor x, struct tensor w,
                          struct tensor bias, struct tensor scales, enum activation act);

/* fp8_linear_backward_input - compute linear_backward_input with rounded dy and w; measure dy. */
status fp8_linear_backward_input(struct kernels *k, struct tensor dx, struct tensor maxima,
                                 struct tensor dy, struct tensor w, struct tensor scales,
                                 enum activation act, struct tensor saved);

/* fp8_linear_backward_weight - compute linear_backward_weight with rounded dy and x; measure dy. */
status fp8_linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                                  struct tensor maxima, struct tensor dy, struct tensor x,
                                  struct tensor scales, bool overwrite);
