/* RMS norm of rows that are split by columns over tensor-parallel ranks: the functions before and
 * after the sum over the ranks (kernels.h).
 *
 * Launch    block 256. sum_rows and normalize_rows: a warp for each row, grid ceil(N / 8).
 *           sum_gamma: a thread for each column and a block for each range of rows, grid
 *           (ceil(C / 256), min(N, 2 * CUDA_NORM_BLOCKS))
 * Order     Each thread of sum_gamma sums its rows in order, and cuda_reduce_parts adds the sums of
 *           the blocks in order. The ranges of rows depend on N alone. */
#include "kernels/cuda/operation.cuh"

enum { SPLIT_THREADS = 256, SPLIT_ROWS = SPLIT_THREADS / 32 };

template <typename T> struct split_rows {
    matrix<const T> x, dy; /* dy absent: the forward pass */
    matrix<T> out;         /* y or dx */
    float *statistics, *sums;
    int64_t statistics_stride, sums_stride;
    const float *gamma;
    int64_t rows, columns, whole_columns;
    float epsilon;
};

GPU_INLINE void store_one(float *p, float x)
{
    *p = x;
}
GPU_INLINE void store_one(bf16 *p, float x)
{
    *p = gpu_bf16(x);
}

/* Sums x^2, or dy gamma x r, over the columns of a row. */
template <typename T>
__global__ void __launch_bounds__(SPLIT_THREADS) sum_rows(const split_rows<T> s)
{
    int64_t n = static_cast<int64_t>(blockIdx.x) * SPLIT_ROWS + threadIdx.x / 32;
    if (n >= s.rows) {
        return;
    }
    float sum = 0;
    for (int64_t c = threadIdx.x % 32; c < s.columns; c += 32) {
        float x = gpu_float(s.x.data[n * s.x.stride + c]);
        float factor =
            s.dy.data == nullptr ? x : gpu_float(s.dy.data[n * s.dy.stride + c]) * s.gamma[c];
        sum += factor * x;
    }
    sum = team_sum<32>(sum, nullptr);
    if (threadIdx.x % 32 == 0) {
        float r = s.dy.data == nullptr ? 1.0f : s.statistics[n * s.statistics_stride + 1];
        s.sums[n * s.sums_stride] = sum * r;
    }
}

/* Computes y = x r gamma and the statistics, or dx = r (dy gamma - x r mean). */
template <typename T>
__global__ void __launch_bounds__(SPLIT_THREADS) normalize_rows(const split_rows<T> s)
{
    int64_t n = static_cast<int64_t>(blockIdx.x) * SPLIT_ROWS + threadIdx.x / 32;
    if (n >= s.rows) {
        return;
    }
    float *statistics = s.statistics + n * s.statistics_stride;
    float mean = s.sums[n * s.sums_stride] / static_cast<float>(s.whole_columns);
    bool forward = s.dy.data == nullptr;
    float r = forward ? 1.0f / sqrtf(mean + s.epsilon) : statistics[1];
    if (forward && threadIdx.x % 32 == 0) {
        statistics[0] = 0;
        statistics[1] = r;
    }
    for (int64_t c = threadIdx.x % 32; c < s.columns; c += 32) {
        float h = gpu_float(s.x.data[n * s.x.stride + c]) * r;
        float y = forward ? h * s.gamma[c]
                          : r * (gpu_float(s.dy.data[n * s.dy.stride + c]) * s.gamma[c] - h * mean);
        store_one(s.out.data + n * s.out.stride + c, y);
    }
}

/* Sums dy x r over the rows of a block, for one column in each thread. parts [blocks, C] */
template <typename T>
__global__ void __launch_bounds__(SPLIT_THREADS) sum_gamma(float *parts, const split_rows<T> s)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * SPLIT_THREADS + threadIdx.x;
    int64_t from = s.rows * blockIdx.y / gridDim.y, to = s.rows * (blockIdx.y + 1) / gridDim.y;
    if (c >= s.columns) {
        return;
    }
    float sum = 0;
    for (int64_t n = from; n < to; n++) {
        float r = s.statistics[n * s.statistics_stride + 1];
        sum += gpu_float(s.dy.data[n * s.dy.stride + c]) *
               (gpu_float(s.x.data[n * s.x.stride + c]) * r);
    }
    parts[static_cast<int64_t>(blockIdx.y) * s.columns + c] = sum;
}

/* ---- host ---- */

template <typename T>
static split_rows<T> make_rows(struct tensor x, struct tensor dy, struct tensor out,
                               struct tensor statistics, struct tensor sums, struct tensor gamma,
                               int64_t whole_columns, float epsilon)
{
    return {make_matrix<const T>(x),
            make_matrix<const T>(dy),
            make_matrix<T>(out),
            static_cast<float *>(statistics.data),
            static_cast<float *>(sums.data),
            statistics.stride,
            sums.stride,
            static_cast<const float *>(gamma.data),
            x.rows,
            x.columns,
            whole_columns,
            epsilon};
}

template <typename T> static status launch_sums(struct kernels *k, const split_rows<T> &s)
{
    if (s.rows > 0) {
        LAUNCH(k, (sum_rows<T>), count_blocks(s.rows, SPLIT_ROWS), SPLIT_THREADS, 0, s);
    }
    return STATUS_OK;
}

template <typename T> static status launch_apply(struct kernels *k, const split_rows<T> &s)
{
    if (s.rows > 0) {
        LAUNCH(k, (normalize_rows<T>), count_blocks(s.rows, SPLIT_ROWS), SPLIT_THREADS, 0, s);
    }
    return STATUS_OK;
}

template <typename T>
static status launch_gamma(struct kernels *k, float *parts, int64_t blocks, const split_rows<T> &s)
{
    TRY(launch_sums<T>(k, s));
    LAUNCH(k, (sum_gamma<T>),
           dim3(count_blocks(s.columns, SPLIT_THREADS), static_cast<unsigned>(blocks)),
           SPLIT_THREADS, 0, parts, s);
    return STATUS_OK;
}

extern "C" status cuda_split_norm_forward_sums(struct kernels *k, struct tensor sums,
                                               struct tensor x)
{
    struct tensor none = tensor_absent();
    return k->dtype == DTYPE_F32
               ? launch_sums(k, make_rows<float>(x, none, none, none, sums, none, x.columns, 0))
               : launch_sums(k, make_rows<bf16>(x, none, none, none, sums, none, x.columns, 0));
}

extern "C" status cuda_split_norm_forward(struct kernels *k, struct tensor y,
                                          struct tensor statistics, struct tensor x,
                                          struct tensor sums, struct tensor gamma,
                                          int64_t whole_columns, float epsilon)
{
    struct tensor none = tensor_absent();
    return k->dtype == DTYPE_F32 ? launch_apply(k, make_rows<float>(x, none, y, statistics, sums,
                                                                    gamma, whole_columns, epsilon))
                                 : launch_apply(k, make_rows<bf16>(x, none, y, statistics, sums,
                                                                   gamma, whole_columns, epsilon));
}

extern "C" status cuda_split_norm_backward_sums(struct kernels *k, struct tensor sums,
                                                struct tensor dgamma, struct tensor dy,
                                                struct tensor x, struct tensor statistics,
                                                struct tensor gamma)
{
    if (x.rows == 0) {
        return STATUS_OK;
    }
    int64_t blocks = number_min(x.rows, 2 * CUDA_NORM_BLOCKS);
    void *memory;
    TRY(cuda_take_scratch(k, static_cast<size_t>(blocks * x.columns) * sizeof(float), &memory));
    float *parts = static_cast<float *>(memory);
    struct tensor none = tensor_absent();
    TRY(k->dtype == DTYPE_F32
            ? launch_gamma(k, parts, blocks,
                           make_rows<float>(x, dy, none, statistics, sums, gamma, x.columns, 0))
            : launch_gamma(k, parts, blocks,
                           make_rows<bf16>(x, dy, none, statistics, sums, gamma, x.columns, 0)));
    const struct cuda_parts_sum sum = {static_cast<float *>(dgamma.data), false};
    return cuda_reduce_parts(k, &sum, 1, parts, blocks, x.columns);
}

extern "C" status cuda_split_norm_backward(struct kernels *k, struct tensor dx, struct tensor dy,
                                           struct tensor x, struct tensor statistics,
                                           struct tensor sums, struct tensor gamma,
                                           int64_t whole_columns)
{
    return k->dtype == DTYPE_F32 ? launch_apply(k, make_rows<float>(x, dy, dx, statistics, sums,
                                                                    gamma, whole_columns, 0))
                                 : launch_apply(k, make_rows<bf16>(x, dy, dx, statistics, sums,
                                                                   gamma, whole_columns, 0));
}
