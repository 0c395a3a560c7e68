/* The plain meaning of every operation in kernels.h: what all back-ends are tested against.
 *
 * One loop per formula, sums in double precision, one element read and written at a time; nothing
 * is fast and nothing is checked. Tensors are the same as the operation's, and may also be
 * REFERENCE_F64, which no back-end knows: then nothing is rounded on the way, as finite differences
 * and error measurements need it. */
#pragma once

#include "kernels/kernels.h"

#define REFERENCE_F64 ((enum dtype)64)

/* reference_get, reference_set - an element in double; writing rounds to the tensor's type. */
double reference_get(struct tensor t, int64_t row, int64_t column);
void reference_set(struct tensor t, int64_t row, int64_t column, double value);

double reference_activation(double x, enum activation act);
double reference_activation_slope(double x, enum activation act);

/* reference_keep - the factor of one element under dropout: 0 or 1 / (1 - probability). */
double reference_keep(struct dropout dropout, int64_t element);

void reference_linear_forward(struct tensor y, struct tensor pre, struct tensor x, struct tensor w,
                              struct tensor bias, enum activation act);
void reference_linear_backward_input(struct tensor dx, struct tensor dy, struct tensor w,
                                     enum activation act, struct tensor pre);
void reference_linear_backward_weight(struct tensor dw, struct tensor dbias, struct tensor dy,
                                      struct tensor x);

void reference_swiglu_forward(struct tensor y, struct tensor gate_up);
void reference_swiglu_backward(struct tensor d_gate_up, struct tensor dy, struct tensor gate_up);
/* The angles are made here, not read from a table; width is D. */
void reference_rotary_apply(struct tensor x, int64_t width, double theta, const int32_t *positions,
                            bool inverse);

void reference_embedding_forward(struct tensor y, const int32_t *tokens, const int32_t *positions,
                                 struct tensor token_table, struct tensor position_table,
                                 struct dropout dropout);
void reference_embedding_backward(struct tensor d_token_table, struct tensor d_position_table,
                                  struct tensor dy, const int32_t *tokens, const int32_t *positions,
                                  struct dropout dropout);

void reference_gather_rows(struct tensor y, struct tensor x, const int32_t *rows);
void reference_scatter_rows(struct tensor dx, struct tensor dy, const int32_t *rows,
                            bool overwrite);

/* The norm is of z as it was stored: rounded to its type, as the backward pass will find it. */
void reference_residual_norm_forward(struct tensor z, struct tensor y, struct tensor statistics,
                                     struct tensor x, struct tensor delta, struct tensor gamma,
                                     struct tensor beta, enum norm_kind kind, double epsilon,
                                     struct dropout dropout);
void reference_residual_norm_backward(struct tensor dz, struct tensor ddelta, struct tensor dgamma,
                                      struct tensor dbeta, struct tensor dy, struct tensor z,
                                      struct tensor statistics, struct tensor gamma,
                                      enum norm_kind kind, enum norm_stream stream,
                                      struct dropout dropout);

void reference_attention_forward(struct tensor o, struct tensor lse, struct tensor q,
                                 struct tensor keys, struct tensor values,
                                 const struct attention *a);
void reference_attention_backward(struct tensor dq, struct tensor dkeys, struct tensor dvalues,
                                  struct tensor d_o, struct tensor q, struct tensor keys,
                                  struct tensor values, struct tensor o, struct tensor lse,
                                  const struct attention *a);

void reference_classifier_run(double *losses, int32_t *best, struct tensor dx, struct tensor dw,
                              struct tensor x, struct tensor w, const int32_t *targets,
                              const struct classifier *c);
void reference_classifier_logits(struct tensor logits, struct tensor x, struct tensor w,
                                 struct tensor bias);

void reference_adamw_update(float *weights, bf16 *copy, float *moment1, float *moment2,
                            const float *gradient, int64_t count, const struct adamw *settings);
void reference_lamb_moments(double *sums, const float *weights, float *moment1, float *moment2,
                            const float *gradient, int64_t count, const struct adamw *settings);
void reference_lamb_apply(float *weights, bf16 *copy, const float *moment1, const float *moment2,
                          int64_t count, const struct adamw *settings);
void reference_weights_round(bf16 *copy, const float *weights, int64_t count,
                             const struct rounding *rounding);
double reference_sum_of_squares(const float *x, int64_t count);
double reference_sum_of_floats(const float *x, int64_t count);
void reference_convert(struct tensor to, struct tensor from);
