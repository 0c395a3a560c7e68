/* The sub-layers of a block: attention (attention.c) and the feed-forward network (feed_forward.c).
 * forward.c runs them with the norms and residual sums between them. linear.c has the matrices
 * that both use.
 *
 * Errors    as in model_impl.h */
#pragma once

#include "trainer/model/cache.h"
#include "trainer/model/model_impl.h"

/* The state of a backward pass. */
struct backward {
    struct model *m;
    const struct model_input *input;
    float *const *gradients;
    int64_t n; /* rows of the micro-batch */
};

/* model_view_rows - return the first n rows: the working memory that this micro-batch uses. */
static inline struct tensor model_view_rows(struct tensor t, int64_t n)
{
    return tensor_rows(t, 0, n);
}

/* model_view_columns - return the first n columns of a per-head statistic [H, rows]. The row stride
 * remains the stride of the largest micro-batch. */
static inline struct tensor model_view_columns(struct tensor t, int64_t n)
{
    return tensor_columns(t, 0, n);
}

/* model_view_local_rows - return this rank's rows of the stream, from the start of the tensor. */
static inline struct tensor model_view_local_rows(const struct model *m, struct tensor t, int64_t n)
{
    return tensor_rows(t, 0, model_local_rows(m, n).count);
}

/* model_get_recompute - return the recompute mode of a layer. Nothing overwrites the activations of
 * the last layer before backward reads them, so it needs no recompute. */
static inline enum recompute_mode model_get_recompute(const struct model *m, int64_t layer)
{
    return m->training && layer + 1 < m->config.layers ? m->config.recompute : RECOMPUTE_NONE;
}

/* model_needs_norm1_gradient - return whether norm1 of a layer, or any parameter before it, is
 * trained. */
static inline bool model_needs_norm1_gradient(const struct model *m, int64_t layer)
{
    struct param_index norm = model_param_index(m, layer, MODEL_NORM1);
    return layer > model_first_trained_layer(m->parameters, m->parameter_count) ||
           (norm.weight >= 0 && m->parameters[norm.weight].trained) ||
           (norm.bias >= 0 && m->parameters[norm.bias].trained);
}

/* model_sets_gradients - return whether a block sets the gradients of its matrices, instead of
 * adding to them: in the first micro-batch, unless layers share the block. */
static inline bool model_sets_gradients(const struct model *m, const struct model_input *input)
{
    return input->first_micro_batch && !m->architecture->shared_layers;
}

/* ---- forward.c: additions and norms ---- */

/* model_local_dropout - describe the dropout of an addition to this rank's rows; layer -1 is the
 * embedding. */
struct dropout model_local_dropout(const struct model *m, const struct model_input *input,
                                   int64_t layer, enum dropout_site site);

/* model_add_and_norm - compute stream = x + drop(delta) and its norm. PARAM_NONE: there is no norm.
 *
 * Shapes    as residual_norm_forward */
status model_add_and_norm(struct model *m, struct tensor stream, struct tensor norm,
                          struct tensor statistics, struct tensor x, struct tensor delta,
                          struct param_index index, struct dropout dropout);

/* model_run_norm_backward - run the backward pass of a norm with its input z. The tensors have this
 * rank's rows.
 *
 * Shapes    as residual_norm_backward */
status model_run_norm_backward(struct backward *b, struct param_index index, struct tensor dz,
                               struct tensor ddelta, struct bias_gradient dbias, struct tensor dy,
                               struct tensor z, struct tensor statistics,
                               enum norm_residual residual, struct dropout dropout);

/* model_norm1_backward - run the backward pass of norm1 of a layer, or of the norm at the end of
 * the stack for the layer after its last one. *delta becomes the gradient of the value that was
 * added to the stream. */
status model_norm1_backward(struct backward *b, int64_t layer, enum norm_residual residual,
                            struct tensor *delta);

/* ---- embedding.c ---- */

/* model_drop_first_norm - apply the embedding's dropout after its norm. Without a norm, the stream
 * is copied. */
status model_drop_first_norm(struct model *m, const struct model_input *input);

/* model_project_embedding - map a factorized embedding to norm1 of the first block. */
status model_project_embedding(struct model *m, const struct model_input *input);

/* model_embedding_backward - compute the gradients of the parameters before the blocks. *delta is
 * overwritten.
 *
 * Order     after the backward pass of the first block; collective over the tensor-parallel
 *           group */
status model_embedding_backward(struct backward *b, struct tensor *delta);

/* ---- attention.c ---- */

/* model_attention_forward - run attention from norm1 to its output in `exchange`. */
status model_attention_forward(struct model *m, const struct model_input *input, int64_t layer);

/* model_attention_backward - compute the gradients of attention from the gradient of its output.
 * The gradient of norm1's output is then in `exchange`, if it is needed.
 *
 * Shapes    delta [N, C], this rank's rows */
status model_attention_backward(struct backward *b, int64_t layer, struct tensor delta);

/* model_view_d_attended - return memory for the gradient of the attention's output [N, H D / t]:
 * `exchange`, or d_inner if that is too narrow. */
struct tensor model_view_d_attended(const struct model *m, int64_t n);

/* ---- cross_attention.c ---- */

/* model_cross_attention_forward - run cross-attention from between_norm and the output of the
 * encoder to its output in `exchange`. */
status model_cross_attention_forward(struct model *m, const struct model_input *input,
                                     int64_t layer);

/* model_project_source - compute the keys and values of cross-attention from the output of the
 * encoder. `source` is the input of the encoder.
 *
 * Shapes    key_value [S, 2 W / t] */
status model_project_source(struct model *m, const struct model_input *source, int64_t layer,
                            struct tensor key_value);

/* model_attend_source - compute cross-attention from its queries, keys and values.
 *
 * Shapes    attended, query [N, W / t];  lse f32 [H / t, N] or absent;  key_value [S, 2 W / t] */
status model_attend_source(struct model *m, const struct model_input *input, int64_t layer,
                           struct tensor attended, struct tensor lse, struct tensor query,
                           struct tensor key_value);

/* model_cache_attend_source - compute cross-attention of the new tokens of all sequences from the
 * stored keys and values of their sources (cache.c).
 *
 * Shapes    as model_attend_source */
status model_cache_attend_source(struct model *m, const struct model_input *input, int64_t layer,
                                 struct tensor attended, struct tensor query);

/* model_cross_attention_backward - compute the gradients of cross-attention from the gradient of
 * its output. This rank's part of the gradient of the encoder's output is added to d_encoder. The
 * gradient of between_norm is then in `exchange`.
 *
 * Shapes    delta [N, C], this rank's rows */
status model_cross_attention_backward(struct backward *b, int64_t layer, struct tensor delta);

/* ---- feed_forward.c ---- */

/* model_feed_forward_inner - run the first half of the feed-forward network, up to the activation
 * and the dropout of the inner features. If backward recomputes the activation, its input is
 * kept. */
status model_feed_forward_inner(struct model *m, const struct model_input *input, int64_t layer);

/* model_recompute_inner - compute the inner features again from the GEMM's output in
 * `saved_for_backward`. Then replace this output by the value that the backward pass of the
 * activation reads. */
status model_recompute_inner(struct model *m, const struct model_input *input, int64_t layer);

/* model_feed_forward_backward - compute the gradients of the feed-forward network from the gradient
 * of its output. The gradient of norm2's output is then in `exchange`.
 *
 * Shapes    delta [N, C], this rank's rows */
status model_feed_forward_backward(struct backward *b, int64_t layer, struct tensor delta);

/* ---- linear.c ---- */

/* model_early_bias_gradient - return the bias gradient of a role for an operation that computes dy.
 *
 * dy is the gradient of the output of the role's matrix. The operation also sums the rows of dy.
 * For an output projection, the operation is the backward pass of the norm that follows. For the
 * first matrix of the feed-forward network, it is the backward GEMM of the second matrix.
 *
 * Returns   absent sums if the bias is frozen, or if neither operation computes all rows of dy. The
 *           gradient of a trained bias is then computed together with the gradient of the matrix */
struct bias_gradient model_early_bias_gradient(const struct backward *b, int64_t layer,
                                               enum model_role role);

/* model_project_output - compute y = x w^T + b into `exchange`, reduced over the ranks' columns of
 * x and w. Rank 0 adds the bias.
 *
 * Shapes    x [N, K / t] */
status model_project_output(struct model *m, const struct model_input *input, int64_t layer,
                            enum model_role role, struct tensor x);

/* model_project_backward - compute the gradients of an output projection. The gradients of its
 * weights come from dy and x. dx is computed for this rank's columns of x, before the activation
 * that made x.
 *
 * Shapes    dy [N, C];  x, dx [N, K / t];  saved as in linear_backward_input */
status model_project_backward(struct backward *b, int64_t layer, enum model_role role,
                              struct tensor dx, struct tensor dy, struct tensor x,
                              enum activation act, struct tensor saved);

/* model_gathered_matrix_backward - compute the gradients of a matrix. Each rank has all rows of its
 * input x. dx is this rank's part of the sum over the ranks.
 *
 * Shapes    dy [N, M / t];  dx, x [N, C] */
status model_gathered_matrix_backward(struct backward *b, int64_t layer, enum model_role role,
                                      struct tensor dx, struct tensor dy, struct tensor x);

/* model_input_matrix_backward - compute the gradients of a matrix that reads the stream.
 *
 * needs_dx: also compute the gradient of the norm's output x into `exchange`. Its reduction over
 * the ranks overlaps with the GEMM for the weight gradient.
 *
 * Shapes    dy [N, M / t];  x [N, C], this rank's rows */
status model_input_matrix_backward(struct backward *b, int64_t layer, enum model_role role,
                                   bool needs_dx, struct tensor dy, struct tensor x);
