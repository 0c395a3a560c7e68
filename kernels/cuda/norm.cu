/* Residual addition fused with LayerNorm or RMSNorm, and its backward pass.
 *
 * Forward   z = x + drop(delta);  h = (z - mean) r;  y = h gamma + beta, with
 *           r = 1 / sqrt(mean((z - mean)^2) + epsilon). RMSNorm uses mean = 0. A norm without a
 *           weight has gamma = 1. The norm uses z rounded to its storage type, as the backward pass
 *           reads it.
 * Backward  g = dy gamma;  dz += r (g - mean(g) - h mean(g h)), without mean(g) for RMSNorm;
 *           dgamma += sum over rows of dy h;  dbeta += sum over rows of dy;
 *           dbias (+)= sum over rows of drop'(dz), rounded to its storage type.
 * Launch    A team of threads processes one row at a time; its size is a multiple of 32.
 *           Forward: a team is a block, a thread has eight elements of FORWARD_ROWS rows, grid
 *           ceil(N / FORWARD_ROWS), 1 KiB of shared memory. Backward: a thread has CHUNKS groups of
 *           eight elements, grid min(N, CUDA_NORM_BLOCKS). A block has one team for each of its
 *           rows, at most as many as fit into BACKWARD_THREADS, and at most 97 KiB of shared memory
 * Memory    Outputs may alias inputs, so the compiler moves no load before a store. A thread
 *           therefore loads the elements of all its rows before it uses or stores any, and the
 *           loads overlap. In the backward pass cp.async copies the next row to shared memory while
 *           a row is processed
 * Order     In the backward pass, the rows of a team depend on N and C alone. Each thread sums its
 *           columns, the block adds the sums of its teams in order, and cuda_reduce_parts adds the
 *           sums of the blocks in order. */
#include <cinttypes>

#include "kernels/cuda/random.cuh"

enum {
    NORM_THREADS = 1024,
    NORM_WARPS = NORM_THREADS / 32,
    NORM_WIDTH_MAX = NORM_THREADS * LANE_ELEMS,
    FORWARD_ROWS = 2,
    BACKWARD_THREADS = 512,
    CHUNKS = 2,    /* groups of eight elements of a thread in the backward pass */
    TEAMS_MAX = 15 /* the number of named barriers */
};

template <typename T> struct forward_task {
    matrix<T> z, y;
    matrix<const T> x, delta;
    float *statistics;
    int64_t statistics_stride;
    const float *gamma, *beta;
    int64_t rows;
    int columns;
    bool layer;
    float epsilon, inverse_columns;
    struct dropout dropout;
};

/* The sums over rows of the backward pass. */
enum { SUM_GAMMA, SUM_BETA, SUM_BIAS, SUMS };

template <typename T> struct backward_task {
    matrix<T> dz, ddelta;
    matrix<const T> dy, z;
    const float *statistics;
    int64_t statistics_stride;
    const float *gamma;
    float *parts; /* [blocks][SUMS][columns] */
    int64_t rows;
    int columns;
    bool layer, sums_bias;
    enum norm_residual residual;
    float inverse_columns, dropout_scale;
    struct dropout dropout;
};

/* Sums each x[i] over the team: the threads of the block with the same threadIdx.y. ALONE: the
 * block has one team. scratch: COUNT floats for each warp of the team. Consecutive calls must use
 * different scratch, because each call has only one barrier. */
template <bool ALONE, int COUNT> GPU_INLINE void sum_over_team(float (&x)[COUNT], float *scratch)
{
#pragma unroll
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            x[i] += __shfl_xor_sync(~0u, x[i], lane_mask);
        }
    }
    if (blockDim.x == 32) {
        return;
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            scratch[threadIdx.x / 32 * COUNT + i] = x[i];
        }
    }
    if (ALONE) {
        __syncthreads();
    } else {
        gpu_barrier_sync(1 + static_cast<int>(threadIdx.y), static_cast<int>(blockDim.x));
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        x[i] = 0;
    }
#pragma unroll 4
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            x[i] += scratch[warp * COUNT + i];
        }
    }
}

/* Loads eight elements of gamma; nullptr: 1. */
template <bool ALIGNED>
GPU_INLINE void load_gamma(float (&x)[LANE_ELEMS], const float *gamma, int c, int left)
{
    if (gamma != nullptr) {
        load_eight<ALIGNED>(x, gamma + c, left);
        return;
    }
#pragma unroll
    for (int j = 0; j < LANE_ELEMS; j++) {
        x[j] = 1.0f;
    }
}

/* Loads the thread's elements of the rows of z. If delta is present, adds it, stores the sum and
 * returns it as stored. left[i]: as in load_eight for row n + i. */
template <typename T, bool ALIGNED>
GPU_INLINE void load_residual(float (&z)[FORWARD_ROWS][LANE_ELEMS], const forward_task<T> &f,
                              int64_t n, int c, const int (&left)[FORWARD_ROWS])
{
    eight_bits<T> x[FORWARD_ROWS], delta[FORWARD_ROWS];
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        load_bits<ALIGNED>(x[i], f.x.data + (n + i) * f.x.stride + c, left[i]);
    }
    if (f.delta.data == nullptr) {
#pragma unroll
        for (int i = 0; i < FORWARD_ROWS; i++) {
            convert_bits(z[i], x[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        load_bits<ALIGNED>(delta[i], f.delta.data + (n + i) * f.delta.stride + c, left[i]);
    }
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        float d[LANE_ELEMS];
        convert_bits(z[i], x[i]);
        convert_bits(d, delta[i]);
        dropout_apply_eight(d, f.dropout, (n + i) * f.columns + c);
#pragma unroll
        for (int j = 0; j < LANE_ELEMS; j++) {
            z[i][j] += d[j];
        }
        round_eight_bits(x[i], z[i]);
        store_bits<ALIGNED>(f.z.data + (n + i) * f.z.stride + c, x[i], left[i]);
        convert_bits(z[i], x[i]);
    }
}

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(NORM_THREADS) norm_forward(const forward_task<T> f)
{
    GPU_SHARED(float, scratch, 2 * FORWARD_ROWS * NORM_WARPS);
    const int64_t n = static_cast<int64_t>(blockIdx.x) * FORWARD_ROWS;
    const int c = static_cast<int>(threadIdx.x) * LANE_ELEMS;
    float z[FORWARD_ROWS][LANE_ELEMS], gamma[LANE_ELEMS] = {}, beta[LANE_ELEMS] = {};
    float mean[FORWARD_ROWS] = {}, r[FORWARD_ROWS] = {};
    int left[FORWARD_ROWS];
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        left[i] = n + i < f.rows ? f.columns - c : 0;
    }
    load_residual<T, ALIGNED>(z, f, n, c, left);
    if (f.y.data == nullptr) {
        return;
    }
    load_gamma<ALIGNED>(gamma, f.gamma, c, f.columns - c);
    if (f.beta != nullptr) {
        load_eight<ALIGNED>(beta, f.beta + c, f.columns - c);
    }
    if (f.layer) {
#pragma unroll
        for (int i = 0; i < FORWARD_ROWS; i++) {
#pragma unroll
            for (int j = 0; j < LANE_ELEMS; j++) {
                mean[i] += z[i][j];
            }
        }
        sum_over_team<true>(mean, scratch);
#pragma unroll
        for (int i = 0; i < FORWARD_ROWS; i++) {
            mean[i] *= f.inverse_columns;
        }
    }
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < LANE_ELEMS; j++) {
            z[i][j] -= mean[i];
            r[i] += ALIGNED || j < left[i] ? z[i][j] * z[i][j] : 0.0f;
        }
        r[i] = left[i] > 0 ? r[i] : 0.0f;
    }
    sum_over_team<true>(r, scratch + FORWARD_ROWS * NORM_WARPS);
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        r[i] = 1.0f / sqrtf(r[i] * f.inverse_columns + f.epsilon);
        if (threadIdx.x == 0 && f.statistics != nullptr && left[i] > 0) {
            float *statistics = f.statistics + (n + i) * f.statistics_stride;
            statistics[0] = mean[i];
            statistics[1] = r[i];
        }
#pragma unroll
        for (int j = 0; j < LANE_ELEMS; j++) {
            z[i][j] = z[i][j] * r[i] * gamma[j] + beta[j];
        }
        store_eight<ALIGNED>(f.y.data + (n + i) * f.y.stride + c, z[i], left[i]);
    }
}

/* Where the thread's first eight elements of a row begin, and the statistics of the row. */
template <typename T> struct row_pointers {
    const T *z, *dy;
    T *dz;
    const float *statistics;
};

template <typename T>
GPU_INLINE row_pointers<T> get_row(const backward_task<T> &b, int64_t n, int c)
{
    return {b.z.data + n * b.z.stride + c, b.dy.data + n * b.dy.stride + c,
            b.dz.data + n * b.dz.stride + c, b.statistics + n * b.statistics_stride};
}

/* The copies of a thread: for each chunk of two rows, [COPIES][threads]. */
enum { COPY_Z, COPY_DY, COPY_RESIDUAL, COPIES };

/* Starts to copy elements from `offset` on to shared memory. Only the thread itself reads them, so
 * no barrier is needed. */
template <typename T>
GPU_INLINE void copy_chunk(uint4 *to, const backward_task<T> &b, const row_pointers<T> &row,
                           int offset)
{
    const unsigned threads = blockDim.x * blockDim.y;
    gpu_copy_async(to + COPY_Z * threads, row.z + offset, true);
    gpu_copy_async(to + COPY_DY * threads, row.dy + offset, true);
    if (b.residual != NORM_RESIDUAL_NONE) {
        gpu_copy_async(to + COPY_RESIDUAL * threads, row.dz + offset, true);
    }
}

/* Loads eight elements from p, or from their copy if the kernel makes copies. */
template <bool ALIGNED>
GPU_INLINE void load_or_copy(float (&x)[LANE_ELEMS], const bf16 *p, const uint4 *copy, int left)
{
    if (ALIGNED) {
        const eight_bits<bf16> bits = {{*copy}};
        convert_bits(x, bits);
    } else {
        load_eight<false>(x, p, left);
    }
}
template <bool ALIGNED>
GPU_INLINE void load_or_copy(float (&x)[LANE_ELEMS], const float *p, const uint4 *, int left)
{
    load_eight<ALIGNED>(x, p, left);
}

/* Eight elements of a row that a thread processes. */
template <typename T> struct row_chunk {
    const T *z, *dy;
    T *dz;
    const uint4 *copies; /* [COPIES][threads] */
    int column, left;    /* left: as in load_eight; no elements if it is not above 0 */
    float mean, r;
};

/* Returns chunk j of the row. copies: of its first chunk. */
template <typename T>
GPU_INLINE row_chunk<T> get_chunk(const backward_task<T> &b, const row_pointers<T> &row,
                                  const uint4 *copies, int j, float mean, float r)
{
    const unsigned threads = blockDim.x * blockDim.y;
    const int offset = j * static_cast<int>(blockDim.x) * LANE_ELEMS;
    const int column = static_cast<int>(threadIdx.x) * LANE_ELEMS + offset;
    return {row.z + offset,
            row.dy + offset,
            row.dz + offset,
            copies + j * COPIES * threads,
            column,
            b.columns - column,
            mean,
            r};
}

/* Loads eight elements from p, or from one of the copies (COPY_*) if the kernel makes copies. */
template <bool ALIGNED, typename T>
GPU_INLINE void load_part(float (&x)[LANE_ELEMS], const row_chunk<T> &chunk, const T *p, int copy)
{
    load_or_copy<ALIGNED>(x, p, chunk.copies + copy * blockDim.x * blockDim.y, chunk.left);
}

/* Loads h. */
template <bool ALIGNED, typename T>
GPU_INLINE void load_normalized(float (&h)[LANE_ELEMS], const row_chunk<T> &chunk)
{
    load_part<ALIGNED>(h, chunk, chunk.z, COPY_Z);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        h[i] = (h[i] - chunk.mean) * chunk.r;
    }
}

/* Computes g. Adds to the sums of the columns, and to the sums of g and of g h over the row. */
template <bool ALIGNED, bool POST, typename T>
GPU_INLINE void add_chunk(float (&g)[LANE_ELEMS], float (&row_sums)[2],
                          float (&sum_gamma)[LANE_ELEMS], float (&sum_beta)[LANE_ELEMS],
                          const row_chunk<T> &chunk, const float *gammas)
{
    float h[LANE_ELEMS], gamma[LANE_ELEMS];
    load_normalized<ALIGNED>(h, chunk);
    load_part<ALIGNED>(g, chunk, chunk.dy, COPY_DY);
    load_gamma<ALIGNED>(gamma, gammas, chunk.column, chunk.left);
    if (POST) {
        float residual[LANE_ELEMS];
        load_part<ALIGNED>(residual, chunk, static_cast<const T *>(chunk.dz), COPY_RESIDUAL);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            g[i] += residual[i];
        }
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        sum_beta[i] += g[i];
        sum_gamma[i] += g[i] * h[i];
        g[i] *= gamma[i];
        row_sums[0] += g[i];
        row_sums[1] += g[i] * h[i];
    }
}

/* Computes and stores dz and ddelta. Adds to the sums of the bias gradient. */
template <bool ALIGNED, typename T>
GPU_INLINE void store_chunk(float (&sum_bias)[LANE_ELEMS], const backward_task<T> &b,
                            const row_chunk<T> &chunk, int64_t n, const float (&g)[LANE_ELEMS],
                            float mean_g, float mean_gh)
{
    float h[LANE_ELEMS], dz[LANE_ELEMS] = {};
    load_normalized<ALIGNED>(h, chunk);
    if (b.residual == NORM_RESIDUAL_PRE) {
        load_part<ALIGNED>(dz, chunk, static_cast<const T *>(chunk.dz), COPY_RESIDUAL);
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        dz[i] += chunk.r * (g[i] - mean_g - h[i] * mean_gh);
    }
    eight_bits<T> bits;
    round_eight_bits(bits, dz);
    store_bits<ALIGNED>(chunk.dz, bits, chunk.left);
    if (b.ddelta.data != nullptr) {
        if (b.dropout.probability > 0) {
            uint32_t kept = dropout_kept_eight(b.dropout, n * b.columns + chunk.column);
            dropout_scale_eight(dz, kept, b.dropout_scale);
        }
        round_eight_bits(bits, dz);
        store_bits<ALIGNED>(b.ddelta.data + n * b.ddelta.stride + chunk.column, bits, chunk.left);
    }
    if (b.sums_bias) {
        add_eight(sum_bias, bits);
    }
}

/* Adds the sums of the teams in their order and stores the sums of the block. shared: shared
 * memory, [SUMS][CHUNKS][LANE_ELEMS][threads of a team]. */
template <bool ALIGNED>
GPU_INLINE void store_parts(float *parts, float *shared, int columns,
                            float (&sums)[SUMS][CHUNKS][LANE_ELEMS])
{
    __syncthreads();
    for (unsigned team = 0; team < blockDim.y; team++) {
        if (team == threadIdx.y) {
#pragma unroll
            for (int i = 0; i < SUMS * CHUNKS * LANE_ELEMS; i++) {
                float *before = shared + i * blockDim.x + threadIdx.x;
                float &sum =
                    sums[i / (CHUNKS * LANE_ELEMS)][i / LANE_ELEMS % CHUNKS][i % LANE_ELEMS];
                sum += team > 0 ? *before : 0.0f;
                *before = sum;
            }
        }
        __syncthreads();
    }
    if (threadIdx.y < blockDim.y - 1) {
        return;
    }
#pragma unroll
    for (int i = 0; i < SUMS * CHUNKS; i++) {
        int c = static_cast<int>(i % CHUNKS * blockDim.x + threadIdx.x) * LANE_ELEMS;
        store_eight<ALIGNED>(parts + i / CHUNKS * columns + c, sums[i / CHUNKS][i % CHUNKS],
                             columns - c);
    }
}

/* POST: the residual stream is added to dy, not to dz. */
template <typename T, bool ALIGNED, bool POST>
__global__ void __launch_bounds__(BACKWARD_THREADS) norm_backward(const backward_task<T> b)
{
    constexpr bool COPIED = ALIGNED && sizeof(T) == sizeof(bf16);
    GPU_SHARED(float, scratch, 2 * 2 * BACKWARD_THREADS / 32);
    GPU_SHARED_DYNAMIC(uint4, copies);
    const int c = static_cast<int>(threadIdx.x) * LANE_ELEMS, left = b.columns - c;
    const int step = static_cast<int>(blockDim.x) * LANE_ELEMS; /* between the chunks of a thread */
    const unsigned threads = blockDim.x * blockDim.y, chunk_copies = COPIES * threads;
    const int64_t team = blockIdx.x * blockDim.y + threadIdx.y, teams = gridDim.x * blockDim.y;
    const int64_t end = b.rows * (team + 1) / teams;
    uint4 *own_copies = copies + threadIdx.y * blockDim.x + threadIdx.x;
    float *own_scratch = scratch + 2 * threadIdx.y * (blockDim.x / 32);
    unsigned half = 0; /* half of the copies and the scratch; the next row uses the other half */
    float sums[SUMS][CHUNKS][LANE_ELEMS] = {};
    int64_t n = b.rows * team / teams;
    const row_pointers<T> first = get_row(b, n, c);
    for (int j = 0; COPIED && j < CHUNKS; j++) {
        if (n < end && left > j * step) {
            copy_chunk(own_copies + j * chunk_copies, b, first, j * step);
        }
    }
    gpu_copy_commit();
    float next_mean = n < end ? first.statistics[0] : 0.0f;
    float next_r = n < end ? first.statistics[1] : 0.0f;
    for (; n < end; n++, half ^= 1) {
        const uint4 *stage = own_copies + half * CHUNKS * chunk_copies;
        uint4 *next_stage = own_copies + (half ^ 1) * CHUNKS * chunk_copies;
        const row_pointers<T> row = get_row(b, n, c), next = get_row(b, n + 1, c);
        const float mean = next_mean, r = next_r;
        if (n + 1 < end) {
            next_mean = next.statistics[0];
            next_r = next.statistics[1];
        }
#pragma unroll
        for (int j = 0; COPIED && j < CHUNKS; j++) {
            if (n + 1 < end && left > j * step) {
                copy_chunk(next_stage + j * chunk_copies, b, next, j * step);
            }
        }
        gpu_copy_commit();
        gpu_copy_wait<1>();
        float g[CHUNKS][LANE_ELEMS], means[2] = {};
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            if (left > j * step) {
                const row_chunk<T> chunk = get_chunk(b, row, stage, j, mean, r);
                add_chunk<ALIGNED, POST>(g[j], means, sums[SUM_GAMMA][j], sums[SUM_BETA][j], chunk,
                                         b.gamma);
            }
        }
        sum_over_team<false>(means, own_scratch + half * (2 * BACKWARD_THREADS / 32));
        const float mean_g = b.layer ? means[0] * b.inverse_columns : 0.0f;
        const float mean_gh = means[1] * b.inverse_columns;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            if (left > j * step) {
                const row_chunk<T> chunk = get_chunk(b, row, stage, j, mean, r);
                store_chunk<ALIGNED>(sums[SUM_BIAS][j], b, chunk, n, g[j], mean_g, mean_gh);
            }
        }
    }
    float *parts = b.parts + static_cast<int64_t>(blockIdx.x) * SUMS * b.columns;
    store_parts<ALIGNED>(parts, reinterpret_cast<float *>(copies), b.columns, sums);
}

/* ---- host ---- */

static status check_width(int64_t columns)
{
    REQUIRE(columns <= NORM_WIDTH_MAX, STATUS_UNAVAILABLE,
            "norm: the row width is %" PRId64 "; the CUDA back-end supports widths up to %d",
            columns, (int)NORM_WIDTH_MAX);
    return STATUS_OK;
}

/* Returns the number of threads that process a row, with `elements` elements each. */
static unsigned count_team_threads(int64_t columns, int elements)
{
    return count_blocks(columns, 32 * elements) * 32;
}

template <typename T, bool ALIGNED>
static status launch_backward(struct kernels *k, const backward_task<T> &b, unsigned blocks)
{
    const unsigned threads = count_team_threads(b.columns, CHUNKS * LANE_ELEMS);
    const int64_t teams_max = number_min(BACKWARD_THREADS / threads, TEAMS_MAX);
    const unsigned teams =
        static_cast<unsigned>(number_min(teams_max, number_divide_up(b.rows, blocks)));
    const dim3 block(threads, teams);
    const size_t shared_bytes = 2 * CHUNKS * COPIES * sizeof(uint4) * threads * teams;
    if (b.residual == NORM_RESIDUAL_POST) {
        LAUNCH(k, (norm_backward<T, ALIGNED, true>), blocks, block, shared_bytes, b);
    } else {
        LAUNCH(k, (norm_backward<T, ALIGNED, false>), blocks, block, shared_bytes, b);
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
                             static_cast<int>(x.columns),
                             kind == NORM_LAYER,
                             epsilon,
                             1.0f / static_cast<float>(x.columns),
                             dropout};
        LAUNCH(k, (norm_forward<T, ALIGNED>), count_blocks(x.rows, FORWARD_ROWS),
               count_team_threads(x.columns, LANE_ELEMS), 0, f);
    });
    return STATUS_OK;
}

extern "C" status cuda_residual_norm_backward(struct kernels *k, struct tensor dz,
                                              struct tensor ddelta, struct tensor dgamma,
                                              struct tensor dbeta, struct bias_gradient dbias,
                                              struct tensor dy, struct tensor z,
                                              struct tensor statistics, struct tensor gamma,
                                              enum norm_kind kind, enum norm_residual residual,
                                              struct dropout dropout)
{
    TRY(check_width(z.columns));
    if (z.rows == 0) {
        return STATUS_OK;
    }
    const int64_t blocks = number_min(z.rows, CUDA_NORM_BLOCKS);
    void *memory;
    TRY(cuda_take_scratch(k, static_cast<size_t>(blocks * SUMS * z.columns) * sizeof(float),
                          &memory));
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
                              static_cast<int>(z.columns),
                              kind == NORM_LAYER,
                              dbias.sums.data != nullptr,
                              residual,
                              1.0f / static_cast<float>(z.columns),
                              dropout_scale(dropout.probability),
                              dropout};
        TRY((launch_backward<T, ALIGNED>(k, b, static_cast<unsigned>(blocks))));
    });
    const struct cuda_parts_sum sums[SUMS] = {
        {static_cast<float *>(dgamma.data), false},
        {static_cast<float *>(dbeta.data), false},
        {static_cast<float *>(dbias.sums.data), dbias.overwrite}};
    return cuda_reduce_parts(k, sums, SUMS, parts, blocks, z.columns);
}
