/* The matrices of the layers: their GEMMs and adapters, in FP8 with delayed scaling. Each sub-layer
 * begins with a matrix that reads the residual stream, and ends with an output projection that
 * writes to it.
 *
 * With FP8, the GEMMs of a matrix have three operands: x, w and dy. The scale of an operand is a
 * power of two: the largest one with which the largest magnitude of the last `amax_history` steps
 * is at most the largest FP8 number. A step measures the magnitudes while it rounds the operands,
 * so all micro-batches of a step have the same scales. The magnitudes are maxima over all ranks, so
 * every layout has the same scales. Without a history, in the first step of a run, the operands are
 * measured and not rounded.
 *
 * Embeddings, norms, attention, adapters and heads are not FP8. A pass without gradients rounds
 * with the same scales and measures nothing.
 *
 * Source    Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine (DelayedScaling). Its
 *           scales are not powers of two */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/fp8.h"
#include "trainer/model/sublayers.h"

enum { MATRICES = 7, SCALE_EXPONENT_MAX = 100 };

struct fp8_state {
    int64_t operands, length;
    float *history;   /* [length, operands] in host memory, newest step first */
    float *host;      /* copies of `scales` or of maxima of a step */
    float *scales;    /* [operands, FP8_SCALES_STRIDE] on the device, as in kernels/fp8.h */
    float *maxima;    /* [operands] on the device: of this step so far */
    bool is_measured; /* the history contains a step */
};

static int get_matrix(enum model_role role)
{
    switch (role) {
    case MODEL_QKV:
        return 0;
    case MODEL_PROJECTION:
        return 1;
    case MODEL_FC:
        return 2;
    case MODEL_FC_PROJECTION:
        return 3;
    case MODEL_CROSS_QUERY:
        return 4;
    case MODEL_CROSS_KEY_VALUE:
        return 5;
    case MODEL_CROSS_PROJECTION:
        return 6;
    default:
        return -1;
    }
}

static bool is_fp8_layer(const struct model_config *config, int64_t layer)
{
    bool inside = layer > 0 && layer < config->layers - 1;
    return config->fp8.amax_history > 0 && (inside || !config->fp8.first_last_bf16);
}

static int64_t count_operands(const struct model_config *config)
{
    return config->layers * MATRICES * FP8_OPERANDS;
}

/* ---- sizes ---- */

static void add_matrix(struct model_fp8_sizes *sizes, int64_t outputs, int64_t inner)
{
    int64_t larger = outputs > inner ? outputs : inner;
    sizes->columns = larger > sizes->columns ? larger : sizes->columns;
    sizes->weights = outputs * inner > sizes->weights ? outputs * inner : sizes->weights;
    if (sizes->not_multiple == 0) {
        sizes->not_multiple = outputs % FP8_MULTIPLE != 0 ? outputs
                              : inner % FP8_MULTIPLE != 0 ? inner
                                                          : 0;
    }
}

struct model_fp8_sizes model_fp8_sizes(const struct model_config *config, int ranks)
{
    struct model_fp8_sizes sizes = {0};
    int64_t attended = model_attention_width(config) / ranks;
    int64_t key_value = 2 * model_kv_heads(config) * model_head_width(config) / ranks;
    for (int64_t layer = 0; layer < config->layers; layer++) {
        if (!is_fp8_layer(config, layer)) {
            continue;
        }
        add_matrix(&sizes, attended + key_value, config->width);
        add_matrix(&sizes, config->width, attended);
        add_matrix(&sizes, model_inner_outputs(config) / ranks, config->width);
        add_matrix(&sizes, config->width, config->inner / ranks);
        if (model_layer_has_cross(config, layer)) {
            add_matrix(&sizes, 2 * attended, config->width);
        }
    }
    return sizes;
}

size_t model_fp8_bytes(const struct model_config *config)
{
    int64_t rows =
        config->fp8.amax_history > 0 ? config->fp8.amax_history + 2 * FP8_SCALES_STRIDE + 1 : 0;
    return (size_t)(rows * count_operands(config)) * sizeof(float);
}

/* ---- state ---- */

status model_fp8_create(struct model *m)
{
    struct device *dev = kernels_device(m->kernels);
    if (!m->training || m->config.fp8.amax_history == 0) {
        return STATUS_OK;
    }
    TRY(ALLOCATE(m->fp8, 1, "the FP8 scales"));
    struct fp8_state *f = m->fp8;
    f->operands = count_operands(&m->config);
    f->length = m->config.fp8.amax_history;
    size_t bytes = (size_t)f->operands * sizeof(float);
    TRY(ALLOCATE(f->history, f->length * f->operands, "the amax history"));
    TRY(ALLOCATE(f->host, FP8_SCALES_STRIDE * f->operands, "the FP8 scales"));
    TRY(device_allocate(dev, FP8_SCALES_STRIDE * bytes, "the FP8 scales", (void **)&f->scales));
    return device_allocate(dev, bytes, "the FP8 scales", (void **)&f->maxima);
}

void model_fp8_destroy(struct model *m)
{
    struct fp8_state *f = m->fp8;
    if (f != NULL) {
        size_t bytes = (size_t)f->operands * sizeof(float);
        device_release(kernels_device(m->kernels), f->scales, FP8_SCALES_STRIDE * bytes);
        device_release(kernels_device(m->kernels), f->maxima, bytes);
        free(f->history);
        free(f->host);
        free(f);
    }
    m->fp8 = NULL;
}

float *model_fp8_history(const struct model *m, int64_t *length, int64_t *operands)
{
    *length = m->fp8 != NULL ? m->fp8->length : 0;
    *operands = m->fp8 != NULL ? m->fp8->operands : 0;
    return m->fp8 != NULL ? m->fp8->history : NULL;
}

/* Returns the scale for numbers up to `amax`: 1 for a matrix that was always zero. */
static float compute_scale(float amax, enum fp8_operand operand)
{
    if (!(amax > 0)) {
        return 1;
    }
    int exponent = ilogb((double)(operand == FP8_DY ? FP8_MAX_E5M2 : FP8_MAX_E4M3) / (double)amax);
    exponent = exponent > SCALE_EXPONENT_MAX ? SCALE_EXPONENT_MAX : exponent;
    exponent = exponent < -SCALE_EXPONENT_MAX ? -SCALE_EXPONENT_MAX : exponent;
    return ldexpf(1.0f, exponent);
}

status model_fp8_sync(struct model *m)
{
    struct fp8_state *f = m->fp8;
    if (f == NULL) {
        return STATUS_OK;
    }
    float *amax = f->host; /* the scale of an operand replaces maxima of later operands only */
    memset(amax, 0, (size_t)f->operands * sizeof *amax);
    for (int64_t step = 0; step < f->length; step++) {
        const float *row = f->history + step * f->operands;
        for (int64_t i = 0; i < f->operands; i++) {
            amax[i] = row[i] > amax[i] ? row[i] : amax[i];
        }
    }
    f->is_measured = false;
    for (int64_t i = f->operands - 1; i >= 0; i--) {
        float scale = compute_scale(amax[i], (enum fp8_operand)(i % FP8_OPERANDS));
        f->is_measured = f->is_measured || amax[i] > 0;
        f->host[FP8_SCALES_STRIDE * i + FP8_RECIPROCAL] = 1 / scale;
        f->host[FP8_SCALES_STRIDE * i + FP8_SCALE] = scale;
    }
    return device_write(kernels_device(m->kernels), kernels_stream(m->kernels), f->scales, f->host,
                        FP8_SCALES_STRIDE * (size_t)f->operands * sizeof(float));
}

/* Replaces the magnitudes of this rank by their finite maxima over all ranks. */
static status reduce_maxima(struct comm *world, float *maxima, int64_t count)
{
    float *all = NULL;
    int ranks = comm_size(world);
    TRY(comm_abort_on_error(world, ALLOCATE(all, ranks * count, "the maxima of the ranks")));
    status result = comm_all_gather_bytes(world, all, maxima, (size_t)count * sizeof *maxima);
    for (int64_t i = 0; i < count && result == STATUS_OK; i++) {
        maxima[i] = 0;
        for (int r = 0; r < ranks; r++) {
            float x = all[r * count + i];
            maxima[i] = isfinite(x) && x > maxima[i] ? x : maxima[i];
        }
    }
    free(all);
    return result;
}

status model_fp8_advance(struct model *m, struct comm *world, bool keep)
{
    struct fp8_state *f = m->fp8;
    if (f == NULL) {
        return STATUS_OK;
    }
    struct device *dev = kernels_device(m->kernels);
    struct stream *stream = kernels_stream(m->kernels);
    size_t bytes = (size_t)f->operands * sizeof(float);
    TRY(device_read(dev, stream, f->host, f->maxima, bytes));
    TRY(device_zero(dev, stream, f->maxima, bytes));
    if (!keep) {
        return STATUS_OK;
    }
    TRY(reduce_maxima(world, f->host, f->operands));
    memmove(f->history + f->operands, f->history, (size_t)(f->length - 1) * bytes);
    memcpy(f->history, f->host, bytes);
    return model_fp8_sync(m);
}

/* ---- GEMMs of a role ---- */

/* Returns the index of the first operand of a matrix; -1: it is not FP8. */
static int64_t find_operands(const struct model *m, int64_t layer, enum model_role role)
{
    int matrix = get_matrix(role);
    bool is_fp8 = m->fp8 != NULL && matrix >= 0 && is_fp8_layer(&m->config, layer);
    return is_fp8 ? (layer * MATRICES + matrix) * FP8_OPERANDS : -1;
}

static struct tensor view_scales(const struct model *m, int64_t first)
{
    float *scales = m->fp8->scales + FP8_SCALES_STRIDE * first;
    return m->fp8->is_measured
               ? (struct tensor){scales, DTYPE_F32, FP8_OPERANDS, 2, FP8_SCALES_STRIDE}
               : tensor_absent();
}

static struct tensor view_maxima(const struct model *m, const struct model_input *input,
                                 int64_t first)
{
    return input->training ? tensor_view(m->fp8->maxima + first, DTYPE_F32, 1, FP8_OPERANDS)
                           : tensor_absent();
}

status model_linear_forward(struct model *m, const struct model_input *input, int64_t layer,
                            enum model_role role, struct tensor y, struct tensor saved,
                            struct tensor x, struct tensor bias, enum activation act)
{
    struct tensor w = model_matrix(m, model_param_index(m, layer, role).weight);
    int64_t first = find_operands(m, layer, role);
    if (first < 0) {
        return linear_forward(m->kernels, y, saved, x, w, bias, act);
    }
    return fp8_linear_forward(m->kernels, y, saved, view_maxima(m, input, first), x, w, bias,
                              view_scales(m, first), act);
}

/* Computes dx = (dy W) act', where W is the matrix of a role. The arguments are those of
 * linear_backward_input. */
static status input_backward(const struct backward *b, int64_t layer, enum model_role role,
                             struct tensor dx, struct bias_gradient dbias, struct tensor dy,
                             enum activation act, struct tensor saved)
{
    struct model *m = b->m;
    struct tensor w = model_matrix(m, model_param_index(m, layer, role).weight);
    int64_t first = find_operands(m, layer, role);
    if (first < 0) {
        return linear_backward_input(m->kernels, dx, dbias, dy, w, act, saved);
    }
    return fp8_linear_backward_input(m->kernels, dx, dbias, view_maxima(m, b->input, first), dy, w,
                                     view_scales(m, first), act, saved);
}

/* Returns whether the norm after an output projection reads all rows of the projection's output. A
 * branch norm or a factor between them changes the output. With sequence parallelism, a rank has
 * only some of the rows. */
static bool norm_reads_output(const struct model *m)
{
    return !m->parallelism.sequence_parallel && !architecture_has_branch_norms(m->architecture) &&
           !(m->config.residual_multiplier > 0);
}

/* Returns whether input_backward of the second feed-forward matrix, including the derivative of the
 * activation, computes the gradient of the first matrix's output. With a gate or an adapter of the
 * second matrix, another operation computes it. */
static bool activation_follows(const struct model *m, int64_t layer)
{
    return !m->architecture->feed_forward.gated &&
           !model_has_adapter(m, model_param_index(m, layer, MODEL_FC_PROJECTION));
}

struct bias_gradient model_early_bias_gradient(const struct backward *b, int64_t layer,
                                               enum model_role role)
{
    const struct model *m = b->m;
    bool is_projection =
        role == MODEL_PROJECTION || role == MODEL_CROSS_PROJECTION || role == MODEL_FC_PROJECTION;
    /* The backward pass of norm1 of the next layer sums this gradient. It runs before the hook of
     * that layer. Before this hook, transient gradients have no memory. */
    bool has_memory = role != MODEL_FC_PROJECTION || !b->input->transient_gradients;
    if (!(is_projection && norm_reads_output(m) && has_memory) &&
        !(role == MODEL_FC && activation_follows(m, layer))) {
        return (struct bias_gradient){0};
    }
    int bias = model_param_index(m, layer, role).bias;
    return (struct bias_gradient){model_gradient(m, bias, b->gradients),
                                  model_sets_gradients(m, b->input)};
}

/* Computes the gradients of the matrix and the bias of a role. Omits the bias if an operation has
 * summed its gradient already (model_early_bias_gradient). */
static status weight_backward(const struct backward *b, int64_t layer, enum model_role role,
                              struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    struct param_index index = model_param_index(m, layer, role);
    bool has_dbias = model_early_bias_gradient(b, layer, role).sums.data != NULL;
    struct tensor dw = model_gradient(m, index.weight, b->gradients);
    struct tensor dbias = has_dbias ? tensor_absent() : model_gradient(m, index.bias, b->gradients);
    int64_t first = find_operands(m, layer, role);
    bool overwrite = model_sets_gradients(m, b->input);
    if (first < 0) {
        return linear_backward_weight(m->kernels, dw, dbias, dy, x, overwrite);
    }
    return fp8_linear_backward_weight(m->kernels, dw, dbias, view_maxima(m, b->input, first), dy, x,
                                      view_scales(m, first), overwrite);
}

/* ---- sub-layers ---- */

status model_project_output(struct model *m, const struct model_input *input, int64_t layer,
                            enum model_role role, struct tensor x)
{
    struct param_index index = model_param_index(m, layer, role);
    struct tensor y = model_view_rows(m->activations.exchange, x.rows);
    TRY(model_linear_forward(m, input, layer, role, y, tensor_absent(), x,
                             m->rank == 0 ? model_bias(m, index.bias) : tensor_absent(),
                             ACTIVATION_NONE));
    TRY(model_adapters_forward(m, input, layer, index, y, x));
    return model_reduce(m, x.rows);
}

status model_project_backward(struct backward *b, int64_t layer, enum model_role role,
                              struct tensor dx, struct tensor dy, struct tensor x,
                              enum activation act, struct tensor saved)
{
    struct model *m = b->m;
    struct param_index index = model_param_index(m, layer, role);
    TRY(weight_backward(b, layer, role, dy, x));
    if (!model_has_adapter(m, index)) {
        struct bias_gradient none = {0};
        struct bias_gradient dbias =
            role == MODEL_FC_PROJECTION ? model_early_bias_gradient(b, layer, MODEL_FC) : none;
        return input_backward(b, layer, role, dx, dbias, dy, act, saved);
    }
    TRY(input_backward(b, layer, role, dx, (struct bias_gradient){0}, dy, ACTIVATION_NONE,
                       tensor_absent()));
    TRY(model_adapters_backward_input(m, b->input, layer, index, dx, dy));
    TRY(model_adapters_backward_weight(m, b->input, layer, index, b->gradients, dy, x));
    return act == ACTIVATION_NONE ? STATUS_OK : activation_backward(m->kernels, dx, dx, saved, act);
}

status model_input_matrix_backward(struct backward *b, int64_t layer, enum model_role role,
                                   bool needs_dx, struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    struct param_index index = model_param_index(m, layer, role);
    struct tensor gathered,
        dx = needs_dx ? model_view_rows(m->activations.exchange, b->n) : tensor_absent();
    TRY(model_all_gather_start(m, x, b->n, &gathered));
    TRY(needs_dx ? input_backward(b, layer, role, dx, (struct bias_gradient){0}, dy,
                                  ACTIVATION_NONE, tensor_absent())
                 : STATUS_OK);
    TRY(model_adapters_backward_input(m, b->input, layer, index, dx, dy));
    TRY(model_all_gather_wait(m));
    TRY(needs_dx ? model_reduce_start(m, b->n) : STATUS_OK);
    TRY(weight_backward(b, layer, role, dy, gathered));
    TRY(model_adapters_backward_weight(m, b->input, layer, index, b->gradients, dy, gathered));
    return needs_dx ? model_reduce_wait(m, b->n) : STATUS_OK;
}
