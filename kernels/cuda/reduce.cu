/* Sums over flat slices in double precision, and sums over the rows of partial results.
 *
 * Order     A slice is cut into blocks of REDUCE_ELEMS elements, whatever the GPU; a block's threads have
 *           elements apart by its size, their sums are added as a tree, and one block adds the
 *           blocks' sums in the same manner. NaN and infinity come out as such. */
#include "kernels/cuda/operation.cuh"

enum { REDUCE_THREADS = 256, REDUCE_ELEMS = 16384 };

template <bool SQUARES>
__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_slices(double *parts, const float *x, int64_t count, int64_t slice)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    int64_t from = static_cast<int64_t>(blockIdx.x) * slice;
    int64_t to = from + slice < count ? from + slice : count;
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += REDUCE_THREADS) {
        double value = static_cast<double>(x[i]);
        sum += SQUARES ? value * value : value;
    }
    sum = block_sum<REDUCE_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_parts(double *out, const double *parts, int64_t count)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += REDUCE_THREADS) {
        sum += parts[i];
    }
    sum = block_sum<REDUCE_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        *out = sum;
    }
}

__global__ void __launch_bounds__(REDUCE_THREADS)
    add_elements(float *to, const float *from, int64_t count)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * REDUCE_THREADS + threadIdx.x;
    if (i < count) {
        to[i] += from[i];
    }
}

enum { COLUMNS_WIDE = 32, COLUMNS_DEEP = 8 };

__global__ void __launch_bounds__(COLUMNS_WIDE *COLUMNS_DEEP)
    columns_add(float *out, const float *parts, int64_t rows, int64_t stride, int64_t columns,
                bool overwrite)
{
    GPU_SHARED(float, scratch, COLUMNS_WIDE *COLUMNS_DEEP);
    int64_t c = static_cast<int64_t>(blockIdx.x) * COLUMNS_WIDE + threadIdx.x;
    float sum = 0;
    for (int64_t r = threadIdx.y; r < rows && c < columns; r += COLUMNS_DEEP) {
        sum += parts[r * stride + c];
    }
    scratch[threadIdx.y * COLUMNS_WIDE + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < columns) {
        for (int i = 1; i < COLUMNS_DEEP; i++) {
            sum += scratch[i * COLUMNS_WIDE + threadIdx.x];
        }
        out[c] = (overwrite ? 0.0f : out[c]) + sum;
    }
}

/* ---- host ---- */

extern "C" int64_t cuda_reduce_slice(int64_t count, int64_t sums)
{
    int64_t slice = REDUCE_ELEMS;
    while ((count + slice - 1) / slice * sums > CUDA_REDUCE_BLOCKS_MAX) {
        slice *= 2;
    }
    return slice;
}

extern "C" status cuda_doubles_add(struct kernels *k, double *out, const double *parts,
                                   int64_t count)
{
    LAUNCH(k, sum_parts, 1, REDUCE_THREADS, 0, out, parts, count);
    return STATUS_OK;
}

template <bool SQUARES>
static status sum(struct kernels *k, double *out, const float *x, int64_t count)
{
    *out = 0;
    if (count == 0) {
        return STATUS_OK;
    }
    int64_t slice = cuda_reduce_slice(count, 1);
    int64_t blocks = (count + slice - 1) / slice;
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, static_cast<size_t>(blocks + 1) * sizeof(double), &memory));
    arena_release(scratch, mark);
    double *parts = static_cast<double *>(memory);
    LAUNCH(k, sum_slices<SQUARES>, static_cast<unsigned>(blocks), REDUCE_THREADS, 0, parts + 1, x,
           count, slice);
    TRY(cuda_doubles_add(k, parts, parts + 1, blocks));
    double *result = cuda_of(k)->result;
    TRY(device_copy(k->device, k->stream, result, parts, sizeof *out));
    TRY(device_wait(k->device, k->stream, CUDA_WAIT_SECONDS));
    *out = *result;
    return STATUS_OK;
}

extern "C" status cuda_sum_of_squares(struct kernels *k, double *out, const float *x, int64_t count)
{
    return sum<true>(k, out, x, count);
}

extern "C" status cuda_sum_of_floats(struct kernels *k, double *out, const float *x, int64_t count)
{
    return sum<false>(k, out, x, count);
}

extern "C" status cuda_floats_add(struct kernels *k, float *to, const float *from, int64_t count)
{
    if (count > 0) {
        LAUNCH(k, add_elements, blocks_for(count, REDUCE_THREADS), REDUCE_THREADS, 0, to, from,
               count);
    }
    return STATUS_OK;
}

extern "C" status cuda_columns_add(struct kernels *k, float *out, const float *parts, int64_t rows,
                                   int64_t stride, int64_t columns, bool overwrite)
{
    LAUNCH(k, columns_add, blocks_for(columns, COLUMNS_WIDE), dim3(COLUMNS_WIDE, COLUMNS_DEEP), 0,
           out, parts, rows, stride, columns, overwrite);
    return STATUS_OK;
}
