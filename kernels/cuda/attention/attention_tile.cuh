/* Tiles of attention on tensor cores: bf16 rows of D elements in shared memory, and their GEMMs
 * by fragments.
 *
 * Layout    A row of a tile is D / 8 chunks of 16 bytes. The position of a chunk within its row is
 *           xor-swizzled with the row number, so that the eight rows that ldmatrix reads at once
 *           lie in different banks.
 * Fragments gpu.cuh defines their layout. The accumulator of the scores is the A operand of the
 *           next GEMM, so the probabilities stay in registers. */
#pragma once

#include <cstdlib>

#include "kernels/cuda/attention/attention.cuh"

/* Returns the element offset of chunk c of row r in a tile. */
template <int D> GPU_INLINE int tile_offset(int r, int c)
{
    int lane_mask = D % 64 == 0 ? r & 7 : r >> 1 & 3;
    return r * D + ((c ^ lane_mask) << 3);
}

/* Starts the asynchronous copy of rows [first, first + ROWS) of the columns of a head; rows from
 * `valid` on are zeros. The caller commits the copies and waits for them. */
template <int D, int ROWS, int THREADS>
GPU_INLINE void load_tile(bf16 *tile, const matrix<const bf16> &from, int64_t first, int64_t valid,
                          int64_t column)
{
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * D / 8; i += THREADS) {
        int r = i / (D / 8), c = i % (D / 8);
        bool inside = r < valid;
        gpu_copy_async(&tile[tile_offset<D>(r, c)],
                       from.data + (first + (inside ? r : 0)) * from.stride + column + c * 8,
                       inside);
    }
}

template <int N> GPU_INLINE void clear_sums(float (&sums)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[i][e] = 0;
        }
    }
}

/* mma_abt: sums[m] [16, 8 N] += a b^T, for 16 rows of a, from row + 16 m on, and all 8 N rows
 * of b. */
template <int D, int M, int N>
GPU_INLINE void mma_abt(float (&sums)[M][N][4], const bf16 *a, int row, const bf16 *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            gpu_load_matrix(fa[m],
                            &a[tile_offset<D>(row + 16 * m + lane % 16, 2 * kk + lane / 16)]);
        }
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            uint32_t fb[4];
            gpu_load_matrix(
                fb, &b[tile_offset<D>(16 * n + lane % 8 + lane / 16 * 8, 2 * kk + lane / 8 % 2)]);
            const uint32_t low[2] = {fb[0], fb[1]}, high[2] = {fb[2], fb[3]};
#pragma unroll
            for (int m = 0; m < M; m++) {
                gpu_mma_bf16(sums[m][2 * n], fa[m], low);
                gpu_mma_bf16(sums[m][2 * n + 1], fa[m], high);
            }
        }
    }
}

/* mma_pb: sums[m] [16, D] += p[m] b, for p[m] [16, 8 N], rounded to bf16, and the 8 N rows of b. */
template <int D, int M, int N>
GPU_INLINE void mma_pb(float (&sums)[M][D / 8][4], const float (&p)[M][N][4], const bf16 *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int kk = 0; kk < N / 2; kk++) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            fa[m][0] = gpu_pack(p[m][2 * kk][0], p[m][2 * kk][1]);
            fa[m][1] = gpu_pack(p[m][2 * kk][2], p[m][2 * kk][3]);
            fa[m][2] = gpu_pack(p[m][2 * kk + 1][0], p[m][2 * kk + 1][1]);
            fa[m][3] = gpu_pack(p[m][2 * kk + 1][2], p[m][2 * kk + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t fb[4];
            gpu_load_matrix_transposed(fb,
                                       &b[tile_offset<D>(16 * kk + lane % 16, 2 * n + lane / 16)]);
            const uint32_t low[2] = {fb[0], fb[1]}, high[2] = {fb[2], fb[3]};
#pragma unroll
            for (int m = 0; m < M; m++) {
                gpu_mma_bf16(sums[m][2 * n], fa[m], low);
                gpu_mma_bf16(sums[m][2 * n + 1], fa[m], high);
            }
        }
    }
}

/* Stores p [16, 8 N], rounded to bf16, to 16 rows of a tile of 8 N columns, from `row` on. */
template <int N> GPU_INLINE void store_scores(bf16 *tile, int row, const float (&p)[N][4])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bf16 *at = &tile[tile_offset<8 * N>(row + lane / 4 + 8 * r, n) + lane % 4 * 2];
            *reinterpret_cast<uint32_t *>(at) = gpu_pack(p[n][2 * r], p[n][2 * r + 1]);
        }
    }
}

/* mma_atb: sums [16, 8 N] += a^T b, for 16 columns of a [ROWS, COLUMNS], from `column` on, and the
 * 8 N columns of b [ROWS, D] from 8 chunk on. */
template <int D, int ROWS, int COLUMNS, int N>
GPU_INLINE void mma_atb(float (&sums)[N][4], const bf16 *a, int column, const bf16 *b, int chunk)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int kk = 0; kk < ROWS / 16; kk++) {
        uint32_t fa[4];
        gpu_load_matrix_transposed(fa, &a[tile_offset<COLUMNS>(16 * kk + lane % 8 + lane / 16 * 8,
                                                               column / 8 + lane / 8 % 2)]);
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            uint32_t fb[4];
            gpu_load_matrix_transposed(
                fb, &b[tile_offset<D>(16 * kk + lane % 16, chunk + 2 * n + lane / 16)]);
            const uint32_t low[2] = {fb[0], fb[1]}, high[2] = {fb[2], fb[3]};
            gpu_mma_bf16(sums[2 * n], fa, low);
            gpu_mma_bf16(sums[2 * n + 1], fa, high);
        }
    }
}

static const float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

/* Returns lse in base two, for the exponents of the backward pass. From 2^24 on it is too inexact
 * for the probabilities of its row, and exponents could be out of range. Infinity makes these
 * probabilities 0, also those of rows without keys. */
GPU_INLINE float get_lse_base_two(float lse)
{
    float base = lse * log2_e;
    return fabsf(base) >= 0x1p24f ? INFINITY : base;
}

/* Replaces the products q k^T by the scores: scale, soft-cap, bias. `query` and `key` belong to the
 * lane's first element. With TRANSPOSED, rows are keys and columns queries. */
template <bool TRANSPOSED, int M, int N>
GPU_INLINE void modify_scores(float (&s)[M][N][4], const attention_task<bf16> &a,
                              const struct attention_sequence &sequence, int head, int64_t query,
                              int64_t key)
{
    float inside = 2 * log2_e * a.scale * a.softcap_inverse, twice = 2 * a.softcap;
    const float *bias = nullptr;
    if (a.bias != nullptr) {
        bias = attention_bias_origin(a, sequence, head) + (key - query);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = s[m][n][e];
                if (a.softcap > 0) {
                    x = a.softcap - __fdividef(twice, 1.0f + gpu_exp2(x * inside));
                } else {
                    x *= a.scale;
                }
                if (bias != nullptr) {
                    int distance = 8 * n + e % 2 - (16 * m + e / 2 * 8); /* column - row */
                    x += bias[TRANSPOSED ? -distance : distance];
                }
                s[m][n][e] = x;
            }
        }
    }
}

/* Returns which of the lane's 32 elements in eight adjacent accumulators dropout keeps: bit 4 n +
 * e. `row` and `key` belong to the lane's first element, and the tile's first key is a multiple of
 * eight. With TRANSPOSED, rows of the accumulators are keys and columns queries.
 *
 * The accumulators of a warp have 128 blocks of eight keys of one query. Each lane draws four of
 * them and reduces each to a byte. Then the lanes that share blocks exchange their four bytes. */
template <bool TRANSPOSED>
GPU_INLINE uint32_t get_kept_bits(const attention_task<bf16> &a, int64_t row, int64_t key, int head)
{
    const int lane = threadIdx.x % 32, column = lane % 4, line = lane / 4;
    uint32_t bytes = 0, bits = 0;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        int64_t query, first;
        if (TRANSPOSED) { /* accumulator `line`, column i % 2, the upper or lower eight keys */
            query = row + 8 * line + i % 2;
            first = key - line + i / 2 * 8;
        } else { /* accumulator 4 (i / 2) + column, row i % 2 */
            query = row + i % 2 * 8;
            first = key - 2 * column + (i / 2 * 4 + column) * 8;
        }
        int64_t element = attention_dropout_element(a, query, head, first);
        bytes |= get_kept_byte(a.dropout, element) << (8 * i);
    }
    if (TRANSPOSED) {
#pragma unroll
        for (int n = 0; n < 8; n++) { /* one bit of each byte: elements 0 to 3 of accumulator n */
            uint32_t kept = __shfl_sync(~0u, bytes, 4 * n + column) >> line & 0x01010101u;
            bits |= (kept * 0x10204080u) >> 28 << (4 * n);
        }
    } else {
#pragma unroll
        for (int n = 0; n < 4; n++) { /* two bits of each byte: accumulators n and 4 + n */
            uint32_t kept = __shfl_sync(~0u, bytes, 4 * line + n) >> (2 * column) & 0x03030303u;
            bits |= ((kept | kept >> 6) & 0x000f000fu) << (4 * n);
        }
    }
    return bits;
}

/* Computes one bit for each of 16 x STEP accumulators: whether dropout keeps the element. */
template <int STEP, bool TRANSPOSED>
GPU_INLINE void get_kept_words(uint32_t (&words)[STEP / 64], const attention_task<bf16> &a,
                               int64_t row, int64_t key, int head)
{
#pragma unroll
    for (int i = 0; i < STEP / 64; i++) {
        words[i] = a.dropout.probability > 0
                       ? get_kept_bits<TRANSPOSED>(a, row + (TRANSPOSED ? 64 * i : 0),
                                                   key + (TRANSPOSED ? 0 : 64 * i), head)
                       : ~0u;
    }
}

/* Stores the lane's two rows of 16 (lane / 4 and lane / 4 + 8), each multiplied by its factor, to
 * rows of `to`. */
template <int D>
GPU_INLINE void store_sums(const matrix<bf16> &to, const float (&sums)[D / 8][4], int64_t first,
                           int64_t valid, int64_t column, float factor0, float factor1)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        if (row < valid) {
            bf16 *at = to.data + (first + row) * to.stride + column + lane % 4 * 2;
            float factor = r == 0 ? factor0 : factor1;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                *reinterpret_cast<uint32_t *>(at + 8 * n) =
                    gpu_pack(sums[n][2 * r] * factor, sums[n][2 * r + 1] * factor);
            }
        }
    }
}

/* Returns the next tile that has a key to which the queries from `first` on attend. */
template <int KEYS>
GPU_INLINE int64_t find_next_tile(const attention_task<bf16> &a, int64_t first, int64_t key)
{
    int64_t next = key + KEYS;
    if (a.shared_prefix_offsets != nullptr) {
        struct hidden_keys h = get_hidden_keys(a);
        bool nothing = is_hidden(h, first, next) && next + KEYS <= h.end;
        next = nothing ? h.end / KEYS * KEYS : next;
    }
    return next;
}

/* Sets the hidden elements of 16 M queries (rows) and 8 N keys (columns) to `value`. `query` is the
 * lane's first query and `key` the first key of the tile. */
template <int M, int N>
GPU_INLINE void mask_hidden(float (&s)[M][N][4], const attention_task<bf16> &a, int64_t query,
                            int64_t key, float value)
{
    struct hidden_keys h = get_hidden_keys(a);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t j = key + 8 * n + threadIdx.x % 4 * 2 + e % 2;
                if (is_hidden(h, query + 16 * m + e / 2 * 8, j)) {
                    s[m][n][e] = value;
                }
            }
        }
    }
}

/* ---- tiles of wgmma: swizzled boxes of 64 columns, with rows of 128 bytes ---- */

enum { WARPGROUP = 128, BOX = 64 };

#ifdef GPU_HAS_SM90

/* Releases a stage to the producer; one lane of each warp arrives. */
GPU_INLINE void release_stage(gpu_mbarrier *empty)
{
    if (threadIdx.x % 32 == 0) {
        gpu_mbarrier_arrive(empty);
    }
}

/* Converts accumulators to the A operand of a following wgmma. */
template <int N> GPU_INLINE void pack_scores(uint32_t (&p)[N][4], const float (&s)[2 * N][4])
{
#pragma unroll
    for (int kk = 0; kk < N; kk++) {
        p[kk][0] = gpu_pack(s[2 * kk][0], s[2 * kk][1]);
        p[kk][1] = gpu_pack(s[2 * kk][2], s[2 * kk][3]);
        p[kk][2] = gpu_pack(s[2 * kk + 1][0], s[2 * kk + 1][1]);
        p[kk][3] = gpu_pack(s[2 * kk + 1][2], s[2 * kk + 1][3]);
    }
}

#endif

/* ---- host ---- */

/* BIREME_ATTENTION=mma selects the sm_80 kernels, to compare both on the same GPU. */
static inline bool wgmma_is_enabled()
{
    const char *wanted = getenv("BIREME_ATTENTION");
    return gpu_capability() == 9 && (wanted == nullptr || strcmp(wanted, "mma") != 0);
}

static inline bool wgmma_make_map(gpu_map *map, struct tensor t, int rows)
{
    return gpu_map_make(map, t.data, t.rows, t.columns, t.stride, rows, BOX);
}

/* attention_tiles_forward - implement attention_forward on tensor cores, for calls that
 * attention_fits_tiles accepts. */
status attention_tiles_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention_call *call);

/* attention_tiles_backward - implement attention_backward on tensor cores, for calls that
 * attention_fits_tiles accepts. t has the operands. */
status attention_tiles_backward(struct kernels *k, const attention_task<bf16> &t,
                                const struct attention_call *call);
