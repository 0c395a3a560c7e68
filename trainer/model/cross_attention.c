/* Cross-attention: the rows of a target attend to all rows of its source.
 *
 * The queries are a matrix of the stream, the keys and values one of the encoder's output. A
 * tensor-parallel rank has some heads of each. It adds the gradients of the encoder's output that
 * come from its heads; model_backward reduces their sum after the last layer. */
#include "trainer/model/cache.h"
#include "trainer/model/sublayers.h"

/* Describes the attention of the targets to the sources. */
static struct attention describe_attention(const struct model *m, const struct model_input *input,
                                           int64_t layer)
{
    struct attention a = model_attention(m, input, layer);
    a.causal = false;
    a.window = 0;
    a.bias = (struct attention_bias){0};
    a.cu_k = input->source.cu_rows;
    a.longest_k = input->source.longest;
    a.dropout = model_dropout(m, input, model_cross_site(m, layer), DROPOUT_ATTENTION);
    return a;
}

static struct tensor view_keys(const struct model *m, struct tensor key_value)
{
    return tensor_columns(key_value, 0, m->local.width);
}

static struct tensor view_values(const struct model *m, struct tensor key_value)
{
    return tensor_columns(key_value, m->local.width, m->local.width);
}

static status project_rows(struct model *m, const struct model_input *input, int64_t layer,
                           enum model_role role, struct tensor y, struct tensor x)
{
    struct param_index index = model_param_index(m, layer, role);
    TRY(model_linear_forward(m, input, layer, role, y, tensor_absent(), x,
                             model_bias(m, index.bias), ACTIVATION_NONE));
    return model_adapters_forward(m, input, layer, index, y, x);
}

status model_project_source(struct model *m, const struct model_input *source, int64_t layer,
                            struct tensor key_value)
{
    return project_rows(m, source, layer, MODEL_CROSS_KEY_VALUE, key_value,
                        model_view_rows(m->activations.encoder_output, key_value.rows));
}

status model_attend_source(struct model *m, const struct model_input *input, int64_t layer,
                           struct tensor attended, struct tensor lse, struct tensor query,
                           struct tensor key_value)
{
    struct attention attention = describe_attention(m, input, layer);
    return attention_forward(m->kernels, attended, lse, query, view_keys(m, key_value),
                             view_values(m, key_value), &attention);
}

status model_cross_attention_forward(struct model *m, const struct model_input *input,
                                     int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor query = model_view_rows(a->cross_query, n),
                  key_value = model_view_rows(a->cross_key_value, input->source.rows),
                  attended = model_view_rows(a->cross_attended, n), norm;
    TRY(model_all_gather(m, model_view_local_rows(m, a->between_norm, n), n, &norm));
    TRY(project_rows(m, input, layer, MODEL_CROSS_QUERY, query, norm));
    if (input->cache != NULL) {
        TRY(model_cache_attend_source(m, input, layer, attended, query));
    } else {
        const struct model_input source = model_source_input(input);
        TRY(model_project_source(m, &source, layer, key_value));
        TRY(model_attend_source(m, input, layer, attended, model_view_columns(a->cross_lse, n),
                                query, key_value));
    }
    if (input->attention_hook != NULL) {
        struct attention attention = describe_attention(m, input, layer);
        TRY(input->attention_hook(input->user, layer, true, &attention, query,
                                  view_keys(m, key_value)));
    }
    return model_project_output(m, input, layer, MODEL_CROSS_PROJECTION, attended);
}

/* Returns the memory of the gradients of queries [N, W] and of keys and values [S, 2 W]: the two
 * parts of d_qkv. */
static void view_gradients(const struct model *m, int64_t n, int64_t sources, struct tensor *query,
                           struct tensor *key_value)
{
    struct tensor d_qkv = m->activations.d_qkv;
    size_t offset = (size_t)(m->rows * m->local.width) * dtype_bytes(d_qkv.dtype);
    *query = tensor_view(d_qkv.data, d_qkv.dtype, n, m->local.width);
    *key_value = tensor_view((char *)d_qkv.data + offset, d_qkv.dtype, sources, 2 * m->local.width);
}

/* Computes the gradients of the matrix of keys and values, and adds this rank's part of the
 * gradient of the encoder's output. */
static status key_value_backward(struct backward *b, int64_t layer, struct tensor d_key_value)
{
    struct model *m = b->m;
    struct model_input source = model_source_input(b->input);
    struct backward of_sources = {m, &source, b->gradients, source.rows};
    struct tensor sum = model_view_rows(m->activations.d_encoder, source.rows),
                  part = model_view_rows(m->activations.exchange, source.rows);
    struct tensor none = tensor_absent();
    TRY(model_gathered_matrix_backward(
        &of_sources, layer, MODEL_CROSS_KEY_VALUE, part, d_key_value,
        model_view_rows(m->activations.encoder_output, source.rows)));
    return residual_norm_forward(m->kernels, sum, none, none, sum, part, none, none,
                                 m->architecture->norm.kind, m->config.norm_epsilon,
                                 (struct dropout){0});
}

status model_cross_attention_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = b->n, sources = b->input->source.rows;
    struct tensor key_value = model_view_rows(a->cross_key_value, sources),
                  attended = model_view_rows(a->cross_attended, n), d_query, d_key_value, dy;
    struct tensor d_attended = model_view_d_attended(m, n);
    struct attention attention = describe_attention(m, b->input, layer);
    view_gradients(m, n, sources, &d_query, &d_key_value);
    TRY(model_all_gather(m, delta, n, &dy));
    TRY(model_project_backward(b, layer, MODEL_CROSS_PROJECTION, d_attended, dy, attended,
                               ACTIVATION_NONE, tensor_absent()));
    TRY(attention_backward(
        m->kernels, d_query, view_keys(m, d_key_value), view_values(m, d_key_value), d_attended,
        model_view_rows(a->cross_query, n), view_keys(m, key_value), view_values(m, key_value),
        attended, model_view_columns(a->cross_lse, n), &attention));
    TRY(key_value_backward(b, layer, d_key_value));
    return model_input_matrix_backward(b, layer, MODEL_CROSS_QUERY, true, d_query,
                                       model_view_local_rows(m, a->between_norm, n));
}
