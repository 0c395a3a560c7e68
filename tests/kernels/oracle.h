/* The oracle: every operation of kernels.h in double precision. All back-ends are tested against
 * it.
 *
 * Each formula is one loop that reads and writes one element at a time, with sums in double
 * precision. Nothing is optimized or checked. Arguments, shapes and their letters are the same as
 * in kernels.h, without the context. Tensors may also be ORACLE_F64, which no back-end supports.
 * Then nothing is rounded, as finite differences and measurements of errors require. */
#pragma once

#include "kernels/kernels.h"

#define ORACLE_F64 ((enum dtype)64)

/* oracle_get - return an element. */
static inline double oracle_get(struct tensor t, int64_t row, int64_t column)
{
    int64_t at = row * t.stride + column;
    if (t.dtype == ORACLE_F64) {
        return ((const double *)t.data)[at];
    }
    return t.dtype == DTYPE_F32 ? ((const float *)t.data)[at]
                                : bf16_to_f32(((const bf16 *)t.data)[at]);
}

/* oracle_largest - return the largest magnitude of the elements, or 0 without elements. */
double oracle_largest(struct tensor t);

/* oracle_set - set an element, rounded to the tensor's dtype. */
static inline void oracle_set(struct tensor t, int64_t row, int64_t column, double value)
{
    int64_t at = row * t.stride + column;
    if (t.dtype == ORACLE_F64) {
        ((double *)t.data)[at] = value;
    } else if (t.dtype == DTYPE_F32) {
        ((float *)t.data)[at] = (float)value;
    } else {
        ((bf16 *)t.data)[at] = f32_to_bf16((float)value);
    }
}

/* oracle_activation - compute act(x). */
double oracle_activation(double x, enum activation act);

/* oracle_activation_derivative - compute act'(x). */
double oracle_activation_derivative(double x, enum activation act);

/* oracle_dropout_factor - return the dropout factor of an element: 0 or 65536 / (65536 - t), with
 * t = 65536 probability, rounded. */
double oracle_dropout_factor(struct dropout dropout, int64_t element);

/* oracle_linear_forward - linear_forward.
 *
 * Shapes    pre [N, M], the pre-activation, or absent */
void oracle_linear_forward(struct tensor y, struct tensor pre, struct tensor x, struct tensor w,
                           struct tensor bias, enum activation act);

/* oracle_linear_backward_input - linear_backward_input.
 *
 * Shapes    pre [N, K], the pre-activation of x, or absent */
void oracle_linear_backward_input(struct tensor dx, struct tensor dy, struct tensor w,
                                  enum activation act, struct tensor pre);

/* oracle_linear_backward_weight - linear_backward_weight; always adds. */
void oracle_linear_backward_weight(struct tensor dw, struct tensor dbias, struct tensor dy,
                                   struct tensor x);

/* oracle_gated_forward - geglu_forward; with ACTIVATION_NONE, swiglu_forward. */
void oracle_gated_forward(struct tensor y, struct tensor gate_up, enum activation act);

/* oracle_gated_backward - geglu_backward; with ACTIVATION_NONE, swiglu_backward. */
void oracle_gated_backward(struct tensor d_gate_up, struct tensor dy, struct tensor gate_up,
                           enum activation act);

/* oracle_rotary_apply - rotary_apply, with angles that are computed here, not read from a table.
 *
 * Shapes    the first `rotated` columns of each head rotate */
void oracle_rotary_apply(struct tensor x, int64_t head_width, int64_t rotated, double theta,
                         const int32_t *positions, bool inverse);

/* oracle_embedding_forward - embedding_forward with the whole vocabulary. */
void oracle_embedding_forward(struct tensor y, const int32_t *tokens, const int32_t *positions,
                              struct tensor token_table, struct tensor position_table,
                              struct dropout dropout);

/* oracle_embedding_backward - embedding_backward with the whole vocabulary. */
void oracle_embedding_backward(struct tensor d_token_table, struct tensor d_position_table,
                               struct tensor dy, const int32_t *tokens, const int32_t *positions,
                               struct dropout dropout);

/* oracle_gather_rows - op_gather_rows. */
void oracle_gather_rows(struct tensor y, struct tensor x, const int32_t *rows);

/* oracle_scatter_rows - op_scatter_rows. */
void oracle_scatter_rows(struct tensor dx, struct tensor dy, const int32_t *rows, bool overwrite);

/* oracle_residual_norm_forward - residual_norm_forward.
 *
 * Numerics  the norm reads z after it is rounded to its dtype, as the backward pass does */
void oracle_residual_norm_forward(struct tensor z, struct tensor y, struct tensor statistics,
                                  struct tensor x, struct tensor delta, struct tensor gamma,
                                  struct tensor beta, enum norm_kind kind, double epsilon,
                                  struct dropout dropout);

/* oracle_residual_norm_backward - residual_norm_backward; always adds to dbias. */
void oracle_residual_norm_backward(struct tensor dz, struct tensor ddelta, struct tensor dgamma,
                                   struct tensor dbeta, struct tensor dbias, struct tensor dy,
                                   struct tensor z, struct tensor statistics, struct tensor gamma,
                                   enum norm_kind kind, enum norm_residual residual,
                                   struct dropout dropout);

/* oracle_attention_forward - attention_forward. */
void oracle_attention_forward(struct tensor o, struct tensor lse, struct tensor q,
                              struct tensor keys, struct tensor values, const struct attention *a);

/* oracle_attention_backward - attention_backward. */
void oracle_attention_backward(struct tensor dq, struct tensor dkeys, struct tensor dvalues,
                               struct tensor d_o, struct tensor q, struct tensor keys,
                               struct tensor values, struct tensor o, struct tensor lse,
                               const struct attention *a);

/* oracle_classifier_run - classifier_run with the whole vocabulary; always adds to dw and dbias. */
void oracle_classifier_run(double *losses, int32_t *argmax, struct tensor dx, struct tensor dw,
                           struct tensor x, struct tensor w, const int32_t *targets,
                           const struct classifier *c);

/* oracle_classifier_logits - classifier_logits. */
void oracle_classifier_logits(struct tensor logits, struct tensor x, struct tensor w,
                              struct tensor bias);

/* oracle_adamw_update - adamw_update. */
void oracle_adamw_update(float *weights, bf16 *copy, void *moment1, void *moment2,
                         const float *gradient, int64_t count, const struct adamw *settings);

/* oracle_lamb_moments - lamb_moments. */
void oracle_lamb_moments(double *sums, const float *weights, void *moment1, void *moment2,
                         const float *gradient, int64_t count, const struct adamw *settings);

/* oracle_lamb_apply - lamb_apply. */
void oracle_lamb_apply(float *weights, bf16 *copy, const void *moment1, const void *moment2,
                       int64_t count, const struct adamw *settings);

/* oracle_round_weights - op_round_weights. */
void oracle_round_weights(bf16 *copy, const float *weights, int64_t count,
                          const struct rounding *rounding);

/* oracle_sum_of_squares - sum_of_squares; returns the sum. */
double oracle_sum_of_squares(const float *x, int64_t count);

/* oracle_sum_of_floats - return the sum. */
double oracle_sum_of_floats(const float *x, int64_t count);

/* oracle_cast - op_cast, also for ORACLE_F64. */
void oracle_cast(struct tensor to, struct tensor from);
