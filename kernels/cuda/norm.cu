/* Residual addition fused with LayerNorm or RMSNorm, and its backward pass.
 *
 * Forward   z = x + drop(delta);  h = (z - mean) r;  y = h gamma + beta, with
 *           r = 1 / sqrt(mean((z - mean)^2) + epsilon). RMSNorm uses mean = 0.
 *           The norm uses z rounded to its storage type, as the backward pass reads it.
 * Backward  g = dy gamma;  dz += r (g - mean(g) - h mean(g h)), without mean(g) for RMSNorm;
 *           dgamma += sum over rows of dy h;  dbeta += sum over rows of dy.
 * Launch    block 256, or 128 for aligned rows of 769 to 4096 elements in the backward pass. A team
 *           of threads processes one row at a time and keeps it in registers, in chunks of eight
 *           elements for each thread. A team is a warp for aligned rows of up to 2048 elements (768
 *           in the backward pass), else the block. Forward grid: a team for each row. Backward
 *           grid: min(N, cuda_norm_blocks(C)) blocks. Shared memory: at most four floats for each
 *           warp
 * Memory    A thread loads all its elements of a row before it stores any, so that the loads
 *           overlap: outputs may alias inputs, and the compiler moves no load before a store.
 * Order     In the backward pass, the rows of a block depend on N and C alone. Each thread sums its
 *           columns, each block writes one partial sum, and cuda_reduce_parts adds the partial sums
 *           in order. */
#include <cinttypes>

#include "kernels/cuda/random.cuh"

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

/* Loads the thread's elements of z, from column `first` on. If delta is present, adds it, stores
 * the sum and returns it as stored. */
template <typename T, bool ALIGNED, int TEAM, int CHUNKS>
GPU_INLINE void load_residual(float (&z)[CHUNKS][EIGHT], const forward_task<T> &f, int64_t n,
                              int64_t first)
{
    float delta[CHUNKS][EIGHT];
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        int64_t c = first + j * TEAM * EIGHT;
        load_eight<ALIGNED>(z[j], f.x.data + n * f.x.stride + c, f.columns - c);
        if (f.delta.data != nullptr) {
            load_eight<ALIGNED>(delta[j], f.delta.data + n * f.delta.stride + c, f.columns - c);
        }
    }
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        int64_t c = first + j * TEAM * EIGHT;
        if (f.delta.data != nullptr && c < f.columns) {
            dropout_apply_eight(delta[j], f.dropout, n * f.columns + c);
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                z[j][i] = round_to_storage(z[j][i] + delta[j][i], f.z.data);
            }
            store_eight<ALIGNED>(f.z.data + n * f.z.stride + c, z[j], f.columns - c);
        }
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
    load_residual<T, ALIGNED, TEAM>(z, f, n, first);
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
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
template <int THREADS, int TEAM, int CHUNKS>
GPU_INLINE void store_parts(float *parts, int64_t columns, const float (&dgamma)[CHUNKS][EIGHT],
                            const float (&dbeta)[CHUNKS][EIGHT])
{
    int64_t first = static_cast<int64_t>(threadIdx.x % TEAM) * EIGHT;
    for (int team = 0; team < THREADS / TEAM; team++) {
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

/* Sums a and b over a team. For a block, two calls one after the other use different scratch, so
 * that one barrier is enough. */
template <int TEAM> GPU_INLINE void sum_pair(float &a, float &b, float *scratch)
{
#pragma unroll
    for (int with = 16; with > 0; with /= 2) {
        a += __shfl_xor_sync(~0u, a, with);
        b += __shfl_xor_sync(~0u, b, with);
    }
    if (TEAM > 32) {
        if (threadIdx.x % 32 == 0) {
            scratch[threadIdx.x / 32] = a;
            scratch[TEAM / 32 + threadIdx.x / 32] = b;
        }
        __syncthreads();
        a = b = 0;
        for (int i = 0; i < TEAM / 32; i++) {
            a += scratch[i];
            b += scratch[TEAM / 32 + i];
        }
    }
}

template <typename T, bool ALIGNED, int THREADS, int TEAM, int CHUNKS>
__global__ void __launch_bounds__(THREADS, TEAM == 32 ? 2 : 1)
    norm_backward(const backward_task<T> b)
{
    /* A warp has three chunks and loads the stream's gradient late: two blocks need 128 registers
     * for each thread. */
    constexpr bool LOADS_EARLY = TEAM > 32;
    enum { PAIR = 2 * (THREADS / 32) };
    GPU_SHARED(float, scratch, 2 * PAIR);
    int64_t from = b.rows * blockIdx.x / gridDim.x, to = b.rows * (blockIdx.x + 1) / gridDim.x;
    int64_t first = static_cast<int64_t>(threadIdx.x % TEAM) * EIGHT;
    float width = static_cast<float>(b.columns);
    float dgamma[CHUNKS][EIGHT] = {}, dbeta[CHUNKS][EIGHT] = {};
    for (int64_t n = from + threadIdx.x / TEAM; n < to; n += THREADS / TEAM) {
        float mean = b.statistics[n * b.statistics_stride];
        float r = b.statistics[n * b.statistics_stride + 1];
        float h[CHUNKS][EIGHT], g[CHUNKS][EIGHT], dz[CHUNKS][EIGHT] = {};
        float mean_g = 0, mean_gh = 0;
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
            } else if (LOADS_EARLY && b.stream == NORM_RESIDUAL_PRE) {
                load_eight<ALIGNED>(dz[j], b.dz.data + n * b.dz.stride + c, left);
            }
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                h[j][i] = (h[j][i] - mean) * r;
                dbeta[j][i] += g[j][i];
                dgamma[j][i] += g[j][i] * h[j][i];
                g[j][i] *= gamma[i];
                mean_g += g[j][i];
                mean_gh += g[j][i] * h[j][i];
            }
        }
        sum_pair<TEAM>(mean_g, mean_gh, scratch + n % 2 * PAIR);
        mean_g = b.layer ? mean_g / width : 0.0f;
        mean_gh /= width;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            int64_t c = first + j * TEAM * EIGHT, left = b.columns - c;
            if (!LOADS_EARLY && b.stream == NORM_RESIDUAL_PRE) {
                load_eight<ALIGNED>(dz[j], b.dz.data + n * b.dz.stride + c, left);
            }
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                dz[j][i] += r * (g[j][i] - mean_g - h[j][i] * mean_gh);
            }
            store_eight<ALIGNED>(b.dz.data + n * b.dz.stride + c, dz[j], left);
            if (b.ddelta.data != nullptr && left > 0) {
                dropout_apply_eight(dz[j], b.dropout, n * b.columns + c);
                store_eight<ALIGNED>(b.ddelta.data + n * b.ddelta.stride + c, dz[j], left);
            }
        }
    }
    float *parts = b.parts + static_cast<int64_t>(blockIdx.x) * 2 * b.columns;
    store_parts<THREADS, TEAM>(parts, b.columns, dgamma, dbeta);
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
        LAUNCH(k, (norm_backward<T, ALIGNED, 256, 32, 3>), blocks, 256, 0, b);
    } else if (ALIGNED && b.columns <= 1024) {
        LAUNCH(k, (norm_backward<T, ALIGNED, 128, 128, 1>), blocks, 128, 0, b);
    } else if (ALIGNED && b.columns <= 2048) {
        LAUNCH(k, (norm_backward<T, ALIGNED, 128, 128, 2>), blocks, 128, 0, b);
    } else if (ALIGNED && b.columns <= 4096) {
        LAUNCH(k, (norm_backward<T, ALIGNED, 128, 128, 4>), blocks, 128, 0, b);
    } else {
        LAUNCH(k, (norm_backward<T, ALIGNED, 256, 256, 4>), blocks, 256, 0, b);
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
    int64_t blocks = min_int64(z.rows, cuda_norm_blocks(z.columns));
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
