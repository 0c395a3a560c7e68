/* Dropout as a separate operation, where no other operation includes it: after a norm. Threads
 * process rows. */
#include "kernels/cpu/dropout.h"

#include "kernels/cpu/cpu.h"

CPU_INLINE void apply_dropout_row(struct tensor y, struct tensor x, enum dtype dtype, int64_t n,
                                  struct dropout dropout)
{
    int64_t pitch = dropout.pitch > 0 ? dropout.pitch : x.columns;
    struct dropout_row factors;
    dropout_begin(&factors, dropout, n * pitch);
    for (int64_t c = 0; c < x.columns; c += VECTOR_LANES) {
        int64_t count = x.columns - c;
        vector row = vector_get(x.data, dtype, n * x.stride + c, count);
        if (dropout_active(dropout)) {
            row *= dropout_next(&factors);
        }
        vector_put(y.data, dtype, n * y.stride + c, row, count);
    }
}

status CPU(dropout_apply)(struct kernels *k, struct tensor y, struct tensor x,
                          struct dropout dropout)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < x.rows; n++) {
        if (x.dtype == DTYPE_F32) {
            apply_dropout_row(y, x, DTYPE_F32, n, dropout);
        } else {
            apply_dropout_row(y, x, DTYPE_BF16, n, dropout);
        }
    }
    return STATUS_OK;
}
