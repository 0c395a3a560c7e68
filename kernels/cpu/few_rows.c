/* The GEMM y = x w^T + bias for a few rows of x, as in generation with a key-value cache.
 *
 * Each weight is read once, directly from its matrix, and used for all rows. oneDNN would first
 * pack the weights, which costs more than these GEMMs. Threads split the rows of w. */
#include "kernels/cpu/few_rows.h"

#include "kernels/cpu/vector.h"

/* Computes the dot products of one row of w with every row of x. Two sums per row hide the latency
 * of the multiply-add. */
static void compute_dot_products(float *out, struct tensor x, struct tensor w, int64_t row)
{
    vector sums[FEW_ROWS][2];
    for (int64_t i = 0; i < x.rows; i++) {
        sums[i][0] = sums[i][1] = (vector){0};
    }
    for (int64_t j = 0; j < x.columns; j += VECTOR_LANES) {
        int64_t left = x.columns - j;
        vector weight = vector_get(w.data, w.dtype, row * w.stride + j, left);
        for (int64_t i = 0; i < x.rows; i++) {
            vector *sum = &sums[i][j / VECTOR_LANES % 2];
            *sum = vector_fma(vector_get(x.data, x.dtype, i * x.stride + j, left), weight, *sum);
        }
    }
    for (int64_t i = 0; i < x.rows; i++) {
        out[i] = vector_sum(sums[i][0] + sums[i][1]);
    }
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
                        struct tensor bias)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t j = 0; j < y.columns; j++) {
        float out[FEW_ROWS];
        float add = bias.data == NULL ? 0 : ((const float *)bias.data)[j];
        compute_dot_products(out, x, w, j);
        for (int64_t i = 0; i < y.rows; i++) {
            store_element(y, i, j, out[i] + add);
        }
    }
}
