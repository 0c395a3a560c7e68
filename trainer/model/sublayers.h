/* The sub-layers of a block: what they have in common, and the functions that run a list of them.
 *
 * A kind of sub-layer is one file: attention.c, cross_attention.c, feed_forward.c. The file has the
 * parameters and their split over tensor-parallel ranks, the memory, and the forward and backward
 * pass, and ends with a struct sublayer_type. sublayers.c runs the list of a block with the norms
 * and residual sums between the sub-layers; layout.c appends the parameters of the list. linear.c
 * has the matrices that all kinds use.
 *
 * Errors    as in model_impl.h */
#pragma once

#include "trainer/model/attention_impl.h"
#include "trainer/model/cross_attention_impl.h"
#include "trainer/model/feed_forward_impl.h"
#include "trainer/model/model_impl.h"

/* The stream before a sub-layer and the norms around it: values that forward keeps for backward.
 * Statistics of a norm are f32 [n, 2]: mean and reciprocal deviation of each row. */
struct sublayer_activations {
    struct tensor stream; /* [n, C] residual stream at the input */
    struct tensor norm;   /* [n, C] norm of the stream, which the sub-layer reads; PLACEMENT_BRANCH:
                           * same memory as `stream` */
    struct tensor statistics; /* of norm */
    struct tensor output;     /* [n, C] input of the norm of the output, if there is one */
    struct tensor output_statistics;
};

/* Activations of one layer that forward keeps for backward. */
struct layer_activations {
    struct sublayer_activations sublayers[SUBLAYER_KINDS];
    struct attention_activations attention;
    struct cross_attention_activations cross_attention;
    struct feed_forward_activations feed_forward;
    struct tensor adapter_hidden; /* [N, rank x adapters] outputs of the adapters' A matrices */
};

/* The sizes on which the working memory depends, and the arena that provides it. */
struct arrangement {
    const struct model_config *config;
    const struct architecture *architecture;
    struct layer_dims local;
    int ranks;
    enum dtype dtype;
    int64_t rows;       /* largest N */
    int64_t local_rows; /* n: rows of the residual stream on the rank with the most rows */
    bool training;
    struct arena *arena;
};

/* The state of a backward pass. */
struct backward {
    struct model *m;
    const struct model_input *input;
    float *const *gradients;
    int64_t n; /* rows of the micro-batch */
};

/* A kind of sub-layer: y = W f(norm), where f is the interior and W the output projection.
 *
 * The functions arrange_* allocate tensors in the arena of the arrangement. Only the members
 * arrange_recomputed, arrange_gradients and recompute may be NULL. */
struct sublayer_type {
    enum model_role norm;        /* of the stream, before the sub-layer */
    enum model_role output_norm; /* PLACEMENT_BRANCH and _BOTH: of the output */
    enum model_role projection;  /* W */
    enum dropout_site dropout;   /* of the output */
    bool keeps_norm;             /* selective recompute keeps the output of the norm */

    /* Appends the parameters between the two norms to the current block of the layout. */
    void (*append_parameters)(struct layout *layout);

    /* Takes the activations of a layer, except those of arrange_recomputed. */
    status (*arrange_kept)(const struct arrangement *a, struct layer_activations *out);

    /* Takes the activations of a layer that selective recompute does not keep. */
    status (*arrange_recomputed)(const struct arrangement *a, struct layer_activations *out);

    /* Takes the memory of the gradients of activations, which all layers share. */
    status (*arrange_gradients)(const struct arrangement *a, struct activations *out);

    /* Computes *interior = f(norm), the input of the output projection. */
    status (*forward)(struct model *m, const struct model_input *input, int64_t layer,
                      struct tensor *interior);

    /* Computes the activations of arrange_recomputed again. */
    status (*recompute)(struct model *m, const struct model_input *input, int64_t layer);

    /* Computes the gradients from the gradient `delta` of y, this rank's rows [n, C]. needs_dx: the
     * gradient of the norm is then in `exchange`. */
    status (*backward)(struct backward *b, int64_t layer, bool needs_dx, struct tensor delta);
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

/* ---- sublayers.c ---- */

/* model_sublayer_type - return the functions of a kind of sub-layer. */
const struct sublayer_type *model_sublayer_type(enum sublayer_kind kind);

/* model_first_sublayer - return the activations of the first sub-layer of a layer. */
struct sublayer_activations *model_first_sublayer(const struct model *m, int64_t layer);

/* model_arrange_layer - take the activations of a layer. It shares the memory of the first layer of
 * its stack for all tensors that need not be kept for backward. The earlier elements of `layers`
 * are arranged already. */
status model_arrange_layer(const struct arrangement *a, struct layer_activations *layers,
                           int64_t layer);

/* model_arrange_gradients - take the memory of the gradients of the sub-layers. */
status model_arrange_gradients(const struct arrangement *a, struct activations *out);

/* model_run_layer - run a layer from its first norm to the first norm of the next layer, or to the
 * final norm of the stack. */
status model_run_layer(struct model *m, const struct model_input *input, int64_t layer);

/* model_layer_backward - run the backward pass of one layer, after which its gradients are final.
 * On entry, *delta is the gradient of the output of its last sub-layer. On return, it is the
 * gradient of the output of the layer below, unless the stream continues with the first norm of
 * the layer. */
status model_layer_backward(struct backward *b, int64_t layer, struct tensor *delta);

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

/* model_norm1_backward - run the backward pass of the first norm of a layer. The layer after the
 * last one stands for the norm at the end of the stack. *delta becomes the gradient of the value
 * that was added to the stream. */
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
