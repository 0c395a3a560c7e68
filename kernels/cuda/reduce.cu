/* Reductions: sums of squares and loss statistics in double precision, and sums over the rows of
 * partial results.
 *
 *   op_sum_of_squares: out = sum_i x_i^2
 *   control_gradient_squares: the same, and the first x_i that is not finite
 *   op_loss_stats:     out = (sum of losses, counted rows, correct predictions, sum of entropies)
 *   reduce_parts:      out[c] (+)= sum_r parts[r, c], and a second sum of the next columns
 *
 * Order     A slice is split into blocks of REDUCE_ELEMS elements, independent of the GPU. A thread
 *           sums every 256th element, a tree adds the sums of the threads, and one block adds the
 *           sums of the blocks in the same way. NaN and infinity propagate
 * Launch    op_sum_of_squares: a block of 256 threads for each slice, then one block; 2 KiB of
 *           shared memory. op_loss_stats: one block of 512 threads, 4 KiB. reduce_parts: block
 *           32 x 8, grid (ceil(columns / 32), 1 or 2), 1 KiB. op_add: grid ceil(count / 256),
 *           block 256 */
#include "kernels/cuda/operation.cuh"

enum { REDUCE_THREADS = 256, STATS_THREADS = 512, REDUCE_ELEMS = 16384 };

__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_squares_of_slices(double *parts, const float *x, int64_t count, int64_t slice)
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

/* Adds the sums of slices as sum_parts does. If the result is not finite, the block looks for the
 * first such element of x[count]. */
__global__ void __launch_bounds__(REDUCE_THREADS)
    sum_and_find(double *out, struct not_finite *found, const double *parts, int64_t parts_count,
                 const float *x, int64_t first, int64_t count)
{
    GPU_SHARED(double, scratch, REDUCE_THREADS);
    GPU_SHARED(int64_t, places, REDUCE_THREADS);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < parts_count; i += REDUCE_THREADS) {
        sum += parts[i];
    }
    sum = block_sum<REDUCE_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        *out = sum;
    }
    if (sum < INFINITY) {
        return;
    }
    int64_t place = threadIdx.x;
    while (place < count && fabsf(x[place]) < INFINITY) {
        place += REDUCE_THREADS;
    }
    places[threadIdx.x] = place;
    __syncthreads();
    if (threadIdx.x == 0 && found->number == 0) {
        for (int i = 1; i < REDUCE_THREADS; i++) {
            place = places[i] < place ? places[i] : place;
        }
        if (place < count) {
            *found = {first + place + 1, x[place]};
        }
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

enum { PARTS_COLUMNS = 32, PARTS_ROWS = 8 };

__global__ void __launch_bounds__(PARTS_COLUMNS *PARTS_ROWS)
    reduce_parts(float *out, float *second, const float *parts, int64_t rows, int64_t stride,
                 int64_t columns, bool overwrite)
{
    GPU_SHARED(float, scratch, PARTS_COLUMNS *PARTS_ROWS);
    int64_t c = static_cast<int64_t>(blockIdx.x) * PARTS_COLUMNS + threadIdx.x;
    float sum = 0;
    if (blockIdx.y == 1) {
        out = second;
        parts += columns;
    }
    for (int64_t r = threadIdx.y; r < rows && c < columns; r += PARTS_ROWS) {
        sum += parts[r * stride + c];
    }
    scratch[threadIdx.y * PARTS_COLUMNS + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < columns) {
        for (int i = 1; i < PARTS_ROWS; i++) {
            sum += scratch[i * PARTS_COLUMNS + threadIdx.x];
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

extern "C" status cuda_reduce_doubles(struct kernels *k, double *out, const double *parts,
                                      int64_t count)
{
    LAUNCH(k, sum_parts, 1, REDUCE_THREADS, 0, out, parts, count);
    return STATUS_OK;
}

/* Queues the sums of squares of the slices. *blocks: their number. */
static status sum_slices(struct kernels *k, const float *x, int64_t count, double **parts,
                         int64_t *blocks)
{
    int64_t slice = cuda_reduce_slice(count, 1);
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    *blocks = (count + slice - 1) / slice;
    TRY(arena_take(scratch, static_cast<size_t>(*blocks + 1) * sizeof(double), &memory));
    arena_release(scratch, mark);
    *parts = static_cast<double *>(memory);
    if (*blocks > 0) {
        LAUNCH(k, sum_squares_of_slices, static_cast<unsigned>(*blocks), REDUCE_THREADS, 0, *parts,
               x, count, slice);
    }
    return STATUS_OK;
}

extern "C" status cuda_op_sum_of_squares(struct kernels *k, double *out, const float *x,
                                         int64_t count)
{
    double *parts = nullptr;
    int64_t blocks = 0;
    TRY(sum_slices(k, x, count, &parts, &blocks));
    return cuda_reduce_doubles(k, out, parts, blocks);
}

extern "C" status cuda_control_gradient_squares(struct kernels *k, double *out,
                                                struct not_finite *found, const float *x,
                                                int64_t first, int64_t count)
{
    double *parts = nullptr;
    int64_t blocks = 0;
    TRY(sum_slices(k, x, count, &parts, &blocks));
    LAUNCH(k, sum_and_find, 1, REDUCE_THREADS, 0, out, found, parts, blocks, x, first, count);
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

extern "C" status cuda_reduce_parts(struct kernels *k, float *out, float *second,
                                    const float *parts, int64_t rows, int64_t stride,
                                    int64_t columns, bool overwrite)
{
    LAUNCH(k, reduce_parts, dim3(count_blocks(columns, PARTS_COLUMNS), second != nullptr ? 2 : 1),
           dim3(PARTS_COLUMNS, PARTS_ROWS), 0, out, second, parts, rows, stride, columns,
           overwrite);
    return STATUS_OK;
}
