/* The GEMM y = x w^T + bias for a few rows of x, as in generation with a key-value cache.
 *
 * Each weight is read once, directly from its matrix, and used for all rows. oneDNN would first
 * pack the weights, which costs more than these GEMMs. Threads split the rows of w. The sum of an
 * output has one order for any number of rows, so a sequence gets the same bits alone and in a
 * batch of sequences. */

#include "base/number.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/vector.h"

/* A block of the output: its sums stay in registers. AVX-512 has 32 of them, the others 16. */
enum { BLOCK_ROWS = 4, BLOCK_COLUMNS = VECTOR_LANES >= 16 ? 4 : 2 };

/* Prefetches elements to the second cache, `offset` elements after the start of a row of w. A
 * prefetch beyond the end of the memory is harmless. */
CPU_INLINE void prefetch_weights(struct tensor w, int64_t row, int64_t offset)
{
    uintptr_t elements = (uintptr_t)(row * w.stride + offset);
    __builtin_prefetch((const void *)((uintptr_t)w.data + elements * dtype_bytes(w.dtype)), 0, 2);
}

/* Computes the dot products of `columns` rows of w with `rows` rows of x, constants for the
 * compiler. Each output has one sum, in the order of its terms, for any size of the block. Memory
 * is slow if several rows of w are read at the same time. Therefore the next block is prefetched
 * here, in the order of its addresses. */
CPU_INLINE void compute_block(float out[BLOCK_COLUMNS][KERNELS_FEW_ROWS], struct tensor x,
                              struct tensor w, int64_t column, int columns, int rows)
{
    vector sums[BLOCK_COLUMNS][BLOCK_ROWS];
    for (int j = 0; j < columns; j++) {
        for (int i = 0; i < rows; i++) {
            sums[j][i] = (vector){0};
        }
    }
    for (int64_t k = 0; k < x.columns; k += VECTOR_LANES) {
        int64_t left = x.columns - k;
        vector weights[BLOCK_COLUMNS];
        for (int j = 0; j < columns; j++) {
            weights[j] = vector_get(w.data, w.dtype, (column + j) * w.stride + k, left);
            if (columns > 1) {
                prefetch_weights(w, column + columns, columns * k + j * VECTOR_LANES);
            }
        }
        for (int i = 0; i < rows; i++) {
            vector value = vector_get(x.data, x.dtype, i * x.stride + k, left);
            for (int j = 0; j < columns; j++) {
                sums[j][i] = vector_fma(value, weights[j], sums[j][i]);
            }
        }
    }
    for (int j = 0; j < columns; j++) {
        for (int i = 0; i < rows; i++) {
            out[j][i] = vector_sum(sums[j][i]);
        }
    }
}

CPU_INLINE void compute_rows(float out[BLOCK_COLUMNS][KERNELS_FEW_ROWS], struct tensor x,
                             struct tensor w, int64_t column, int columns)
{
    switch (x.rows) {
    case 1:
        compute_block(out, x, w, column, columns, 1);
        break;
    case 2:
        compute_block(out, x, w, column, columns, 2);
        break;
    case 3:
        compute_block(out, x, w, column, columns, 3);
        break;
    default:
        compute_block(out, x, w, column, columns, BLOCK_ROWS);
    }
}

CPU_INLINE void compute_columns(float out[BLOCK_COLUMNS][KERNELS_FEW_ROWS], struct tensor x,
                                struct tensor w, int64_t column, int columns)
{
    for (int64_t first = 0; first < x.rows; first += BLOCK_ROWS) {
        int64_t left = x.rows - first;
        struct tensor rows = tensor_rows(x, first, number_min(left, BLOCK_ROWS));
        float part[BLOCK_COLUMNS][KERNELS_FEW_ROWS];
        if (columns == BLOCK_COLUMNS) {
            compute_rows(part, rows, w, column, BLOCK_COLUMNS);
        } else {
            compute_rows(part, rows, w, column, 1);
        }
        for (int j = 0; j < columns; j++) {
            for (int64_t i = 0; i < rows.rows; i++) {
                out[j][first + i] = part[j][i];
            }
        }
    }
}

/* Computes `columns` columns of the output: BLOCK_COLUMNS or 1. Specialized for each dtype, so that
 * the inner loop has no branches. */
static void compute_dot_products(float out[BLOCK_COLUMNS][KERNELS_FEW_ROWS], struct tensor x,
                                 struct tensor w, int64_t column, int columns)
{
    if (x.dtype == DTYPE_F32) {
        x.dtype = w.dtype = DTYPE_F32;
        compute_columns(out, x, w, column, columns);
    } else {
        x.dtype = w.dtype = DTYPE_BF16;
        compute_columns(out, x, w, column, columns);
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

/* Writes the sums to y, plus the bias or the previous values of y. */
static void store_columns(struct tensor y, float out[BLOCK_COLUMNS][KERNELS_FEW_ROWS],
                          struct tensor bias, int64_t first, int columns, bool accumulate)
{
    for (int j = 0; j < columns; j++) {
        int64_t column = first + j;
        float add = bias.data == NULL ? 0 : ((const float *)bias.data)[column];
        for (int64_t i = 0; i < y.rows; i++) {
            float sum = out[j][i] + (accumulate ? load_element(y, i, column) : add);
            store_element(y, i, column, sum);
        }
    }
}

void CPU(few_rows_gemm)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                        struct tensor bias, bool accumulate)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t first = 0; first < y.columns; first += BLOCK_COLUMNS) {
        float out[BLOCK_COLUMNS][KERNELS_FEW_ROWS];
        int64_t left = y.columns - first;
        int step = left >= BLOCK_COLUMNS && y.rows > 1 ? BLOCK_COLUMNS : 1;
        for (int64_t j = first; j < first + BLOCK_COLUMNS && j < y.columns; j += step) {
            compute_dot_products(out, x, w, j, step);
            store_columns(y, out, bias, j, step, accumulate);
        }
    }
}
