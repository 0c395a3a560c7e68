/* Matrices from one storage type to another; bf16 is rounded to nearest even. */
#include "kernels/cuda/operation.cuh"

enum { CONVERT_THREADS = 256 };

template <typename TO, typename FROM, bool WIDE>
__global__ void __launch_bounds__(CONVERT_THREADS)
    convert_elements(const matrix<TO> to, const matrix<const FROM> from, int64_t rows,
                     int64_t columns)
{
    int64_t eights = (columns + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * CONVERT_THREADS + threadIdx.x;
    if (i >= rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * EIGHT;
    float x[EIGHT];
    load_eight<WIDE>(x, from.data + n * from.stride + c, columns - c);
    store_eight<WIDE>(to.data + n * to.stride + c, x, columns - c);
}

template <typename TO, typename FROM>
static status run(struct kernels *k, struct tensor to, struct tensor from)
{
    unsigned blocks = blocks_for(to.rows * ((to.columns + EIGHT - 1) / EIGHT), CONVERT_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    if (operation_wide(to) && operation_wide(from)) {
        LAUNCH(k, (convert_elements<TO, FROM, true>), blocks, CONVERT_THREADS, 0, matrix_of<TO>(to),
               matrix_of<const FROM>(from), to.rows, to.columns);
    } else {
        LAUNCH(k, (convert_elements<TO, FROM, false>), blocks, CONVERT_THREADS, 0,
               matrix_of<TO>(to), matrix_of<const FROM>(from), to.rows, to.columns);
    }
    return STATUS_OK;
}

extern "C" status cuda_convert(struct kernels *k, struct tensor to, struct tensor from)
{
    if (to.dtype == DTYPE_F32) {
        return from.dtype == DTYPE_F32 ? run<float, float>(k, to, from)
                                       : run<float, bf16>(k, to, from);
    }
    return from.dtype == DTYPE_F32 ? run<bf16, float>(k, to, from) : run<bf16, bf16>(k, to, from);
}
