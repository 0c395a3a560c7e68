/* The query-key norm: an RMS norm of each head of the queries and keys, before the rotation.
 *
 * All heads of the queries share one weight, and so do those of the keys. A head is a view of
 * D columns. One call of residual_norm_forward normalizes one head. The input stays in `qkv` for
 * backward; the output is `query_keys`. Tensor parallelism: each rank has some of the heads, so the
 * gradients of the two weights are summed over the ranks (sharing.c).
 *
 * Source    Henry et al. 2020, arXiv:2010.04245; per head with weights: Yang et al. 2025,
 *           arXiv:2505.09388 */
#include "trainer/model/model_impl.h"

static int64_t count_heads(const struct model *m)
{
    return m->local.heads + m->local.kv_heads;
}

static struct tensor view_head(const struct model *m, struct tensor t, int64_t n, int64_t head)
{
    int64_t width = model_head_width(&m->config);
    return tensor_columns(tensor_rows(t, 0, n), head * width, width);
}

static struct tensor view_statistics(const struct layer_activations *a, int64_t n, int64_t head)
{
    return tensor_columns(tensor_rows(a->qk_statistics, 0, n), 2 * head, 2);
}

/* Returns 0 for a head of the queries and 1 for one of the keys. */
static int get_kind(const struct model *m, int64_t head)
{
    return head < m->local.heads ? 0 : 1;
}

static struct param_index get_norm(const struct model *m, int64_t layer, int kind)
{
    return model_param_index(m, layer, kind == 0 ? MODEL_QUERY_NORM : MODEL_KEY_NORM);
}

status model_qk_norm_forward(struct model *m, int64_t layer, int64_t n)
{
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor none = tensor_absent();
    for (int64_t head = 0; head < count_heads(m); head++) {
        struct param_index norm = get_norm(m, layer, get_kind(m, head));
        TRY(residual_norm_forward(m->kernels, none, view_head(m, a->query_keys, n, head),
                                  view_statistics(a, n, head), view_head(m, a->qkv, n, head), none,
                                  model_vector(m, norm.weight), none, NORM_RMS,
                                  m->config.norm_epsilon, (struct dropout){0}));
    }
    return STATUS_OK;
}

/* Returns the gradient of a norm's weight, or unused memory if it is frozen. */
static struct tensor get_gradient(const struct model *m, struct param_index norm,
                                  float *const *gradients)
{
    struct tensor gradient = model_gradient(m, norm.weight, gradients);
    struct tensor unused = tensor_rows(m->activations.frozen_norm_gradients, 0, 1);
    return gradient.data != NULL ? gradient
                                 : tensor_columns(unused, 0, model_head_width(&m->config));
}

status model_qk_norm_backward(struct model *m, int64_t layer, int64_t n, float *const *gradients,
                              struct tensor d_qkv)
{
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor weights[2], sums[2];
    for (int kind = 0; kind < 2; kind++) {
        sums[kind] = weights[kind] = get_gradient(m, get_norm(m, layer, kind), gradients);
    }
    TRY(model_qk_norm_reduce_begin(m, sums));
    for (int64_t head = 0; head < count_heads(m); head++) {
        int kind = get_kind(m, head);
        struct tensor d_head = view_head(m, d_qkv, n, head);
        TRY(residual_norm_backward(m->kernels, d_head, tensor_absent(), sums[kind], tensor_absent(),
                                   d_head, view_head(m, a->qkv, n, head),
                                   view_statistics(a, n, head),
                                   model_vector(m, get_norm(m, layer, kind).weight), NORM_RMS,
                                   NORM_RESIDUAL_NONE, (struct dropout){0}));
    }
    return model_qk_norm_reduce_end(m, weights);
}
