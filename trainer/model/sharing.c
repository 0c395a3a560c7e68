/* What ranks that share a model tell each other, and the memory in which they do.
 *
 * Each rank's part of an output projection is [N, C], and the sum over the ranks goes on. Without sequence
 * parallelism every rank has the whole sum (an all-reduce) and all rows of the stream. With it a rank has the
 * sum of its own rows (a reduce-scatter), goes through norms and dropout with these, and all rows are put
 * together (an all-gather) where a split matrix reads them: the same bytes, 1/t of the work and of the
 * memory in between. Backward the gathers and scatters change places, and what a split matrix has read is
 * gathered once more for the gradient of its weights.
 *
 * Source    Korthikanti et al. 2022, arXiv:2205.05198 */
#include "trainer/model/model_impl.h"

static size_t gathered_bytes(const struct model_config *config, struct model_sharing sharing,
                             enum dtype dtype, int64_t rows)
{
    return sharing.sequence ? (size_t)(rows * config->width) * dtype_bytes(dtype) : 0;
}

size_t model_window_bytes(const struct model_config *config, struct model_sharing sharing,
                          enum dtype dtype, int64_t rows)
{
    size_t sums = (size_t)(rows * config->width) * sizeof(float);
    int64_t vectors = (sharing.sequence ? 2 : 0) + config->adapter.rank;
    size_t others = (size_t)(vectors * config->width) * sizeof(float);
    return sharing.ranks > 1 ? sums + others + gathered_bytes(config, sharing, dtype, rows) : 0;
}

static struct range rows_of(const struct model *m, int rank, int64_t n)
{
    int64_t first = n * rank / m->ranks;
    return (struct range){first, n * (rank + 1) / m->ranks - first};
}

static const struct range *element_ranges(struct model *m, int64_t n)
{
    for (int r = 0; r < m->ranks; r++) {
        struct range rows = rows_of(m, r, n);
        m->ranges[r] = (struct range){rows.first * m->config.width, rows.count * m->config.width};
    }
    return m->ranges;
}

static status sum_all(void *model)
{
    struct model *m = model;
    if (m->sharing.sequence) {
        const struct range *ranges = element_ranges(m, m->rows);
        TRY(comm_reduce_scatter_start(m->tensor, m->window, ranges, &m->adding));
    } else {
        TRY(comm_all_reduce_start(m->tensor, m->window, m->rows * m->config.width, &m->adding));
    }
    return comm_wait(m->tensor, &m->adding);
}

static status gather_all(void *model)
{
    struct model *m = model;
    TRY(comm_all_gather_start(m->tensor, m->gathered.data, dtype_bytes(m->gathered.dtype),
                              element_ranges(m, m->rows), &m->spreading));
    return comm_wait(m->tensor, &m->spreading);
}

status model_connect(struct model *m)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    enum dtype dtype = kernels_dtype(m->kernels);
    size_t bytes = model_window_bytes(&m->config, m->sharing, dtype, m->rows);
    TRY(comm_allocate(m->tensor, bytes, (void **)&m->window));
    if (dtype == DTYPE_F32) {
        m->activations.exchange = tensor_view(m->window, DTYPE_F32, m->rows, m->config.width);
    }
    m->adapter_sums = m->window + m->rows * m->config.width;
    if (m->sharing.sequence) {
        float *norms = m->adapter_sums + m->config.adapter.rank * m->config.width;
        m->norm_sums = tensor_view(norms, DTYPE_F32, 2, m->config.width);
        m->gathered = tensor_view(norms + 2 * m->config.width, dtype, m->rows, m->config.width);
    }
    TRY(comm_rehearse(m->tensor, sum_all, m));
    return m->sharing.sequence ? comm_rehearse(m->tensor, gather_all, m) : STATUS_OK;
}

/* On a device as large data, which stays there. */
static status gather_on_device(const struct model *m, char *all, const void *mine, size_t bytes)
{
    struct comm_request *request = NULL;
    for (int r = 0; r < m->ranks; r++) {
        m->ranges[r] = (struct range){r * (int64_t)bytes, (int64_t)bytes};
    }
    TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                    all + (size_t)m->rank * bytes, mine, bytes));
    TRY(comm_all_gather_start(m->tensor, all, 1, m->ranges, &request));
    return comm_wait(m->tensor, &request);
}

static status gather_lines(void *model, void *all, const void *mine, size_t bytes)
{
    const struct model *m = model;
    return device_is_host(kernels_device(m->kernels))
               ? comm_all_gather_bytes(m->tensor, all, mine, bytes)
               : gather_on_device(m, all, mine, bytes);
}

struct classifier_parts model_head_parts(struct model *m)
{
    return (struct classifier_parts){m->ranks, m->rank, gather_lines, m};
}

/* ---- rows ---- */

struct range model_own_rows(const struct model *m, int64_t n)
{
    return m->sharing.sequence ? rows_of(m, m->rank, n) : (struct range){0, n};
}

static status copy(const struct model *m, struct tensor to, struct tensor from)
{
    return device_copy(kernels_device(m->kernels), kernels_stream(m->kernels), to.data, from.data,
                       (size_t)(from.rows * from.columns) * dtype_bytes(from.dtype));
}

/* ---- sums over the ranks ---- */

/* Rows of the f32 window; bf16 is added up in f32. */
static struct tensor window_rows(const struct model *m, struct range rows)
{
    return tensor_view(m->window + rows.first * m->config.width, DTYPE_F32, rows.count,
                       m->config.width);
}

status model_add_up_start(struct model *m, int64_t n)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    REQUIRE(m->window != NULL, STATUS_INTERNAL, "a model that several ranks share, not connected");
    struct tensor exchange = tensor_rows(m->activations.exchange, 0, n);
    if (exchange.dtype != DTYPE_F32) {
        TRY(convert(m->kernels, window_rows(m, (struct range){0, n}), exchange));
    }
    if (m->sharing.sequence) {
        return comm_reduce_scatter_start(m->tensor, m->window, element_ranges(m, n), &m->adding);
    }
    return comm_all_reduce_start(m->tensor, m->window, n * m->config.width, &m->adding);
}

status model_add_up_wait(struct model *m, int64_t n)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    TRY(comm_wait(m->tensor, &m->adding));
    struct tensor sum = model_added(m, n);
    return sum.dtype == DTYPE_F32 ? STATUS_OK
                                  : convert(m->kernels, sum, window_rows(m, model_own_rows(m, n)));
}

status model_add_up(struct model *m, int64_t n)
{
    TRY(model_add_up_start(m, n));
    return model_add_up_wait(m, n);
}

status model_add_up_all(struct model *m, int64_t n)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    struct tensor rows = tensor_rows(m->activations.exchange, 0, n);
    struct tensor window = window_rows(m, (struct range){0, n});
    if (rows.dtype != DTYPE_F32) {
        TRY(convert(m->kernels, window, rows));
    }
    TRY(comm_all_reduce(m->tensor, m->window, n * m->config.width));
    return rows.dtype == DTYPE_F32 ? STATUS_OK : convert(m->kernels, rows, window);
}

struct tensor model_added(const struct model *m, int64_t n)
{
    struct range own = model_own_rows(m, n);
    return tensor_rows(m->activations.exchange, own.first, own.count);
}

/* ---- all rows from each rank's own ---- */

status model_spread_start(struct model *m, struct tensor own, int64_t n, struct tensor *all)
{
    *all = own;
    if (!m->sharing.sequence) {
        return STATUS_OK;
    }
    struct range rows = model_own_rows(m, n);
    *all = tensor_rows(m->gathered, 0, n);
    TRY(copy(m, tensor_rows(*all, rows.first, rows.count), own));
    return comm_all_gather_start(m->tensor, all->data, dtype_bytes(all->dtype),
                                 element_ranges(m, n), &m->spreading);
}

status model_spread_wait(struct model *m)
{
    return m->sharing.sequence ? comm_wait(m->tensor, &m->spreading) : STATUS_OK;
}

status model_spread(struct model *m, struct tensor own, int64_t n, struct tensor *all)
{
    TRY(model_spread_start(m, own, n, all));
    return model_spread_wait(m);
}

/* ---- a norm's gradients, from each rank's own rows ---- */

/* The first rank's sums begin with what is there already, the others' with nothing. */
status model_norm_sums_begin(struct model *m, struct tensor *dgamma, struct tensor *dbeta)
{
    if (!m->sharing.sequence) {
        return STATUS_OK;
    }
    struct tensor rows[2] = {tensor_rows(m->norm_sums, 0, 1), tensor_rows(m->norm_sums, 1, 1)};
    if (m->rank == 0) {
        TRY(copy(m, rows[0], *dgamma));
        TRY(dbeta->data != NULL ? copy(m, rows[1], *dbeta) : STATUS_OK);
    } else {
        TRY(device_zero(kernels_device(m->kernels), kernels_stream(m->kernels), rows[0].data,
                        (size_t)(2 * m->config.width) * sizeof(float)));
    }
    *dgamma = rows[0];
    *dbeta = dbeta->data != NULL ? rows[1] : tensor_absent();
    return STATUS_OK;
}

status model_norm_sums_end(struct model *m, struct tensor dgamma, struct tensor dbeta)
{
    if (!m->sharing.sequence) {
        return STATUS_OK;
    }
    int64_t vectors = dbeta.data != NULL ? 2 : 1;
    TRY(comm_all_reduce(m->tensor, m->norm_sums.data, vectors * m->config.width));
    TRY(copy(m, dgamma, tensor_rows(m->norm_sums, 0, 1)));
    return dbeta.data == NULL ? STATUS_OK : copy(m, dbeta, tensor_rows(m->norm_sums, 1, 1));
}

/* ---- an adapter's gradients, from each rank's part of it ---- */

static struct tensor adapter_sums(const struct model *m, struct tensor gradient)
{
    return tensor_view(m->adapter_sums, DTYPE_F32, gradient.rows, gradient.columns);
}

status model_adapter_sums_begin(struct model *m, bool fresh, struct tensor *gradient)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    struct tensor sums = adapter_sums(m, *gradient);
    if (!fresh && m->rank == 0) {
        TRY(copy(m, sums, *gradient));
    } else if (!fresh) {
        TRY(device_zero(kernels_device(m->kernels), kernels_stream(m->kernels), sums.data,
                        (size_t)(sums.rows * sums.columns) * sizeof(float)));
    }
    *gradient = sums;
    return STATUS_OK;
}

status model_adapter_sums_end(struct model *m, struct tensor gradient)
{
    if (m->ranks == 1) {
        return STATUS_OK;
    }
    TRY(comm_all_reduce(m->tensor, m->adapter_sums, gradient.rows * gradient.columns));
    return copy(m, gradient, adapter_sums(m, gradient));
}
