/* Kernels with planted bugs (planted.h); each template parameter BUG enables one of them. */
#include "tests/simt/planted.h"

#include <cstdio>

/* ---- a sum over a block ---- */

enum { SUM_THREADS = 96 };

template <int BUG> GPU_INLINE float sum_block(float value, float *scratch)
{
    for (int with = 16; with > 0; with /= 2) {
        value += __shfl_xor_sync(~0u, value, with);
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
        scratch[warp] = value;
    }
    if (BUG != PLANTED_SUM_NO_BARRIER) {
        __syncthreads();
    }
    int words = SUM_THREADS / 32 + (BUG == PLANTED_SUM_SHARED_UNWRITTEN ? 1 : 0);
    value = lane < words ? scratch[lane] : 0.0f;
    for (int with = 16; with > 0; with /= 2) {
        value += __shfl_xor_sync(~0u, value, with);
    }
    if (BUG != PLANTED_SUM_SCRATCH_REUSED) {
        __syncthreads();
    }
    return value;
}

template <int BUG> __global__ void sum_rows(float *out, const float *x, int columns)
{
    GPU_SHARED(float, scratch, SUM_THREADS / 32 + 1);
    const float *row = x + static_cast<size_t>(blockIdx.x) * columns;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x; c < columns; c += SUM_THREADS) {
        sum += row[c];
    }
    float mean = sum_block<BUG>(sum, scratch) / columns;
    for (int c = threadIdx.x; c < columns; c += SUM_THREADS) {
        squares += (row[c] - mean) * (row[c] - mean);
    }
    float total = sum_block<BUG>(squares, scratch);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = mean * columns + total;
    }
}

/* ---- GEMM by cp.async, ldmatrix and mma.sync ---- */

GPU_INLINE int stage_offset(int row, int chunk)
{
    return row * 64 + ((chunk ^ (row & 7)) << 3);
}

GPU_INLINE void load_stage(bf16 *stage, const bf16 *x, int first, int rows, int k, int at)
{
    for (int i = threadIdx.x; i < 512; i += 128) {
        int r = i / 8, c = i % 8;
        bool valid = first + r < rows;
        gpu_copy_async(&stage[stage_offset(r, c)],
                       &x[static_cast<size_t>(valid ? first + r : 0) * k + at + c * 8], valid);
    }
}

template <int BUG>
GPU_INLINE void multiply_stage(float (&sums)[8][4], const bf16 *a, const bf16 *b, int warp,
                               int lane)
{
    for (int kk = 0; kk < 4; kk++) {
        uint32_t fa[4], fb[4];
        const bf16 *from = &a[stage_offset(warp * 16 + lane % 16, kk * 2 + lane / 16)];
        gpu_load_matrix(fa, BUG == PLANTED_MATRIX_MISALIGNED ? from + 1 : from);
        for (int j = 0; j < 4; j++) {
            int row = j * 16 + lane % 8 + lane / 16 * 8;
            gpu_load_matrix(fb, &b[stage_offset(row, kk * 2 + lane / 8 % 2)]);
            const uint32_t low[2] = {fb[0], fb[1]}, high[2] = {fb[2], fb[3]};
            gpu_mma_bf16(sums[2 * j], fa, low);
            gpu_mma_bf16(sums[2 * j + 1], fa, high);
        }
    }
}

template <int BUG>
__global__ void __launch_bounds__(128)
    run_gemm(float *c, const bf16 *a, const bf16 *b, int m, int n, int k)
{
    GPU_SHARED_DYNAMIC(bf16, stages); /* [2][a, b][64 * 64] */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_row = blockIdx.y * 64, first_column = blockIdx.x * 64, steps = k / 64;
    float sums[8][4] = {};
    for (int t = -1; t < steps; t++) {
        if (t + 1 < steps) {
            bf16 *stage = stages + (t + 1) % 2 * 8192;
            load_stage(stage, a, first_row, m, k, (t + 1) * 64);
            load_stage(stage + 4096, b, first_column, n, k, (t + 1) * 64);
        }
        gpu_copy_commit();
        if (t < 0) {
            continue;
        }
        gpu_copy_wait<BUG == PLANTED_COPY_WAIT_WEAK ? 2 : 1>();
        if (BUG != PLANTED_COPY_NO_BARRIER) {
            __syncthreads();
        }
        const bf16 *stage = stages + t % 2 * 8192;
        multiply_stage<BUG>(sums, stage, stage + 4096, warp, lane);
        if (BUG != PLANTED_COPY_STAGE_REUSED) {
            __syncthreads();
        }
    }
    if (BUG == PLANTED_COPY_NOT_WAITED) {
        load_stage(stages, a, first_row, m, k, 0);
    }
    for (int j = 0; j < 8; j++) {
        for (int e = 0; e < 4; e++) {
            int row = first_row + warp * 16 + lane / 4 + 8 * (e / 2);
            int column = first_column + j * 8 + lane % 4 * 2 + e % 2;
            if (row < m && column < n) {
                c[static_cast<size_t>(row) * n + column] = sums[j][e];
            }
        }
    }
}

/* ---- the two GEMMs of attention, without the softmax ---- */

GPU_INLINE void multiply_values(float (&sums)[8][4], const float (&scores)[8][4], const bf16 *v,
                                int lane)
{
    for (int kk = 0; kk < 4; kk++) {
        uint32_t fa[4], fb[4];
        for (int i = 0; i < 4; i++) {
            const float *pair = &scores[2 * kk + i / 2][i % 2 * 2];
            fa[i] = gpu_pack(fmaxf(pair[0], 0), fmaxf(pair[1], 0));
        }
        for (int j = 0; j < 4; j++) {
            gpu_load_matrix_transposed(fb,
                                       &v[stage_offset(16 * kk + lane % 16, 2 * j + lane / 16)]);
            const uint32_t low[2] = {fb[0], fb[1]}, high[2] = {fb[2], fb[3]};
            gpu_mma_bf16(sums[2 * j], fa, low);
            gpu_mma_bf16(sums[2 * j + 1], fa, high);
        }
    }
}

template <int BUG>
__global__ void __launch_bounds__(128)
    run_values(float *o, const bf16 *q, const bf16 *k, const bf16 *v, int keys)
{
    GPU_SHARED_DYNAMIC(bf16, tile_q); /* followed by a tile of k and a tile of v */
    bf16 *tile_k = tile_q + 4096, *tile_v = tile_k + 4096;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sums[8][4] = {};
    load_stage(tile_q, q, 0, 64, 64, 0);
    for (int key = 0; key < keys; key += 64) {
        load_stage(tile_k, k, key, keys, 64, 0);
        load_stage(tile_v, v, key, keys, 64, 0);
        gpu_copy_commit();
        gpu_copy_wait<0>();
        __syncthreads();
        float scores[8][4] = {};
        multiply_stage<BUG>(scores, tile_q, tile_k, warp, lane);
        multiply_values(sums, scores, tile_v, lane);
        if (BUG != PLANTED_TILE_REUSED) {
            __syncthreads();
        }
    }
    for (int j = 0; j < 8; j++) {
        for (int e = 0; e < 4; e++) {
            int row = warp * 16 + lane / 4 + 8 * (e / 2), column = j * 8 + lane % 4 * 2 + e % 2;
            o[row * 64 + column] = sums[j][e];
        }
    }
}

/* ---- GEMM by TMA and wgmma ---- */

enum { RING = 4, RING_BYTES = 16384 };

/* Negates operand a of a stage in place, with all threads of the consumers. */
template <int BUG> GPU_INLINE void negate_stage(unsigned char *stage)
{
    uint32_t *words = reinterpret_cast<uint32_t *>(stage);
    for (int i = threadIdx.x; i < 2048; i += 128) {
        words[i] ^= 0x80008000u;
    }
    if (BUG != PLANTED_WGMMA_STALE) {
        gpu_fence_async();
    }
    gpu_barrier_sync(1, 128);
}

template <int BUG>
__global__ void __launch_bounds__(256, 1)
    run_pipeline(const __grid_constant__ gpu_map map_a, const __grid_constant__ gpu_map map_b,
                 float *c, int m, int n, int k)
{
#ifdef GPU_HAS_SM90
    GPU_SHARED_DYNAMIC(unsigned char, ring);
    if (BUG == PLANTED_RING_MISALIGNED) {
        GPU_SHARED(gpu_mbarrier, static_barrier, 1);
        gpu_mbarrier_init(static_barrier, 1);
    } else {
        gpu_require_swizzle_base(ring);
    }
    gpu_mbarrier *full = reinterpret_cast<gpu_mbarrier *>(ring + RING * RING_BYTES);
    gpu_mbarrier *empty = full + RING;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) {
            gpu_mbarrier_init(&full[i], 1);
            gpu_mbarrier_init(&empty[i], 128);
        }
        if (BUG != PLANTED_RING_NO_FENCE) {
            gpu_fence_async();
        }
    }
    __syncthreads();
    int steps = k / 64, first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
    if (threadIdx.x >= 128) {
        gpu_registers_lower<24>();
        for (int t = 0; t < steps && threadIdx.x == 128; t++) {
            int s = t % RING;
            if (BUG != PLANTED_RING_NOT_EMPTY) {
                gpu_mbarrier_wait(&empty[s], (t / RING & 1) ^ 1);
            }
            gpu_mbarrier_expect(&full[s], RING_BYTES);
            gpu_copy_box(ring + s * RING_BYTES, &map_a, t * 64, first_row, &full[s]);
            gpu_copy_box(ring + s * RING_BYTES + 8192, &map_b, t * 64, first_column, &full[s]);
        }
        return;
    }
    gpu_registers_raise<240>();
    float sums[8][4] = {};
    for (int t = 0; t < steps; t++) {
        int s = t % RING;
        gpu_mbarrier_wait(&full[s], t / RING & 1);
        negate_stage<BUG>(ring + s * RING_BYTES);
        gpu_wgmma_order(sums);
        if (BUG != PLANTED_WGMMA_NO_FENCE) {
            gpu_wgmma_fence();
        }
        uint64_t a = gpu_matrix_descriptor(ring + s * RING_BYTES);
        uint64_t b = gpu_matrix_descriptor(ring + s * RING_BYTES + 8192);
        for (int kk = 0; kk < 4; kk++) {
            gpu_wgmma(sums, a + 2 * kk, b + 2 * kk, true);
        }
        gpu_wgmma_commit();
        if (BUG != PLANTED_WGMMA_NO_WAIT) {
            gpu_wgmma_wait<0>();
        }
        gpu_mbarrier_arrive(&empty[s]);
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; i++) {
        int row = first_row + 16 * warp + lane / 4 + 8 * (i / 2 % 2);
        int column = first_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < m && column < n) {
            c[static_cast<size_t>(row) * n + column] = -sums[i / 4][i % 4];
        }
    }
#endif
}

/* ---- GEMM of two transposed operands by wgmma ---- */

/* Stores x [128, 64], so that wgmma can read it MN-major. */
template <int BUG> GPU_INLINE void store_tile(unsigned char *tile, const bf16 *x)
{
    for (int i = threadIdx.x; i < 128 * 8; i += 128) {
        int row = i / 8, chunk = i % 8;
        int at = BUG == PLANTED_OUTER_NO_SWIZZLE ? chunk : chunk ^ (row & 7);
        gpu_store16(tile + row * 128 + at * 16, gpu_load16(x + row * 64 + chunk * 8));
    }
}

template <int BUG>
__global__ void __launch_bounds__(128) run_outer(float *c, const bf16 *a, const bf16 *b)
{
#ifdef GPU_HAS_SM90
    GPU_SHARED_DYNAMIC(unsigned char, tile_a);
    gpu_require_swizzle_base(tile_a);
    unsigned char *tile_b = tile_a + 16384;
    store_tile<BUG>(tile_a, a);
    store_tile<BUG == PLANTED_OUTER_NO_SWIZZLE ? PLANTED_NONE : BUG>(tile_b, b);
    if (BUG != PLANTED_OUTER_STALE) {
        gpu_fence_async();
    }
    __syncthreads();
    float sums[8][4];
    uint64_t rows = gpu_columns_descriptor(tile_a, 0), columns = gpu_columns_descriptor(tile_b, 0);
    gpu_wgmma_order(sums);
    gpu_wgmma_fence();
    for (int kk = 0; kk < 8; kk++) {
        gpu_wgmma_columns(sums, rows + 128 * kk, columns + 128 * kk, kk > 0);
    }
    gpu_wgmma_commit();
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(sums);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < 32; i++) {
        int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        c[row * 64 + column] = sums[i / 4][i % 4];
    }
#endif
}

/* ---- blocks in turn ---- */

enum { TURNS = 4, TURN_ELEMENTS = 64, TURN_BYTES = TURN_ELEMENTS * int{sizeof(float)} };
enum { TURN_BARRIER_AT = 2 * TURN_BYTES, TURN_PLACE_AT = TURN_BARRIER_AT + 8 };
enum { TURN_SHARED_BYTES = TURN_PLACE_AT + int{sizeof(uint32_t)} };

/* The first block stores its elements. Each further block copies the sums to shared memory, adds
 * its elements to the copy, and adds the result to the sums. Then it adds zeros from the same
 * shared memory. */
template <int BUG>
__global__ void __launch_bounds__(TURN_ELEMENTS)
    run_turns(float *out, const float *x, uint32_t *words)
{
#ifdef GPU_HAS_SM90
    GPU_SHARED_DYNAMIC(unsigned char, memory);
    const float *sums = reinterpret_cast<const float *>(memory);
    float *parts = reinterpret_cast<float *>(memory + TURN_BYTES);
    gpu_mbarrier *full = reinterpret_cast<gpu_mbarrier *>(memory + TURN_BARRIER_AT);
    uint32_t *place = reinterpret_cast<uint32_t *>(memory + TURN_PLACE_AT), *turn = words + 1;
    int i = static_cast<int>(threadIdx.x);
    if (i == 0) {
        *place = BUG == PLANTED_TURN_NO_TICKET ? TURNS - 1 - blockIdx.x : gpu_take_ticket(words);
        gpu_mbarrier_init(full, 1);
        gpu_fence_async();
        if (BUG != PLANTED_TURN_NO_WAIT) {
            gpu_turn_wait(turn, *place);
        }
        if (BUG != PLANTED_TURN_NO_FENCE) {
            gpu_fence_async_global();
        }
        if (*place > 0) {
            gpu_mbarrier_expect(full, TURN_BYTES);
            gpu_bulk_load(memory, out, TURN_BYTES, full);
        } else {
            gpu_mbarrier_arrive(full);
        }
        if (BUG == PLANTED_TURN_EARLY) {
            gpu_turn_pass(turn);
        }
    }
    __syncthreads();
    int block = static_cast<int>(*place);
    gpu_mbarrier_wait(full, 0);
    parts[i] = (block > 0 ? sums[i] : 0.0f) + x[4 * i + block];
    if (BUG != PLANTED_BULK_STALE) {
        gpu_fence_async();
    }
    __syncthreads();
    if (i == 0) {
        if (block > 0) {
            gpu_bulk_add(out, parts, TURN_BYTES);
        } else {
            gpu_bulk_store(out, parts, TURN_BYTES);
        }
        gpu_bulk_commit();
        if (BUG != PLANTED_BULK_NOT_READ) {
            gpu_bulk_wait_read();
        }
        gpu_store16(parts, uint4{0, 0, 0, 0});
        gpu_fence_async();
        gpu_bulk_add(out, parts, 16);
        gpu_bulk_commit();
        if (BUG != PLANTED_BULK_NOT_WAITED) {
            gpu_bulk_wait();
        }
        if (BUG != PLANTED_TURN_EARLY && !(BUG == PLANTED_TURN_NOT_PASSED && block == 1)) {
            gpu_turn_pass(turn);
        }
    }
#endif
}

/* ---- steps of a block, counted by a warp ---- */

enum { STEP_THREADS = 64, STEP_ROWS = 8, STEP_ELEMENTS = 64 * STEP_ROWS };
enum { STEP_SUMMED = 1, STEP_GRANTED, STEP_WRITTEN };
enum { STEP_BARRIERS_AT = STEP_ELEMENTS * int{sizeof(bf16)}, STEP_SUMS_AT = STEP_BARRIERS_AT + 16 };
enum { STEP_BYTES = STEP_SUMS_AT + 2 * int{sizeof(float)} };

#ifdef GPU_HAS_SM90

GPU_INLINE float sum_chunk(const unsigned char *tile)
{
    uint4 x = gpu_load16(tile + 16 * threadIdx.x);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    float sum = 0;
    for (uint32_t word : words) {
        sum += gpu_from_bits(word << 16) + gpu_from_bits(word & 0xffff0000u);
    }
    for (int with = 16; with > 0; with /= 2) {
        sum += __shfl_xor_sync(~0u, sum, with);
    }
    return sum;
}

#endif

template <int BUG>
__global__ void __launch_bounds__(128)
    run_steps(float *sums, uint32_t *count, const __grid_constant__ gpu_map map, int steps)
{
#ifdef GPU_HAS_SM90
    GPU_SHARED_DYNAMIC(unsigned char, tile);
    gpu_mbarrier *full = reinterpret_cast<gpu_mbarrier *>(tile + STEP_BARRIERS_AT);
    gpu_mbarrier *empty = full + 1;
    float *parts = reinterpret_cast<float *>(tile + STEP_SUMS_AT);
    int t = static_cast<int>(threadIdx.x), warp = t / 32;
    if (t == 0) {
        gpu_mbarrier_init(full, 1);
        gpu_mbarrier_init(empty, STEP_THREADS);
        gpu_fence_async();
    }
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        if (warp == 3) {
            if (BUG != PLANTED_STEPS_AHEAD) {
                gpu_barrier_arrive(STEP_GRANTED, STEP_THREADS + 32);
            }
            gpu_barrier_sync(STEP_WRITTEN, STEP_THREADS + 32);
            if (t % 32 == 0) {
                gpu_turn_pass(count);
            }
            __syncwarp();
        } else if (warp == 2) {
            if (t % 32 == 0) {
                gpu_mbarrier_wait(empty, (step & 1) ^ 1);
                gpu_mbarrier_expect(full, STEP_BARRIERS_AT);
                gpu_copy_box(tile, &map, 0, step * STEP_ROWS, full);
            }
        } else {
            gpu_mbarrier_wait(full, step & 1);
            float part = sum_chunk(tile);
            if (t % 32 == 0) {
                parts[warp] = part;
            }
            gpu_barrier_sync(STEP_SUMMED, STEP_THREADS);
            float sum = parts[0] + parts[1];
            gpu_barrier_sync(STEP_SUMMED, STEP_THREADS);
            gpu_mbarrier_arrive(empty);
            if (BUG != PLANTED_STEPS_AHEAD) {
                gpu_barrier_sync(STEP_GRANTED, STEP_THREADS + 32);
            }
            if (t == 0) {
                sums[step] = sum;
            }
            gpu_barrier_arrive(STEP_WRITTEN, STEP_THREADS + 32);
        }
    }
#endif
}

/* ---- neighbors ---- */

template <int BUG> __global__ void add_neighbors(float *out, const float *x)
{
    GPU_SHARED(float, first, 32);
    GPU_SHARED_DYNAMIC(float, all);
    int t = threadIdx.x;
    if (t >= 80) {
        return; /* half a warp: legal since sm_70 */
    }
    float value = t < 64 ? x[BUG == PLANTED_GLOBAL_PAST_END && t == 63 ? 64 : t] : 0.0f;
    if (t < 64) {
        all[t] = value;
    }
    if (BUG == PLANTED_DYNAMIC_PAST_END && t == 63) {
        all[64] = value;
    }
    if (t < 32 + (BUG == PLANTED_STATIC_PAST_END ? 1 : 0)) {
        first[t] = value;
    }
    if (BUG == PLANTED_BARRIER_DIVERGENT && t % 2 != 0) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    if (BUG == PLANTED_BARRIER_COUNTS && t < 64) {
        gpu_barrier_sync(1, t < 32 ? 64 : 32);
    }
    if (BUG == PLANTED_BARRIER_UNREACHED && t < 32) {
        gpu_barrier_sync(1, 64);
    }
    if (BUG == PLANTED_BARRIER_LEFT && t < 32) {
        gpu_barrier_arrive(1, 64);
    }
    if (BUG == PLANTED_SHUFFLE_ABSENT && t % 32 != 3) {
        value = __shfl_xor_sync(~0u, value, 1);
    }
    if (t < 64) {
        int block = BUG == PLANTED_BLOCKS_SAME_WORD ? 0 : blockIdx.x;
        out[block * 64 + t] = all[(t + 1) % 64] + first[t % 32];
    }
}

/* ---- launches ---- */

template <int BUG> struct planted_launches {
    static void launch_row_sums(float *out, const float *x, int rows, int columns)
    {
        GPU_LAUNCH(sum_rows<BUG>, rows, SUM_THREADS, 0, 0, out, x, columns);
    }
    static void launch_gemm(float *c, const bf16 *a, const bf16 *b, int m, int n, int k)
    {
        GPU_LAUNCH(run_gemm<BUG>, dim3((n + 63) / 64, (m + 63) / 64), 128, 32768, 0, c, a, b, m, n,
                   k);
    }
    static void launch_values(float *o, const bf16 *q, const bf16 *k, const bf16 *v, int keys)
    {
        GPU_LAUNCH(run_values<BUG>, 1, 128, 24576, 0, o, q, k, v, keys);
    }
    static void launch_pipeline(float *c, const bf16 *a, const bf16 *b, int m, int n, int k)
    {
        const int bytes = RING * RING_BYTES + 2 * RING * int{sizeof(gpu_mbarrier)};
        gpu_map map_a, map_b;
        if (!gpu_map_make(&map_a, a, m, k, k, 64, 64) ||
            !gpu_map_make(&map_b, b, n, k, k, 64, 64)) {
            printf("the driver refuses a TMA map\n"); /* and `c` is wrong */
            return;
        }
        if (BUG != PLANTED_SHARED_NOT_ALLOWED) {
            gpu_allow_shared(GPU_KERNEL(run_pipeline<BUG>), bytes);
        }
        GPU_LAUNCH(run_pipeline<BUG>, dim3((n + 63) / 64, (m + 63) / 64), 256, bytes, 0, map_a,
                   map_b, c, m, n, k);
    }
    static void launch_outer(float *c, const bf16 *a, const bf16 *b)
    {
        GPU_LAUNCH(run_outer<BUG>, 1, 128, 32768, 0, c, a, b);
    }
    static void launch_turns(float *out, const float *x, uint32_t *words)
    {
        GPU_LAUNCH(run_turns<BUG>, TURNS, TURN_ELEMENTS, TURN_SHARED_BYTES, 0, out, x, words);
    }
    static void launch_steps(float *sums, uint32_t *count, const bf16 *x, int steps)
    {
        gpu_map map;
        if (!gpu_map_make(&map, x, int64_t{steps} * STEP_ROWS, 64, 64, STEP_ROWS, 64)) {
            printf("the driver refuses a TMA map\n"); /* and the sums are wrong */
            return;
        }
        GPU_LAUNCH(run_steps<BUG>, 1, 128, STEP_BYTES, 0, sums, count, map, steps);
    }
    static void launch_neighbors(float *out, const float *x, int blocks)
    {
        GPU_LAUNCH(add_neighbors<BUG>, blocks, 96, 64 * sizeof(float), 0, out, x);
    }
};

#define PLANTED_CASE(function, bug, ...)                                                           \
    case bug:                                                                                      \
        planted_launches<bug>::function(__VA_ARGS__);                                              \
        break;

void planted_row_sums(planted_bug bug, float *out, const float *x, int rows, int columns)
{
    switch (bug) {
        PLANTED_CASE(launch_row_sums, PLANTED_SUM_NO_BARRIER, out, x, rows, columns)
        PLANTED_CASE(launch_row_sums, PLANTED_SUM_SCRATCH_REUSED, out, x, rows, columns)
        PLANTED_CASE(launch_row_sums, PLANTED_SUM_SHARED_UNWRITTEN, out, x, rows, columns)
    default:
        planted_launches<PLANTED_NONE>::launch_row_sums(out, x, rows, columns);
    }
}

void planted_gemm(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n, int k)
{
    switch (bug) {
        PLANTED_CASE(launch_gemm, PLANTED_COPY_WAIT_WEAK, c, a, b, m, n, k)
        PLANTED_CASE(launch_gemm, PLANTED_COPY_NO_BARRIER, c, a, b, m, n, k)
        PLANTED_CASE(launch_gemm, PLANTED_COPY_STAGE_REUSED, c, a, b, m, n, k)
        PLANTED_CASE(launch_gemm, PLANTED_COPY_NOT_WAITED, c, a, b, m, n, k)
        PLANTED_CASE(launch_gemm, PLANTED_MATRIX_MISALIGNED, c, a, b, m, n, k)
    default:
        planted_launches<PLANTED_NONE>::launch_gemm(c, a, b, m, n, k);
    }
}

void planted_values(planted_bug bug, float *o, const bf16 *q, const bf16 *k, const bf16 *v,
                    int keys)
{
    switch (bug) {
        PLANTED_CASE(launch_values, PLANTED_TILE_REUSED, o, q, k, v, keys)
    default:
        planted_launches<PLANTED_NONE>::launch_values(o, q, k, v, keys);
    }
}

void planted_pipeline(planted_bug bug, float *c, const bf16 *a, const bf16 *b, int m, int n, int k)
{
    switch (bug) {
        PLANTED_CASE(launch_pipeline, PLANTED_RING_NOT_EMPTY, c, a, b, m, n, k)
        PLANTED_CASE(launch_pipeline, PLANTED_WGMMA_NO_WAIT, c, a, b, m, n, k)
        PLANTED_CASE(launch_pipeline, PLANTED_WGMMA_NO_FENCE, c, a, b, m, n, k)
        PLANTED_CASE(launch_pipeline, PLANTED_WGMMA_STALE, c, a, b, m, n, k)
        PLANTED_CASE(launch_pipeline, PLANTED_RING_NO_FENCE, c, a, b, m, n, k)
        PLANTED_CASE(launch_pipeline, PLANTED_RING_MISALIGNED, c, a, b, m, n, k)
        PLANTED_CASE(launch_pipeline, PLANTED_SHARED_NOT_ALLOWED, c, a, b, m, n, k)
    default:
        planted_launches<PLANTED_NONE>::launch_pipeline(c, a, b, m, n, k);
    }
}

void planted_outer(planted_bug bug, float *c, const bf16 *a, const bf16 *b)
{
    switch (bug) {
        PLANTED_CASE(launch_outer, PLANTED_OUTER_STALE, c, a, b)
        PLANTED_CASE(launch_outer, PLANTED_OUTER_NO_SWIZZLE, c, a, b)
    default:
        planted_launches<PLANTED_NONE>::launch_outer(c, a, b);
    }
}

void planted_turns(planted_bug bug, float *out, const float *x, uint32_t *words)
{
    switch (bug) {
        PLANTED_CASE(launch_turns, PLANTED_TURN_NO_TICKET, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_TURN_NOT_PASSED, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_TURN_NO_WAIT, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_TURN_NO_FENCE, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_TURN_EARLY, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_BULK_STALE, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_BULK_NOT_WAITED, out, x, words)
        PLANTED_CASE(launch_turns, PLANTED_BULK_NOT_READ, out, x, words)
    default:
        planted_launches<PLANTED_NONE>::launch_turns(out, x, words);
    }
}

void planted_steps(planted_bug bug, float *sums, uint32_t *count, const bf16 *x, int steps)
{
    switch (bug) {
        PLANTED_CASE(launch_steps, PLANTED_STEPS_AHEAD, sums, count, x, steps)
    default:
        planted_launches<PLANTED_NONE>::launch_steps(sums, count, x, steps);
    }
}

void planted_neighbors(planted_bug bug, float *out, const float *x, int blocks)
{
    switch (bug) {
        PLANTED_CASE(launch_neighbors, PLANTED_GLOBAL_PAST_END, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_DYNAMIC_PAST_END, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_STATIC_PAST_END, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_BARRIER_DIVERGENT, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_BARRIER_COUNTS, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_BARRIER_UNREACHED, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_BARRIER_LEFT, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_SHUFFLE_ABSENT, out, x, blocks)
        PLANTED_CASE(launch_neighbors, PLANTED_BLOCKS_SAME_WORD, out, x, blocks)
    default:
        planted_launches<PLANTED_NONE>::launch_neighbors(out, x, blocks);
    }
}
