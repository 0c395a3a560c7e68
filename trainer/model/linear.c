/* The matrices of the layers: their GEMMs and adapters, in bf16 or FP8. Each sub-layer begins with
 * a matrix that reads the residual stream, and ends with an output projection that writes to it.
 *
 * With row-wise scaling, the operations compute the scales from their operands (kernels/fp8.h), and
 * a step has no state. The rest of this comment describes delayed scaling.
 *
 * The GEMMs of a matrix have three operands: x, w and dy. The scale of an operand is a power of
 * two: the largest one with which the largest magnitude of the last `amax_history` steps is at most
 * the largest FP8 number. A step measures the magnitudes while it rounds the operands, so all
 * micro-batches of a step have the same scales. The magnitudes are maxima over all ranks, so every
 * layout has the same scales. On a GPU, the device computes the scales from a copy of the history,
 * and the host does not wait for the magnitudes (model_fp8_queue_advance). Without a history, in
 * the first step of a run, the operands are measured and not rounded.
 *
 * Embeddings, norms, attention, adapters and heads are not FP8. A pass without gradients rounds
 * with the same scales and measures nothing.
 *
 * Source    Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine (DelayedScaling). Its
 *           scales are not powers of two */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "kernels/fp8.h"
#include "trainer/model/linear.h"
#include "trainer/model/sublayers.h"

enum { MATRICES = 7 };

struct fp8_state {
    int64_t operands, length;
    float *history;   /* [length, operands] in host memory, newest step first */
    float *host;      /* copies of `scales` or of maxima of a step */
    float *scales;    /* [operands, FP8_SCALES_STRIDE] on the device, as in kernels/fp8.h */
    float *maxima;    /* [operands] on the device: of this step so far */
    bool is_measured; /* the history contains a step */
    /* On a GPU, for model_fp8_queue_advance; NULL until it is called */
    float *device_history; /* [length, operands] in a ring */
    float *gathered;       /* [ranks, operands] maxima of the ranks */
    float *arrived[2];     /* [operands] page-locked host memory: the newest row of two steps */
    int64_t newest;        /* row of the newest step in the ring */
    int ranks;
    bool is_copied; /* the ring is equal to the history, except for queued steps */
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
    return config->fp8.recipe != MODEL_FP8_NONE && (inside || !config->fp8.first_last_bf16);
}

static int64_t count_operands(const struct model_config *config)
{
    return config->layers * MATRICES * FP8_OPERANDS;
}

/* ---- sizes ---- */

static void add_matrix(struct model_fp8_sizes *sizes, int64_t outputs, int64_t inner)
{
    int64_t larger = number_max(outputs, inner);
    sizes->columns = number_max(sizes->columns, larger);
    sizes->weights = number_max(sizes->weights, outputs * inner);
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

int64_t model_fp8_uses(const struct model_config *config, const struct model_parameter *p)
{
    int64_t count = 0;
    if (p->dimensions != 2 || get_matrix(p->role) < 0) {
        return 0;
    }
    for (int64_t i = 0; i < model_parameter_uses(config, p); i++) { /* shared by layers 0, 1, ... */
        count += is_fp8_layer(config, p->layer + i);
    }
    return count;
}

size_t model_fp8_bytes(const struct model_config *config)
{
    bool is_delayed = config->fp8.recipe == MODEL_FP8_DELAYED;
    int64_t rows = is_delayed ? config->fp8.amax_history + 2 * FP8_SCALES_STRIDE + 1 : 0;
    return (size_t)(rows * count_operands(config)) * sizeof(float);
}

/* ---- state ---- */

status model_fp8_create(struct model *m)
{
    struct device *dev = kernels_device(m->kernels);
    if (!m->training || m->config.fp8.recipe != MODEL_FP8_DELAYED) {
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
        struct device *dev = kernels_device(m->kernels);
        size_t bytes = (size_t)f->operands * sizeof(float);
        device_release(dev, f->scales, FP8_SCALES_STRIDE * bytes);
        device_release(dev, f->maxima, bytes);
        device_release(dev, f->device_history, (size_t)f->length * bytes);
        device_release(dev, f->gathered, (size_t)f->ranks * bytes);
        for (int i = 0; i < COUNT(f->arrived); i++) {
            device_host_release(dev, f->arrived[i], bytes);
        }
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
    f->is_measured = f->is_copied = false;
    for (int64_t i = f->operands - 1; i >= 0; i--) {
        float scale = fp8_scale(amax[i], (enum fp8_operand)(i % FP8_OPERANDS));
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

/* Adds the largest magnitudes of a step to the history in host memory. */
static void add_to_history(struct fp8_state *f, const float *maxima)
{
    size_t bytes = (size_t)f->operands * sizeof(float);
    memmove(f->history + f->operands, f->history, (size_t)(f->length - 1) * bytes);
    memcpy(f->history, maxima, bytes);
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
    add_to_history(f, f->host);
    return model_fp8_sync(m);
}

/* ---- state on a GPU ---- */

static status allocate_ring(struct model *m, int ranks)
{
    struct fp8_state *f = m->fp8;
    struct device *dev = kernels_device(m->kernels);
    size_t bytes = (size_t)f->operands * sizeof(float);
    const char *what = "the amax history";
    f->ranks = ranks;
    TRY(device_allocate(dev, (size_t)f->length * bytes, what, (void **)&f->device_history));
    TRY(device_allocate(dev, (size_t)ranks * bytes, what, (void **)&f->gathered));
    for (int i = 0; i < COUNT(f->arrived); i++) {
        TRY(device_host_allocate(dev, bytes, what, (void **)&f->arrived[i]));
    }
    return STATUS_OK;
}

/* Copies the history of a resumed run to the ring: its rows begin with the newest one. */
static status copy_history(struct model *m)
{
    struct fp8_state *f = m->fp8;
    f->newest = 0;
    f->is_copied = true;
    return device_write(kernels_device(m->kernels), kernels_stream(m->kernels), f->device_history,
                        f->history, (size_t)(f->length * f->operands) * sizeof(float));
}

static status gather_columns(struct comm *comm, float *all, int64_t columns)
{
    struct comm_request *request = NULL;
    struct comm_range *ranges = NULL;
    TRY(ALLOCATE(ranges, comm_size(comm), "the ranges of the ranks"));
    for (int r = 0; r < comm_size(comm); r++) {
        ranges[r] = (struct comm_range){r * columns, columns};
    }
    status result = comm_all_gather_start(comm, all, sizeof *all, ranges, &request);
    KEEP_FIRST(result, comm_wait(comm, &request));
    free(ranges);
    return result;
}

/* Gathers the magnitudes of all ranks in f->gathered. */
static status gather_maxima(struct model *m, struct comm *data, struct comm *tensor)
{
    struct fp8_state *f = m->fp8;
    int64_t columns = comm_size(tensor) * f->operands;
    float *rows = f->gathered + comm_rank(data) * columns;
    TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                    rows + comm_rank(tensor) * f->operands, f->maxima,
                    (size_t)f->operands * sizeof(float)));
    TRY(gather_columns(tensor, rows, f->operands));
    return gather_columns(data, f->gathered, columns);
}

status model_fp8_queue_advance(struct model *m, struct comm *data, struct comm *tensor,
                               int64_t step, const struct update_control *control)
{
    struct fp8_state *f = m->fp8;
    if (f == NULL) {
        return STATUS_OK;
    }
    struct device *dev = kernels_device(m->kernels);
    struct stream *stream = kernels_stream(m->kernels);
    size_t bytes = (size_t)f->operands * sizeof(float);
    int ranks = comm_size(data) * comm_size(tensor);
    TRY(f->device_history == NULL ? allocate_ring(m, ranks) : STATUS_OK);
    TRY(f->is_copied ? STATUS_OK : copy_history(m));
    TRY(gather_maxima(m, data, tensor));
    TRY(device_zero(dev, stream, f->maxima, bytes));
    f->newest = (f->newest + f->length - 1) % f->length;
    TRY(fp8_update_scales(
        m->kernels,
        (struct tensor){f->scales, DTYPE_F32, f->operands, FP8_SCALES_STRIDE, FP8_SCALES_STRIDE},
        tensor_view(f->device_history, DTYPE_F32, f->length, f->operands),
        tensor_view(f->gathered, DTYPE_F32, ranks, f->operands), f->newest, control));
    return device_copy(dev, stream, f->arrived[step % COUNT(f->arrived)],
                       f->device_history + f->newest * f->operands, bytes);
}

void model_fp8_finish_advance(struct model *m, int64_t step, bool keep)
{
    struct fp8_state *f = m->fp8;
    if (f != NULL && keep) {
        add_to_history(f, f->arrived[step % COUNT(f->arrived)]);
        f->is_measured = true; /* scales without a magnitude are 1 */
    }
}

bool model_fp8_is_measured(const struct model *m)
{
    return m->fp8 == NULL || m->fp8->is_measured;
}

/* ---- GEMMs of a role ---- */

/* Returns the index of the first operand of a matrix; -1: it is not FP8. */
static int64_t find_operands(const struct model *m, int64_t layer, enum model_role role)
{
    int matrix = get_matrix(role);
    bool is_fp8 = m->training && matrix >= 0 && is_fp8_layer(&m->config, layer);
    return is_fp8 ? (layer * MATRICES + matrix) * FP8_OPERANDS : -1;
}

static struct tensor view_scales(const struct model *m, int64_t first)
{
    const struct fp8_state *f = m->fp8;
    return f != NULL && f->is_measured
               ? (struct tensor){f->scales + FP8_SCALES_STRIDE * first, DTYPE_F32, FP8_OPERANDS, 2,
                                 FP8_SCALES_STRIDE}
               : tensor_absent();
}

static struct tensor view_maxima(const struct model *m, const struct model_input *input,
                                 int64_t first)
{
    return m->fp8 != NULL && input->training
               ? tensor_view(m->fp8->maxima + first, DTYPE_F32, 1, FP8_OPERANDS)
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

/* Computes dx = (dy W) act', where W is the matrix of a role. The arguments are the same as for
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

/* Returns whether input_backward of the second feed-forward matrix computes the gradient of the
 * first matrix's output, including the derivative of the activation. With a gate, an adapter of the
 * second matrix, or dropout of the inner features, a separate operation computes this gradient. */
static bool activation_follows(const struct model *m, int64_t layer)
{
    return !m->architecture->feed_forward.gated && !(m->config.activation_dropout > 0) &&
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

status model_gathered_matrix_backward(struct backward *b, int64_t layer, enum model_role role,
                                      struct tensor dx, struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    struct param_index index = model_param_index(m, layer, role);
    TRY(input_backward(b, layer, role, dx, (struct bias_gradient){0}, dy, ACTIVATION_NONE,
                       tensor_absent()));
    TRY(model_adapters_backward_input(m, b->input, layer, index, dx, dy));
    TRY(weight_backward(b, layer, role, dy, x));
    return model_adapters_backward_weight(m, b->input, layer, index, b->gradients, dy, x);
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
