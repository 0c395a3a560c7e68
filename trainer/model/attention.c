/* Self-attention: the matrix of queries, keys and values, rotary positions, the norms of queries
 * and keys (qk_norm.c), attention over the segments, and the output projection.
 *
 * A tensor-parallel rank has some of the heads: rows of the matrix of queries, keys and values, and
 * columns of the output projection. */
#include "trainer/model/sublayers.h"

/* Applies rotary positions to queries and keys, which are adjacent columns. inverse: rotate back,
 * for the backward pass. */
static status apply_rope(struct model *m, const struct model_input *input, int64_t layer,
                         struct tensor qkv, bool inverse)
{
    const struct activations *a = &m->activations;
    struct tensor queries_keys = tensor_columns(qkv, 0, m->local.width + m->local.kv_width);
    bool local = a->rope_local_table.data != NULL && model_layer_is_local(&m->config, layer);
    return model_layer_has_rope(&m->config, layer)
               ? rotary_apply(m->kernels, queries_keys, local ? a->rope_local_table : a->rope_table,
                              input->positions, model_head_width(&m->config), inverse)
               : STATUS_OK;
}

status model_project_qkv(struct model *m, const struct model_input *input, int64_t layer)
{
    int64_t n = input->rows;
    struct layer_activations *a = &m->activations.layers[layer];
    struct param_index index = model_param_index(m, layer, MODEL_QKV);
    struct tensor norm, qkv = model_view_rows(a->qkv, n);
    TRY(model_all_gather(m, model_view_local_rows(m, a->norm1, n), n, &norm));
    TRY(model_linear_forward(m, input, layer, MODEL_QKV, qkv, tensor_absent(), norm,
                             model_bias(m, index.bias), ACTIVATION_NONE));
    TRY(model_adapters_forward(m, input, layer, index, qkv, norm));
    if (m->architecture->attention.qk_norm) {
        TRY(model_qk_norm_forward(m, layer, n));
    }
    return apply_rope(m, input, layer, model_view_rows(model_query_keys(m, a), n), false);
}

status model_project_attended(struct model *m, const struct model_input *input, int64_t layer)
{
    return model_project_output(
        m, input, layer, MODEL_PROJECTION,
        model_view_rows(m->activations.layers[layer].attended, input->rows));
}

status model_attention_forward(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor qkv = model_view_rows(a->qkv, n), qk = model_view_rows(model_query_keys(m, a), n);
    struct attention attention = model_attention(m, input, layer);
    TRY(model_project_qkv(m, input, layer));
    TRY(attention_forward(m->kernels, model_view_rows(a->attended, n),
                          model_view_columns(a->lse, n), model_queries(m, qk), model_keys(m, qk),
                          model_values(m, qkv), &attention));
    if (input->attention_hook != NULL) {
        TRY(input->attention_hook(input->user, layer, false, &attention, model_queries(m, qk),
                                  model_keys(m, qk)));
    }
    return model_project_attended(m, input, layer);
}

struct tensor model_view_d_attended(const struct model *m, int64_t n)
{
    struct tensor exchange = m->activations.exchange;
    bool fits = m->local.width <= m->config.width;
    return tensor_view(fits ? exchange.data : m->activations.d_inner.data, exchange.dtype, n,
                       m->local.width);
}

status model_attention_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor qk = model_view_rows(model_query_keys(m, a), b->n);
    struct tensor qkv = model_view_rows(a->qkv, b->n),
                  d_qkv = model_view_rows(m->activations.d_qkv, b->n);
    struct tensor d_attended = model_view_d_attended(m, b->n);
    struct attention attention = model_attention(m, b->input, layer);
    attention.bias.gradient =
        model_gradient(m, model_position_bias_index(m, b->input).weight, b->gradients);
    struct tensor dy;
    TRY(model_all_gather(m, delta, b->n, &dy));
    TRY(model_project_backward(b, layer, MODEL_PROJECTION, d_attended, dy,
                               model_view_rows(a->attended, b->n), ACTIVATION_NONE,
                               tensor_absent()));
    TRY(attention_backward(
        m->kernels, model_queries(m, d_qkv), model_keys(m, d_qkv), model_values(m, d_qkv),
        d_attended, model_queries(m, qk), model_keys(m, qk), model_values(m, qkv),
        model_view_rows(a->attended, b->n), model_view_columns(a->lse, b->n), &attention));
    TRY(apply_rope(m, b->input, layer, d_qkv, true));
    if (m->architecture->attention.qk_norm) {
        TRY(model_qk_norm_backward(m, layer, b->n, b->gradients, d_qkv));
    }
    return model_input_matrix_backward(b, layer, MODEL_QKV, model_needs_norm1_gradient(m, layer),
                                       d_qkv, model_view_local_rows(m, a->norm1, b->n));
}

int64_t model_kv_heads(const struct model_config *config)
{
    return config->kv_heads > 0 ? config->kv_heads : config->heads;
}

int64_t model_head_width(const struct model_config *config)
{
    return config->head_width > 0 ? config->head_width : config->width / config->heads;
}

int64_t model_attention_width(const struct model_config *config)
{
    return config->heads * model_head_width(config);
}

bool model_layer_is_local(const struct model_config *config, int64_t layer)
{
    const struct model_layer_types *types = &config->layer_types;
    return types->given && layer < 64 * MODEL_LAYER_WORDS &&
           (types->local[layer / 64] >> layer % 64 & 1) != 0;
}

void model_set_layer_type(struct model_config *config, int64_t layer, bool is_local)
{
    uint64_t bit = (uint64_t)1 << layer % 64, *word = &config->layer_types.local[layer / 64];
    config->layer_types.given = true;
    *word = is_local ? *word | bit : *word & ~bit;
}

int64_t model_layer_window(const struct model_config *config, int64_t layer)
{
    bool full = config->layer_types.given && !model_layer_is_local(config, layer);
    return full ? 0 : config->window;
}
