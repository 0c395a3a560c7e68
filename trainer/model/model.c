/* Model creation: the flat weight buffers and the working memory of a micro-batch.
 *
 * The arrange_* functions take all activation tensors from an arena. With an arena that has no
 * memory they only measure its size. */
#include <math.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "trainer/model/model_impl.h"

enum { ADAPTERS_FUSED = 3 }; /* most adapters of one GEMM: query, key and value */

/* Returns the local sizes of a layer that is split over `ranks` ranks. */
static struct layer_dims compute_local_dims(const struct model_config *config, int ranks)
{
    int64_t kv_heads = model_kv_heads(config) / ranks, head_width = model_head_width(config);
    return (struct layer_dims){.heads = config->heads / ranks,
                               .width = config->heads / ranks * head_width,
                               .kv_heads = kv_heads,
                               .kv_width = kv_heads * head_width,
                               .inner = config->inner / ranks};
}

/* Returns the rows of the residual stream on the rank with the most rows. */
static int64_t count_local_rows(struct model_parallelism parallelism, int64_t n)
{
    return parallelism.sequence_parallel ? (n + parallelism.ranks - 1) / parallelism.ranks : n;
}

static bool has_placement(const struct model_config *c, enum norm_placement placement)
{
    return architecture_compose(c).norm.placement == placement;
}

static bool has_branch_norms(const struct model_config *c)
{
    return has_placement(c, PLACEMENT_BRANCH) || has_placement(c, PLACEMENT_BOTH);
}

/* Takes the input of a branch norm and its statistics. */
static status arrange_branch(const struct model_config *c, enum dtype dtype, int64_t own,
                             struct arena *arena, struct tensor *output, struct tensor *statistics)
{
    if (has_branch_norms(c)) {
        TRY(arena_take_tensor(arena, dtype, own, c->width, output));
        TRY(arena_take_tensor(arena, DTYPE_F32, own, 2, statistics));
    }
    return STATUS_OK;
}

/* Takes the activations that selective recompute does not keep. */
static status arrange_recomputed(const struct model_config *c, struct model_parallelism parallelism,
                                 enum dtype dtype, int64_t n, struct arena *arena,
                                 struct layer_activations *out)
{
    int64_t own = count_local_rows(parallelism, n);
    if (!has_placement(c, PLACEMENT_BRANCH)) {
        TRY(arena_take_tensor(arena, dtype, own, c->width, &out->norm1));
        TRY(arena_take_tensor(arena, dtype, own, c->width, &out->norm2));
    }
    return arena_take_tensor(arena, dtype, n, compute_local_dims(c, parallelism.ranks).inner,
                             &out->inner);
}

/* Takes the activations that full recompute does not keep, in addition to arrange_recomputed. */
static status arrange_interior(const struct model_config *c, struct model_parallelism parallelism,
                               enum dtype dtype, int64_t n, bool training, struct arena *arena,
                               struct layer_activations *out)
{
    struct layer_dims local = compute_local_dims(c, parallelism.ranks);
    int64_t own = count_local_rows(parallelism, n);
    int64_t inner_outputs = model_inner_outputs(c) / parallelism.ranks;
    TRY(arena_take_tensor(arena, DTYPE_F32, own, 2, &out->statistics1));
    TRY(arena_take_tensor(arena, dtype, n, local.width + 2 * local.kv_width, &out->qkv));
    TRY(arena_take_tensor(arena, dtype, n, local.width, &out->attended));
    TRY(arrange_branch(c, dtype, own, arena, &out->attention_output,
                       &out->attention_output_statistics));
    TRY(arena_take_tensor(arena, dtype, own, c->width, &out->middle));
    TRY(arena_take_tensor(arena, DTYPE_F32, own, 2, &out->statistics2));
    if (model_has_qk_norm(c)) {
        int64_t heads = local.heads + local.kv_heads;
        TRY(arena_take_tensor(arena, dtype, n, local.width + local.kv_width, &out->query_keys));
        TRY(arena_take_tensor(arena, DTYPE_F32, n, 2 * heads, &out->qk_statistics));
    }
    out->saved_for_backward = out->lse = tensor_absent();
    if (training) {
        TRY(arena_take_tensor(arena, DTYPE_F32, local.heads, n, &out->lse));
    }
    if (training || inner_outputs > local.inner) {
        TRY(arena_take_tensor(arena, dtype, n, inner_outputs, &out->saved_for_backward));
    }
    return STATUS_OK;
}

/* Takes the activations of cross-attention. */
static status arrange_cross(const struct model_config *c, struct model_parallelism parallelism,
                            enum dtype dtype, int64_t n, bool training, struct arena *arena,
                            struct layer_activations *out)
{
    struct layer_dims local = compute_local_dims(c, parallelism.ranks);
    int64_t own = count_local_rows(parallelism, n);
    TRY(arena_take_tensor(arena, dtype, own, c->width, &out->between));
    TRY(arena_take_tensor(arena, dtype, own, c->width, &out->between_norm));
    TRY(arena_take_tensor(arena, DTYPE_F32, own, 2, &out->between_statistics));
    TRY(arena_take_tensor(arena, dtype, n, local.width, &out->cross_query));
    TRY(arena_take_tensor(arena, dtype, n, 2 * local.width, &out->cross_key_value));
    TRY(arena_take_tensor(arena, dtype, n, local.width, &out->cross_attended));
    out->cross_lse = tensor_absent();
    return training ? arena_take_tensor(arena, DTYPE_F32, local.heads, n, &out->cross_lse)
                    : STATUS_OK;
}

static status arrange_task_head(const struct model_config *c, enum dtype dtype, bool training,
                                struct arena *arena, struct head_activations *out)
{
    bool texts = c->head == MODEL_HEAD_SEQUENCE || c->head == MODEL_HEAD_MULTIPLE_CHOICE;
    const struct architecture a = architecture_compose(c);
    bool transforms = a.head.task_transform && c->head != MODEL_HEAD_NONE;
    int64_t m = c->output_rows, norm = transforms ? m : 0;
    int64_t dense = transforms || (texts && !a.attention.causal) ? m : 0;
    TRY(arena_take_tensor(arena, dtype, m, c->width, &out->rows));
    TRY(arena_take_tensor(arena, dtype, dense, c->width, &out->dense));
    TRY(arena_take_tensor(arena, dtype, norm, c->width, &out->norm));
    TRY(arena_take_tensor(arena, DTYPE_F32, norm, 2, &out->statistics));
    out->saved_for_backward = tensor_absent();
    if (training) {
        TRY(arena_take_tensor(arena, dtype, dense, c->width, &out->saved_for_backward));
        TRY(arena_take_tensor(arena, dtype, m, c->width, &out->d_dense));
    }
    return STATUS_OK;
}

static status arrange_head(const struct model_config *c, enum dtype dtype, bool training,
                           struct arena *arena, struct head_activations *out)
{
    int64_t m = c->output_rows, e = c->next_sentence ? c->examples : 0;
    if (c->head != MODEL_HEAD_LM) {
        return arrange_task_head(c, dtype, training, arena, out);
    }
    int64_t columns = model_embedding_width(c);
    TRY(arena_take_tensor(arena, dtype, m, c->width, &out->rows));
    TRY(arena_take_tensor(arena, dtype, m, columns, &out->dense));
    TRY(arena_take_tensor(arena, dtype, m, columns, &out->norm));
    TRY(arena_take_tensor(arena, DTYPE_F32, m, 2, &out->statistics));
    TRY(arena_take_tensor(arena, dtype, e, c->width, &out->first_rows));
    TRY(arena_take_tensor(arena, dtype, e, c->width, &out->pooled));
    if (training) {
        TRY(arena_take_tensor(arena, dtype, m, columns, &out->saved_for_backward));
        TRY(arena_take_tensor(arena, dtype, m, columns, &out->d_dense));
        TRY(arena_take_tensor(arena, dtype, e, c->width, &out->pooled_saved));
        TRY(arena_take_tensor(arena, dtype, e, c->width, &out->d_pooled));
    }
    return STATUS_OK;
}

/* Takes the activations of a layer. It shares the memory of the first layer of its stack for all
 * tensors that need not be kept for backward. */
static status arrange_layer(const struct model_config *c, struct model_parallelism parallelism,
                            enum dtype dtype, int64_t n, bool training, struct arena *arena,
                            struct layer_activations *layers, int64_t layer)
{
    struct layer_activations *out = &layers[layer];
    bool has_cross = model_layer_has_cross(c, layer);
    int64_t base = has_cross ? c->encoder_layers : 0;
    bool first = layer == base;
    *out = layers[base];
    if (first || training) {
        int64_t own = count_local_rows(parallelism, n);
        TRY(arena_take_tensor(arena, dtype, own, c->width, &out->input));
        TRY(arrange_branch(c, dtype, own, arena, &out->feed_forward_output,
                           &out->feed_forward_output_statistics));
        int adapters = 0;
        TRY(model_adapters_per_layer(c, layer, &adapters));
        TRY(arena_take_tensor(arena, dtype, n, c->adapter.rank * adapters, &out->adapter_hidden));
    }
    if (first || (training && c->recompute < RECOMPUTE_FULL)) {
        TRY(arrange_interior(c, parallelism, dtype, n, training, arena, out));
        TRY(has_cross ? arrange_cross(c, parallelism, dtype, n, training, arena, out) : STATUS_OK);
    }
    if (first || (training && c->recompute < RECOMPUTE_SELECTIVE)) {
        TRY(arrange_recomputed(c, parallelism, dtype, n, arena, out));
    }
    if (has_placement(c, PLACEMENT_BRANCH)) {
        out->norm1 = out->input;
        out->norm2 = out->middle;
    }
    return STATUS_OK;
}

/* Takes the gradient of the inner features. The gradient of the attention's output uses the same
 * memory if `exchange` is too narrow for it. */
static status arrange_d_inner(const struct model_config *config, struct layer_dims local,
                              enum dtype dtype, int64_t rows, struct arena *arena,
                              struct tensor *out)
{
    bool widens = local.width > config->width && local.width > local.inner;
    TRY(arena_take_tensor(arena, dtype, rows, widens ? local.width : local.inner, out));
    *out = tensor_view(out->data, dtype, rows, local.inner);
    return STATUS_OK;
}

/* Takes the output of the encoder and its gradient. */
static status arrange_encoder(const struct model_config *c, enum dtype dtype, int64_t rows,
                              int64_t own, bool training, struct arena *arena,
                              struct activations *out)
{
    const struct architecture *a = model_architecture(c->architecture);
    if (a == NULL || !architecture_has_decoder(a)) {
        return STATUS_OK;
    }
    TRY(arena_take_tensor(arena, dtype, own, c->width, &out->encoder_last));
    TRY(arena_take_tensor(arena, dtype, own, c->width, &out->encoder_norm));
    TRY(arena_take_tensor(arena, DTYPE_F32, own, 2, &out->encoder_statistics));
    out->encoder_output = out->encoder_norm;
    return training ? arena_take_tensor(arena, dtype, rows, c->width, &out->d_encoder) : STATUS_OK;
}

/* Reserves memory for the sums of the embeddings of all stacks, and for their norms unless these
 * are the norms of the first blocks. */
static status arrange_embedding(const struct model_config *c, enum dtype dtype, int64_t rows,
                                struct arena *arena, struct activations *out)
{
    const struct architecture *a = model_architecture(c->architecture);
    bool factorized = model_is_factorized(c), extra = a != NULL && a->embedding.extra_norm;
    int64_t columns = model_embedding_width(c);
    int stacks = !factorized && !extra ? 0 : architecture_has_decoder(a) ? STACKS_MAX : 1;
    for (int i = 0; i < stacks; i++) {
        TRY(arena_take_tensor(arena, dtype, rows, columns, &out->embedding_sum[i]));
        TRY(arena_take_tensor(arena, DTYPE_F32, rows, 2, &out->embedding_statistics[i]));
    }
    return factorized ? arena_take_tensor(arena, dtype, rows, columns, &out->embedding_norm)
                      : STATUS_OK;
}

/* Takes the tables of the positions: sinusoids, rotations, and an f32 copy of the relative bias. */
static status arrange_tables(const struct model_config *config, const struct architecture *a,
                             enum dtype dtype, int64_t heads, struct arena *arena,
                             struct activations *out)
{
    if (a->embedding.positions == POSITIONS_SINUSOIDAL) {
        TRY(arena_take_tensor(arena, dtype, config->positions, config->width,
                              &out->position_table));
    }
    if (architecture_is_rotary(a)) {
        int64_t width = model_rotary_width(config);
        TRY(arena_take_tensor(arena, DTYPE_F32, config->positions, width, &out->rope_table));
        if (config->rope_local_theta > 0) {
            TRY(arena_take_tensor(arena, DTYPE_F32, config->positions, width,
                                  &out->rope_local_table));
        }
    }
    bool copies_bias = a->embedding.positions == POSITIONS_RELATIVE && dtype != DTYPE_F32;
    int stacks = architecture_has_decoder(a) ? STACKS_MAX : 1;
    for (int i = 0; i < stacks && copies_bias; i++) {
        TRY(arena_take_tensor(arena, DTYPE_F32, model_position_buckets(config), heads,
                              &out->position_bias[i]));
    }
    return STATUS_OK;
}

/* Takes the gradients of activations, and the inputs of adapters after dropout. */
static status arrange_backward(const struct model_config *config, struct layer_dims local,
                               enum dtype dtype, int64_t rows, int64_t own, struct arena *arena,
                               struct activations *out)
{
    TRY(arena_take_tensor(arena, dtype, own, config->width, &out->d_stream));
    if (config->dropout > 0 || has_branch_norms(config) || config->residual_multiplier > 0) {
        TRY(arena_take_tensor(arena, dtype, own, config->width, &out->d_delta));
    }
    TRY(arena_take_tensor(arena, dtype, rows, local.width + 2 * local.kv_width, &out->d_qkv));
    TRY(arrange_d_inner(config, local, dtype, rows, arena, &out->d_inner));
    TRY(arena_take_tensor(arena, DTYPE_F32, 2, model_norm_width(config),
                          &out->frozen_norm_gradients));
    TRY(arena_take_tensor(arena, dtype, rows, ADAPTERS_FUSED * config->adapter.rank,
                          &out->d_adapter_hidden));
    int64_t widest = config->width > local.inner ? config->width : local.inner;
    widest = local.width > widest ? local.width : widest;
    bool adapter_dropout = config->adapter.rank > 0 && config->adapter.dropout > 0;
    TRY(arena_take_tensor(arena, dtype, rows, adapter_dropout ? widest : 0, &out->adapter_input));
    return STATUS_OK;
}

/* Takes all tensors of the working memory from the arena, or measures their size. */
static status arrange_activations(const struct model_config *config,
                                  struct model_parallelism parallelism, enum dtype dtype,
                                  int64_t rows, bool training, struct layer_activations *layers,
                                  struct arena *arena, struct activations *out)
{
    struct layer_dims local = compute_local_dims(config, parallelism.ranks);
    int64_t own = count_local_rows(parallelism, rows);
    *out = (struct activations){.layers = layers};
    TRY(arrange_embedding(config, dtype, own, arena, out));
    for (int64_t l = 0; l < config->layers; l++) {
        TRY(arrange_layer(config, parallelism, dtype, rows, training, arena, layers, l));
    }
    TRY(arena_take_tensor(arena, dtype, own, config->width, &out->last));
    TRY(arena_take_tensor(arena, dtype, own, config->width, &out->final_norm));
    TRY(arena_take_tensor(arena, DTYPE_F32, own, 2, &out->final_statistics));
    if (parallelism.ranks == 1 || dtype != DTYPE_F32) {
        TRY(arena_take_tensor(arena, dtype, rows, config->width, &out->exchange));
    }
    const struct architecture a = architecture_compose(config);
    TRY(arrange_encoder(config, dtype, rows, own, training, arena, out));
    TRY(arrange_tables(config, &a, dtype, local.heads, arena, out));
    TRY(arrange_head(config, dtype, training, arena, &out->head));
    if (config->token_types == 1) {
        TRY(arena_take_tensor(arena, DTYPE_F32, 1, rows, &out->zero_token_type_ids));
    }
    return training ? arrange_backward(config, local, dtype, rows, own, arena, out) : STATUS_OK;
}

status model_activation_bytes(const struct model_config *config,
                              struct model_parallelism parallelism, enum dtype dtype, int64_t rows,
                              bool training, size_t *bytes)
{
    *bytes = 0;
    struct layer_activations *layers = NULL;
    TRY(ALLOCATE(layers, config->layers, "layers"));
    struct arena measure = {0};
    struct activations views;
    status result =
        arrange_activations(config, parallelism, dtype, rows, training, layers, &measure, &views);
    free(layers);
    TRY(result);
    *bytes = measure.peak + model_window_bytes(config, parallelism, dtype, rows);
    return STATUS_OK;
}

static int64_t vector_elements(const struct model *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        count += p->dimensions == 1 ? p->rows * p->columns : 0;
    }
    return count;
}

static status allocate_vectors(struct model *m, struct device *dev)
{
    return device_allocate(dev, (size_t)vector_elements(m) * sizeof(float), "the f32 vectors",
                           (void **)&m->vectors);
}

static status allocate_weights(struct model *m, struct device *dev, enum dtype dtype)
{
    bool is_bf16 = dtype == DTYPE_BF16, has_adapters = m->config.adapter.rank > 0;
    m->f32_elements = is_bf16 && has_adapters
                          ? model_trained_elems(m->parameters, m->parameter_count)
                          : m->elements;
    TRY(device_allocate(dev, (size_t)m->f32_elements * sizeof(float), "the weights",
                        (void **)&m->weights));
    TRY(m->f32_elements < m->elements ? allocate_vectors(m, dev) : STATUS_OK);
    return is_bf16 ? device_allocate(dev, (size_t)m->elements * sizeof(bf16), "the bf16 weights",
                                     (void **)&m->bf16_weights)
                   : STATUS_OK;
}

static status allocate_model(struct model *m)
{
    struct device *dev = kernels_device(m->kernels);
    enum dtype dtype = kernels_dtype(m->kernels);
    TRY(allocate_weights(m, dev, dtype));
    TRY(ALLOCATE(m->ranges, m->ranks, "ranks"));
    TRY(ALLOCATE(m->activations.layers, m->config.layers, "layers"));
    size_t bytes = 0;
    TRY(model_activation_bytes(&m->config, m->parallelism, dtype, m->rows, m->training, &bytes));
    bytes -= model_window_bytes(&m->config, m->parallelism, dtype, m->rows);
    TRY(arena_create(dev, bytes, "the activations", &m->arena));
    TRY(arrange_activations(&m->config, m->parallelism, dtype, m->rows, m->training,
                            m->activations.layers, &m->arena, &m->activations));
    TRY(model_fp8_create(m));
    return model_fill_positions(m);
}

status model_create(struct kernels *k, const struct model_config *config, struct comm *tensor_group,
                    bool sequence_parallel, int64_t rows, bool training, struct model **out)
{
    *out = NULL;
    struct model *m = NULL;
    TRY(ALLOCATE(m, 1, "a model"));
    m->kernels = k;
    m->config = *config;
    m->tensor_group = tensor_group;
    m->ranks = tensor_group != NULL ? comm_size(tensor_group) : 1;
    m->parallelism = (struct model_parallelism){m->ranks, sequence_parallel && m->ranks > 1};
    m->rank = tensor_group != NULL ? comm_rank(tensor_group) : 0;
    m->local = compute_local_dims(config, m->ranks);
    m->rows = rows;
    m->training = training;
    status result = STATUS_OK;
    TRY_GOTO(
        result, fail,
        model_layout(config, m->ranks, m->rank, &m->parameters, &m->parameter_count, &m->elements));
    m->composed = architecture_compose(config);
    m->architecture = &m->composed;
    model_describe_stacks(m);
    TRY_GOTO(result, fail, allocate_model(m));
    *out = m;
    return STATUS_OK;
fail:
    (void)model_destroy(&m);
    return result;
}

status model_destroy(struct model **m)
{
    status result = STATUS_OK;
    if (*m != NULL) {
        if ((*m)->window != NULL) {
            result = comm_free((*m)->tensor_group, (*m)->window);
        }
        KEEP_FIRST(result, model_free_registered(*m));
        struct device *dev = kernels_device((*m)->kernels);
        size_t elements = (size_t)(*m)->elements;
        device_release(dev, (*m)->weights, (size_t)(*m)->f32_elements * sizeof(float));
        if ((*m)->vectors != NULL) {
            device_release(dev, (*m)->vectors, (size_t)vector_elements(*m) * sizeof(float));
        }
        device_release(dev, (*m)->bf16_weights, elements * sizeof(bf16));
        model_fp8_destroy(*m);
        arena_destroy(&(*m)->arena);
        free((*m)->activations.layers);
        free((*m)->ranges);
        free((*m)->parameters);
        free(*m);
        *m = NULL;
    }
    return result;
}

const struct model_config *model_get_config(const struct model *m)
{
    return &m->config;
}

int64_t model_rows(const struct model *m)
{
    return m->rows;
}

const struct model_parameter *model_parameters(const struct model *m, int *count)
{
    *count = m->parameter_count;
    return m->parameters;
}

static bool is_trained_vector(const struct model_parameter *p)
{
    return p->trained && p->dimensions == 1;
}

int64_t model_elems(const struct model *m)
{
    return m->elements;
}

int64_t model_f32_elements(const struct model *m)
{
    return m->f32_elements;
}

float *model_weights(const struct model *m)
{
    return m->weights;
}

bf16 *model_bf16_weights(const struct model *m)
{
    return m->bf16_weights;
}

float *model_vectors(const struct model *m, int64_t *count)
{
    *count = 0;
    for (int i = 0; i < m->parameter_count && m->vectors != NULL; i++) {
        const struct model_parameter *p = &m->parameters[i];
        *count += is_trained_vector(p) ? p->columns : 0;
    }
    return m->vectors;
}

/* Copies the vectors within a range of elements; `weights` points to the range's first element. */
static status copy_vectors(struct model *m, struct comm_range elements, const float *weights)
{
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        struct comm_range part =
            comm_range_intersect(elements, (struct comm_range){p->first, p->rows * p->columns});
        if (p->dimensions == 1 && part.count > 0) {
            TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                            m->vectors + p->vector_offset + (part.first - p->first),
                            weights + (part.first - elements.first),
                            (size_t)part.count * sizeof(float)));
        }
    }
    return STATUS_OK;
}

status model_release_weights(struct model *m)
{
    struct device *dev = kernels_device(m->kernels);
    REQUIRE(m->bf16_weights != NULL && m->weights != NULL, STATUS_INTERNAL,
            "the f32 weights can be released only once, and only in bf16 precision");
    TRY(m->vectors == NULL ? allocate_vectors(m, dev) : STATUS_OK);
    TRY(copy_vectors(m, (struct comm_range){0, m->f32_elements}, m->weights));
    device_release(dev, m->weights, (size_t)m->f32_elements * sizeof(float));
    m->weights = NULL;
    return STATUS_OK;
}

status model_set_frozen(struct model *m, struct comm_range elements, float *weights)
{
    TRY(copy_vectors(m, elements, weights));
    return op_cast(m->kernels,
                   tensor_view(m->bf16_weights + elements.first, DTYPE_BF16, 1, elements.count),
                   tensor_view(weights, DTYPE_F32, 1, elements.count));
}

status model_sync_bf16(struct model *m)
{
    if (m->bf16_weights == NULL) {
        return STATUS_OK;
    }
    return op_cast(m->kernels, tensor_view(m->bf16_weights, DTYPE_BF16, 1, m->f32_elements),
                   tensor_view(m->weights, DTYPE_F32, 1, m->f32_elements));
}

/* Returns a view of a parameter together with the ones that are fused with it. */
static struct tensor view_fused(void *data, enum dtype dtype, const struct model_parameter *p)
{
    bool vector = p->dimensions == 1;
    int64_t extent = 0;
    for (int i = 0; i < p->fused_count; i++) {
        extent += vector ? p[i].columns : p[i].rows;
    }
    return tensor_view(data, dtype, vector ? 1 : extent, vector ? extent : p->columns);
}

struct tensor model_matrix(const struct model *m, int parameter)
{
    if (parameter < 0) {
        return tensor_absent();
    }
    const struct model_parameter *p = &m->parameters[parameter];
    if (m->bf16_weights != NULL) {
        return view_fused(m->bf16_weights + p->first, DTYPE_BF16, p);
    }
    return view_fused(m->weights + p->first, DTYPE_F32, p);
}

struct tensor model_vector(const struct model *m, int parameter)
{
    if (parameter < 0) {
        return tensor_absent();
    }
    const struct model_parameter *p = &m->parameters[parameter];
    bool has_f32 = m->weights != NULL && p->first < m->f32_elements;
    float *data = has_f32 ? m->weights + p->first : m->vectors + p->vector_offset;
    return view_fused(data, DTYPE_F32, p);
}

struct tensor model_bias(const struct model *m, int parameter)
{
    return kernels_bias_dtype(m->kernels) == DTYPE_BF16 ? model_matrix(m, parameter)
                                                        : model_vector(m, parameter);
}

struct tensor model_gradient(const struct model *m, int parameter, float *const *gradients)
{
    return parameter < 0 || gradients[parameter] == NULL
               ? tensor_absent()
               : view_fused(gradients[parameter], DTYPE_F32, &m->parameters[parameter]);
}

void model_norm_gradients(const struct model *m, struct param_index index, float *const *gradients,
                          struct tensor *dgamma, struct tensor *dbeta)
{
    *dgamma = *dbeta = tensor_absent();
    if (index.weight < 0) {
        return;
    }
    struct tensor unused = tensor_columns(m->activations.frozen_norm_gradients, 0,
                                          m->parameters[index.weight].columns);
    *dgamma = model_gradient(m, index.weight, gradients);
    *dbeta = model_gradient(m, index.bias, gradients);
    *dgamma = dgamma->data != NULL ? *dgamma : tensor_rows(unused, 0, 1);
    *dbeta = dbeta->data != NULL || index.bias < 0 ? *dbeta : tensor_rows(unused, 1, 1);
}

static int find_lm_head(const struct model *m)
{
    if (m->config.head != MODEL_HEAD_LM) {
        return -1;
    }
    return m->config.tied ? model_output_table(m) : m->param_index[MODEL_DECODER].weight;
}

struct tensor model_lm_head(const struct model *m)
{
    return model_matrix(m, find_lm_head(m));
}

struct tensor model_lm_head_gradient(const struct model *m, float *const *gradients)
{
    return model_gradient(m, find_lm_head(m), gradients);
}

struct tensor model_lm_head_bias(const struct model *m)
{
    return model_vector(m, m->param_index[MODEL_DECODER].bias);
}

struct tensor model_lm_head_bias_gradient(const struct model *m, float *const *gradients)
{
    return model_gradient(m, m->param_index[MODEL_DECODER].bias, gradients);
}

struct classifier model_classifier(struct model *m, int64_t ignored)
{
    return (struct classifier){
        .vocabulary = m->config.vocabulary,
        .ignored = ignored,
        .softcap = (float)m->config.logits_softcap,
        .bias = model_lm_head_bias(m),
        .vocabulary_shard = model_lm_head_shard(m),
    };
}

status model_logits(struct model *m, struct tensor logits, struct tensor hidden)
{
    float softcap = (float)m->config.logits_softcap;
    TRY(classifier_logits(m->kernels, logits, hidden, model_lm_head(m), model_lm_head_bias(m)));
    return softcap > 0 ? op_softcap(m->kernels, logits, softcap) : STATUS_OK;
}

struct tensor model_hidden_gradient(const struct model *m)
{
    return m->config.head != MODEL_HEAD_LM
               ? m->activations.head.d_dense
               : model_view_exchange(m, m->rows, model_embedding_width(&m->config));
}

/* ---- descriptions of operations ---- */

struct dropout model_dropout(const struct model *m, const struct model_input *input, int64_t layer,
                             enum dropout_site site)
{
    const struct model_config *c = &m->config;
    float probability = site == DROPOUT_ATTENTION ? c->attention_dropout
                        : site == DROPOUT_INNER   ? c->activation_dropout
                                                  : c->dropout;
    if (!input->training || !(probability > 0)) {
        return (struct dropout){0};
    }
    bool is_inner = site == DROPOUT_INNER;
    int64_t number = is_inner ? model_extra_site(m, layer) : layer;
    int64_t row_elements = site == DROPOUT_ATTENTION
                               ? c->heads * attention_dropout_pitch(input->longest)
                           : is_inner ? c->inner
                                      : model_dropout_columns(m, layer);
    number = (number + 1) * DROPOUT_SITES + (is_inner ? DROPOUT_FC : site);
    return (struct dropout){
        .probability = probability,
        .key = random_key(input->seed, RANDOM_DROPOUT, (uint64_t)input->step, (uint64_t)number),
        .first = input->first_row * row_elements,
    };
}

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
