/* Sums over flat slices in double precision, and sums over the rows of partial results.
 *
 * Order     A slice is cut into blocks of REDUCE_ELEMS elements, whatever the GPU; a block's threads have
 *           elements apart by its size, their sums are added as a tree, and one block adds the
 *           blocks' sums in the same manner. NaN and infinity come out as such. */
#include "kernels/cuda/operation.cuh"

enum { REDUCE_THREADS = 256, TALLY_THREADS = 512, REDUCE_ELEMS = 16384 };

__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_slices(double *parts, const float *x, int64_t count, int64_t slice)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    int64_t from = static_cast<int64_t>(blockIdx.x) * slice;
    int64_t to = from + slice < count ? from + slice : count;
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += REDUCE_THREADS) {
        double value = static_cast<double>(x[i]);
        sum += value * value;
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

/* One block: rows are few beside what they were made of. */
__global__ void __launch_bounds__(TALLY_THREADS)
    tally_all(double *out, const struct tally t, int64_t rows)
{
    GPU_SHARED(double, scratch, TALLY_THREADS);
    double sums[4] = {};
    for (int64_t i = threadIdx.x; i < rows; i += TALLY_THREADS) {
        bool counted = t.targets[i] != t.ignored;
        sums[0] += static_cast<double>(t.losses[i]);
        sums[1] += counted;
        sums[2] += counted && t.best != nullptr && t.best[i] == t.targets[i];
        sums[3] += counted && t.entropies != nullptr ? static_cast<double>(t.entropies[i]) : 0.0;
    }
    int wanted = t.entropies != nullptr ? 4 : t.best != nullptr ? 3 : 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        double sum = j < wanted ? block_sum<TALLY_THREADS>(sums[j], scratch) : 0.0;
        if (threadIdx.x == 0 && j < wanted) {
            out[j] = sum;
        }
        __syncthreads();
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

extern "C" status cuda_sum_of_squares(struct kernels *k, double *out, const float *x, int64_t count)
{
    int64_t slice = cuda_reduce_slice(count, 1);
    int64_t blocks = (count + slice - 1) / slice;
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, static_cast<size_t>(blocks + 1) * sizeof(double), &memory));
    arena_release(scratch, mark);
    double *parts = static_cast<double *>(memory);
    if (blocks > 0) {
        LAUNCH(k, sum_slices, static_cast<unsigned>(blocks), REDUCE_THREADS, 0, parts, x, count,
               slice);
    }
    return cuda_doubles_add(k, out, parts, blocks);
}

extern "C" status cuda_tally_rows(struct kernels *k, double *out, const struct tally *t,
                                  int64_t rows)
{
    LAUNCH(k, tally_all, 1, TALLY_THREADS, 0, out, *t, rows);
    return STATUS_OK;
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
