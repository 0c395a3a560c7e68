/* Cross-attention, a sub-layer of the decoder of an encoder-decoder: the rows of a target attend to
 * all rows of its source. x [N, C] is the norm of the stream, e [S, C] the output of the encoder:
 *
 *   q    = x Wq^T + a                   [N, H D]
 *   k, v = e Wkv^T + b                  [S, H D], [S, H D]
 *   y    = softmax(s q k^T) v Wo^T + c  [N, C]
 *
 * Parameters  Wq [H D, C] and a; the matrices of keys and values, contiguous in memory as
 *             Wkv [2 H D, C], and b; Wo [C, H D] and c
 * Split       a tensor-parallel rank has H/t heads: rows of Wq, Wkv, a and b, columns of Wo. Rank 0
 *             adds c. A rank adds the gradients of the encoder's output that come from its heads to
 *             d_encoder; model_backward reduces their sum after the last layer
 * Memory      struct cross_attention_activations; backward uses the memory of d_qkv
 * Generation  the keys and values of a source are computed once (cache.c) */
#include "trainer/model/cross_attention_impl.h"

#include "trainer/model/cache_impl.h"
#include "trainer/model/layout_impl.h"
#include "trainer/model/sublayers.h"

/* ---- parameters ---- */

static void append_parameters(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct architecture_names *names = layout->names;
    int64_t width = model_attention_width(layout->config);
    const struct input_matrix query[] = {{names->cross_query, width, model_query_factor(layout)}};
    const struct input_matrix key_value[] = {{names->cross_key, width, 1},
                                             {names->cross_value, width, 1}};
    layout_append_inputs(layout, MODEL_CROSS_QUERY, NULL, query, 1, a->attention.qkv_bias);
    layout_append_inputs(layout, MODEL_CROSS_KEY_VALUE, NULL, key_value, 2, a->attention.qkv_bias);
    layout_append_projection(layout, MODEL_CROSS_PROJECTION, width, a->attention.projection_bias,
                             names->cross_projection);
}

/* ---- memory ---- */

static status arrange_kept(const struct arrangement *a, struct layer_activations *out)
{
    int64_t width = a->local.width;
    struct cross_attention_activations *s = &out->cross_attention;
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, width, &s->query));
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, 2 * width, &s->key_value));
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, width, &s->attended));
    s->lse = tensor_absent();
    return a->training ? arena_take_tensor(a->arena, DTYPE_F32, a->local.heads, a->rows, &s->lse)
                       : STATUS_OK;
}

/* ---- forward ---- */

static struct tensor view_norm(const struct model *m, int64_t layer, int64_t n)
{
    const struct layer_activations *a = &m->activations.layers[layer];
    return model_view_local_rows(m, a->sublayers[SUBLAYER_CROSS_ATTENTION].norm, n);
}

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
    a.dropout = model_dropout(m, input, layer, DROPOUT_CROSS_ATTENTION);
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

static status attend_rows(struct model *m, const struct model_input *input, int64_t layer,
                          struct tensor attended, struct tensor lse, struct tensor query,
                          struct tensor key_value)
{
    struct attention attention = describe_attention(m, input, layer);
    TRY(attention_forward(m->kernels, attended, lse, query, view_keys(m, key_value),
                          view_values(m, key_value), &attention));
    return input->attention_hook == NULL
               ? STATUS_OK
               : input->attention_hook(input->user, layer, true, &attention, query,
                                       view_keys(m, key_value));
}

/* Computes the attention of the new rows of all sequences to the stored keys and values of their
 * sources. */
static status attend_cached(struct model *m, const struct model_cache *cache, int64_t layer,
                            struct tensor attended, struct tensor query)
{
    for (int64_t i = 0, row = 0; i < cache->sequences; row += cache->counts[i], i++) {
        int64_t count = cache->counts[i];
        const int32_t *bounds = model_cache_bounds(cache, i);
        struct tensor key_value = model_cache_view_source(cache, layer, i);
        const struct model_input sequence = {
            .segments = 1,
            .cu_rows = bounds + BOUNDS_QUERIES,
            .longest = count,
            .source = {.cu_rows = bounds + BOUNDS_SOURCE, .longest = key_value.rows}};
        if (count > 0) {
            TRY(attend_rows(m, &sequence, layer, tensor_rows(attended, row, count), tensor_absent(),
                            tensor_rows(query, row, count), key_value));
        }
    }
    return STATUS_OK;
}

static status run_forward(struct model *m, const struct model_input *input, int64_t layer,
                          struct tensor *interior)
{
    const struct cross_attention_activations *a = &m->activations.layers[layer].cross_attention;
    int64_t n = input->rows;
    struct tensor query = model_view_rows(a->query, n), norm;
    *interior = model_view_rows(a->attended, n);
    TRY(model_all_gather(m, view_norm(m, layer, n), n, &norm));
    TRY(project_rows(m, input, layer, MODEL_CROSS_QUERY, query, norm));
    if (input->cache != NULL) {
        return attend_cached(m, input->cache, layer, *interior, query);
    }
    const struct model_input source = model_source_input(input);
    struct tensor key_value = model_view_rows(a->key_value, source.rows);
    TRY(model_project_source(m, &source, layer, key_value));
    return attend_rows(m, input, layer, *interior, model_view_columns(a->lse, n), query, key_value);
}

/* ---- backward ---- */

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

static status run_backward(struct backward *b, int64_t layer, bool needs_dx, struct tensor delta)
{
    struct model *m = b->m;
    const struct cross_attention_activations *a = &m->activations.layers[layer].cross_attention;
    int64_t n = b->n, sources = b->input->source.rows;
    struct tensor key_value = model_view_rows(a->key_value, sources),
                  attended = model_view_rows(a->attended, n), d_query, d_key_value, dy;
    struct tensor d_attended = model_view_d_attended(m, n);
    struct attention attention = describe_attention(m, b->input, layer);
    view_gradients(m, n, sources, &d_query, &d_key_value);
    TRY(model_all_gather(m, delta, n, &dy));
    TRY(model_project_backward(b, layer, MODEL_CROSS_PROJECTION, d_attended, dy, attended,
                               ACTIVATION_NONE, tensor_absent()));
    TRY(attention_backward(m->kernels, d_query, view_keys(m, d_key_value),
                           view_values(m, d_key_value), d_attended, model_view_rows(a->query, n),
                           view_keys(m, key_value), view_values(m, key_value), attended,
                           model_view_columns(a->lse, n), &attention));
    TRY(key_value_backward(b, layer, d_key_value));
    return model_input_matrix_backward(b, layer, MODEL_CROSS_QUERY, needs_dx, d_query,
                                       view_norm(m, layer, n));
}

const struct sublayer_type model_cross_attention = {
    .norm = MODEL_CROSS_NORM,
    .output_norm = MODEL_CROSS_OUTPUT_NORM,
    .projection = MODEL_CROSS_PROJECTION,
    .dropout = DROPOUT_CROSS_PROJECTION,
    .keeps_norm = true,
    .append_parameters = append_parameters,
    .arrange_kept = arrange_kept,
    .forward = run_forward,
    .backward = run_backward,
};
