/* The contrastive loss of text pairs, in double precision. contrastive_terms.h has the formulas. No
 * product is fused with a sum (host_device_multiply), so only exp and log can differ from the CPU.
 *
 *   scores = 20 U V^T,  G = gradients of the dot products,  dU = G V,  dV = G^T U
 *
 * U and V [N, C] are the unit vectors of the first and the second texts. The memory holds the
 * scores of score_rows first texts at a time. G overwrites them.
 *
 * Order     each thread adds the terms of an element in their order. In compute_gradients, each
 *           lane of a warp adds all scores of a first text
 * Launch    pool_texts, unpool_texts: a block of 128 threads for a text, 1 KiB of shared memory.
 *           multiply_matrices: a block of 256 threads for 16 x 16 elements, 4.3 KiB of shared
 *           memory. compute_gradients: a warp for a text, block 128, 1 KiB of shared memory.
 *           add_results: one warp */
#include "kernels/cuda/operation.cuh"

#include "kernels/contrastive_terms.h"

enum { TEXT_THREADS = 128, TEXT_WARPS = TEXT_THREADS / 32, TILE = 16 };

/* Adds the first `count` terms of shared memory to *sum on thread 0, after all threads have written
 * their terms. */
GPU_INLINE void add_terms(double *sum, const double *shared, int64_t count)
{
    __syncthreads();
    for (int i = 0; i < TEXT_THREADS && i < count && threadIdx.x == 0; i++) {
        *sum += shared[i];
    }
    __syncthreads();
}

/* Returns the value of thread 0 to all threads. */
GPU_INLINE double share_value(double value, double *shared)
{
    if (threadIdx.x == 0) {
        shared[0] = value;
    }
    __syncthreads();
    return shared[0];
}

__global__ void __launch_bounds__(TEXT_THREADS)
    pool_texts(const struct contrastive_pairs b, const float *rows,
               const struct contrastive_texts texts)
{
    GPU_SHARED(double, shared, TEXT_THREADS);
    const struct contrastive_text text = contrastive_get_text(&b, &texts, blockIdx.x);
    double *unit = b.units + text.index * b.width, squares = 0;
    for (int64_t first = 0; first < b.width; first += TEXT_THREADS) {
        int64_t c = first + threadIdx.x;
        if (c < b.width) {
            double sum = 0;
            for (int64_t i = 0; i < text.rows; i++) {
                sum += static_cast<double>(rows[(text.first + i) * b.width + c]);
            }
            unit[c] = sum / static_cast<double>(text.rows);
            shared[threadIdx.x] = host_device_multiply(unit[c], unit[c]);
        }
        add_terms(&squares, shared, b.width - first);
    }
    const double length = share_value(contrastive_length(squares), shared);
    for (int64_t c = threadIdx.x; c < b.width; c += TEXT_THREADS) {
        unit[c] /= length;
    }
    if (threadIdx.x == 0) {
        b.lengths[text.index] = length;
    }
}

/* The product out = scale a b, or out = out + a b if add_to_out is set. */
struct product {
    double *out; /* [rows, columns] */
    int64_t out_stride;
    const double *a; /* [rows, inner] */
    int64_t a_row, a_inner;
    const double *b; /* [inner, columns] */
    int64_t b_inner, b_column;
    int64_t rows, columns, inner;
    double scale; /* 1 if add_to_out is set */
    bool add_to_out;
};

/* Loads a tile of a matrix. Consecutive threads load consecutive elements if one of the strides is
 * 1. Elements outside of the matrix are 0. */
GPU_INLINE void load_tile(double (*tile)[TILE + 1], const double *from, int64_t first_row,
                          int64_t first_column, int64_t rows, int64_t columns, int64_t row_stride,
                          int64_t column_stride)
{
    int fast = static_cast<int>(threadIdx.x) % TILE, slow = static_cast<int>(threadIdx.x) / TILE;
    int row = column_stride == 1 ? slow : fast, column = column_stride == 1 ? fast : slow;
    bool inside = first_row + row < rows && first_column + column < columns;
    tile[row][column] =
        inside ? from[(first_row + row) * row_stride + (first_column + column) * column_stride]
               : 0.0;
}

__global__ void __launch_bounds__(TILE *TILE) multiply_matrices(const struct product p)
{
    GPU_SHARED(double, tiles, 2 * TILE * (TILE + 1));
    double(*a)[TILE + 1] = reinterpret_cast<double(*)[TILE + 1]>(tiles);
    double(*b)[TILE + 1] = a + TILE;
    int row = static_cast<int>(threadIdx.x) / TILE, column = static_cast<int>(threadIdx.x) % TILE;
    int64_t first_row = static_cast<int64_t>(blockIdx.y) * TILE;
    int64_t first_column = static_cast<int64_t>(blockIdx.x) * TILE;
    bool inside = first_row + row < p.rows && first_column + column < p.columns;
    double *out = p.out + (first_row + row) * p.out_stride + first_column + column;
    double sum = inside && p.add_to_out ? *out : 0.0;
    for (int64_t first = 0; first < p.inner; first += TILE) {
        int count = p.inner - first < TILE ? static_cast<int>(p.inner - first) : int{TILE};
        load_tile(a, p.a, first_row, first, p.rows, p.inner, p.a_row, p.a_inner);
        load_tile(b, p.b, first, first_column, p.inner, p.columns, p.b_inner, p.b_column);
        __syncthreads();
        for (int i = 0; i < count; i++) {
            sum += host_device_multiply(a[row][i], b[i][column]);
        }
        __syncthreads();
    }
    if (inside) {
        *out = host_device_multiply(p.scale, sum);
    }
}

/* Computes the results of first texts [first, first + rows), and replaces their scores by the
 * gradients of the dot products. */
__global__ void __launch_bounds__(TEXT_THREADS)
    compute_gradients(const struct contrastive_pairs b, int64_t first, int64_t rows, int64_t count)
{
    GPU_SHARED(double, shared, TEXT_THREADS);
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int64_t row = static_cast<int64_t>(blockIdx.x) * TEXT_WARPS + warp, text = first + row;
    double *scores = b.scores + row * count, *terms = shared + 32 * warp;
    if (row >= rows) {
        return;
    }
    struct contrastive_scores s = contrastive_begin();
    for (int64_t from = 0; from < count; from += 32) {
        if (from + lane < count) {
            terms[lane] = scores[from + lane];
        }
        __syncwarp();
        for (int j = 0; j < 32 && from + j < count; j++) {
            contrastive_add(&s, terms[j], from + j, from + j == text);
        }
        __syncwarp();
    }
    for (int64_t j = lane; j < count; j += 32) {
        scores[j] = contrastive_gradient(&s, scores[j], j == text);
    }
    if (lane == 0) {
        b.results[CONTRASTIVE_RESULTS * text + CONTRASTIVE_LOSS] = contrastive_loss(&s);
        b.results[CONTRASTIVE_RESULTS * text + CONTRASTIVE_CORRECT] = s.best == text;
    }
}

__global__ void __launch_bounds__(TEXT_THREADS)
    unpool_texts(float *gradients, const struct contrastive_pairs b,
                 const struct contrastive_texts texts)
{
    GPU_SHARED(double, shared, TEXT_THREADS);
    const struct contrastive_text text = contrastive_get_text(&b, &texts, blockIdx.x);
    const double *unit = b.units + text.index * b.width;
    const double *gradient = b.gradients + text.index * b.width;
    double projection = 0;
    for (int64_t first = 0; first < b.width; first += TEXT_THREADS) {
        int64_t c = first + threadIdx.x;
        if (c < b.width) {
            shared[threadIdx.x] = host_device_multiply(unit[c], gradient[c]);
        }
        add_terms(&projection, shared, b.width - first);
    }
    projection = share_value(projection, shared);
    const double rows = static_cast<double>(text.rows);
    const double scale = 1 / host_device_multiply(b.lengths[text.index], rows);
    for (int64_t c = threadIdx.x; c < b.width; c += TEXT_THREADS) {
        float value = contrastive_row_gradient(unit[c], gradient[c], projection, scale);
        for (int64_t i = 0; i < text.rows; i++) {
            gradients[(text.first + i) * b.width + c] = value;
        }
    }
}

/* Thread c adds the results of column c. */
__global__ void __launch_bounds__(32)
    add_results(double *sums, const struct contrastive_pairs b, int64_t first, int64_t count)
{
    if (threadIdx.x < CONTRASTIVE_RESULTS) {
        double sum = 0;
        for (int64_t i = first; i < first + count; i++) {
            sum += b.results[CONTRASTIVE_RESULTS * (i % b.size) + threadIdx.x];
        }
        sums[threadIdx.x == CONTRASTIVE_LOSS ? CONTRASTIVE_SUM_LOSS : CONTRASTIVE_SUM_CORRECT] =
            sum;
    }
    if (threadIdx.x == 0) {
        sums[CONTRASTIVE_SUM_PAIRS] = static_cast<double>(count);
    }
}

/* ---- host ---- */

extern "C" status cuda_contrastive_loss_pool(struct kernels *k,
                                             const struct contrastive_pairs *batch,
                                             struct tensor rows,
                                             const struct contrastive_texts *texts)
{
    if (texts->pairs > 0) {
        LAUNCH(k, pool_texts, static_cast<unsigned>(TEXTS_PER_PAIR * texts->pairs), TEXT_THREADS, 0,
               *batch, static_cast<const float *>(rows.data), *texts);
    }
    return STATUS_OK;
}

static status launch_product(struct kernels *k, const struct product &p)
{
    const dim3 grid(count_blocks(p.columns, TILE), count_blocks(p.rows, TILE));
    LAUNCH(k, multiply_matrices, grid, TILE * TILE, 0, p);
    return STATUS_OK;
}

/* Computes the losses and the gradients of first texts [first, first + rows). */
static status run_chunk(struct kernels *k, const struct contrastive_pairs &b, int64_t first,
                        int64_t rows, int64_t count)
{
    const int64_t pair = TEXTS_PER_PAIR * b.width;
    const double *texts = b.units + first * pair, *others = b.units + b.width;
    const struct product scores = {b.scores, count, texts, pair,  1,       others,
                                   1,        pair,  rows,  count, b.width, CONTRASTIVE_SCALE,
                                   false};
    const struct product text_gradients = {b.gradients + first * pair,
                                           pair,
                                           b.scores,
                                           count,
                                           1,
                                           others,
                                           pair,
                                           1,
                                           rows,
                                           b.width,
                                           count,
                                           1.0,
                                           false};
    const struct product other_gradients = {b.gradients + b.width,
                                            pair,
                                            b.scores,
                                            1,
                                            count,
                                            texts,
                                            pair,
                                            1,
                                            count,
                                            b.width,
                                            rows,
                                            1.0,
                                            first > 0};
    TRY(launch_product(k, scores));
    LAUNCH(k, compute_gradients, count_blocks(rows, TEXT_WARPS), TEXT_THREADS, 0, b, first, rows,
           count);
    TRY(launch_product(k, text_gradients));
    return launch_product(k, other_gradients);
}

extern "C" status cuda_contrastive_loss_run(struct kernels *k,
                                            const struct contrastive_pairs *batch, int64_t count)
{
    for (int64_t first = 0; first < count; first += batch->score_rows) {
        TRY(run_chunk(k, *batch, first, number_min(batch->score_rows, count - first), count));
    }
    return STATUS_OK;
}

extern "C" status cuda_contrastive_loss_sum(struct kernels *k, double *sums,
                                            const struct contrastive_pairs *batch, int64_t first,
                                            int64_t count)
{
    LAUNCH(k, add_results, 1, 32, 0, sums, *batch, first, count);
    return STATUS_OK;
}

extern "C" status cuda_contrastive_loss_backward(struct kernels *k, struct tensor gradients,
                                                 const struct contrastive_pairs *batch,
                                                 const struct contrastive_texts *texts)
{
    if (texts->pairs > 0) {
        LAUNCH(k, unpool_texts, static_cast<unsigned>(TEXTS_PER_PAIR * texts->pairs), TEXT_THREADS,
               0, static_cast<float *>(gradients.data), *batch, *texts);
    }
    return STATUS_OK;
}
