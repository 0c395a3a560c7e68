/* RMS norm of rows that are split by columns over tensor-parallel ranks: the functions before and
 * after the sum over the ranks (kernels.h).
 *
 * Threads   A thread processes whole rows; the sums of dgamma are divided by columns. Each sum has
 *           one order, so the bits do not depend on the number of threads.
 *
 * Source    Zhang, Sennrich 2019, arXiv:1910.07467 */
#include "base/number.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* Columns of dgamma that a thread sums at a time, and rows that are summed before they are added to
 * the sum of all rows. */
enum { GAMMA_COLUMNS = 64, GAMMA_ROWS = 64 };

CPU_INLINE vector load_columns(struct tensor t, enum dtype dtype, int64_t n, int64_t c)
{
    return vector_get(t.data, dtype, n * t.stride + c, t.columns - c);
}

CPU_INLINE vector load_gamma(struct tensor gamma, int64_t c)
{
    return vector_get(gamma.data, DTYPE_F32, c, gamma.columns - c);
}

static float *get_row(struct tensor t, int64_t n)
{
    return (float *)t.data + n * t.stride;
}

/* Elements beyond the end of a row are loaded as zeros. */
CPU_INLINE float sum_squares(struct tensor x, enum dtype dtype, int64_t n)
{
    vector sums[2] = {{0}};
    for (int64_t c = 0, chain = 0; c < x.columns; c += VECTOR_LANES, chain ^= 1) {
        vector value = load_columns(x, dtype, n, c);
        sums[chain] = vector_fma(value, value, sums[chain]);
    }
    return vector_sum(sums[0] + sums[1]);
}

CPU_INLINE float sum_products(struct tensor dy, struct tensor x, struct tensor gamma,
                              enum dtype dtype, int64_t n)
{
    vector sums[2] = {{0}};
    for (int64_t c = 0, chain = 0; c < x.columns; c += VECTOR_LANES, chain ^= 1) {
        vector g = load_columns(dy, dtype, n, c) * load_gamma(gamma, c);
        sums[chain] = vector_fma(g, load_columns(x, dtype, n, c), sums[chain]);
    }
    return vector_sum(sums[0] + sums[1]);
}

CPU_INLINE void normalize_row(struct tensor y, struct tensor x, struct tensor gamma,
                              enum dtype dtype, int64_t n, float r)
{
    for (int64_t c = 0; c < x.columns; c += VECTOR_LANES) {
        vector_put(y.data, dtype, n * y.stride + c,
                   load_columns(x, dtype, n, c) * r * load_gamma(gamma, c), x.columns - c);
    }
}

CPU_INLINE void compute_input_gradient(struct tensor dx, struct tensor dy, struct tensor x,
                                       struct tensor gamma, enum dtype dtype, int64_t n, float r,
                                       float mean)
{
    for (int64_t c = 0; c < x.columns; c += VECTOR_LANES) {
        vector g = load_columns(dy, dtype, n, c) * load_gamma(gamma, c);
        vector h = load_columns(x, dtype, n, c) * r;
        vector_put(dx.data, dtype, n * dx.stride + c, r * (g - h * mean), x.columns - c);
    }
}

/* Adds the sum of dy x r over all rows to GAMMA_COLUMNS columns of dgamma, in two levels. */
CPU_INLINE void add_gamma_sums(struct tensor dgamma, struct tensor dy, struct tensor x,
                               struct tensor statistics, enum dtype dtype, int64_t first)
{
    int64_t last = number_min(first + GAMMA_COLUMNS, x.columns);
    for (int64_t c = first; c < last; c += VECTOR_LANES) {
        vector total = {0};
        for (int64_t row = 0; row < x.rows; row += GAMMA_ROWS) {
            int64_t end = number_min(row + GAMMA_ROWS, x.rows);
            vector sum = {0};
            for (int64_t n = row; n < end; n++) {
                vector h = load_columns(x, dtype, n, c) * get_row(statistics, n)[1];
                sum = vector_fma(load_columns(dy, dtype, n, c), h, sum);
            }
            total += sum;
        }
        vector_put(dgamma.data, DTYPE_F32, c, load_gamma(dgamma, c) + total, dgamma.columns - c);
    }
}

status CPU(split_norm_forward_sums)(struct kernels *k, struct tensor sums, struct tensor x)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        *get_row(sums, n) =
            x.dtype == DTYPE_F32 ? sum_squares(x, DTYPE_F32, n) : sum_squares(x, DTYPE_BF16, n);
    }
    return STATUS_OK;
}

status CPU(split_norm_forward)(struct kernels *k, struct tensor y, struct tensor statistics,
                               struct tensor x, struct tensor sums, struct tensor gamma,
                               int64_t whole_columns, float epsilon)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        float r = 1.0f / sqrtf(*get_row(sums, n) / (float)whole_columns + epsilon);
        get_row(statistics, n)[0] = 0;
        get_row(statistics, n)[1] = r;
        if (x.dtype == DTYPE_F32) {
            normalize_row(y, x, gamma, DTYPE_F32, n, r);
        } else {
            normalize_row(y, x, gamma, DTYPE_BF16, n, r);
        }
    }
    return STATUS_OK;
}

status CPU(split_norm_backward_sums)(struct kernels *k, struct tensor sums, struct tensor dgamma,
                                     struct tensor dy, struct tensor x, struct tensor statistics,
                                     struct tensor gamma)
{
    bool f32 = x.dtype == DTYPE_F32;
#pragma omp parallel num_threads(k->threads)
    {
#pragma omp for schedule(static)
        for (int64_t n = 0; n < x.rows; n++) {
            float sum = f32 ? sum_products(dy, x, gamma, DTYPE_F32, n)
                            : sum_products(dy, x, gamma, DTYPE_BF16, n);
            *get_row(sums, n) = sum * get_row(statistics, n)[1];
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < x.columns; c += GAMMA_COLUMNS) {
            if (f32) {
                add_gamma_sums(dgamma, dy, x, statistics, DTYPE_F32, c);
            } else {
                add_gamma_sums(dgamma, dy, x, statistics, DTYPE_BF16, c);
            }
        }
    }
    return STATUS_OK;
}

status CPU(split_norm_backward)(struct kernels *k, struct tensor dx, struct tensor dy,
                                struct tensor x, struct tensor statistics, struct tensor sums,
                                struct tensor gamma, int64_t whole_columns)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        float r = get_row(statistics, n)[1], mean = *get_row(sums, n) / (float)whole_columns;
        if (x.dtype == DTYPE_F32) {
            compute_input_gradient(dx, dy, x, gamma, DTYPE_F32, n, r, mean);
        } else {
            compute_input_gradient(dx, dy, x, gamma, DTYPE_BF16, n, r, mean);
        }
    }
    return STATUS_OK;
}
