/* Model creation: the flat weight buffers and the working memory of a micro-batch.
 *
 * The arrange_* functions take all activation tensors from an arena. With an arena that has no
 * memory they only measure its size. Those of a layer are in sublayers.c and in the files of the
 * sub-layers. */
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/model/sublayers.h"

enum { ADAPTERS_FUSED = 3 }; /* largest number of adapters of one GEMM: query, key, value */

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
    return parallelism.sequence_parallel ? number_divide_up(n, parallelism.ranks) : n;
}

static status arrange_task_head(const struct arrangement *a, struct head_activations *out)
{
    const struct model_config *c = a->config;
    bool texts = c->head == MODEL_HEAD_SEQUENCE || c->head == MODEL_HEAD_MULTIPLE_CHOICE;
    bool transforms = a->architecture->head.task_transform && c->head != MODEL_HEAD_NONE;
    int64_t m = c->output_rows, norm = transforms ? m : 0;
    int64_t dense = transforms || (texts && !a->architecture->attention.causal) ? m : 0;
    TRY(arena_take_tensor(a->arena, a->dtype, m, c->width, &out->rows));
    TRY(arena_take_tensor(a->arena, a->dtype, dense, c->width, &out->dense));
    TRY(arena_take_tensor(a->arena, a->dtype, norm, c->width, &out->norm));
    TRY(arena_take_tensor(a->arena, DTYPE_F32, norm, 2, &out->statistics));
    out->saved_for_backward = tensor_absent();
    if (a->training) {
        TRY(arena_take_tensor(a->arena, a->dtype, dense, c->width, &out->saved_for_backward));
        TRY(arena_take_tensor(a->arena, a->dtype, m, c->width, &out->d_dense));
    }
    return STATUS_OK;
}

static status arrange_head(const struct arrangement *a, struct head_activations *out)
{
    const struct model_config *c = a->config;
    int64_t m = c->output_rows, e = c->next_sentence ? c->examples : 0;
    if (c->head != MODEL_HEAD_LM) {
        return arrange_task_head(a, out);
    }
    int64_t columns = model_embedding_width(c);
    TRY(arena_take_tensor(a->arena, a->dtype, m, c->width, &out->rows));
    TRY(arena_take_tensor(a->arena, a->dtype, m, columns, &out->dense));
    TRY(arena_take_tensor(a->arena, a->dtype, m, columns, &out->norm));
    TRY(arena_take_tensor(a->arena, DTYPE_F32, m, 2, &out->statistics));
    TRY(arena_take_tensor(a->arena, a->dtype, e, c->width, &out->first_rows));
    TRY(arena_take_tensor(a->arena, a->dtype, e, c->width, &out->pooled));
    if (a->training) {
        TRY(arena_take_tensor(a->arena, a->dtype, m, columns, &out->saved_for_backward));
        TRY(arena_take_tensor(a->arena, a->dtype, m, columns, &out->d_dense));
        TRY(arena_take_tensor(a->arena, a->dtype, e, c->width, &out->pooled_saved));
        TRY(arena_take_tensor(a->arena, a->dtype, e, c->width, &out->d_pooled));
    }
    return STATUS_OK;
}

/* Takes the output of the encoder and its gradient. */
static status arrange_encoder(const struct arrangement *a, struct activations *out)
{
    int64_t width = a->config->width;
    if (!architecture_has_decoder(a->architecture)) {
        return STATUS_OK;
    }
    TRY(arena_take_tensor(a->arena, a->dtype, a->local_rows, width, &out->encoder_last));
    TRY(arena_take_tensor(a->arena, a->dtype, a->local_rows, width, &out->encoder_norm));
    TRY(arena_take_tensor(a->arena, DTYPE_F32, a->local_rows, 2, &out->encoder_statistics));
    out->encoder_output = out->encoder_norm;
    return a->training ? arena_take_tensor(a->arena, a->dtype, a->rows, width, &out->d_encoder)
                       : STATUS_OK;
}

/* Reserves memory for the sums of the embeddings of all stacks, and for their norms unless these
 * are the norms of the first blocks. */
static status arrange_embedding(const struct arrangement *a, struct activations *out)
{
    bool factorized = model_is_factorized(a->config), extra = a->architecture->embedding.extra_norm;
    int64_t columns = model_embedding_width(a->config), n = a->local_rows;
    int stacks = !factorized && !extra                       ? 0
                 : architecture_has_decoder(a->architecture) ? STACKS_MAX
                                                             : 1;
    for (int i = 0; i < stacks; i++) {
        TRY(arena_take_tensor(a->arena, a->dtype, n, columns, &out->embedding_sum[i]));
        TRY(arena_take_tensor(a->arena, DTYPE_F32, n, 2, &out->embedding_statistics[i]));
    }
    return factorized ? arena_take_tensor(a->arena, a->dtype, n, columns, &out->embedding_norm)
                      : STATUS_OK;
}

/* Takes the tables of the positions: sinusoids, rotations, and an f32 copy of the relative bias. */
static status arrange_tables(const struct arrangement *a, struct activations *out)
{
    const struct model_config *c = a->config;
    enum position_kind positions = a->architecture->embedding.positions;
    if (positions == POSITIONS_SINUSOIDAL) {
        TRY(arena_take_tensor(a->arena, a->dtype, c->positions, c->width, &out->position_table));
    }
    if (positions == POSITIONS_ROTARY) {
        int64_t width = model_rotary_width(c);
        TRY(arena_take_tensor(a->arena, DTYPE_F32, c->positions, width, &out->rope_table));
        if (c->rope_local_theta > 0) {
            TRY(arena_take_tensor(a->arena, DTYPE_F32, c->positions, width,
                                  &out->rope_local_table));
        }
    }
    bool copies_bias = positions == POSITIONS_RELATIVE && a->dtype != DTYPE_F32;
    int stacks = architecture_has_decoder(a->architecture) ? STACKS_MAX : 1;
    for (int i = 0; i < stacks && copies_bias; i++) {
        TRY(arena_take_tensor(a->arena, DTYPE_F32, model_position_buckets(c), a->local.heads,
                              &out->position_bias[i]));
    }
    return STATUS_OK;
}

/* Takes the gradients of activations, and the inputs of adapters after dropout. */
static status arrange_backward(const struct arrangement *a, struct activations *out)
{
    const struct model_config *c = a->config;
    bool has_branch_norms = architecture_has_branch_norms(a->architecture);
    TRY(arena_take_tensor(a->arena, a->dtype, a->local_rows, c->width, &out->d_stream));
    if (c->dropout > 0 || has_branch_norms || c->residual_multiplier > 0) {
        TRY(arena_take_tensor(a->arena, a->dtype, a->local_rows, c->width, &out->d_delta));
    }
    TRY(model_arrange_gradients(a, out));
    TRY(arena_take_tensor(a->arena, DTYPE_F32, 2, model_norm_width(c),
                          &out->frozen_norm_gradients));
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, ADAPTERS_FUSED * c->adapter.rank,
                          &out->d_adapter_hidden));
    int64_t widest = number_max(c->width, a->local.inner);
    widest = number_max(widest, a->local.width);
    bool adapter_dropout = c->adapter.rank > 0 && c->adapter.dropout > 0;
    return arena_take_tensor(a->arena, a->dtype, a->rows, adapter_dropout ? widest : 0,
                             &out->adapter_input);
}

/* Takes all tensors of the working memory from the arena, or measures their size. */
static status arrange_activations(const struct arrangement *a, struct layer_activations *layers,
                                  struct activations *out)
{
    const struct model_config *c = a->config;
    *out = (struct activations){.layers = layers};
    TRY(arrange_embedding(a, out));
    for (int64_t l = 0; l < c->layers; l++) {
        TRY(model_arrange_layer(a, layers, l));
    }
    TRY(arena_take_tensor(a->arena, a->dtype, a->local_rows, c->width, &out->last));
    TRY(arena_take_tensor(a->arena, a->dtype, a->local_rows, c->width, &out->final_norm));
    TRY(arena_take_tensor(a->arena, DTYPE_F32, a->local_rows, 2, &out->final_statistics));
    if (a->ranks == 1 || a->dtype != DTYPE_F32) {
        TRY(arena_take_tensor(a->arena, a->dtype, a->rows, c->width, &out->exchange));
    }
    TRY(arrange_encoder(a, out));
    TRY(arrange_tables(a, out));
    TRY(arrange_head(a, &out->head));
    if (c->token_types == 1) {
        TRY(arena_take_tensor(a->arena, DTYPE_F32, 1, a->rows, &out->zero_token_type_ids));
    }
    return a->training ? arrange_backward(a, out) : STATUS_OK;
}

/* Describes the working memory of one rank. */
static struct arrangement describe_arrangement(const struct model_config *config,
                                               const struct architecture *architecture,
                                               struct model_parallelism parallelism,
                                               enum dtype dtype, int64_t rows, bool training,
                                               struct arena *arena)
{
    return (struct arrangement){
        .config = config,
        .architecture = architecture,
        .local = compute_local_dims(config, parallelism.ranks),
        .ranks = parallelism.ranks,
        .dtype = dtype,
        .rows = rows,
        .local_rows = count_local_rows(parallelism, rows),
        .training = training,
        .arena = arena,
    };
}

status model_activation_bytes(const struct model_config *config,
                              struct model_parallelism parallelism, enum dtype dtype, int64_t rows,
                              bool training, size_t *bytes)
{
    *bytes = 0;
    struct layer_activations *layers = NULL;
    TRY(ALLOCATE(layers, config->layers, "layers"));
    const struct architecture architecture = architecture_compose(config);
    struct arena measure = {0};
    struct activations views;
    const struct arrangement a =
        describe_arrangement(config, &architecture, parallelism, dtype, rows, training, &measure);
    status result = arrange_activations(&a, layers, &views);
    free(layers);
    TRY(result);
    *bytes = measure.peak + model_window_bytes(config, parallelism, dtype, rows);
    return STATUS_OK;
}

static int64_t count_vector_elements(const struct model *m)
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
    return device_allocate(dev, (size_t)count_vector_elements(m) * sizeof(float), "the f32 vectors",
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
    const struct arrangement a = describe_arrangement(&m->config, m->architecture, m->parallelism,
                                                      dtype, m->rows, m->training, &m->arena);
    TRY(arrange_activations(&a, m->activations.layers, &m->activations));
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
            device_release(dev, (*m)->vectors, (size_t)count_vector_elements(*m) * sizeof(float));
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

/* Returns the number of a dropout site among all sites of the model, from which its key follows. */
static uint64_t compute_site(const struct model *m, int64_t layer, enum dropout_site site)
{
    int64_t number = layer, place = site;
    if (site == DROPOUT_INNER) {
        number = model_extra_site(m, layer);
        place = DROPOUT_FC;
    } else if (site == DROPOUT_CROSS_ATTENTION || site == DROPOUT_CROSS_PROJECTION) {
        number = model_cross_site(m, layer);
        place = site == DROPOUT_CROSS_ATTENTION ? DROPOUT_ATTENTION : DROPOUT_PROJECTION;
    }
    return (uint64_t)((number + 1) * DROPOUT_SITES + place);
}

struct dropout model_dropout(const struct model *m, const struct model_input *input, int64_t layer,
                             enum dropout_site site)
{
    const struct model_config *c = &m->config;
    bool of_scores = site == DROPOUT_ATTENTION || site == DROPOUT_CROSS_ATTENTION;
    float probability = of_scores               ? c->attention_dropout
                        : site == DROPOUT_INNER ? c->activation_dropout
                                                : c->dropout;
    if (!input->training || !(probability > 0)) {
        return (struct dropout){0};
    }
    int64_t row_elements = of_scores ? c->heads * attention_dropout_pitch(input->longest)
                           : site == DROPOUT_INNER ? c->inner
                                                   : model_dropout_columns(m, layer);
    return (struct dropout){
        .probability = probability,
        .key = random_key(input->seed, RANDOM_DROPOUT, (uint64_t)input->step,
                          compute_site(m, layer, site)),
        .first = input->first_row * row_elements,
    };
}
