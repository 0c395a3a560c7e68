/* Reductions: sums of squares and loss statistics in double precision, and sums over the rows of
 * partial results.
 *
 *   op_sum_of_squares: out = sum_i x_i^2
 *   control_gradient_squares: the same for several parts, and the first x_i that is not finite
 *   op_loss_stats:     out = (sum of losses, counted rows, correct predictions, sum of entropies)
 *   reduce_parts:      out_i[c] (+)= sum_r parts[r, i, c], for up to three sums i
 *
 * Order     The input is split into slices of REDUCE_ELEMS elements, independent of the GPU. A
 *           thread sums every 256th element of a slice. A tree adds the sums of the threads. Then
 *           one block adds the sums of the slices in the same way. NaN and infinity propagate
 * Launch    op_sum_of_squares: a block of 256 threads for each slice, then one block; 2 KiB of
 *           shared memory. control_gradient_squares: a block for each slice of all parts, then a
 *           block for each part, then one block. op_loss_stats: one block of 512 threads, 4 KiB.
 *           reduce_parts: block 32 x min(rows, 32), grid (ceil(columns / 32), sums), 4 KiB. op_add:
 *           grid ceil(count / 256), block 256 */
#include <cinttypes>

#include "kernels/cuda/operation.cuh"

enum { REDUCE_THREADS = 256, STATS_THREADS = 512, REDUCE_ELEMS = 16384 };

static_assert(int{GRADIENT_BLOCK} == int{REDUCE_ELEMS} &&
                  int{GRADIENT_BLOCKS_MAX} == int{CUDA_REDUCE_BLOCKS_MAX},
              "gradients have the slices of op_sum_of_squares");

/* Stores the sum of squares of x[from .. to). */
GPU_INLINE void sum_squares(double *out, const float *x, int64_t from, int64_t to, double *scratch)
{
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += REDUCE_THREADS) {
        double value = static_cast<double>(x[i]);
        sum += value * value;
    }
    sum = block_sum<REDUCE_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        *out = sum;
    }
}

/* Stores the sum of parts[0 .. count). */
GPU_INLINE void sum_doubles(double *out, const double *parts, int64_t count, double *scratch)
{
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
    sum_squares_of_slices(double *sums, const float *x, int64_t count, int64_t slice)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    int64_t from = static_cast<int64_t>(blockIdx.x) * slice;
    int64_t to = from + slice < count ? from + slice : count;
    sum_squares(sums + blockIdx.x, x, from, to, scratch);
}

__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_parts(double *out, const double *parts, int64_t count)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    sum_doubles(out, parts, count, scratch);
}

/* Each block sums the squares of one slice. The slice belongs to the last part with a first_block
 * of at most blockIdx.x. */
__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_squares_of_gradients(double *sums, const float *x, const struct gradient_parts p)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    int64_t low = 0, high = p.count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p.parts[middle].first_block <= blockIdx.x) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const struct gradient_part part = p.parts[low];
    int64_t from = (blockIdx.x - part.first_block) * p.block_elements;
    int64_t to = from + p.block_elements < part.count ? from + p.block_elements : part.count;
    sum_squares(sums + blockIdx.x, x + part.offset, from, to, scratch);
}

/* Adds the sums of the slices of one part in each block. */
__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_gradient_blocks(double *out, const double *sums, const struct gradient_parts p)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    int64_t from = p.parts[blockIdx.x].first_block;
    int64_t to = blockIdx.x + 1 < p.count ? p.parts[blockIdx.x + 1].first_block : p.blocks;
    sum_doubles(out + blockIdx.x, sums + from, to - from, scratch);
}

/* Returns the smallest of the threads' numbers to each thread. */
GPU_INLINE int64_t find_smallest(int64_t number, int64_t *numbers)
{
    __syncthreads();
    numbers[threadIdx.x] = number;
    __syncthreads();
    for (int i = 0; i < REDUCE_THREADS; i++) {
        number = numbers[i] < number ? numbers[i] : number;
    }
    return number;
}

/* Looks for the first element that is not finite, in the first part with such a sum. */
__global__ void __launch_bounds__(REDUCE_THREADS)
    find_not_finite(struct not_finite *found, const double *sums, const float *x,
                    const struct gradient_parts p)
{
    GPU_SHARED(int64_t, numbers, REDUCE_THREADS);
    int64_t i = threadIdx.x;
    while (i < p.count && sums[i] < INFINITY) {
        i += REDUCE_THREADS;
    }
    i = find_smallest(i, numbers);
    if (i >= p.count) {
        return;
    }
    const struct gradient_part part = p.parts[i];
    int64_t place = threadIdx.x;
    while (place < part.count && fabsf(x[part.offset + place]) < INFINITY) {
        place += REDUCE_THREADS;
    }
    place = find_smallest(place, numbers);
    if (threadIdx.x == 0 && found->number == 0 && place < part.count) {
        *found = {part.first + place + 1, x[part.offset + place]};
    }
}

/* One block suffices: a row is small compared with the logits that it comes from. */
__global__ void __launch_bounds__(STATS_THREADS)
    sum_loss_stats(double *out, const struct loss_rows t, int64_t rows)
{
    GPU_SHARED(double, scratch, STATS_THREADS);
    double sums[4] = {};
    for (int64_t i = threadIdx.x; i < rows; i += STATS_THREADS) {
        bool is_counted = t.targets[i] != t.ignored;
        sums[0] += static_cast<double>(t.losses[i]);
        sums[1] += is_counted;
        sums[2] += is_counted && t.argmax != nullptr && t.argmax[i] == t.targets[i];
        sums[3] += is_counted && t.entropies != nullptr ? static_cast<double>(t.entropies[i]) : 0.0;
    }
    int value_count = t.entropies != nullptr ? 4 : t.argmax != nullptr ? 3 : 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        double sum = j < value_count ? block_sum<STATS_THREADS>(sums[j], scratch) : 0.0;
        if (threadIdx.x == 0 && j < value_count) {
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

enum { PARTS_COLUMNS = 32, PARTS_ROWS = 32 };

struct parts_sums {
    struct cuda_parts_sum sums[CUDA_PARTS_SUMS_MAX];
};

__global__ void __launch_bounds__(PARTS_COLUMNS *PARTS_ROWS)
    reduce_parts(const parts_sums s, const float *parts, int64_t rows, int64_t columns)
{
    GPU_SHARED(float, scratch, PARTS_COLUMNS *PARTS_ROWS);
    /* With an index that is not constant, nvcc would copy the argument to local memory. */
    const struct cuda_parts_sum to = blockIdx.y == 0   ? s.sums[0]
                                     : blockIdx.y == 1 ? s.sums[1]
                                                       : s.sums[2];
    int64_t c = static_cast<int64_t>(blockIdx.x) * PARTS_COLUMNS + threadIdx.x;
    float sum = 0;
    if (to.out == nullptr) {
        return;
    }
    for (int64_t r = threadIdx.y; r < rows && c < columns; r += blockDim.y) {
        sum += parts[(r * gridDim.y + blockIdx.y) * columns + c];
    }
    scratch[threadIdx.y * PARTS_COLUMNS + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < columns) {
        for (unsigned i = 1; i < blockDim.y; i++) {
            sum += scratch[i * PARTS_COLUMNS + threadIdx.x];
        }
        to.out[c] = (to.overwrite ? 0.0f : to.out[c]) + sum;
    }
}

/* ---- host ---- */

extern "C" int64_t cuda_reduce_slice(int64_t count, int64_t sums)
{
    int64_t slice = REDUCE_ELEMS;
    while (number_divide_up(count, slice) * sums > CUDA_REDUCE_BLOCKS_MAX) {
        slice *= 2;
    }
    return slice;
}

extern "C" status cuda_reduce_doubles(struct kernels *k, double *out, const double *parts,
                                      int64_t count)
{
    LAUNCH(k, sum_parts, 1, REDUCE_THREADS, 0, out, parts, count);
    return STATUS_OK;
}

/* Takes scratch for the sums of `count` blocks, until the next operation. */
static status take_sums(struct kernels *k, int64_t count, double **sums)
{
    void *memory;
    TRY(cuda_take_scratch(k, static_cast<size_t>(count + 1) * sizeof(double), &memory));
    *sums = static_cast<double *>(memory);
    return STATUS_OK;
}

extern "C" status cuda_op_sum_of_squares(struct kernels *k, double *out, const float *x,
                                         int64_t count)
{
    const int64_t slice = cuda_reduce_slice(count, 1), blocks = number_divide_up(count, slice);
    double *sums = nullptr;
    TRY(take_sums(k, blocks, &sums));
    if (blocks > 0) {
        LAUNCH(k, sum_squares_of_slices, static_cast<unsigned>(blocks), REDUCE_THREADS, 0, sums, x,
               count, slice);
    }
    return cuda_reduce_doubles(k, out, sums, blocks);
}

extern "C" status cuda_control_gradient_squares(struct kernels *k, double *out,
                                                struct not_finite *found, const float *x,
                                                const struct gradient_parts *p)
{
    REQUIRE(p->blocks <= GRADIENT_BLOCKS_MAX, STATUS_INTERNAL,
            "control_gradient_squares: %" PRId64 " blocks; must be at most %d", p->blocks,
            static_cast<int>(GRADIENT_BLOCKS_MAX));
    double *sums = nullptr;
    TRY(take_sums(k, p->blocks, &sums));
    LAUNCH(k, sum_squares_of_gradients, static_cast<unsigned>(p->blocks), REDUCE_THREADS, 0, sums,
           x, *p);
    LAUNCH(k, sum_gradient_blocks, static_cast<unsigned>(p->count), REDUCE_THREADS, 0, out, sums,
           *p);
    if (found != nullptr) {
        LAUNCH(k, find_not_finite, 1, REDUCE_THREADS, 0, found, out, x, *p);
    }
    return STATUS_OK;
}

extern "C" status cuda_op_loss_stats(struct kernels *k, double *out, const struct loss_rows *t,
                                     int64_t rows)
{
    LAUNCH(k, sum_loss_stats, 1, STATS_THREADS, 0, out, *t, rows);
    return STATUS_OK;
}

extern "C" status cuda_op_add(struct kernels *k, float *to, const float *from, int64_t count)
{
    if (count > 0) {
        LAUNCH(k, add_elements, count_blocks(count, REDUCE_THREADS), REDUCE_THREADS, 0, to, from,
               count);
    }
    return STATUS_OK;
}

extern "C" status cuda_reduce_parts(struct kernels *k, const struct cuda_parts_sum *sums, int count,
                                    const float *parts, int64_t rows, int64_t columns)
{
    parts_sums s = {};
    memcpy(s.sums, sums, static_cast<size_t>(count) * sizeof *sums);
    const dim3 grid(count_blocks(columns, PARTS_COLUMNS), static_cast<unsigned>(count));
    const dim3 block(PARTS_COLUMNS, static_cast<unsigned>(number_min(rows, PARTS_ROWS)));
    LAUNCH(k, reduce_parts, grid, block, 0, s, parts, rows, columns);
    return STATUS_OK;
}
