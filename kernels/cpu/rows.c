/* Gather and scatter of selected rows; both are limited by memory bandwidth.
 *
 * The indices increase strictly. With overwrite, the thread that writes a row also clears the rows
 * of dx between it and the previous selected row. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

status CPU(op_gather_rows)(struct kernels *k, struct tensor y, struct tensor x, const int32_t *rows)
{
    size_t bytes = (size_t)y.columns * dtype_bytes(y.dtype);
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < y.rows; i++) {
        memcpy(tensor_rows(y, i, 1).data, tensor_rows(x, rows[i], 1).data, bytes);
    }
    return STATUS_OK;
}

CPU_INLINE void add_row(struct tensor to, struct tensor from, enum dtype dtype)
{
    for (int64_t c = 0; c < to.columns; c += VECTOR_LANES) {
        int64_t count = to.columns - c;
        vector sum = vector_get(to.data, dtype, c, count) + vector_get(from.data, dtype, c, count);
        vector_put(to.data, dtype, c, sum, count);
    }
}

static void copy_row_and_clear_gap(struct tensor dx, struct tensor dy, const int32_t *rows,
                                   int64_t i)
{
    size_t bytes = (size_t)dx.columns * dtype_bytes(dx.dtype);
    int64_t end = i < dy.rows ? rows[i] : dx.rows;
    for (int64_t row = i > 0 ? rows[i - 1] + 1 : 0; row < end; row++) {
        memset(tensor_rows(dx, row, 1).data, 0, bytes);
    }
    if (i < dy.rows) {
        memcpy(tensor_rows(dx, end, 1).data, tensor_rows(dy, i, 1).data, bytes);
    }
}

status CPU(op_scatter_rows)(struct kernels *k, struct tensor dx, struct tensor dy,
                            const int32_t *rows, bool overwrite)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t i = 0; i < dy.rows + overwrite; i++) {
        if (overwrite) {
            copy_row_and_clear_gap(dx, dy, rows, i);
        } else if (dx.dtype == DTYPE_F32) {
            add_row(tensor_rows(dx, rows[i], 1), tensor_rows(dy, i, 1), DTYPE_F32);
        } else {
            add_row(tensor_rows(dx, rows[i], 1), tensor_rows(dy, i, 1), DTYPE_BF16);
        }
    }
    return STATUS_OK;
}
