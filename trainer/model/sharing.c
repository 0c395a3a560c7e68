/* Collectives of a tensor-parallel group, and the communication window that they use. Also the
 * memory of weights that the data-parallel group gathers.
 *
 * Each rank computes a partial result [N, C] of an output projection. The sum over the ranks
 * continues along the residual stream.
 *   without sequence parallelism   an all-reduce gives each rank the sum of all rows
 *   with sequence parallelism      a reduce-scatter gives each rank the sum of its local rows.
 *                                  Norms and dropout run on these. An all-gather collects all rows
 *                                  before a split matrix reads them
 * Sequence parallelism moves the same number of bytes. It needs 1/t of the work and memory for
 * norms and dropout. In backward, all-gathers and reduce-scatters swap roles. The input of a split
 * matrix is gathered again for the gradient of its weights.
 *
 * All layers of a decoder read the encoder's output. It is gathered once, and each rank keeps all
 * rows until the end of backward. Each rank adds its part of the gradient of all layers; the sum of
 * these parts is reduced once.
 *
 * Source    Korthikanti et al. 2022, arXiv:2205.05198 */
#include "base/number.h"
#include "trainer/model/model_impl.h"

/* Returns the bytes of the gathered rows, and of the gathered rows of the encoder's output. */
static size_t compute_gathered_bytes(const struct model_config *config,
                                     struct model_parallelism parallelism, enum dtype dtype,
                                     int64_t rows)
{
    int64_t buffers = config->encoder_layers > 0 ? 2 : 1;
    return parallelism.sequence_parallel
               ? (size_t)(buffers * rows * config->width) * dtype_bytes(dtype)
               : 0;
}

/* Returns the number of sums of the QK norms: gradients of weights, or sums of rows. The memory
 * after them is aligned to 64 bytes. */
static int64_t count_qk_norm_sums(const struct model_config *config, int64_t rows)
{
    return model_has_joint_qk_norm(config) ? number_round_up(2 * rows, 16)
           : model_has_qk_norm(config)     ? 2 * model_head_width(config)
                                           : 0;
}

/* Returns the number of sums of the gradients of a factorized embedding's matrix and bias. They are
 * needed with sequence parallelism only. */
static int64_t count_embedding_sums(const struct model_config *config, bool sequence_parallel)
{
    bool needed = sequence_parallel && model_is_factorized(config);
    return needed ? config->width * (config->embedding_width + 1) : 0;
}

size_t model_window_bytes(const struct model_config *config, struct model_parallelism parallelism,
                          enum dtype dtype, int64_t rows)
{
    size_t sum_bytes = (size_t)(rows * config->width) * sizeof(float);
    int64_t vectors = (parallelism.sequence_parallel ? 2 : 0) + config->adapter.rank;
    size_t vector_bytes = (size_t)(vectors * config->width + count_qk_norm_sums(config, rows) +
                                   count_embedding_sums(config, parallelism.sequence_parallel)) *
                          sizeof(float);
    return parallelism.ranks > 1
               ? sum_bytes + vector_bytes + compute_gathered_bytes(config, parallelism, dtype, rows)
               : 0;
}

static struct comm_range find_rows(const struct model *m, int rank, int64_t n)
{
    int64_t first = n * rank / m->ranks;
    return (struct comm_range){first, n * (rank + 1) / m->ranks - first};
}

static const struct comm_range *fill_element_ranges(struct model *m, int64_t n, int64_t columns)
{
    for (int r = 0; r < m->ranks; r++) {
        struct comm_range rows = find_rows(m, r, n);
        m->ranges[r] = (struct comm_range){rows.first * columns, rows.count * columns};
    }
    return m->ranges;
}

static status calibrate_reduce(void *model)
{
    struct model *m = model;
    if (m->parallelism.sequence_parallel) {
        const struct comm_range *ranges = fill_element_ranges(m, m->rows, m->config.width);
        TRY(comm_reduce_scatter_start(m->tensor_group, m->window, ranges, &m->reduce_request));
    } else {
        TRY(comm_all_reduce_start(m->tensor_group, m->window, m->rows * m->config.width,
                                  &m->reduce_request));
    }
    return comm_wait(m->tensor_group, &m->reduce_request);
}

static status calibrate_gather(void *model)
{
    struct model *m = model;
    TRY(comm_all_gather_start(m->tensor_group, m->gathered.data, dtype_bytes(m->gathered.dtype),
                              fill_element_ranges(m, m->rows, m->config.width),
                              &m->gather_request));
    return comm_wait(m->tensor_group, &m->gather_request);
}

/* Sets the views of the gathered rows, which are at the end of the window. */
static void connect_gathered(struct model *m, void *memory)
{
    enum dtype dtype = kernels_dtype(m->kernels);
    m->gathered = tensor_view(memory, dtype, m->rows, m->config.width);
    if (m->config.encoder_layers > 0) {
        size_t bytes = (size_t)(m->rows * m->config.width) * dtype_bytes(dtype);
        m->activations.encoder_output =
            tensor_view((char *)memory + bytes, dtype, m->rows, m->config.width);
    }
}

status model_connect(struct model *m)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    enum dtype dtype = kernels_dtype(m->kernels);
    size_t bytes = model_window_bytes(&m->config, m->parallelism, dtype, m->rows);
    TRY(comm_allocate(m->tensor_group, bytes, (void **)&m->window));
    if (dtype == DTYPE_F32) {
        m->activations.exchange = tensor_view(m->window, DTYPE_F32, m->rows, m->config.width);
    }
    m->adapter_sums = m->window + m->rows * m->config.width;
    m->qk_norm_sums = m->adapter_sums + m->config.adapter.rank * m->config.width;
    if (m->parallelism.sequence_parallel) {
        float *norms = m->qk_norm_sums + count_qk_norm_sums(&m->config, m->rows);
        m->norm_sums = tensor_view(norms, DTYPE_F32, 2, m->config.width);
        m->embedding_sums = norms + 2 * m->config.width;
        connect_gathered(m, m->embedding_sums + count_embedding_sums(&m->config, true));
    }
    TRY(comm_calibrate(m->tensor_group, calibrate_reduce, m));
    return m->parallelism.sequence_parallel ? comm_calibrate(m->tensor_group, calibrate_gather, m)
                                            : STATUS_OK;
}

/* Gathers on the device, without a copy to the host. */
static status gather_on_device(const struct model *m, char *all, const void *local, size_t bytes)
{
    struct comm_request *request = NULL;
    for (int r = 0; r < m->ranks; r++) {
        m->ranges[r] = (struct comm_range){r * (int64_t)bytes, (int64_t)bytes};
    }
    TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                    all + (size_t)m->rank * bytes, local, bytes));
    TRY(comm_all_gather_start(m->tensor_group, all, 1, m->ranges, &request));
    return comm_wait(m->tensor_group, &request);
}

static status gather_bytes(void *model, void *all, const void *local, size_t bytes)
{
    const struct model *m = model;
    return device_is_host(kernels_device(m->kernels))
               ? comm_all_gather_bytes(m->tensor_group, all, local, bytes)
               : gather_on_device(m, all, local, bytes);
}

struct vocabulary_shard model_lm_head_shard(struct model *m)
{
    return (struct vocabulary_shard){m->ranks, m->rank, gather_bytes, m};
}

/* ---- rows ---- */

struct comm_range model_local_rows(const struct model *m, int64_t n)
{
    return m->parallelism.sequence_parallel ? find_rows(m, m->rank, n) : (struct comm_range){0, n};
}

/* ---- sums over the ranks ---- */

struct tensor model_view_exchange(const struct model *m, int64_t n, int64_t columns)
{
    struct tensor exchange = m->activations.exchange;
    return tensor_view(exchange.data, exchange.dtype, n, columns);
}

/* Returns rows of the f32 window. bf16 values are also summed in f32. */
static struct tensor view_window_rows(const struct model *m, struct comm_range rows,
                                      int64_t columns)
{
    return tensor_view(m->window + rows.first * columns, DTYPE_F32, rows.count, columns);
}

/* Starts to sum the first n rows of `exchange`, which has this number of columns. */
static status start_reduce(struct model *m, int64_t n, int64_t columns)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    REQUIRE(m->window != NULL, STATUS_INTERNAL,
            "model_connect must be called before a tensor-parallel model is used");
    struct tensor exchange = model_view_exchange(m, n, columns);
    if (exchange.dtype != DTYPE_F32) {
        TRY(op_cast(m->kernels, view_window_rows(m, (struct comm_range){0, n}, columns), exchange));
    }
    if (m->parallelism.sequence_parallel) {
        return comm_reduce_scatter_start(m->tensor_group, m->window,
                                         fill_element_ranges(m, n, columns), &m->reduce_request);
    }
    return comm_all_reduce_start(m->tensor_group, m->window, n * columns, &m->reduce_request);
}

static status wait_reduce(struct model *m, int64_t n, int64_t columns)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    TRY(comm_wait(m->tensor_group, &m->reduce_request));
    struct tensor sum = model_reduced_columns(m, n, columns);
    return sum.dtype == DTYPE_F32
               ? STATUS_OK
               : op_cast(m->kernels, sum, view_window_rows(m, model_local_rows(m, n), columns));
}

status model_reduce_start(struct model *m, int64_t n)
{
    return start_reduce(m, n, m->config.width);
}

status model_reduce_wait(struct model *m, int64_t n)
{
    return wait_reduce(m, n, m->config.width);
}

status model_reduce_columns(struct model *m, int64_t n, int64_t columns)
{
    TRY(start_reduce(m, n, columns));
    return wait_reduce(m, n, columns);
}

status model_reduce(struct model *m, int64_t n)
{
    return model_reduce_columns(m, n, m->config.width);
}

status model_all_reduce(struct model *m, int64_t n, int64_t columns)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    struct tensor rows = model_view_exchange(m, n, columns);
    struct tensor window = view_window_rows(m, (struct comm_range){0, n}, columns);
    if (rows.dtype != DTYPE_F32) {
        TRY(op_cast(m->kernels, window, rows));
    }
    TRY(comm_all_reduce(m->tensor_group, m->window, n * columns));
    return rows.dtype == DTYPE_F32 ? STATUS_OK : op_cast(m->kernels, rows, window);
}

struct tensor model_reduced_columns(const struct model *m, int64_t n, int64_t columns)
{
    struct comm_range range = model_local_rows(m, n);
    return tensor_rows(model_view_exchange(m, n, columns), range.first, range.count);
}

struct tensor model_reduced_rows(const struct model *m, int64_t n)
{
    return model_reduced_columns(m, n, m->config.width);
}

/* ---- all-gather of the local rows ---- */

/* Starts to gather all rows into a buffer of the window. */
static status start_gather(struct model *m, struct tensor all, struct tensor local_rows)
{
    struct comm_range rows = model_local_rows(m, all.rows);
    TRY(op_copy(m->kernels, tensor_rows(all, rows.first, rows.count), local_rows));
    return comm_all_gather_start(m->tensor_group, all.data, dtype_bytes(all.dtype),
                                 fill_element_ranges(m, all.rows, all.columns), &m->gather_request);
}

status model_all_gather_start(struct model *m, struct tensor local_rows, int64_t n,
                              struct tensor *all)
{
    *all = local_rows;
    if (!m->parallelism.sequence_parallel) {
        return STATUS_OK;
    }
    *all = tensor_view(m->gathered.data, m->gathered.dtype, n, local_rows.columns);
    return start_gather(m, *all, local_rows);
}

status model_all_gather_wait(struct model *m)
{
    return m->parallelism.sequence_parallel ? comm_wait(m->tensor_group, &m->gather_request)
                                            : STATUS_OK;
}

status model_all_gather(struct model *m, struct tensor local_rows, int64_t n, struct tensor *all)
{
    TRY(model_all_gather_start(m, local_rows, n, all));
    return model_all_gather_wait(m);
}

status model_gather_encoder(struct model *m, int64_t n)
{
    const struct activations *a = &m->activations;
    if (!m->parallelism.sequence_parallel) {
        return STATUS_OK;
    }
    TRY(start_gather(m, tensor_rows(a->encoder_output, 0, n),
                     tensor_rows(a->encoder_norm, 0, model_local_rows(m, n).count)));
    return model_all_gather_wait(m);
}

/* ---- gradients of a norm, summed over the local rows of each rank ---- */

/* Returns memory for the gradient of gamma (0) or beta (1). */
static struct tensor view_norm_sums(const struct model *m, int row, int64_t columns)
{
    return tensor_view((float *)m->norm_sums.data + row * columns, DTYPE_F32, 1, columns);
}

/* Rank 0 starts from the accumulated gradient, the other ranks from zero. */
status model_norm_reduce_begin(struct model *m, struct tensor *dgamma, struct tensor *dbeta)
{
    if (!m->parallelism.sequence_parallel || dgamma->data == NULL) {
        return STATUS_OK;
    }
    struct tensor rows[2] = {view_norm_sums(m, 0, dgamma->columns),
                             view_norm_sums(m, 1, dgamma->columns)};
    if (m->rank == 0) {
        TRY(op_copy(m->kernels, rows[0], *dgamma));
        TRY(dbeta->data != NULL ? op_copy(m->kernels, rows[1], *dbeta) : STATUS_OK);
    } else {
        TRY(device_zero(kernels_device(m->kernels), kernels_stream(m->kernels), rows[0].data,
                        (size_t)(2 * dgamma->columns) * sizeof(float)));
    }
    *dgamma = rows[0];
    *dbeta = dbeta->data != NULL ? rows[1] : tensor_absent();
    return STATUS_OK;
}

status model_norm_reduce_end(struct model *m, struct tensor dgamma, struct tensor dbeta)
{
    if (!m->parallelism.sequence_parallel || dgamma.data == NULL) {
        return STATUS_OK;
    }
    int64_t vectors = dbeta.data != NULL ? 2 : 1, columns = dgamma.columns;
    TRY(comm_all_reduce(m->tensor_group, m->norm_sums.data, vectors * columns));
    TRY(op_copy(m->kernels, dgamma, view_norm_sums(m, 0, columns)));
    return dbeta.data == NULL ? STATUS_OK
                              : op_copy(m->kernels, dbeta, view_norm_sums(m, 1, columns));
}

/* ---- gradients of a factorized embedding's matrix, from the local rows of each rank ---- */

/* Returns memory for the gradient of the matrix (0) or of its bias (1). */
static struct tensor view_embedding_sums(const struct model *m, int i)
{
    int64_t rows = m->config.width, columns = m->config.embedding_width;
    return i == 0 ? tensor_view(m->embedding_sums, DTYPE_F32, rows, columns)
                  : tensor_view(m->embedding_sums + rows * columns, DTYPE_F32, 1, rows);
}

/* Rank 0 starts from the accumulated gradients, the other ranks from zero. */
status model_embedding_reduce_begin(struct model *m, struct tensor gradients[2])
{
    for (int i = 0; i < 2 && m->parallelism.sequence_parallel; i++) {
        struct tensor sum = view_embedding_sums(m, i);
        if (gradients[i].data != NULL) {
            TRY(m->rank == 0
                    ? op_copy(m->kernels, sum, gradients[i])
                    : device_zero(kernels_device(m->kernels), kernels_stream(m->kernels), sum.data,
                                  (size_t)(sum.rows * sum.columns) * sizeof(float)));
            gradients[i] = sum;
        }
    }
    return STATUS_OK;
}

status model_embedding_reduce_end(struct model *m, const struct tensor gradients[2])
{
    for (int i = 0; i < 2 && m->parallelism.sequence_parallel; i++) {
        struct tensor sum = view_embedding_sums(m, i);
        if (gradients[i].data != NULL) {
            TRY(comm_all_reduce(m->tensor_group, sum.data, sum.rows * sum.columns));
            TRY(op_copy(m->kernels, gradients[i], sum));
        }
    }
    return STATUS_OK;
}

/* ---- QK_NORM_ROWS: sums over the columns of each rank ---- */

struct tensor model_qk_norm_row_sums(const struct model *m, int64_t n)
{
    return tensor_view(m->qk_norm_sums, DTYPE_F32, n, 2);
}

status model_qk_norm_reduce_rows(struct model *m, int64_t n)
{
    return comm_all_reduce(m->tensor_group, m->qk_norm_sums, 2 * n);
}

/* ---- gradients of the QK norms, from the heads of each rank ---- */

static struct tensor view_qk_norm_sums(const struct model *m, int kind)
{
    int64_t width = model_head_width(&m->config);
    return tensor_view(m->qk_norm_sums + kind * width, DTYPE_F32, 1, width);
}

/* Rank 0 starts from the accumulated gradients, the other ranks from zero. */
status model_qk_norm_reduce_begin(struct model *m, struct tensor sums[2])
{
    for (int kind = 0; kind < 2 && m->ranks > 1; kind++) {
        struct tensor sum = view_qk_norm_sums(m, kind);
        TRY(m->rank == 0 ? op_copy(m->kernels, sum, sums[kind])
                         : device_zero(kernels_device(m->kernels), kernels_stream(m->kernels),
                                       sum.data, (size_t)sum.columns * sizeof(float)));
        sums[kind] = sum;
    }
    return STATUS_OK;
}

status model_qk_norm_reduce_end(struct model *m, const struct tensor gradients[2])
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    TRY(comm_all_reduce(m->tensor_group, m->qk_norm_sums, count_qk_norm_sums(&m->config, m->rows)));
    TRY(op_copy(m->kernels, gradients[0], view_qk_norm_sums(m, 0)));
    return op_copy(m->kernels, gradients[1], view_qk_norm_sums(m, 1));
}

/* ---- gradients of a replicated adapter matrix, from a partial sum on each rank ---- */

static struct tensor view_adapter_sums(const struct model *m, struct tensor gradient)
{
    return tensor_view(m->adapter_sums, DTYPE_F32, gradient.rows, gradient.columns);
}

status model_adapter_reduce_begin(struct model *m, bool first_micro_batch, struct tensor *gradient)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    struct tensor sums = view_adapter_sums(m, *gradient);
    if (!first_micro_batch && m->rank == 0) {
        TRY(op_copy(m->kernels, sums, *gradient));
    } else if (!first_micro_batch) {
        TRY(device_zero(kernels_device(m->kernels), kernels_stream(m->kernels), sums.data,
                        (size_t)(sums.rows * sums.columns) * sizeof(float)));
    }
    *gradient = sums;
    return STATUS_OK;
}

status model_adapter_reduce_end(struct model *m, struct tensor gradient)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    TRY(comm_all_reduce(m->tensor_group, m->adapter_sums, gradient.rows * gradient.columns));
    return op_copy(m->kernels, gradient, view_adapter_sums(m, gradient));
}

/* ---- weights that ZeRO gathers ---- */

/* Returns the address of the pointer to the gathered weights, and their size. */
static void **get_gathered(struct model *m, size_t *bytes)
{
    bool is_bf16 = kernels_dtype(m->kernels) == DTYPE_BF16;
    *bytes = is_bf16 ? (size_t)m->elements * sizeof(bf16) : (size_t)m->f32_elements * sizeof(float);
    return is_bf16 ? (void **)&m->bf16_weights : (void **)&m->weights;
}

status model_register_weights(struct model *m, struct comm *group)
{
    size_t bytes = 0;
    void **weights = get_gathered(m, &bytes);
    REQUIRE(m->gather_group == NULL, STATUS_INTERNAL,
            "the gathered weights can be registered only once");
    device_release(kernels_device(m->kernels), *weights, bytes);
    *weights = NULL;
    m->gather_group = group;
    return comm_allocate(group, bytes, weights);
}

status model_free_registered(struct model *m)
{
    size_t bytes = 0;
    void **weights = get_gathered(m, &bytes);
    if (m->gather_group == NULL) {
        return STATUS_OK;
    }
    status result = comm_free(m->gather_group, *weights);
    *weights = NULL;
    return result;
}
