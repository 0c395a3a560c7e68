/* Self-attention (attention.c) and its query-key norm (qk_norm.c): the activations of a layer, and
 * the functions that cross-attention shares. */
#pragma once

#include "trainer/model/model_impl.h"

struct arrangement;
struct layout;
struct sublayer_type;

extern const struct sublayer_type model_self_attention;

/* Activations of self-attention that forward keeps for backward. */
struct attention_activations {
    struct tensor qkv;           /* [N, (H + 2 G) D / t] */
    struct tensor query_keys;    /* [N, (H + G) D / t] after QK norms and rotation; absent without
                                  * QK norms, because qkv then contains them */
    struct tensor qk_statistics; /* f32 [N, 2 (H + G) / t] of the QK norms */
    struct tensor lse;           /* f32 [H/t, N]; absent without training */
    struct tensor attended;      /* [N, H D / t] output of attention */
};

/* model_query_factor - return the factor of the initial deviation of a query matrix: 1 / sqrt(D) if
 * the attention scores are not divided by sqrt(D), else 1. */
float model_query_factor(const struct layout *layout);

/* model_attention - describe the self-attention over the segments of a micro-batch. */
struct attention model_attention(const struct model *m, const struct model_input *input,
                                 int64_t layer);

/* model_queries - return the queries in a fused [N, (H + 2 G) D / t]. */
static inline struct tensor model_queries(const struct model *m, struct tensor qkv)
{
    return tensor_columns(qkv, 0, m->local.width);
}

/* model_keys - return the keys in a fused matrix, as in model_queries. */
static inline struct tensor model_keys(const struct model *m, struct tensor qkv)
{
    return tensor_columns(qkv, m->local.width, m->local.kv_width);
}

/* model_values - return the values in a fused matrix, as in model_queries. */
static inline struct tensor model_values(const struct model *m, struct tensor qkv)
{
    return tensor_columns(qkv, m->local.width + m->local.kv_width, m->local.kv_width);
}

/* model_view_d_attended - return memory for the gradient of the attention's output [N, H D / t]:
 * `exchange`, or d_inner if that is too narrow. */
struct tensor model_view_d_attended(const struct model *m, int64_t n);

/* ---- qk_norm.c ---- */

/* model_qk_norm_append - append the weights of the norms of the current block, if it has them. */
void model_qk_norm_append(struct layout *layout);

/* model_qk_norm_arrange - take query_keys and qk_statistics, if the model has these norms. */
status model_qk_norm_arrange(const struct arrangement *a, struct attention_activations *out);

/* model_qk_norm_forward - normalize the queries and keys of a layer.
 *
 * Shapes    reads the first n rows of qkv; writes the same rows of query_keys and qk_statistics
 * Order     collective over the tensor-parallel group with QK_NORM_ROWS */
status model_qk_norm_forward(struct model *m, int64_t layer, int64_t n);

/* model_qk_norm_backward - compute the gradients of the norms' weights and inputs.
 *
 * Shapes    d_qkv [N, (H + 2 G) D / t]
 * Memory    replaces the gradients of queries and keys in d_qkv
 * Order     collective over the tensor-parallel group */
status model_qk_norm_backward(struct model *m, int64_t layer, int64_t n, float *const *gradients,
                              struct tensor d_qkv);
