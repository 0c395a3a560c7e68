/* FP8 linear layers.
 *
 * The operations compute the same as linear_*, but the GEMM multiplies operands that are rounded to
 * FP8: x and w to E4M3, dy to E5M2. An operand u is rounded to q(scale u) / scale: q rounds to
 * nearest even and saturates at 448 or 57344. An infinite u becomes NaN. A scale is a power of two,
 * so q / scale is exact.
 *
 * Row-wise  With limits.fp8_rowwise, every operand, also dy, is rounded to E4M3. An element of a
 *           GEMM's result is the product of a row of one operand and a row of the other. Each of
 *           these rows has its own scale: fp8_row_scale of its largest magnitude. Therefore x and w
 *           have other scales in the backward pass, where their columns are multiplied:
 *             y = x w^T     rows of x [N] and of w [M]
 *             dx = dy w     rows of dy [N] and columns of w [K]
 *             dw = dy^T x   columns of dy [M] and of x [K]
 * Shapes    scales f32 [3, 2]: rows for x, w and dy, each the reciprocal and the scale; absent:
 *           the operands are not rounded.  maxima f32 [1, 3]: of x, w and dy; maxima = max(maxima,
 *           |operand|); absent: the operands are not measured.  K and M are multiples of 16. With
 *           fp8_rowwise, scales and maxima are absent
 * Memory    the rows of scales are aligned to 16 bytes: cuBLASLt reads the reciprocals and refuses
 *           other addresses
 * Numerics  f32 sums on a CPU. On a GPU cuBLASLt multiplies FP8 numbers. The tensor cores of Hopper
 *           add the products with about 14 bits, and cuBLASLt adds their sums in f32. dbias is the
 *           sum of dy before rounding. The maximum of an operand that contains NaN is NaN
 * Errors    STATUS_INTERNAL if the limits of the context have no FP8 layer of this size, if scales
 *           are not aligned, or if scales or maxima are present with fp8_rowwise
 * Source    Micikevicius et al. 2022, arXiv:2209.05433; DeepSeek-AI 2024, arXiv:2412.19437, section
 *           3.3.2 (14 bits); torchao, recipe "rowwise" of float8 training: E4M3 also for gradients,
 *           scales that are powers of two */
#pragma once

#include "kernels/kernels.h"

enum fp8_operand { FP8_X = 0, FP8_W, FP8_DY, FP8_OPERANDS };

enum { FP8_MULTIPLE = 16 }; /* K and M are multiples of this number */

/* Columns of scales, and the elements between their rows when they are aligned. */
enum { FP8_RECIPROCAL = 0, FP8_SCALE = 1, FP8_SCALES_STRIDE = 4 };

/* FP8_MAX_E4M3, FP8_MAX_E5M2 - the largest numbers of the two types. */
#define FP8_MAX_E4M3 448.0f
#define FP8_MAX_E5M2 57344.0f

enum { FP8_EXPONENT_MAX = 100 }; /* a scale is at most 2^100 and at least 2^-100 */

/* fp8_row_scale - return the scale of a row of E4M3 numbers: the largest power of two for which no
 * scaled magnitude of the row is above 448. The scale of a zero row is 1.
 *
 * Units     magnitude: the bits of the largest magnitude as f32; infinity and NaN are allowed */
float fp8_row_scale(uint32_t magnitude);

/* fp8_scale - return the scale of an operand for magnitudes up to `amax`: the largest power of two
 * for which no scaled magnitude is above the largest FP8 number. It is 1 if amax is 0. */
float fp8_scale(float amax, enum fp8_operand operand);

/* fp8_update_scales - end a step of delayed scaling: store the largest magnitudes of the step in
 * the history, and compute the scales of the next step from the history.
 *
 * The history is a ring: row `row` has the oldest step before and the newest one afterwards. If
 * control->skip is set, the scales do not change, and the rows move by one, so that `row` is the
 * newest of the same steps.
 *
 * Shapes    scales f32 [operands, FP8_SCALES_STRIDE]: reciprocal and scale are written;  history
 *           f32 [length, operands];  maxima f32 [ranks, operands]. Operand i is enum fp8_operand
 *           i % FP8_OPERANDS;  control [1], or NULL: not skipped. All on the device
 * Numerics  a magnitude that is not finite counts as 0. The scales have the bits of fp8_scale of
 *           the largest magnitude in the history */
status fp8_update_scales(struct kernels *k, struct tensor scales, struct tensor history,
                         struct tensor maxima, int64_t row, const struct update_control *control);

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
