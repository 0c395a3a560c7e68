/* The GEMM y = x w^T + bias for a few rows of x, as in generation with a key-value cache.
 *
 * Each weight is read once, directly from its matrix, and used for all rows. oneDNN would first
 * pack the weights, which costs more than these GEMMs. Threads split the rows of w. The sum of an
 * output has one order for any number of rows, so a sequence gets the same bits alone and in a
 * batch of sequences. */
#include "kernels/cpu/few_rows.h"

#include "kernels/cpu/vector.h"

/* Rows of x that share one pass over a row of w. Their sums stay in registers. */
enum { GROUP_ROWS = 4 };

#define INLINE static inline __attribute__((always_inline))

/* Computes the dot products of one row of w with `rows` rows of x, a constant for the compiler. Two
 * sums per row hide the latency of the multiply-add. */
INLINE void compute_group(float *out, struct tensor x, struct tensor w, int64_t row, int rows)
{
    vector sums[GROUP_ROWS][2];
    for (int i = 0; i < rows; i++) {
        sums[i][0] = sums[i][1] = (vector){0};
    }
    int64_t j = 0;
    for (; j + 2 * VECTOR_LANES <= x.columns; j += 2 * VECTOR_LANES) {
        for (int half = 0; half < 2; half++) {
            int64_t at = j + half * VECTOR_LANES;
            vector weight = vector_get(w.data, w.dtype, row * w.stride + at, VECTOR_LANES);
            for (int i = 0; i < rows; i++) {
                vector value = vector_get(x.data, x.dtype, i * x.stride + at, VECTOR_LANES);
                sums[i][half] = vector_fma(value, weight, sums[i][half]);
            }
        }
    }
    for (int half = 0; j < x.columns; j += VECTOR_LANES, half++) {
        int64_t left = x.columns - j;
        vector weight = vector_get(w.data, w.dtype, row * w.stride + j, left);
        for (int i = 0; i < rows; i++) {
            vector value = vector_get(x.data, x.dtype, i * x.stride + j, left);
            sums[i][half] = vector_fma(value, weight, sums[i][half]);
        }
    }
    for (int i = 0; i < rows; i++) {
        out[i] = vector_sum(sums[i][0] + sums[i][1]);
    }
}

INLINE void compute_rows(float *out, struct tensor x, struct tensor w, int64_t row)
{
    switch (x.rows) {
    case 1:
        compute_group(out, x, w, row, 1);
        break;
    case 2:
        compute_group(out, x, w, row, 2);
        break;
    case 3:
        compute_group(out, x, w, row, 3);
        break;
    default:
        compute_group(out, x, w, row, GROUP_ROWS);
    }
}

/* Specialized for each pair of dtypes, so that the inner loop has no branches. */
static void compute_dot_products(float *out, struct tensor x, struct tensor w, int64_t row)
{
    for (int64_t first = 0; first < x.rows; first += GROUP_ROWS) {
        int64_t left = x.rows - first;
        struct tensor group = tensor_rows(x, first, left < GROUP_ROWS ? left : GROUP_ROWS);
        if (x.dtype == DTYPE_F32 && w.dtype == DTYPE_F32) {
            group.dtype = w.dtype = DTYPE_F32;
            compute_rows(out + first, group, w, row);
        } else if (x.dtype == DTYPE_BF16 && w.dtype == DTYPE_BF16) {
            group.dtype = w.dtype = DTYPE_BF16;
            compute_rows(out + first, group, w, row);
        } else {
            compute_rows(out + first, group, w, row);
        }
    }
}

static float load_element(struct tensor y, int64_t row, int64_t column)
{
    int64_t at = row * y.stride + column;
    return y.dtype == DTYPE_F32 ? ((const float *)y.data)[at]
                                : bf16_to_f32(((const bf16 *)y.data)[at]);
}

static void store_element(struct tensor y, int64_t row, int64_t column, float value)
{
    if (y.dtype == DTYPE_F32) {
        ((float *)y.data)[row * y.stride + column] = value;
    } else {
        ((bf16 *)y.data)[row * y.stride + column] = f32_to_bf16(value);
    }
}

void CPU(few_rows_gemm)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                        struct tensor bias, bool accumulate)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t j = 0; j < y.columns; j++) {
        float out[KERNELS_FEW_ROWS];
        float add = bias.data == NULL ? 0 : ((const float *)bias.data)[j];
        compute_dot_products(out, x, w, j);
        for (int64_t i = 0; i < y.rows; i++) {
            store_element(y, i, j, out[i] + (accumulate ? load_element(y, i, j) : add));
        }
    }
}
