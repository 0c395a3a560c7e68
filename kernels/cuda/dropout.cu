/* Dropout alone, where no other operation has it within itself: behind a norm. */
#include "kernels/cuda/dropout.cuh"

enum { DROPOUT_THREADS = 256 };

template <typename T, bool WIDE>
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
    load_eight<WIDE>(row, x.data + n * x.stride + c, columns - c);
    dropout_eight(row, dropout, n * (dropout.pitch > 0 ? dropout.pitch : columns) + c);
    store_eight<WIDE>(y.data + n * y.stride + c, row, columns - c);
}

extern "C" status cuda_dropout_apply(struct kernels *k, struct tensor y, struct tensor x,
                                     struct dropout dropout)
{
    unsigned blocks = blocks_for(x.rows * ((x.columns + EIGHT - 1) / EIGHT), DROPOUT_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    FOR_TYPE(k->dtype, operation_wide(y) && operation_wide(x),
             LAUNCH(k, (dropout_rows<T, WIDE>), blocks, DROPOUT_THREADS, 0, matrix_of<T>(y),
                    matrix_of<const T>(x), x.rows, x.columns, dropout));
    return STATUS_OK;
}
