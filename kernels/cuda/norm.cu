/* Residual addition fused with LayerNorm or RMSNorm, and its backward pass.
 *
 * Forward   z = x + drop(delta);  h = (z - mean) r;  y = h gamma + beta, with
 *           r = 1 / sqrt(mean((z - mean)^2) + epsilon). RMSNorm uses mean = 0.
 *           The norm uses z rounded to its storage type, as the backward pass reads it.
 * Backward  g = dy gamma;  dz += r (g - mean(g) - h mean(g h)), without mean(g) for RMSNorm;
 *           dgamma += sum over rows of dy h;  dbeta += sum over rows of dy.
 * Launch    block 256. A team of threads processes one row at a time and keeps it in registers, in
 *           chunks of eight elements for each thread. A team is a warp for aligned rows of up to
 *           2048 elements (768 in the backward pass), else the block. Forward grid: a team for each
 *           row. Backward grid: min(N, CUDA_NORM_BLOCKS) blocks. Shared memory: one float for each
 *           warp
 * Order     In the backward pass, the rows of a block depend on N alone. Each thread sums its
 *           columns, each block writes one partial sum, and cuda_reduce_parts adds the partial sums
 *           in order. */
#include <cinttypes>

#include "kernels/cuda/dropout.cuh"

enum { NORM_THREADS = 256, NORM_WIDTH_MAX = 8192 };

template <typename T> struct forward_task {
    matrix<T> z, y;
    matrix<const T> x, delta;
    float *statistics;
    int64_t statistics_stride;
    const float *gamma, *beta;
    int64_t rows, columns;
    bool layer;
    float epsilon;
    struct dropout dropout;
};

template <typename T> struct backward_task {
    matrix<T> dz, ddelta;
    matrix<const T> dy, z;
    const float *statistics;
    int64_t statistics_stride;
    const float *gamma;
    float *parts; /* [blocks][2][columns]: dgamma, dbeta */
    int64_t rows, columns;
    bool layer;
    enum norm_residual stream;
    struct dropout dropout;
};

/* Loads eight elements of z. If delta is present, adds it, stores the sum and returns it as
 * stored. */
template <typename T, bool ALIGNED>
GPU_INLINE void load_residual(float (&z)[EIGHT], const forward_task<T> &f, int64_t n, int64_t c,
                              int64_t left)
{
    load_eight<ALIGNED>(z, f.x.data + n * f.x.stride + c, left);
    if (f.delta.data != nullptr && left > 0) {
        float delta[EIGHT];
        load_eight<ALIGNED>(delta, f.delta.data + n * f.delta.stride + c, left);
        dropout_apply_eight(delta, f.dropout, n * f.columns + c);
#pragma unroll
        for (int i = 0; i < EIGHT; i++) {
            z[i] = round_to_storage(z[i] + delta[i], f.z.data);
        }
        store_eight<ALIGNED>(f.z.data + n * f.z.stride + c, z, left);
    }
}

template <typename T, bool ALIGNED, int TEAM, int CHUNKS>
__global__ void __launch_bounds__(NORM_THREADS) norm_forward(const forward_task<T> f)
{
    GPU_SHARED(float, scratch, NORM_THREADS / 32);
    int64_t n = static_cast<int64_t>(blockIdx.x) * (NORM_THREADS / TEAM) + threadIdx.x / TEAM;
    if (n >= f.rows) {
        return;
    }
    float z[CHUNKS][EIGHT], sum = 0, squares = 0;
    int64_t first = static_cast<int64_t>(threadIdx.x % TEAM) * EIGHT;
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        int64_t c = first + j * TEAM * EIGHT;
        load_residual<T, ALIGNED>(z[j], f, n, c, f.columns - c);
        for (int i = 0; i < EIGHT; i++) {
            sum += z[j][i];
        }
    }
    if (f.y.data == nullptr) {
        return;
    }
    float mean = f.layer ? team_sum<TEAM>(sum, scratch) / static_cast<float>(f.columns) : 0.0f;
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        int64_t left = f.columns - first - j * TEAM * EIGHT;
        for (int i = 0; i < EIGHT; i++) {
            float d = i < left ? z[j][i] - mean : 0.0f;
            squares += d * d;
        }
    }
    float variance = team_sum<TEAM>(squares, scratch) / static_cast<float>(f.columns);
    float r = 1.0f / sqrtf(variance + f.epsilon);
    if (threadIdx.x % TEAM == 0 && f.statistics != nullptr) {
        f.statistics[n * f.statistics_stride] = mean;
        f.statistics[n * f.statistics_stride + 1] = r;
    }
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        int64_t c = first + j * TEAM * EIGHT, left = f.columns - c;
        float gamma[EIGHT], beta[EIGHT] = {};
        load_eight<ALIGNED>(gamma, f.gamma + c, left);
        if (f.beta != nullptr) {
            load_eight<ALIGNED>(beta, f.beta + c, left);
        }
        for (int i = 0; i < EIGHT; i++) {
            z[j][i] = (z[j][i] - mean) * r * gamma[i] + beta[i];
        }
        store_eight<ALIGNED>(f.y.data + n * f.y.stride + c, z[j], left);
    }
}

/* Stores the sums of dgamma and dbeta of the block. The teams add theirs one after the other. */
template <int TEAM, int CHUNKS>
GPU_INLINE void store_parts(float *parts, int64_t columns, const float (&dgamma)[CHUNKS][EIGHT],
                            const float (&dbeta)[CHUNKS][EIGHT])
{
    int64_t first = static_cast<int64_t>(threadIdx.x % TEAM) * EIGHT;
    for (int team = 0; team < NORM_THREADS / TEAM; team++) {
        if (static_cast<int>(threadIdx.x / TEAM) == team) {
#pragma unroll
            for (int j = 0; j < CHUNKS; j++) {
                int64_t c = first + j * TEAM * EIGHT;
                for (int i = 0; i < EIGHT && c + i < columns; i++) {
                    parts[c + i] = (team == 0 ? 0.0f : parts[c + i]) + dgamma[j][i];
                    float before = team == 0 ? 0.0f : parts[columns + c + i];
                    parts[columns + c + i] = before + dbeta[j][i];
                }
            }
        }
        __syncthreads();
    }
}

template <typename T, bool ALIGNED, int TEAM, int CHUNKS>
__global__ void __launch_bounds__(NORM_THREADS) norm_backward(const backward_task<T> b)
{
    GPU_SHARED(float, scratch, NORM_THREADS / 32);
    int64_t from = b.rows * blockIdx.x / gridDim.x, to = b.rows * (blockIdx.x + 1) / gridDim.x;
    int64_t first = static_cast<int64_t>(threadIdx.x % TEAM) * EIGHT;
    float width = static_cast<float>(b.columns);
    float dgamma[CHUNKS][EIGHT] = {}, dbeta[CHUNKS][EIGHT] = {};
    for (int64_t n = from + threadIdx.x / TEAM; n < to; n += NORM_THREADS / TEAM) {
        float mean = b.statistics[n * b.statistics_stride];
        float r = b.statistics[n * b.statistics_stride + 1];
        float h[CHUNKS][EIGHT], g[CHUNKS][EIGHT], sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            int64_t c = first + j * TEAM * EIGHT, left = b.columns - c;
            float gamma[EIGHT];
            load_eight<ALIGNED>(h[j], b.z.data + n * b.z.stride + c, left);
            load_eight<ALIGNED>(g[j], b.dy.data + n * b.dy.stride + c, left);
            load_eight<ALIGNED>(gamma, b.gamma + c, left);
            if (b.stream == NORM_RESIDUAL_POST) {
                float stream[EIGHT];
                load_eight<ALIGNED>(stream, b.dz.data + n * b.dz.stride + c, left);
#pragma unroll
                for (int i = 0; i < EIGHT; i++) {
                    g[j][i] += stream[i];
                }
            }
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                h[j][i] = (h[j][i] - mean) * r;
                dbeta[j][i] += g[j][i];
                dgamma[j][i] += g[j][i] * h[j][i];
                g[j][i] *= gamma[i];
                sum_g += g[j][i];
                sum_gh += g[j][i] * h[j][i];
            }
        }
        float mean_g = b.layer ? team_sum<TEAM>(sum_g, scratch) / width : 0.0f;
        float mean_gh = team_sum<TEAM>(sum_gh, scratch) / width;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            int64_t c = first + j * TEAM * EIGHT, left = b.columns - c;
            float before[EIGHT] = {};
            if (b.stream == NORM_RESIDUAL_PRE) {
                load_eight<ALIGNED>(before, b.dz.data + n * b.dz.stride + c, left);
            }
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                before[i] += r * (g[j][i] - mean_g - h[j][i] * mean_gh);
            }
            store_eight<ALIGNED>(b.dz.data + n * b.dz.stride + c, before, left);
            if (b.ddelta.data != nullptr && left > 0) {
                dropout_apply_eight(before, b.dropout, n * b.columns + c);
                store_eight<ALIGNED>(b.ddelta.data + n * b.ddelta.stride + c, before, left);
            }
        }
    }
    float *parts = b.parts + static_cast<int64_t>(blockIdx.x) * 2 * b.columns;
    store_parts<TEAM, CHUNKS>(parts, b.columns, dgamma, dbeta);
}

/* ---- host ---- */

static status check_width(int64_t columns)
{
    REQUIRE(columns <= NORM_WIDTH_MAX, STATUS_UNAVAILABLE,
            "norm: the row width is %" PRId64 "; the CUDA back-end supports widths up to %d",
            columns, (int)NORM_WIDTH_MAX);
    return STATUS_OK;
}

template <typename T, bool ALIGNED>
static status launch_forward(struct kernels *k, const forward_task<T> &f)
{
    const int warps = NORM_THREADS / 32;
    if (ALIGNED && f.columns <= 768) {
        LAUNCH(k, (norm_forward<T, ALIGNED, 32, 3>), count_blocks(f.rows, warps), NORM_THREADS, 0,
               f);
    } else if (ALIGNED && f.columns <= 2048) {
        LAUNCH(k, (norm_forward<T, ALIGNED, 32, 8>), count_blocks(f.rows, warps), NORM_THREADS, 0,
               f);
    } else {
        LAUNCH(k, (norm_forward<T, ALIGNED, 256, 4>), count_blocks(f.rows, 1), NORM_THREADS, 0, f);
    }
    return STATUS_OK;
}

extern "C" status cuda_residual_norm_forward(struct kernels *k, struct tensor z, struct tensor y,
                                             struct tensor statistics, struct tensor x,
                                             struct tensor delta, struct tensor gamma,
                                             struct tensor beta, enum norm_kind kind, float epsilon,
                                             struct dropout dropout)
{
    TRY(check_width(x.columns));
    if (x.rows == 0) {
        return STATUS_OK;
    }
    bool aligned = operation_is_aligned(z) && operation_is_aligned(y) && operation_is_aligned(x) &&
                   operation_is_aligned(delta) && operation_is_aligned(gamma) &&
                   operation_is_aligned(beta);
    FOR_TYPE(k->dtype, aligned, {
        forward_task<T> f = {make_matrix<T>(z),
                             make_matrix<T>(y),
                             make_matrix<const T>(x),
                             make_matrix<const T>(delta),
                             static_cast<float *>(statistics.data),
                             statistics.stride,
                             static_cast<const float *>(gamma.data),
                             static_cast<const float *>(beta.data),
                             x.rows,
                             x.columns,
                             kind == NORM_LAYER,
                             epsilon,
                             dropout};
        TRY((launch_forward<T, ALIGNED>(k, f)));
    });
    return STATUS_OK;
}

template <typename T, bool ALIGNED>
static status launch_backward(struct kernels *k, const backward_task<T> &b, unsigned blocks)
{
    if (ALIGNED && b.columns <= 768) {
        LAUNCH(k, (norm_backward<T, ALIGNED, 32, 3>), blocks, NORM_THREADS, 0, b);
    } else if (ALIGNED && b.columns <= 2048) {
        LAUNCH(k, (norm_backward<T, ALIGNED, 256, 1>), blocks, NORM_THREADS, 0, b);
    } else {
        LAUNCH(k, (norm_backward<T, ALIGNED, 256, 4>), blocks, NORM_THREADS, 0, b);
    }
    return STATUS_OK;
}

extern "C" status cuda_residual_norm_backward(struct kernels *k, struct tensor dz,
                                              struct tensor ddelta, struct tensor dgamma,
                                              struct tensor dbeta, struct tensor dy,
                                              struct tensor z, struct tensor statistics,
                                              struct tensor gamma, enum norm_kind kind,
                                              enum norm_residual stream, struct dropout dropout)
{
    TRY(check_width(z.columns));
    if (z.rows == 0) {
        return STATUS_OK;
    }
    int64_t blocks = min_int64(z.rows, CUDA_NORM_BLOCKS);
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, static_cast<size_t>(blocks * 2 * z.columns) * sizeof(float), &memory));
    arena_release(scratch, mark);
    float *parts = static_cast<float *>(memory);
    bool aligned = operation_is_aligned(dz) && operation_is_aligned(ddelta) &&
                   operation_is_aligned(dy) && operation_is_aligned(z) &&
                   operation_is_aligned(gamma);
    FOR_TYPE(k->dtype, aligned, {
        backward_task<T> b = {make_matrix<T>(dz),
                              make_matrix<T>(ddelta),
                              make_matrix<const T>(dy),
                              make_matrix<const T>(z),
                              static_cast<const float *>(statistics.data),
                              statistics.stride,
                              static_cast<const float *>(gamma.data),
                              parts,
                              z.rows,
                              z.columns,
                              kind == NORM_LAYER,
                              stream,
                              dropout};
        TRY((launch_backward<T, ALIGNED>(k, b, static_cast<unsigned>(blocks))));
    });
    TRY(cuda_reduce_parts(k, static_cast<float *>(dgamma.data), parts, blocks, 2 * z.columns,
                          z.columns, false));
    if (dbeta.data != NULL) {
        TRY(cuda_reduce_parts(k, static_cast<float *>(dbeta.data), parts + z.columns, blocks,
                              2 * z.columns, z.columns, false));
    }
    return STATUS_OK;
}
