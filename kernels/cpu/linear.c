/* The linear layer: a GEMM with an epilogue that applies the activation to each block while it is
 * in the cache.
 *
 *   forward          z = x w^T + b,  y = act(z),  saved = act'(z)
 *   backward input   dx = (dy w) * saved, with saved of the activation that computed x
 *   backward weight  dw += dy^T x,  db += sum of the rows of dy; = instead of += with overwrite
 *
 * matmul.c splits the GEMMs over the threads. Column sums split the columns over the threads. */

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

#define INLINE static inline __attribute__((always_inline))

/* Returns max(x, 0). vector_max returns x if it is NaN. */
INLINE vector rectify_values(vector x)
{
    return vector_max(vector_set(0.0f), x);
}

INLINE vector compute_silu_derivative(vector x)
{
    vector s = math_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

/* The switches over activations have no default, so that the compiler reports a missing one. */
INLINE vector apply_activation(vector x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH:
        return math_gelu_tanh(x);
    case ACTIVATION_GELU_ERF:
        return math_gelu_erf(x);
    case ACTIVATION_TANH:
        return math_tanh(x);
    case ACTIVATION_RELU:
        return rectify_values(x);
    case ACTIVATION_RELU2:
        return rectify_values(x) * rectify_values(x);
    case ACTIVATION_SILU:
        return x * math_sigmoid(x);
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

INLINE vector compute_derivative(vector x, enum activation act)
{
    switch (act) {
    case ACTIVATION_GELU_TANH:
        return math_gelu_tanh_derivative(x);
    case ACTIVATION_GELU_ERF:
        return math_gelu_erf_derivative(x);
    case ACTIVATION_TANH:
        return 1.0f - math_tanh(x) * math_tanh(x);
    case ACTIVATION_RELU:
        return vector_select(x <= 0.0f, vector_set(0.0f), vector_set(1.0f));
    case ACTIVATION_RELU2:
        return 2.0f * rectify_values(x);
    case ACTIVATION_SILU:
        return compute_silu_derivative(x);
    case ACTIVATION_NONE:
        break;
    }
    return vector_set(1.0f);
}

/* The epilogue of a GEMM, for one block: y = act(y) and saved = act'(y), or y = y * saved. The
 * forward pass computes the derivative together with the activation, because they share most of the
 * work. */
struct epilogue {
    struct tensor y, saved;
    enum activation act;
};

/* A block exceeds the L1 and L2 caches, so rows are prefetched. */
enum { ROWS_AHEAD = 2 };

/* Specialized for one dtype and one activation, so that common subexpressions are computed once. */
INLINE void activate_rows(const struct epilogue *e, struct matmul_block block, enum dtype dtype,
                          enum activation act)
{
    for (int64_t i = block.row; i < block.row + block.rows; i++) {
        int64_t y = i * e->y.stride + block.column, saved = i * e->saved.stride + block.column;
        cpu_prefetch(e->y, i + ROWS_AHEAD, block.column, block.columns);
        for (int64_t j = 0; j < block.columns; j += VECTOR_LANES) {
            int64_t left = block.columns - j;
            vector z = vector_get(e->y.data, dtype, y + j, left);
            vector_put(e->y.data, dtype, y + j, apply_activation(z, act), left);
            if (e->saved.data != NULL) {
                vector_put(e->saved.data, dtype, saved + j, compute_derivative(z, act), left);
            }
        }
    }
}

INLINE void activate_rows_as(const struct epilogue *e, struct matmul_block block,
                             enum activation act)
{
    if (e->y.dtype == DTYPE_F32) {
        activate_rows(e, block, DTYPE_F32, act);
    } else {
        activate_rows(e, block, DTYPE_BF16, act);
    }
}

static void activate_block(void *context, struct matmul_block block)
{
    const struct epilogue *e = context;
    switch (e->act) {
    case ACTIVATION_GELU_TANH:
        activate_rows_as(e, block, ACTIVATION_GELU_TANH);
        break;
    case ACTIVATION_GELU_ERF:
        activate_rows_as(e, block, ACTIVATION_GELU_ERF);
        break;
    case ACTIVATION_TANH:
        activate_rows_as(e, block, ACTIVATION_TANH);
        break;
    case ACTIVATION_RELU:
        activate_rows_as(e, block, ACTIVATION_RELU);
        break;
    case ACTIVATION_RELU2:
        activate_rows_as(e, block, ACTIVATION_RELU2);
        break;
    case ACTIVATION_SILU:
        activate_rows_as(e, block, ACTIVATION_SILU);
        break;
    case ACTIVATION_NONE:
        break;
    }
}

INLINE void multiply_rows(const struct epilogue *e, struct matmul_block block, enum dtype dtype)
{
    for (int64_t i = block.row; i < block.row + block.rows; i++) {
        int64_t y = i * e->y.stride + block.column, saved = i * e->saved.stride + block.column;
        cpu_prefetch(e->y, i + ROWS_AHEAD, block.column, block.columns);
        cpu_prefetch(e->saved, i + ROWS_AHEAD, block.column, block.columns);
        for (int64_t j = 0; j < block.columns; j += VECTOR_LANES) {
            int64_t left = block.columns - j;
            vector d = vector_get(e->y.data, dtype, y + j, left);
            vector derivative = vector_get(e->saved.data, dtype, saved + j, left);
            vector_put(e->y.data, dtype, y + j, d * derivative, left);
        }
    }
}

static void multiply_by_saved(void *context, struct matmul_block block)
{
    const struct epilogue *e = context;
    if (e->y.dtype == DTYPE_F32) {
        multiply_rows(e, block, DTYPE_F32);
    } else {
        multiply_rows(e, block, DTYPE_BF16);
    }
}

status CPU(linear_forward)(struct kernels *k, struct tensor y, struct tensor saved, struct tensor x,
                           struct tensor w, struct tensor bias, enum activation act)
{
    struct epilogue epilogue = {y, saved, act};
    if (x.rows <= KERNELS_FEW_ROWS) {
        CPU(few_rows_gemm)(k, y, x, w, bias, false);
        if (act != ACTIVATION_NONE) {
            activate_block(&epilogue, (struct matmul_block){0, y.rows, 0, y.columns, 0});
        }
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = y,
                             .a = x,
                             .b = w,
                             .transpose_b = true,
                             .bias = bias,
                             .after = act == ACTIVATION_NONE ? NULL : activate_block,
                             .context = &epilogue,
                         });
}

status CPU(linear_add)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                       bool backward)
{
    if (!backward && x.rows <= KERNELS_FEW_ROWS) {
        CPU(few_rows_gemm)(k, y, x, w, tensor_absent(), true);
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = y, .a = x, .b = w, .transpose_b = !backward, .accumulate = true});
}

status CPU(activation_forward)(struct kernels *k, struct tensor y, struct tensor saved,
                               enum activation act)
{
    struct epilogue epilogue = {y, saved, act};
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        activate_block(&epilogue, (struct matmul_block){i, 1, 0, y.columns, 0});
    }
    return STATUS_OK;
}

status CPU(op_scale)(struct kernels *k, struct tensor x, float factor)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < x.rows; i++) {
        for (int64_t j = 0; j < x.columns; j += VECTOR_LANES) {
            int64_t at = i * x.stride + j, left = x.columns - j;
            vector_put(x.data, x.dtype, at, factor * vector_get(x.data, x.dtype, at, left), left);
        }
    }
    return STATUS_OK;
}

status CPU(activation_backward)(struct kernels *k, struct tensor dx, struct tensor dy,
                                struct tensor saved, enum activation act)
{
    (void)act; /* the derivative was saved */
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < dx.rows; i++) {
        for (int64_t j = 0; j < dx.columns; j += VECTOR_LANES) {
            int64_t left = dx.columns - j;
            vector d = vector_get(dy.data, dy.dtype, i * dy.stride + j, left);
            vector derivative = vector_get(saved.data, saved.dtype, i * saved.stride + j, left);
            vector_put(dx.data, dx.dtype, i * dx.stride + j, d * derivative, left);
        }
    }
    return STATUS_OK;
}

status CPU(linear_backward_input)(struct kernels *k, struct tensor dx, struct bias_gradient dbias,
                                  struct tensor dy, struct tensor w, enum activation act,
                                  struct tensor saved)
{
    struct epilogue epilogue = {dx, saved, act};
    TRY(matmul_run(k, &(struct matmul_call){
                          .c = dx,
                          .a = dy,
                          .b = w,
                          .after = act == ACTIVATION_NONE ? NULL : multiply_by_saved,
                          .context = &epilogue,
                      }));
    CPU(bias_gradient)(k, dbias, dx);
    return STATUS_OK;
}

/* Column sums. Each row is in another page, so the threads split the columns, in units of several
 * cache lines. Rows are added in two levels, so that the rounding error grows at most with the
 * square root of their number. */
enum { SUM_VECTORS = 8, SUM_COLUMNS = SUM_VECTORS * VECTOR_LANES, SUM_ROWS = 64, SUM_AHEAD = 8 };

/* Adds `count` columns, held in `vectors` vectors. */
INLINE void add_column_block(float *sums, struct tensor dy, enum dtype dtype, int64_t column,
                             int64_t count, const int vectors, bool overwrite)
{
    vector total[SUM_VECTORS] = {{0}};
    for (int64_t first = 0; first < dy.rows; first += SUM_ROWS) {
        int64_t last = first + SUM_ROWS < dy.rows ? first + SUM_ROWS : dy.rows;
        vector part[SUM_VECTORS] = {{0}};
        for (int64_t i = first; i < last; i++) {
            int64_t at = i * dy.stride + column;
            cpu_prefetch(dy, i + SUM_AHEAD, column, count);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) {
                part[j] +=
                    vector_get(dy.data, dtype, at + j * VECTOR_LANES, count - j * VECTOR_LANES);
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            total[j] += part[j];
        }
    }
    for (int j = 0; j < vectors; j++) {
        int64_t at = column + j * VECTOR_LANES, left = count - j * VECTOR_LANES;
        vector before = overwrite ? vector_set(0) : vector_get(sums, DTYPE_F32, at, left);
        vector_put(sums, DTYPE_F32, at, before + total[j], left);
    }
}

INLINE void column_sums_as(float *sums, struct tensor dy, enum dtype dtype,
                           struct cpu_range columns, bool overwrite)
{
    int64_t column = columns.first;
    for (; column + SUM_COLUMNS <= columns.last; column += SUM_COLUMNS) {
        add_column_block(sums, dy, dtype, column, SUM_COLUMNS, SUM_VECTORS, overwrite);
    }
    for (; column < columns.last; column += VECTOR_LANES) {
        add_column_block(sums, dy, dtype, column, columns.last - column, 1, overwrite);
    }
}

void CPU(column_sums)(float *sums, struct tensor dy, struct cpu_range columns, bool overwrite)
{
    if (dy.dtype == DTYPE_F32) {
        column_sums_as(sums, dy, DTYPE_F32, columns, overwrite);
    } else {
        column_sums_as(sums, dy, DTYPE_BF16, columns, overwrite);
    }
}

/* Returns the columns of a unit: fewer if otherwise many threads would be idle. */
static int64_t choose_sum_columns(int64_t columns, int threads)
{
    int64_t size = SUM_COLUMNS;
    for (; size > VECTOR_LANES; size /= 2) {
        int64_t units = (columns + size - 1) / size, rounds = (units + threads - 1) / threads;
        if (10 * units >= 9 * rounds * threads) {
            break;
        }
    }
    return size;
}

void CPU(bias_gradient)(struct kernels *k, struct bias_gradient dbias, struct tensor dy)
{
    int threads = k->threads;
    if (dbias.sums.data == NULL) {
        return;
    }
    int64_t unit = choose_sum_columns(dy.columns, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        struct cpu_range columns = cpu_thread_range(dy.columns, unit, thread, threads);
        CPU(column_sums)(dbias.sums.data, dy, columns, dbias.overwrite);
    }
}

status CPU(linear_backward_weight)(struct kernels *k, struct tensor dw, struct tensor dbias,
                                   struct tensor dy, struct tensor x, bool overwrite)
{
    CPU(bias_gradient)(k, (struct bias_gradient){dbias, overwrite}, dy);
    if (dw.data == NULL) {
        return STATUS_OK;
    }
    return matmul_run(k, &(struct matmul_call){
                             .c = dw,
                             .a = dy,
                             .transpose_a = true,
                             .b = x,
                             .accumulate = !overwrite,
                         });
}
