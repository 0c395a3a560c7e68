/* Dropout as a separate operation, after a norm. Other operations apply dropout in their own
 * kernels.
 *
 *   y = x m / (1 - probability);  m is 1 with probability 1 - probability, else 0 (random.cuh)
 *
 * Launch    grid ceil(rows ceil(columns / 8) / 256); block 256; no shared memory. A thread handles
 *           eight elements of a row */
#include "kernels/cuda/random.cuh"

enum { DROPOUT_THREADS = 256 };

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(DROPOUT_THREADS)
    dropout_rows(const matrix<T> y, const matrix<const T> x, int64_t rows, int64_t columns,
                 const struct dropout dropout)
{
    int64_t eights = (columns + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * DROPOUT_THREADS + threadIdx.x;
    if (i >= rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * EIGHT;
    float row[EIGHT];
    load_eight<ALIGNED>(row, x.data + n * x.stride + c, columns - c);
    dropout_apply_eight(row, dropout, n * (dropout.pitch > 0 ? dropout.pitch : columns) + c);
    store_eight<ALIGNED>(y.data + n * y.stride + c, row, columns - c);
}

extern "C" status cuda_dropout_apply(struct kernels *k, struct tensor y, struct tensor x,
                                     struct dropout dropout)
{
    unsigned blocks = count_blocks(x.rows * ((x.columns + EIGHT - 1) / EIGHT), DROPOUT_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    FOR_TYPE(k->dtype, operation_is_aligned(y) && operation_is_aligned(x),
             LAUNCH(k, (dropout_rows<T, ALIGNED>), blocks, DROPOUT_THREADS, 0, make_matrix<T>(y),
                    make_matrix<const T>(x), x.rows, x.columns, dropout));
    return STATUS_OK;
}
