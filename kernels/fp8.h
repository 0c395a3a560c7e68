/* FP8 linear layers.
 *
 * The operations are those of linear_*, but the GEMM multiplies operands that are rounded to FP8: x
 * and w to E4M3, dy to E5M2. An operand u is rounded to q(scale u) / scale: q rounds to nearest
 * even and saturates at 448 or 57344. An infinite u becomes NaN. A scale is a power of two, so
 * q / scale is exact.
 *
 * Shapes    scales f32 [3, 2]: rows for x, w and dy, each the reciprocal and the scale; absent:
 *           the operands are not rounded.  maxima f32 [1, 3]: of x, w and dy; maxima = max(maxima,
 *           |operand|); absent: the operands are not measured.  K and M are multiples of 16
 * Memory    the rows of scales are aligned to 16 bytes: cuBLASLt reads the reciprocals and refuses
 *           other addresses
 * Numerics  f32 sums on a CPU. On a GPU cuBLASLt multiplies FP8 numbers. The tensor cores of Hopper
 *           add the products with about 14 bits, and cuBLASLt adds their sums in f32. dbias is the
 *           sum of dy before rounding. The maximum of an operand that contains NaN is NaN
 * Errors    STATUS_INTERNAL if the limits of the context have no FP8 layer of this size, or if
 *           scales are not aligned
 * Source    Micikevicius et al. 2022, arXiv:2209.05433; DeepSeek-AI 2024, arXiv:2412.19437, section
 *           3.3.2 (14 bits) */
#pragma once

#include "kernels/kernels.h"

enum fp8_operand { FP8_X = 0, FP8_W, FP8_DY, FP8_OPERANDS };

enum { FP8_MULTIPLE = 16 }; /* K and M are multiples of this number */

/* Columns of scales, and the elements between their rows when they are aligned. */
enum { FP8_RECIPROCAL = 0, FP8_SCALE = 1, FP8_SCALES_STRIDE = 4 };

/* FP8_MAX_E4M3, FP8_MAX_E5M2 - the largest numbers of the two types. */
#define FP8_MAX_E4M3 448.0f
#define FP8_MAX_E5M2 57344.0f

/* fp8_linear_forward - compute linear_forward with rounded x and w, and measure both. */
status fp8_linear_forward(struct kernels *k, struct tensor y, struct tensor saved,
                          struct tensor maxima, struct tensor x, struct tensor w,
                          struct tensor bias, struct tensor scales, enum activation act);

/* fp8_linear_backward_input - compute linear_backward_input with rounded dy and w; measure dy. */
status fp8_linear_backward_input(struct kernels *k, struct tensor dx, struct bias_gradient dbias,
                                 struct tensor maxima, struct tensor dy, struct tensor w,
                                 struct tensor scales, enum activation act, struct tensor saved);

/* fp8_linear_backward_weight - compute linear_backward_weight with rounded dy and x; measure dy. */
status fp8_linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                                  struct tensor maxima, struct tensor dy, struct tensor x,
                                  struct tensor scales, bool overwrite);
