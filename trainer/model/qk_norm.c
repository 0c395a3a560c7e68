/* The query-key norm: an RMS norm of the queries and keys, before the rotation.
 *
 * With QK_NORM_HEADS, each head is normalized; all heads of the queries share one weight, and all
 * heads of the keys another. With QK_NORM_ROWS, all queries of a row are normalized together, and
 * so are all keys. A *part* is what one call of residual_norm_forward normalizes: a head, all
 * queries or all keys. It is a range of columns of `qkv`, which backward reads again; the output is
 * in `query_keys`.
 *
 * Tensor parallelism: each rank has some of the heads. With QK_NORM_HEADS, the gradients of the two
 * weights are summed over the ranks (sharing.c). With QK_NORM_ROWS, each rank has its columns of
 * the weights, and the sums of each row are added over the ranks: one all-reduce of [N, 2] in
 * forward and one in backward, column 0 of the queries and column 1 of the keys.
 *
 * Source    Henry et al. 2020, arXiv:2010.04245; with weights: Yang et al. 2025,
 *           arXiv:2505.09388 */
#include "base/number.h"
#include "trainer/model/attention_impl.h"
#include "trainer/model/layout_impl.h"
#include "trainer/model/sublayers.h"

/* Returns the number of columns that a norm of the queries or keys reads. */
static int64_t get_norm_width(const struct model_config *config, bool keys)
{
    int64_t heads = keys ? model_kv_heads(config) : config->heads;
    return model_head_width(config) * (model_has_joint_qk_norm(config) ? heads : 1);
}

void model_qk_norm_append(struct layout *layout)
{
    const struct architecture_names *names = layout->names;
    enum qk_norm kind = layout->architecture->attention.qk_norm;
    for (int keys = 0; keys < 2 && kind != QK_NORM_NONE; keys++) {
        layout_append_gain(layout, keys ? MODEL_KEY_NORM : MODEL_QUERY_NORM,
                           get_norm_width(layout->config, keys), kind == QK_NORM_ROWS,
                           keys ? names->key_norm : names->query_norm);
    }
}

status model_qk_norm_arrange(const struct arrangement *a, struct attention_activations *out)
{
    int64_t heads = a->local.heads + a->local.kv_heads, width = a->local.width + a->local.kv_width;
    if (a->architecture->attention.qk_norm == QK_NORM_NONE) {
        return STATUS_OK;
    }
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, width, &out->query_keys));
    return arena_take_tensor(a->arena, DTYPE_F32, a->rows, 2 * heads, &out->qk_statistics);
}

static bool has_heads(const struct model *m)
{
    return m->architecture->attention.qk_norm == QK_NORM_HEADS;
}

static int64_t count_parts(const struct model *m)
{
    return has_heads(m) ? m->local.heads + m->local.kv_heads : 2;
}

static struct tensor view_part(const struct model *m, struct tensor t, int64_t n, int64_t part)
{
    int64_t width = model_head_width(&m->config);
    t = tensor_rows(t, 0, n);
    if (has_heads(m)) {
        return tensor_columns(t, part * width, width);
    }
    return part == 0 ? model_queries(m, t) : model_keys(m, t);
}

static struct tensor view_statistics(const struct attention_activations *a, int64_t n, int64_t part)
{
    return tensor_columns(tensor_rows(a->qk_statistics, 0, n), 2 * part, 2);
}

/* Returns 0 for a part of the queries and 1 for one of the keys. */
static int get_kind(const struct model *m, int64_t part)
{
    return part < (has_heads(m) ? m->local.heads : 1) ? 0 : 1;
}

static struct param_index get_norm(const struct model *m, int64_t layer, int kind)
{
    return model_param_index(m, layer, kind == 0 ? MODEL_QUERY_NORM : MODEL_KEY_NORM);
}

/* Returns whether the columns of a part are on several ranks. */
static bool is_split(const struct model *m)
{
    return m->ranks > 1 && !has_heads(m);
}

static status run_split_forward(struct model *m, int64_t layer, int64_t n)
{
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    struct tensor sums = model_qk_norm_row_sums(m, n);
    for (int64_t part = 0; part < count_parts(m); part++) {
        TRY(split_norm_forward_sums(m->kernels, tensor_columns(sums, part, 1),
                                    view_part(m, a->qkv, n, part)));
    }
    TRY(model_qk_norm_reduce_rows(m, n));
    for (int64_t part = 0; part < count_parts(m); part++) {
        TRY(split_norm_forward(m->kernels, view_part(m, a->query_keys, n, part),
                               view_statistics(a, n, part), view_part(m, a->qkv, n, part),
                               tensor_columns(sums, part, 1),
                               model_vector(m, get_norm(m, layer, get_kind(m, part)).weight),
                               get_norm_width(&m->config, part > 0), m->config.norm_epsilon));
    }
    return STATUS_OK;
}

status model_qk_norm_forward(struct model *m, int64_t layer, int64_t n)
{
    if (is_split(m)) {
        return run_split_forward(m, layer, n);
    }
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    struct tensor none = tensor_absent();
    for (int64_t part = 0; part < count_parts(m); part++) {
        struct param_index norm = get_norm(m, layer, get_kind(m, part));
        TRY(residual_norm_forward(m->kernels, none, view_part(m, a->query_keys, n, part),
                                  view_statistics(a, n, part), view_part(m, a->qkv, n, part), none,
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
                                 : tensor_columns(unused, 0, m->parameters[norm.weight].columns);
}

static status run_split_backward(struct model *m, int64_t layer, int64_t n, float *const *gradients,
                                 struct tensor d_qkv)
{
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    struct tensor sums = model_qk_norm_row_sums(m, n);
    for (int64_t part = 0; part < count_parts(m); part++) {
        struct param_index norm = get_norm(m, layer, get_kind(m, part));
        TRY(split_norm_backward_sums(m->kernels, tensor_columns(sums, part, 1),
                                     get_gradient(m, norm, gradients), view_part(m, d_qkv, n, part),
                                     view_part(m, a->qkv, n, part), view_statistics(a, n, part),
                                     model_vector(m, norm.weight)));
    }
    TRY(model_qk_norm_reduce_rows(m, n));
    for (int64_t part = 0; part < count_parts(m); part++) {
        struct tensor d_part = view_part(m, d_qkv, n, part);
        TRY(split_norm_backward(m->kernels, d_part, d_part, view_part(m, a->qkv, n, part),
                                view_statistics(a, n, part), tensor_columns(sums, part, 1),
                                model_vector(m, get_norm(m, layer, get_kind(m, part)).weight),
                                get_norm_width(&m->config, part > 0)));
    }
    return STATUS_OK;
}

status model_qk_norm_backward(struct model *m, int64_t layer, int64_t n, float *const *gradients,
                              struct tensor d_qkv)
{
    if (is_split(m)) {
        return run_split_backward(m, layer, n, gradients, d_qkv);
    }
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    struct tensor weights[2], sums[2];
    for (int kind = 0; kind < 2; kind++) {
        sums[kind] = weights[kind] = get_gradient(m, get_norm(m, layer, kind), gradients);
    }
    TRY(model_qk_norm_reduce_begin(m, sums));
    for (int64_t part = 0; part < count_parts(m); part++) {
        int kind = get_kind(m, part);
        struct tensor d_part = view_part(m, d_qkv, n, part);
        TRY(residual_norm_backward(m->kernels, d_part, tensor_absent(), sums[kind], tensor_absent(),
                                   (struct bias_gradient){0}, d_part, view_part(m, a->qkv, n, part),
                                   view_statistics(a, n, part),
                                   model_vector(m, get_norm(m, layer, kind).weight), NORM_RMS,
                                   NORM_RESIDUAL_NONE, (struct dropout){0}));
    }
    return model_qk_norm_reduce_end(m, weights);
}

bool model_has_qk_norm(const struct model_config *config)
{
    const struct architecture a = architecture_compose(config);
    return a.attention.qk_norm != QK_NORM_NONE;
}

bool model_has_joint_qk_norm(const struct model_config *config)
{
    const struct architecture a = architecture_compose(config);
    return a.attention.qk_norm == QK_NORM_ROWS;
}

int64_t model_norm_width(const struct model_config *config)
{
    int64_t width = model_has_qk_norm(config) ? get_norm_width(config, false) : 0;
    return number_max(width, config->width);
}
