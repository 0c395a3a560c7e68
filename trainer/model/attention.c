/* Self-attention, a sub-layer of every block. x [N, C] is the norm of the stream:
 *
 *   q, k, v   = x Wqkv^T + b                      [N, H D], [N, G D], [N, G D]
 *   q, k      = rotate(norm(q)), rotate(norm(k))  norms: qk_norm.c; rotation in some layers
 *   o         = softmax(s q k^T + bias) v         [N, H D], for each head
 *   y         = o Wo^T + c                        [N, C]
 *
 * A row attends to the rows of its segment: to all of them, or to itself and earlier ones (causal),
 * and within a window in some layers. H / G heads of the queries share a head of the keys and
 * values. s is 1 / sqrt(D) or a setting; a relative position bias and a soft-cap are optional.
 *
 * Parameters  Wqkv [(H + 2 G) D, C] and b: one matrix of the file, or three that are contiguous in
 *             memory; the weights of the norms; Wo [C, H D] and c
 * Split       a tensor-parallel rank has H/t heads of the queries and G/t of the keys and values:
 *             rows of Wqkv and b, columns of Wo. Rank 0 adds c
 * Memory      struct attention_activations; backward needs d_qkv, which all layers share
 * Generation  new rows attend to the cached keys and values of their sequence (cache.c)
 *
 * Source    Vaswani et al. 2017, arXiv:1706.03762; groups: Ainslie et al. 2023, arXiv:2305.13245 */
#include "trainer/model/attention_impl.h"

#include <math.h>

#include "trainer/model/cache_impl.h"
#include "trainer/model/layout_impl.h"
#include "trainer/model/sublayers.h"

/* ---- parameters ---- */

float model_query_factor(const struct layout *layout)
{
    return layout->architecture->attention.unscaled
               ? 1.0f / sqrtf((float)model_head_width(layout->config))
               : 1;
}

static void append_parameters(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct model_config *c = layout->config;
    const struct architecture_names *names = layout->names;
    int64_t width = model_attention_width(c), kv_width = model_head_width(c) * model_kv_heads(c);
    const struct input_matrix matrices[] = {{names->query, width, model_query_factor(layout)},
                                            {names->key, kv_width, 1},
                                            {names->value, kv_width, 1}};
    layout_append_inputs(layout, MODEL_QKV, names->qkv, matrices, 3,
                         a->attention.qkv_bias || c->qkv_bias || c->attention_bias);
    model_qk_norm_append(layout);
    layout_append_projection(layout, MODEL_PROJECTION, width,
                             a->attention.projection_bias || c->attention_bias, names->projection);
}

/* ---- memory ---- */

static status arrange_kept(const struct arrangement *a, struct layer_activations *out)
{
    const struct layer_dims *local = &a->local;
    struct attention_activations *s = &out->attention;
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, local->width + 2 * local->kv_width,
                          &s->qkv));
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, local->width, &s->attended));
    TRY(model_qk_norm_arrange(a, s));
    s->lse = tensor_absent();
    return a->training ? arena_take_tensor(a->arena, DTYPE_F32, local->heads, a->rows, &s->lse)
                       : STATUS_OK;
}

static status arrange_gradients(const struct arrangement *a, struct activations *out)
{
    return arena_take_tensor(a->arena, a->dtype, a->rows, a->local.width + 2 * a->local.kv_width,
                             &out->d_qkv);
}

/* ---- forward ---- */

struct attention model_attention(const struct model *m, const struct model_input *input,
                                 int64_t layer)
{
    int64_t head_width = model_head_width(&m->config);
    float scale = (float)m->config.attention_scale;
    float usual = m->architecture->attention.unscaled ? 1 : 1.0f / sqrtf((float)head_width);
    return (struct attention){
        .heads = (int)m->local.heads,
        .kv_heads = (int)m->local.kv_heads,
        .head_width = head_width,
        .causal = m->architecture->attention.causal && !input->is_source,
        .window = model_layer_window(&m->config, layer),
        .scale = scale > 0 ? scale : usual,
        .softcap = (float)m->config.attention_softcap,
        .bias = model_position_bias(m, input),
        .sequences = input->segments,
        .cu_q = input->cu_rows,
        .cu_k = input->cu_rows,
        .shared_prefix_offsets = input->shared_prefix_offsets,
        .longest_q = input->longest,
        .longest_k = input->longest,
        .dropout = model_dropout(m, input, layer, DROPOUT_ATTENTION),
        .first_head = m->rank * (int)m->local.heads,
        .all_heads = (int)m->config.heads,
    };
}

/* Returns n rows of the matrix that begins with the queries and keys of attention. */
static struct tensor view_query_keys(const struct model *m, int64_t layer, int64_t n)
{
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    return model_view_rows(m->architecture->attention.qk_norm ? a->query_keys : a->qkv, n);
}

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

static struct tensor view_norm(const struct model *m, int64_t layer, int64_t n)
{
    const struct layer_activations *a = &m->activations.layers[layer];
    return model_view_local_rows(m, a->sublayers[SUBLAYER_SELF_ATTENTION].norm, n);
}

/* Computes queries, keys and values, with norms and rotary positions. */
static status project_qkv(struct model *m, const struct model_input *input, int64_t layer)
{
    int64_t n = input->rows;
    struct param_index index = model_param_index(m, layer, MODEL_QKV);
    struct tensor norm, qkv = model_view_rows(m->activations.layers[layer].attention.qkv, n);
    TRY(model_all_gather(m, view_norm(m, layer, n), n, &norm));
    TRY(model_linear_forward(m, input, layer, MODEL_QKV, qkv, tensor_absent(), norm,
                             model_bias(m, index.bias), ACTIVATION_NONE));
    TRY(model_adapters_forward(m, input, layer, index, qkv, norm));
    if (m->architecture->attention.qk_norm) {
        TRY(model_qk_norm_forward(m, layer, n));
    }
    return apply_rope(m, input, layer, view_query_keys(m, layer, n), false);
}

static status attend_rows(struct model *m, const struct model_input *input, int64_t layer)
{
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    int64_t n = input->rows;
    struct tensor qkv = model_view_rows(a->qkv, n), qk = view_query_keys(m, layer, n);
    struct attention attention = model_attention(m, input, layer);
    TRY(attention_forward(m->kernels, model_view_rows(a->attended, n),
                          model_view_columns(a->lse, n), model_queries(m, qk), model_keys(m, qk),
                          model_values(m, qkv), &attention));
    return input->attention_hook == NULL
               ? STATUS_OK
               : input->attention_hook(input->user, layer, false, &attention, model_queries(m, qk),
                                       model_keys(m, qk));
}

static status store_rows(const struct model *m, struct tensor to, struct tensor from)
{
    size_t bytes = (size_t)from.columns * dtype_bytes(from.dtype);
    for (int64_t i = 0; i < from.rows; i++) {
        TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                        tensor_rows(to, i, 1).data, tensor_rows(from, i, 1).data, bytes));
    }
    return STATUS_OK;
}

/* Appends the keys and values of the new rows [row, row + count) of a sequence to the cache, and
 * computes the attention of these rows to all keys of the sequence. */
static status attend_sequence(struct model *m, const struct model_cache *cache, int64_t layer,
                              int64_t sequence, int64_t row, int64_t count)
{
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    int64_t length = cache->lengths[sequence];
    struct tensor qkv = tensor_rows(a->qkv, row, count);
    struct tensor qk = tensor_rows(view_query_keys(m, layer, m->rows), row, count);
    struct tensor keys = model_cache_view(cache, layer, CACHE_KEYS, sequence);
    struct tensor values = model_cache_view(cache, layer, CACHE_VALUES, sequence);
    TRY(store_rows(m, tensor_rows(keys, length, count), model_keys(m, qk)));
    TRY(store_rows(m, tensor_rows(values, length, count), model_values(m, qkv)));
    const int32_t *bounds = model_cache_bounds(cache, sequence);
    struct model_input input = {
        .segments = 1, .cu_rows = bounds + BOUNDS_QUERIES, .longest = count};
    struct attention attention = model_attention(m, &input, layer);
    attention.cu_k = bounds + BOUNDS_KEYS;
    attention.longest_k = length + count;
    return attention_forward(m->kernels, tensor_rows(a->attended, row, count), tensor_absent(),
                             model_queries(m, qk), tensor_rows(keys, 0, length + count),
                             tensor_rows(values, 0, length + count), &attention);
}

static status attend_cached(struct model *m, const struct model_cache *cache, int64_t layer)
{
    for (int64_t i = 0, row = 0; i < cache->sequences; row += cache->counts[i], i++) {
        if (cache->counts[i] > 0) {
            TRY(attend_sequence(m, cache, layer, i, row, cache->counts[i]));
        }
    }
    return STATUS_OK;
}

static status run_forward(struct model *m, const struct model_input *input, int64_t layer,
                          struct tensor *interior)
{
    *interior = model_view_rows(m->activations.layers[layer].attention.attended, input->rows);
    TRY(project_qkv(m, input, layer));
    return input->cache != NULL ? attend_cached(m, input->cache, layer)
                                : attend_rows(m, input, layer);
}

/* ---- backward ---- */

struct tensor model_view_d_attended(const struct model *m, int64_t n)
{
    struct tensor exchange = m->activations.exchange;
    bool fits = m->local.width <= m->config.width;
    return tensor_view(fits ? exchange.data : m->activations.d_inner.data, exchange.dtype, n,
                       m->local.width);
}

static status run_backward(struct backward *b, int64_t layer, bool needs_dx, struct tensor delta)
{
    struct model *m = b->m;
    const struct attention_activations *a = &m->activations.layers[layer].attention;
    struct tensor qk = view_query_keys(m, layer, b->n), qkv = model_view_rows(a->qkv, b->n),
                  attended = model_view_rows(a->attended, b->n),
                  d_qkv = model_view_rows(m->activations.d_qkv, b->n),
                  d_attended = model_view_d_attended(m, b->n), dy;
    struct attention attention = model_attention(m, b->input, layer);
    attention.bias.gradient =
        model_gradient(m, model_position_bias_index(m, b->input).weight, b->gradients);
    TRY(model_all_gather(m, delta, b->n, &dy));
    TRY(model_project_backward(b, layer, MODEL_PROJECTION, d_attended, dy, attended,
                               ACTIVATION_NONE, tensor_absent()));
    TRY(attention_backward(m->kernels, model_queries(m, d_qkv), model_keys(m, d_qkv),
                           model_values(m, d_qkv), d_attended, model_queries(m, qk),
                           model_keys(m, qk), model_values(m, qkv), attended,
                           model_view_columns(a->lse, b->n), &attention));
    TRY(apply_rope(m, b->input, layer, d_qkv, true));
    if (m->architecture->attention.qk_norm) {
        TRY(model_qk_norm_backward(m, layer, b->n, b->gradients, d_qkv));
    }
    return model_input_matrix_backward(b, layer, MODEL_QKV, needs_dx, d_qkv,
                                       view_norm(m, layer, b->n));
}

const struct sublayer_type model_self_attention = {
    .norm = MODEL_NORM1,
    .output_norm = MODEL_ATTENTION_NORM,
    .projection = MODEL_PROJECTION,
    .dropout = DROPOUT_PROJECTION,
    .append_parameters = append_parameters,
    .arrange_kept = arrange_kept,
    .arrange_gradients = arrange_gradients,
    .forward = run_forward,
    .backward = run_backward,
};

/* ---- sizes and properties ---- */

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
