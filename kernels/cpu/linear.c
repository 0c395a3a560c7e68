/* The linear layer: a product, then bias and activation in one pass over blocks of rows.
 *
 *   forward          pre = x w^T + b,  y = act(pre)
 *   backward input   dx = (dy w) * act'(pre), where pre belongs to the activation that made x
 *   backward weight  dw += dy^T x,  db += sum of dy's rows
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

static inline vector activate(vector x, enum activation act)
{
    return act == ACTIVATION_GELU_TANH  ? math_gelu_tanh(x)
           : act == ACTIVATION_GELU_ERF ? math_gelu_erf(x)
                                        : x;
}

static inline vector slope(vector x, enum activation act)
{
    return act == ACTIVATION_GELU_TANH  ? math_gelu_tanh_slope(x)
           : act == ACTIVATION_GELU_ERF ? math_gelu_erf_slope(x)
                                        : vector_set(1.0f);
}

/* y = act(pre), rows split over the threads. */
static void activate_rows(int threads, struct tensor y, struct tensor pre, enum activation act)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        for (int64_t j = 0; j < y.columns; j += VECTOR_LANES) {
            int64_t left = y.columns - j;
            vector x = vector_get(pre.data, pre.dtype, i * pre.stride + j, left);
            vector_put(y.data, y.dtype, i * y.stride + j, activate(x, act), left);
        }
    }
}

/* dx *= act'(pre) */
static void multiply_slopes(int threads, struct tensor dx, struct tensor pre, enum activation act)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < dx.rows; i++) {
        for (int64_t j = 0; j < dx.columns; j += VECTOR_LANES) {
            int64_t left = dx.columns - j;
            vector d = vector_get(dx.data, dx.dtype, i * dx.stride + j, left);
            vector x = vector_get(pre.data, pre.dtype, i * pre.stride + j, left);
            vector_put(dx.data, dx.dtype, i * dx.stride + j, d * slope(x, act), left);
        }
    }
}

status CPU(linear_forward)(struct kernels *k, struct tensor y, struct tensor pre, struct tensor x,
                           struct tensor w, struct tensor bias, enum activation act)
{
    struct tensor sum = pre.data == NULL ? y : pre;
    TRY(matmul_product(k, sum, x, false, w, true, bias, false));
    if (act != ACTIVATION_NONE) {
        activate_rows(k->threads, y, sum, act);
    }
    return STATUS_OK;
}

status CPU(linear_backward_input)(struct kernels *k, struct tensor dx, struct tensor dy,
                                  struct tensor w, enum activation act, struct tensor pre)
{
    TRY(matmul_product(k, dx, dy, false, w, false, tensor_absent(), false));
    if (act != ACTIVATION_NONE) {
        multiply_slopes(k->threads, dx, pre, act);
    }
    return STATUS_OK;
}

/* Columns are split over the threads, in units of two cache lines; rows are added in two levels, so
 * that the rounding error grows with the root of the number of rows at most. */
enum { SUM_COLUMNS = 2 * VECTOR_LANES, SUM_ROWS = 64 };

static void add_column_block(float *sums, struct tensor dy, int64_t column, int64_t left)
{
    vector total[2] = {{0}, {0}};
    for (int64_t first = 0; first < dy.rows; first += SUM_ROWS) {
        int64_t last = first + SUM_ROWS < dy.rows ? first + SUM_ROWS : dy.rows;
        vector part[2] = {{0}, {0}};
        for (int64_t i = first; i < last; i++) {
            int64_t at = i * dy.stride + column;
            part[0] += vector_get(dy.data, dy.dtype, at, left);
            if (left > VECTOR_LANES) {
                part[1] += vector_get(dy.data, dy.dtype, at + VECTOR_LANES, left - VECTOR_LANES);
            }
        }
        total[0] += part[0];
        total[1] += part[1];
    }
    for (int i = 0; i < 2 && left > i * VECTOR_LANES; i++) {
        int64_t at = column + i * VECTOR_LANES, count = left - i * VECTOR_LANES;
        vector_put(sums, DTYPE_F32, at, vector_get(sums, DTYPE_F32, at, count) + total[i], count);
    }
}

static void add_column_sums(int threads, float *sums, struct tensor dy)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t column = 0; column < dy.columns; column += SUM_COLUMNS) {
        add_column_block(sums, dy, column, dy.columns - column);
    }
}

status CPU(linear_backward_weight)(struct kernels *k, struct tensor dw, struct tensor dbias,
                                   struct tensor dy, struct tensor x)
{
    if (dbias.data != NULL) {
        add_column_sums(k->threads, dbias.data, dy);
    }
    return matmul_product(k, dw, dy, true, x, false, tensor_absent(), true);
}
