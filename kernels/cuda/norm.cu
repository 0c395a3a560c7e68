/* Residual sum and norm of rows in one pass, and its gradient.
 *
 * Forward   z = x + drop(delta);  h = (z - mean) r;  y = h gamma + beta, with
 *           r = 1 / sqrt(mean((z - mean)^2) + epsilon); for RMS the mean is left out (0).
 *           The norm is of z as stored, so that backward finds the same numbers.
 * Backward  g = dy gamma;  dz += r (g - mean(g) - h mean(g h)), without mean(g) for RMS;
 *           dgamma += sum over rows of dy h;  dbeta += sum over rows of dy.
 * Layout    A team has a row at a time and keeps it in registers, eight elements a thread and chunk:
 *           a warp for rows of up to 2048 (768 backward), else a block.
 * Order     Backward, a block has a share of the rows that depends on N alone, and its threads keep the
 *           sums of their columns; one partial sum a block, and the partial sums are added in order. */
#include "kernels/cuda/dropout.cuh"

enum { NORM_THREADS = 256, NORM_WIDTH_MAX = 8192 };

template <typename T> struct forward {
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

template <typename T> struct backward {
    matrix<T> dz, ddelta;
    matrix<const T> dy, z;
    const float *statistics;
    int64_t statistics_stride;
    const float *gamma;
    float *parts; /* [blocks][2][columns]: dgamma, dbeta */
    int64_t rows, columns;
    bool layer;
    enum norm_stream stream;
    struct dropout dropout;
};

/* z of eight elements: read, and where there is a delta added, stored and taken as it was stored. */
template <typename T, bool WIDE>
GPU_INLINE void residual(float (&z)[EIGHT], const forward<T> &f, int64_t n, int64_t c, int64_t left)
{
    load_eight<WIDE>(z, f.x.data + n * f.x.stride + c, left);
    if (f.delta.data != nullptr && left > 0) {
        float delta[EIGHT];
        load_eight<WIDE>(delta, f.delta.data + n * f.delta.stride + c, left);
        dropout_eight(delta, f.dropout, n * f.columns + c);
#pragma unroll
        for (int i = 0; i < EIGHT; i++) {
            z[i] = stored_as(z[i] + delta[i], f.z.data);
        }
        store_eight<WIDE>(f.z.data + n * f.z.stride + c, z, left);
    }
}

template <typename T, bool WIDE, int TEAM, int CHUNKS>
__global__ void __launch_bounds__(NORM_THREADS) norm_forward(const forward<T> f)
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
        residual<T, WIDE>(z[j], f, n, c, f.columns - c);
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
        load_eight<WIDE>(gamma, f.gamma + c, left);
        if (f.beta != nullptr) {
            load_eight<WIDE>(beta, f.beta + c, left);
        }
        for (int i = 0; i < EIGHT; i++) {
            z[j][i] = (z[j][i] - mean) * r * gamma[i] + beta[i];
        }
        store_eight<WIDE>(f.y.data + n * f.y.stride + c, z[j], left);
    }
}

/* The block's sums of dgamma and dbeta, its teams one after the other. */
template <int TEAM, int CHUNKS>
GPU_INLINE void parts_store(float *parts, int64_t columns, const float (&dgamma)[CHUNKS][EIGHT],
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

template <typename T, bool WIDE, int TEAM, int CHUNKS>
__global__ void __launch_bounds__(NORM_THREADS) norm_backward(const backward<T> b)
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
            load_eight<WIDE>(h[j], b.z.data + n * b.z.stride + c, left);
            load_eight<WIDE>(g[j], b.dy.data + n * b.dy.stride + c, left);
            load_eight<WIDE>(gamma, b.gamma + c, left);
            if (b.stream == NORM_STREAM_NORM) {
                float stream[EIGHT];
                load_eight<WIDE>(stream, b.dz.data + n * b.dz.stride + c, left);
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
            if (b.stream == NORM_STREAM_SUM) {
                load_eight<WIDE>(before, b.dz.data + n * b.dz.stride + c, left);
            }
#pragma unroll
            for (int i = 0; i < EIGHT; i++) {
                before[i] += r * (g[j][i] - mean_g - h[j][i] * mean_gh);
            }
            store_eight<WIDE>(b.dz.data + n * b.dz.stride + c, before, left);
            if (b.ddelta.data != nullptr && left > 0) {
                dropout_eight(before, b.dropout, n * b.columns + c);
                store_eight<WIDE>(b.ddelta.data + n * b.ddelta.stride + c, before, left);
            }
        }
    }
    float *parts = b.parts + static_cast<int64_t>(blockIdx.x) * 2 * b.columns;
    parts_store<TEAM, CHUNKS>(parts, b.columns, dgamma, dbeta);
}

/* ---- host ---- */

static status width_check(int64_t columns)
{
    REQUIRE(columns <= NORM_WIDTH_MAX, STATUS_UNAVAILABLE,
            "a norm of rows of %lld: the CUDA back-end has them up to %d", (long long)columns,
            (int)NORM_WIDTH_MAX);
    return STATUS_OK;
}

template <typename T, bool WIDE> static status forward_run(struct kernels *k, const forward<T> &f)
{
    const int warps = NORM_THREADS / 32;
    if (WIDE && f.columns <= 768) {
        LAUNCH(k, (norm_forward<T, WIDE, 32, 3>), blocks_for(f.rows, warps), NORM_THREADS, 0, f);
    } else if (WIDE && f.columns <= 2048) {
        LAUNCH(k, (norm_forward<T, WIDE, 32, 8>), blocks_for(f.rows, warps), NORM_THREADS, 0, f);
    } else {
        LAUNCH(k, (norm_forward<T, WIDE, 256, 4>), blocks_for(f.rows, 1), NORM_THREADS, 0, f);
    }
    return STATUS_OK;
}

extern "C" status cuda_residual_norm_forward(struct kernels *k, struct tensor z, struct tensor y,
                                             struct tensor statistics, struct tensor x,
                                             struct tensor delta, struct tensor gamma,
                                             struct tensor beta, enum norm_kind kind, float epsilon,
                                             struct dropout dropout)
{
    TRY(width_check(x.columns));
    if (x.rows == 0) {
        return STATUS_OK;
    }
    bool wide = operation_wide(z) && operation_wide(y) && operation_wide(x) &&
                operation_wide(delta) && operation_wide(gamma) && operation_wide(beta);
    FOR_TYPE(k->dtype, wide, {
        forward<T> f = {matrix_of<T>(z),
                        matrix_of<T>(y),
                        matrix_of<const T>(x),
                        matrix_of<const T>(delta),
                        static_cast<float *>(statistics.data),
                        statistics.stride,
                        static_cast<const float *>(gamma.data),
                        static_cast<const float *>(beta.data),
                        x.rows,
                        x.columns,
                        kind == NORM_LAYER,
                        epsilon,
                        dropout};
        TRY((forward_run<T, WIDE>(k, f)));
    });
    return STATUS_OK;
}

template <typename T, bool WIDE>
static status backward_run(struct kernels *k, const backward<T> &b, unsigned blocks)
{
    if (WIDE && b.columns <= 768) {
        LAUNCH(k, (norm_backward<T, WIDE, 32, 3>), blocks, NORM_THREADS, 0, b);
    } else if (WIDE && b.columns <= 2048) {
        LAUNCH(k, (norm_backward<T, WIDE, 256, 1>), blocks, NORM_THREADS, 0, b);
    } else {
        LAUNCH(k, (norm_backward<T, WIDE, 256, 4>), blocks, NORM_THREADS, 0, b);
    }
    return STATUS_OK;
}

extern "C" status cuda_residual_norm_backward(struct kernels *k, struct tensor dz,
                                              struct tensor ddelta, struct tensor dgamma,
                                              struct tensor dbeta, struct tensor dy,
                                              struct tensor z, struct tensor statistics,
                                              struct tensor gamma, enum norm_kind kind,
                                              enum norm_stream stream, struct dropout dropout)
{
    TRY(width_check(z.columns));
    if (z.rows == 0) {
        return STATUS_OK;
    }
    int64_t blocks = smaller(z.rows, CUDA_NORM_BLOCKS);
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, static_cast<size_t>(blocks * 2 * z.columns) * sizeof(float), &memory));
    arena_release(scratch, mark);
    float *parts = static_cast<float *>(memory);
    bool wide = operation_wide(dz) && operation_wide(ddelta) && operation_wide(dy) &&
                operation_wide(z) && operation_wide(gamma);
    FOR_TYPE(k->dtype, wide, {
        backward<T> b = {matrix_of<T>(dz),
                         matrix_of<T>(ddelta),
                         matrix_of<const T>(dy),
                         matrix_of<const T>(z),
                         static_cast<const float *>(statistics.data),
                         statistics.stride,
                         static_cast<const float *>(gamma.data),
                         parts,
                         z.rows,
                         z.columns,
                         kind == NORM_LAYER,
                         stream,
                         dropout};
        TRY((backward_run<T, WIDE>(k, b, static_cast<unsigned>(blocks))));
    });
    TRY(cuda_columns_add(k, static_cast<float *>(dgamma.data), parts, blocks, 2 * z.columns,
                         z.columns, false));
    if (dbeta.data != NULL) {
        TRY(cuda_columns_add(k, static_cast<float *>(dbeta.data), parts + z.columns, blocks,
                             2 * z.columns, z.columns, false));
    }
    return STATUS_OK;
}
