/* Making a model: its flat buffers and the working memory of a micro-batch. */
#include <math.h>
#include <stdlib.h>

#include "trainer/model/model_impl.h"

enum { ADAPTERS_JOINED = 3 }; /* query, key and value */

static status take(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns,
                   struct tensor *out)
{
    void *data = NULL;
    TRY(arena_take(arena, (size_t)(rows * columns) * dtype_bytes(dtype), &data));
    *out = tensor_view(data, dtype, rows, columns);
    return STATUS_OK;
}

/* A layer's insides over so many ranks. */
static struct layer_share share_of(const struct model_config *config, int ranks)
{
    int64_t kv_heads = model_kv_heads(config) / ranks;
    return (struct layer_share){.heads = config->heads / ranks,
                                .width = config->width / ranks,
                                .kv_heads = kv_heads,
                                .kv_width = config->width / config->heads * kv_heads,
                                .inner = config->inner / ranks};
}

/* Rows of the stream on the rank that has most. */
static int64_t own_rows(struct model_sharing sharing, int64_t n)
{
    return sharing.sequence ? (n + sharing.ranks - 1) / sharing.ranks : n;
}

/* What selective recomputation makes again. */
static status arrange_again(const struct model_config *c, struct model_sharing sharing,
                            enum dtype dtype, int64_t n, struct arena *arena,
                            struct layer_activations *out)
{
    int64_t own = own_rows(sharing, n);
    TRY(take(arena, dtype, own, c->width, &out->norm1));
    TRY(take(arena, dtype, own, c->width, &out->norm2));
    return take(arena, dtype, n, share_of(c, sharing.ranks).inner, &out->inner);
}

/* What full recomputation makes again beside that. */
static status arrange_insides(const struct model_config *c, struct model_sharing sharing,
                              enum dtype dtype, int64_t n, bool training, struct arena *arena,
                              struct layer_activations *out)
{
    struct layer_share share = share_of(c, sharing.ranks);
    int64_t own = own_rows(sharing, n);
    int64_t inner_outputs = model_inner_outputs(c) / sharing.ranks;
    TRY(take(arena, DTYPE_F32, own, 2, &out->statistics1));
    TRY(take(arena, dtype, n, share.width + 2 * share.kv_width, &out->qkv));
    TRY(take(arena, dtype, n, share.width, &out->attended));
    TRY(take(arena, dtype, own, c->width, &out->middle));
    TRY(take(arena, DTYPE_F32, own, 2, &out->statistics2));
    out->kept = out->lse = tensor_absent();
    if (training) {
        TRY(take(arena, DTYPE_F32, share.heads, n, &out->lse));
    }
    if (training || inner_outputs > share.inner) {
        TRY(take(arena, dtype, n, inner_outputs, &out->kept));
    }
    return STATUS_OK;
}

static status arrange_task(const struct model_config *c, enum dtype dtype, bool training,
                           struct arena *arena, struct head_activations *out)
{
    const struct architecture *a = model_architecture(c->architecture);
    bool texts = c->task == MODEL_TEXTS || c->task == MODEL_CHOICES;
    int64_t m = c->output_rows, dense = texts && a != NULL && a->transform ? m : 0;
    TRY(take(arena, dtype, m, c->width, &out->rows));
    TRY(take(arena, dtype, dense, c->width, &out->dense));
    out->kept = tensor_absent();
    if (training) {
        TRY(take(arena, dtype, dense, c->width, &out->kept));
        TRY(take(arena, dtype, m, c->width, &out->d_dense));
    }
    return STATUS_OK;
}

static status arrange_head(const struct model_config *c, enum dtype dtype, bool training,
                           struct arena *arena, struct head_activations *out)
{
    int64_t m = c->output_rows, e = c->next_sentence ? c->examples : 0;
    if (c->task != MODEL_WORDS) {
        return arrange_task(c, dtype, training, arena, out);
    }
    TRY(take(arena, dtype, m, c->width, &out->rows));
    TRY(take(arena, dtype, m, c->width, &out->dense));
    TRY(take(arena, dtype, m, c->width, &out->norm));
    TRY(take(arena, DTYPE_F32, m, 2, &out->statistics));
    TRY(take(arena, dtype, e, c->width, &out->first));
    TRY(take(arena, dtype, e, c->width, &out->pooled));
    if (training) {
        TRY(take(arena, dtype, m, c->width, &out->kept));
        TRY(take(arena, dtype, m, c->width, &out->d_dense));
        TRY(take(arena, dtype, e, c->width, &out->pooled_kept));
        TRY(take(arena, dtype, e, c->width, &out->d_pooled));
    }
    return STATUS_OK;
}

/* One layer's memory serves the next ones where nothing is kept there for backward. */
static status arrange_layer(const struct model_config *c, struct model_sharing sharing,
                            enum dtype dtype, int64_t n, bool training, struct arena *arena,
                            struct layer_activations *layers, int64_t layer)
{
    struct layer_activations *out = &layers[layer];
    *out = layers[0];
    bool first = layer == 0;
    if (first || training) {
        TRY(take(arena, dtype, own_rows(sharing, n), c->width, &out->input));
        TRY(take(arena, dtype, n, c->adapter.rank * model_adapters_of(c), &out->adapted));
    }
    if (first || (training && c->recompute < MODEL_RECOMPUTE_FULL)) {
        TRY(arrange_insides(c, sharing, dtype, n, training, arena, out));
    }
    if (first || (training && c->recompute < MODEL_RECOMPUTE_SELECTIVE)) {
        TRY(arrange_again(c, sharing, dtype, n, arena, out));
    }
    return STATUS_OK;
}

/* Take all views of the working memory from the arena, or measure them. */
static status arrange(const struct model_config *config, struct model_sharing sharing,
                      enum dtype dtype, int64_t rows, bool training,
                      struct layer_activations *layers, struct arena *arena,
                      struct activations *out)
{
    struct layer_share share = share_of(config, sharing.ranks);
    int64_t own = own_rows(sharing, rows);
    *out = (struct activations){.layers = layers};
    for (int64_t l = 0; l < config->layers; l++) {
        TRY(arrange_layer(config, sharing, dtype, rows, training, arena, layers, l));
    }
    TRY(take(arena, dtype, own, config->width, &out->last));
    TRY(take(arena, dtype, own, config->width, &out->final_norm));
    TRY(take(arena, DTYPE_F32, own, 2, &out->final_statistics));
    if (sharing.ranks == 1 || dtype != DTYPE_F32) {
        TRY(take(arena, dtype, rows, config->width, &out->exchange));
    }
    const struct architecture *a = model_architecture(config->architecture);
    if (a != NULL && a->rotary) {
        TRY(take(arena, DTYPE_F32, config->positions, config->width / config->heads, &out->angles));
    }
    TRY(arrange_head(config, dtype, training, arena, &out->head));
    if (config->segments == 1) {
        TRY(take(arena, DTYPE_F32, 1, rows, &out->no_segments));
    }
    if (training) {
        TRY(take(arena, dtype, own, config->width, &out->d_stream));
        if (config->dropout > 0) {
            TRY(take(arena, dtype, own, config->width, &out->d_delta));
        }
        TRY(take(arena, dtype, rows, share.width + 2 * share.kv_width, &out->d_qkv));
        TRY(take(arena, dtype, rows, share.inner, &out->d_inner));
        TRY(take(arena, DTYPE_F32, 2, config->width, &out->unused));
        TRY(take(arena, dtype, rows, ADAPTERS_JOINED * config->adapter.rank, &out->d_adapted));
        int64_t widest = config->width > share.inner ? config->width : share.inner;
        bool drops = config->adapter.rank > 0 && config->adapter.dropout > 0;
        TRY(take(arena, dtype, rows, drops ? widest : 0, &out->dropped));
    }
    return STATUS_OK;
}

size_t model_activation_bytes(const struct model_config *config, struct model_sharing sharing,
                              enum dtype dtype, int64_t rows, bool training)
{
    struct layer_activations *layers = calloc((size_t)config->layers, sizeof *layers);
    struct arena measure = {0};
    struct activations views;
    if (layers == NULL ||
        arrange(config, sharing, dtype, rows, training, layers, &measure, &views) != STATUS_OK) {
        measure.peak = 0;
    }
    free(layers);
    return measure.peak + model_window_bytes(config, sharing, dtype, rows);
}

static const double copy_deadline_seconds = 600;

static status fill_angles(struct model *m)
{
    struct tensor to = m->activations.angles;
    size_t bytes = (size_t)(to.rows * to.columns) * sizeof(float);
    struct device *dev = kernels_device(m->kernels);
    struct stream *stream = kernels_stream(m->kernels);
    float *table = malloc(bytes);
    REQUIRE(table != NULL, STATUS_INTERNAL, "out of memory: angles of %lld positions",
            (long long)to.rows);
    rotary_angles(table, to.rows, to.columns, m->config.rope_theta, &m->config.rope_scaling);
    status result = device_copy(dev, stream, to.data, table, bytes);
    KEEP_FIRST(result, device_wait(dev, stream, copy_deadline_seconds));
    free(table);
    return result;
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
    bool halves = dtype == DTYPE_BF16, beside = m->config.adapter.rank > 0;
    m->kept =
        halves && beside ? model_trained_elements(m->parameters, m->parameter_count) : m->elements;
    TRY(device_allocate(dev, (size_t)m->kept * sizeof(float), "the weights", (void **)&m->weights));
    TRY(m->kept < m->elements ? allocate_vectors(m, dev) : STATUS_OK);
    return halves ? device_allocate(dev, (size_t)m->elements * sizeof(bf16), "the bf16 weights",
                                    (void **)&m->copy)
                  : STATUS_OK;
}

static status allocate(struct model *m)
{
    struct device *dev = kernels_device(m->kernels);
    enum dtype dtype = kernels_dtype(m->kernels);
    TRY(allocate_weights(m, dev, dtype));
    m->ranges = calloc((size_t)m->ranks, sizeof *m->ranges);
    REQUIRE(m->ranges != NULL, STATUS_INTERNAL, "out of memory for %d ranks", m->ranks);
    m->activations.layers = calloc((size_t)m->config.layers, sizeof *m->activations.layers);
    REQUIRE(m->activations.layers != NULL, STATUS_INTERNAL, "out of memory for %lld layers",
            (long long)m->config.layers);
    size_t bytes = model_activation_bytes(&m->config, m->sharing, dtype, m->rows, m->training) -
                   model_window_bytes(&m->config, m->sharing, dtype, m->rows);
    TRY(arena_create(dev, bytes, "the activations", &m->arena));
    TRY(arrange(&m->config, m->sharing, dtype, m->rows, m->training, m->activations.layers,
                &m->arena, &m->activations));
    return m->architecture->rotary ? fill_angles(m) : STATUS_OK;
}

/* The first parameter of each role, weight and bias. */
static void find_places(struct model *m)
{
    for (int i = 0; i < MODEL_ROLES; i++) {
        m->places[i] = (struct place){-1, -1};
    }
    for (int i = m->parameter_count - 1; i >= 0; i--) {
        const struct model_parameter *p = &m->parameters[i];
        bool norm =
            p->role == MODEL_NORM1 || p->role == MODEL_NORM2 || p->role == MODEL_TRANSFORM_NORM;
        bool weight = p->dimensions == 2 || (norm && p->initial > 0);
        *(weight ? &m->places[p->role].weight : &m->places[p->role].bias) = i;
        m->layer_parameters += p->layer == 0;
    }
}

status model_create(struct kernels *k, const struct model_config *config, struct comm *tensor,
                    bool sequence, int64_t rows, bool training, struct model **out)
{
    *out = NULL;
    struct model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL, STATUS_INTERNAL, "out of memory for a model");
    m->kernels = k;
    m->config = *config;
    m->tensor = tensor;
    m->ranks = tensor != NULL ? comm_size(tensor) : 1;
    m->sharing = (struct model_sharing){m->ranks, sequence && m->ranks > 1};
    m->rank = tensor != NULL ? comm_rank(tensor) : 0;
    m->share = share_of(config, m->ranks);
    m->rows = rows;
    m->training = training;
    status result = STATUS_OK;
    TRY_GOTO(
        result, fail,
        model_layout(config, m->ranks, m->rank, &m->parameters, &m->parameter_count, &m->elements));
    m->architecture = model_architecture(config->architecture);
    find_places(m);
    TRY_GOTO(result, fail, allocate(m));
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
            result = comm_free((*m)->tensor, (*m)->window);
        }
        struct device *dev = kernels_device((*m)->kernels);
        size_t elements = (size_t)(*m)->elements;
        device_release(dev, (*m)->weights, (size_t)(*m)->kept * sizeof(float));
        if ((*m)->vectors != NULL) {
            device_release(dev, (*m)->vectors, (size_t)vector_elements(*m) * sizeof(float));
        }
        device_release(dev, (*m)->copy, elements * sizeof(bf16));
        arena_destroy(&(*m)->arena);
        free((*m)->activations.layers);
        free((*m)->ranges);
        free((*m)->parameters);
        free(*m);
        *m = NULL;
    }
    return result;
}

const struct model_config *model_config_of(const struct model *m)
{
    return &m->config;
}

const struct model_parameter *model_parameters(const struct model *m, int *count)
{
    *count = m->parameter_count;
    return m->parameters;
}

static bool trained_vector(const struct model_parameter *p)
{
    return p->trained && p->dimensions == 1;
}

int64_t model_elements(const struct model *m)
{
    return m->elements;
}

int64_t model_kept_elements(const struct model *m)
{
    return m->kept;
}

float *model_weights(const struct model *m)
{
    return m->weights;
}

bf16 *model_copy(const struct model *m)
{
    return m->copy;
}

float *model_vectors(const struct model *m, int64_t *count)
{
    *count = 0;
    for (int i = 0; i < m->parameter_count && m->vectors != NULL; i++) {
        const struct model_parameter *p = &m->parameters[i];
        *count += trained_vector(p) ? p->columns : 0;
    }
    return m->vectors;
}

/* Of the vectors among these elements, which lie at weights. */
static status copy_vectors(struct model *m, struct range elements, const float *weights)
{
    int64_t end = elements.first + elements.count;
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        int64_t low = p->first > elements.first ? p->first : elements.first;
        int64_t high = p->first + p->rows * p->columns;
        high = high < end ? high : end;
        if (p->dimensions == 1 && low < high) {
            TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                            m->vectors + p->vector + (low - p->first),
                            weights + (low - elements.first),
                            (size_t)(high - low) * sizeof(float)));
        }
    }
    return STATUS_OK;
}

status model_release_weights(struct model *m)
{
    struct device *dev = kernels_device(m->kernels);
    REQUIRE(m->copy != NULL && m->weights != NULL, STATUS_INTERNAL,
            "only the f32 weights of a bf16 model are released, once");
    TRY(m->vectors == NULL ? allocate_vectors(m, dev) : STATUS_OK);
    TRY(copy_vectors(m, (struct range){0, m->kept}, m->weights));
    device_release(dev, m->weights, (size_t)m->kept * sizeof(float));
    m->weights = NULL;
    return STATUS_OK;
}

status model_set_frozen(struct model *m, struct range elements, float *weights)
{
    TRY(copy_vectors(m, elements, weights));
    return convert(m->kernels, tensor_view(m->copy + elements.first, DTYPE_BF16, 1, elements.count),
                   tensor_view(weights, DTYPE_F32, 1, elements.count));
}

status model_weights_changed(struct model *m)
{
    if (m->copy == NULL) {
        return STATUS_OK;
    }
    return convert(m->kernels, tensor_view(m->copy, DTYPE_BF16, 1, m->kept),
                   tensor_view(m->weights, DTYPE_F32, 1, m->kept));
}

struct place model_place(const struct model *m, int64_t layer, enum model_role role)
{
    int more = (int)layer * m->layer_parameters;
    int bias = m->places[role].bias;
    return (struct place){m->places[role].weight + more, bias < 0 ? -1 : bias + more};
}

/* A parameter with those that are joined to it. */
static struct tensor joined_view(void *data, enum dtype dtype, const struct model_parameter *p)
{
    bool vector = p->dimensions == 1;
    int64_t extent = 0;
    for (int i = 0; i < p->joined; i++) {
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
    if (m->copy != NULL) {
        return joined_view(m->copy + p->first, DTYPE_BF16, p);
    }
    return joined_view(m->weights + p->first, DTYPE_F32, p);
}

struct tensor model_vector(const struct model *m, int parameter)
{
    if (parameter < 0) {
        return tensor_absent();
    }
    const struct model_parameter *p = &m->parameters[parameter];
    bool kept = m->weights != NULL && p->first < m->kept;
    float *data = kept ? m->weights + p->first : m->vectors + p->vector;
    return joined_view(data, DTYPE_F32, p);
}

struct tensor model_gradient(const struct model *m, int parameter, float *const *gradients)
{
    return parameter < 0 || gradients[parameter] == NULL
               ? tensor_absent()
               : joined_view(gradients[parameter], DTYPE_F32, &m->parameters[parameter]);
}

void model_norm_gradients(const struct model *m, struct place place, float *const *gradients,
                          struct tensor *dgamma, struct tensor *dbeta)
{
    struct tensor unused = m->activations.unused;
    *dgamma = model_gradient(m, place.weight, gradients);
    *dbeta = model_gradient(m, place.bias, gradients);
    *dgamma = dgamma->data != NULL ? *dgamma : tensor_rows(unused, 0, 1);
    *dbeta = dbeta->data != NULL || place.bias < 0 ? *dbeta : tensor_rows(unused, 1, 1);
}

static int head_parameter(const struct model *m)
{
    if (m->config.task != MODEL_WORDS) {
        return -1;
    }
    return m->places[m->config.tied ? MODEL_TOKEN_TABLE : MODEL_DECODER].weight;
}

struct tensor model_head(const struct model *m)
{
    return model_matrix(m, head_parameter(m));
}

struct tensor model_head_gradient(const struct model *m, float *const *gradients)
{
    return model_gradient(m, head_parameter(m), gradients);
}

struct tensor model_head_bias(const struct model *m)
{
    return model_vector(m, m->places[MODEL_DECODER].bias);
}

struct tensor model_head_bias_gradient(const struct model *m, float *const *gradients)
{
    return model_gradient(m, m->places[MODEL_DECODER].bias, gradients);
}

struct tensor model_hidden_gradient(const struct model *m)
{
    return m->config.task != MODEL_WORDS ? m->activations.head.d_dense : m->activations.exchange;
}

/* ---- what layers are described by ---- */

struct dropout model_dropout(const struct model *m, const struct model_input *input, int64_t layer,
                             enum dropout_place place)
{
    float probability =
        place == DROPOUT_ATTENTION ? m->config.attention_dropout : m->config.dropout;
    if (!input->training || !(probability > 0)) {
        return (struct dropout){0};
    }
    uint64_t site = (uint64_t)(layer + 1) * DROPOUT_PLACES + (uint64_t)place;
    int64_t row_elements =
        place == DROPOUT_ATTENTION ? m->config.heads * input->longest : m->config.width;
    return (struct dropout){
        .probability = probability,
        .key = random_key(input->seed, RANDOM_DROPOUT, (uint64_t)input->step, site),
        .first = input->first_row * row_elements,
    };
}

struct attention model_attention(const struct model *m, const struct model_input *input,
                                 int64_t layer)
{
    int64_t head_width = m->config.width / m->config.heads;
    return (struct attention){
        .heads = (int)m->share.heads,
        .kv_heads = (int)m->share.kv_heads,
        .head_width = head_width,
        .causal = m->architecture->causal,
        .scale = 1.0f / sqrtf((float)head_width),
        .sequences = input->segments,
        .cu_q = input->cu_rows,
        .cu_k = input->cu_rows,
        .branches = input->branches,
        .longest_q = input->longest,
        .longest_k = input->longest,
        .dropout = model_dropout(m, input, layer, DROPOUT_ATTENTION),
        .first_head = m->rank * (int)m->share.heads,
        .all_heads = (int)m->config.heads,
    };
}
