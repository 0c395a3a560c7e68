/* Attention backward on tensor cores (sm_80). It is deterministic: one block computes each
 * gradient element.
 *
 *   p = exp(scale q k^T - lse),  ds = p (m (d_o v^T) - delta),  delta = d_o . o
 *   dv = (m p)^T d_o,  dk = scale ds^T q,  dq = scale ds k          (m: dropout factors)
 *   with a soft-cap c: p = exp(s - lse), s = c tanh(scale q k^T / c), ds *= 1 - (s / c)^2
 *   with a bias: p = exp(scale q k^T + bias - lse); attention_bias.cu computes its gradient
 *
 * Delta     A first kernel computes delta, 8, 16 or 32 lanes for each row and head, 16 bytes at a
 *           time if rows are aligned: grid (ceil(rows / (256 / lanes)), heads), block 256.
 * sm_90a    attention_wgmma_backward.cu computes the rest for head widths of 64 and 128.
 * Keys      A second kernel computes dk and dv: grid (sequences ceil(longest_k / 128), kv_heads),
 *           block 256. A block owns 128 keys of a key-value head and iterates over the query heads
 *           of its group and their queries in order, 64 at a time. It computes the scores
 *           transposed, so that p^T and ds^T are in registers, as the GEMMs of dv and dk need them.
 * Queries   A third kernel computes dq: grid (sequences ceil(longest_q / 128), heads), block 256. A
 *           block owns 128 queries of a head and iterates over the keys, 64 at a time. Both kernels
 *           together compute seven GEMMs; five with atomic additions would also need an f32 copy
 *           of dq.
 * Short     If all keys of a sequence fit into one block, that block also computes dq, from ds^T in
 *           shared memory: five GEMMs. The choice depends on the sequence and on the shared memory
 *           of the GPU alone: with 99 KiB (sm_86, sm_89, sm_120) heads of 128 have no room
 *           for ds^T.
 * Memory    Shared memory: two tiles of 128 rows and two of 64 rows, (2 * 128 + 2 * 64) * D * 2
 *           bytes; the second kernel adds 16 KiB for ds^T.
 * Source    Dao 2023, arXiv:2307.08691, with the loops split into two kernels */
#include "kernels/cuda/attention/attention_tile.cuh"

enum { DELTA_THREADS = 256, BLOCK_ROWS = 128, BACKWARD_THREADS = 256 };

/* Computes delta = d_o . o: a group of LANES lanes for each row and head, eight elements for each
 * lane. Also zeroes the turns, if the call has them. */
template <typename T, int LANES, bool ALIGNED>
__global__ void __launch_bounds__(DELTA_THREADS) attention_delta(const attention_task<T> a)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * (DELTA_THREADS / LANES) + threadIdx.x / LANES;
    int64_t first = threadIdx.x % LANES * LANE_ELEMS, column = blockIdx.y * a.width + first;
    float sum = 0;
    if (row < a.rows_q && first < a.width) {
        float o[LANE_ELEMS], d_o[LANE_ELEMS];
        load_eight<ALIGNED>(o, a.o.data + row * a.o.stride + column, a.width - first);
        load_eight<ALIGNED>(d_o, a.d_o.data + row * a.d_o.stride + column, a.width - first);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            sum += o[i] * d_o[i];
        }
    }
#pragma unroll
    for (int lane_mask = LANES / 2; lane_mask > 0; lane_mask /= 2) {
        sum += __shfl_xor_sync(~0u, sum, lane_mask);
    }
    if (row < a.rows_q && first == 0) {
        int64_t at = blockIdx.y * a.rows_q + row;
        a.delta[at] = sum;
        if (a.turns != nullptr) {
            a.turns[at] = 0;
            if (at == 0) {
                a.turns[a.heads * a.rows_q] = 0;
            }
        }
    }
}

/* Sets the hidden elements of p to 0. */
template <int STEP>
GPU_INLINE void mask_hidden_transposed(float (&p)[1][STEP / 8][4], const attention_task<bf16> &a,
                                       int64_t key, int64_t query)
{
    struct hidden_keys h = get_hidden_keys(a);
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int64_t i = query + 8 * n + lane % 4 * 2 + e % 2;
            if (is_hidden(h, i, key + lane / 4 + e / 2 * 8)) {
                p[0][n][e] = 0;
            }
        }
    }
}

/* Replaces the scores of 16 keys (rows) and STEP queries (columns) by p; 0 where a query does not
 * attend to a key. */
template <int STEP>
GPU_INLINE void compute_probabilities_transposed(float (&p)[1][STEP / 8][4],
                                                 const attention_task<bf16> &a,
                                                 const struct attention_sequence &s, int64_t key,
                                                 int64_t query, const float *lse)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int i = 8 * n + lane % 4 * 2 + e;
            int64_t end = query + i < s.queries ? visible_end(a, s, query + i) : 0;
            int left = static_cast<int>(end - key - lane / 4);
            int from = static_cast<int>(visible_begin(a, s, query + i) - key - lane / 4);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float power = gpu_exp2(fmaf(p[0][n][2 * r + e], a.score_scale * log2_e, -lse[i]));
                p[0][n][2 * r + e] = 8 * r < left && 8 * r >= from ? power : 0.0f;
            }
        }
    }
    if (a.shared_prefix_offsets != nullptr) {
        mask_hidden_transposed<STEP>(p, a, key, query);
    }
}

/* Multiplies ds by p, then sets p to 0 where dropout does not keep the element. */
template <int STEP>
GPU_INLINE void multiply_probabilities(float (&ds)[1][STEP / 8][4], float (&p)[1][STEP / 8][4],
                                       const uint32_t (&kept)[STEP / 64])
{
#pragma unroll
    for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ds[0][n][e] *= p[0][n][e];
            p[0][n][e] = (kept[n / 8] >> (n % 8 * 4 + e) & 1) != 0 ? p[0][n][e] : 0.0f;
        }
    }
}

/* Returns whether one block has all keys of a sequence and then computes dq too. */
GPU_INLINE bool is_short(const attention_task<bf16> &a, const struct attention_sequence &s)
{
    return a.fuses_dq && s.keys > 0 && s.keys <= BLOCK_ROWS;
}

/* Computes the complete dq of STEP queries of a head. A warp has 16 queries and half of
 * the columns. */
template <int D, int STEP>
GPU_INLINE void compute_short_dq(const attention_task<bf16> &a, const struct attention_sequence &s,
                                 const bf16 *tile_ds, const bf16 *tile_k, int64_t query, int head)
{
    int warp = threadIdx.x / 32, row = warp % (STEP / 16) * 16, half = warp / (STEP / 16);
    float dq[D / 16][4];
    clear_sums(dq);
    mma_atb<D, BLOCK_ROWS, STEP>(dq, tile_ds, row, tile_k, half * (D / 16));
    store_sums<D / 2>(a.out, dq, s.first_q + query + row, s.queries - query - row,
                      head * D + half * (D / 2), a.scale, a.scale);
}

template <int D, int STEP, bool MODIFIED>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    tiles_backward_keys(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_k);
    GPU_SHARED(float, lse, STEP);
    GPU_SHARED(float, delta, STEP);
    bf16 *tile_v = tile_k + BLOCK_ROWS * D, *tile_q = tile_v + BLOCK_ROWS * D,
         *tile_o = tile_q + STEP * D;
    bf16 *tile_ds = tile_o + STEP * D;
    struct attention_sequence s = get_sequence(a, blockIdx.x / a.tiles);
    int64_t first = blockIdx.x % a.tiles * BLOCK_ROWS;
    if (first >= s.keys) {
        return;
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t column = blockIdx.y * D, key = first + warp * 16;
    /* The queries from the first that attends to the block's first key to the last that attends to
     * its last key. */
    int64_t offset = s.queries - s.keys, to = s.queries;
    int64_t from = a.causal ? first + offset : a.window > 0 ? first + offset + 1 - a.window : 0;
    from = from < 0 ? 0 : from;
    if (a.window > 0 && first + BLOCK_ROWS + offset + a.window < to) {
        to = first + BLOCK_ROWS + offset + a.window;
    }
    struct hidden_keys h = get_hidden_keys(a);
    if (first >= h.begin && first + BLOCK_ROWS <= h.end) {
        to = h.end;
    }
    if (is_short(a, s)) { /* this block also writes dq = 0 of queries without keys */
        from = 0;
        to = s.queries;
    }
    from = from / STEP * STEP;
    float dk[1][D / 8][4], dv[1][D / 8][4], keep_scale = attention_dropout_scale(a);
    clear_sums(dk[0]);
    clear_sums(dv[0]);
    load_tile<D, BLOCK_ROWS, BACKWARD_THREADS>(tile_k, a.keys, s.first_k + first, s.keys - first,
                                               column);
    load_tile<D, BLOCK_ROWS, BACKWARD_THREADS>(tile_v, a.values, s.first_k + first, s.keys - first,
                                               column);
    gpu_copy_commit();
    for (int head = blockIdx.y * a.group; head < static_cast<int>(blockIdx.y + 1) * a.group;
         head++) {
        for (int64_t query = from; query < to; query += STEP) {
            int64_t row = s.first_q + query;
            load_tile<D, STEP, BACKWARD_THREADS>(tile_q, a.q, row, s.queries - query, head * D);
            gpu_copy_commit();
            load_tile<D, STEP, BACKWARD_THREADS>(tile_o, a.d_o, row, s.queries - query, head * D);
            gpu_copy_commit();
            if (threadIdx.x < STEP) {
                bool inside = query + threadIdx.x < s.queries;
                int64_t at = row + threadIdx.x;
                lse[threadIdx.x] =
                    inside ? get_lse_base_two(a.lse[head * a.lse_stride + at]) : 0.0f;
                delta[threadIdx.x] = inside ? a.delta[head * a.rows_q + at] : 0.0f;
            }
            gpu_copy_wait<1>();
            __syncthreads();
            float p[1][STEP / 8][4], ds[1][STEP / 8][4];
            clear_sums(p[0]);
            clear_sums(ds[0]);
            mma_abt<D>(p, tile_k, warp * 16, tile_q);
            if (MODIFIED) { /* p are scores until their derivatives have been used */
                modify_scores<true>(p, a, s, head, query + lane % 4 * 2, key + lane / 4);
            } else {
                compute_probabilities_transposed<STEP>(p, a, s, key, query, lse);
            }
            gpu_copy_wait<0>();
            __syncthreads();
            mma_abt<D>(ds, tile_v, warp * 16, tile_o);
            uint32_t bits[STEP / 64];
            get_kept_words<STEP, true>(bits, a, row + lane % 4 * 2, key + lane / 4, head);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    bool is_kept = (bits[n / 8] >> (n % 8 * 4 + e) & 1) != 0;
                    float d = (is_kept ? ds[0][n][e] * keep_scale : 0.0f) -
                              delta[8 * n + lane % 4 * 2 + e % 2];
                    if (MODIFIED) {
                        ds[0][n][e] = softcap_derivative(a, p[0][n][e]) * d;
                    } else {
                        ds[0][n][e] = p[0][n][e] * d;
                        p[0][n][e] = is_kept ? p[0][n][e] : 0.0f;
                    }
                }
            }
            if (MODIFIED) {
                compute_probabilities_transposed<STEP>(p, a, s, key, query, lse);
                multiply_probabilities<STEP>(ds, p, bits);
            }
            mma_pb<D>(dv, p, tile_o);
            mma_pb<D>(dk, ds, tile_q);
            if (is_short(a, s)) {
                store_scores(tile_ds, warp * 16, ds[0]);
                __syncthreads();
                compute_short_dq<D, STEP>(a, s, tile_ds, tile_k, query, head);
            }
            __syncthreads();
        }
    }
    gpu_copy_wait<0>();
    store_sums<D>(a.dvalues, dv[0], s.first_k + key, s.keys - key, column, keep_scale, keep_scale);
    store_sums<D>(a.dkeys, dk[0], s.first_k + key, s.keys - key, column, a.scale, a.scale);
}

template <int D, int STEP, bool MODIFIED>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    tiles_backward_queries(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_q);
    bf16 *tile_o = tile_q + BLOCK_ROWS * D, *tile_k = tile_o + BLOCK_ROWS * D,
         *tile_v = tile_k + STEP * D;
    struct attention_sequence s = get_sequence(a, blockIdx.x / a.tiles);
    int64_t tile = blockIdx.x % a.tiles;
    int64_t first = (a.causal ? a.tiles - 1 - tile : tile) * BLOCK_ROWS;
    if (first >= s.queries || is_short(a, s)) {
        return;
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    int64_t column = head / a.group * D, query = first + warp * 16 + lane / 4;
    int64_t last = s.queries < first + BLOCK_ROWS ? s.queries - 1 : first + BLOCK_ROWS - 1;
    int64_t end = visible_end(a, s, last), begin = visible_begin(a, s, first);
    float dq[1][D / 8][4], lse[2], delta[2], keep_scale = attention_dropout_scale(a);
    clear_sums(dq[0]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool inside = query + 8 * r < s.queries;
        int64_t row = s.first_q + query + 8 * r;
        lse[r] = inside ? get_lse_base_two(a.lse[head * a.lse_stride + row]) : 0.0f;
        delta[r] = inside ? a.delta[head * a.rows_q + row] : 0.0f;
    }
    load_tile<D, BLOCK_ROWS, BACKWARD_THREADS>(tile_q, a.q, s.first_q + first, s.queries - first,
                                               head * D);
    load_tile<D, BLOCK_ROWS, BACKWARD_THREADS>(tile_o, a.d_o, s.first_q + first, s.queries - first,
                                               head * D);
    gpu_copy_commit();
    for (int64_t key = begin / STEP * STEP; key < end; key = find_next_tile<STEP>(a, first, key)) {
        load_tile<D, STEP, BACKWARD_THREADS>(tile_k, a.keys, s.first_k + key, s.keys - key, column);
        gpu_copy_commit();
        load_tile<D, STEP, BACKWARD_THREADS>(tile_v, a.values, s.first_k + key, s.keys - key,
                                             column);
        gpu_copy_commit();
        gpu_copy_wait<1>();
        __syncthreads();
        float p[1][STEP / 8][4], ds[1][STEP / 8][4];
        clear_sums(p[0]);
        clear_sums(ds[0]);
        mma_abt<D>(p, tile_q, warp * 16, tile_k);
        if (MODIFIED) {
            modify_scores<false>(p, a, s, head, query, key + lane % 4 * 2);
        }
        gpu_copy_wait<0>();
        __syncthreads();
        mma_abt<D>(ds, tile_o, warp * 16, tile_v);
        uint32_t bits[STEP / 64];
        get_kept_words<STEP, false>(bits, a, s.first_q + query, key + lane % 4 * 2, head);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t seen = query + 8 * r < s.queries ? visible_end(a, s, query + 8 * r) : 0;
            int left = static_cast<int>(seen - key - lane % 4 * 2);
            int from = static_cast<int>(visible_begin(a, s, query + 8 * r) - key - lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    int j = 8 * n + e % 2;
                    bool is_kept = (bits[n / 8] >> (n % 8 * 4 + e) & 1) != 0;
                    float power = gpu_exp2(fmaf(p[0][n][e], a.score_scale * log2_e, -lse[r]));
                    float d = (is_kept ? ds[0][n][e] * keep_scale : 0.0f) - delta[r];
                    d *= MODIFIED ? softcap_derivative(a, p[0][n][e]) : 1.0f;
                    ds[0][n][e] = j < left && j >= from ? power * d : 0.0f;
                }
            }
        }
        if (a.shared_prefix_offsets != nullptr) {
            mask_hidden(ds, a, query, key, 0);
        }
        mma_pb<D>(dq, ds, tile_k);
        __syncthreads();
    }
    gpu_copy_wait<0>();
    int64_t row = first + warp * 16;
    store_sums<D>(a.out, dq[0], s.first_q + row, s.queries - row, head * D, a.scale, a.scale);
}

/* ---- host ---- */

template <int D, bool MODIFIED>
static status launch_kernels(struct kernels *k, attention_task<bf16> t, const struct attention *a)
{
    constexpr int STEP = 64;
    const size_t bytes = (2 * BLOCK_ROWS + 2 * STEP) * D * sizeof(bf16);
    const size_t with_ds = bytes + BLOCK_ROWS * STEP * sizeof(bf16),
                 rows = 2 * STEP * sizeof(float);
    t.fuses_dq = with_ds + rows <= gpu_shared_limit();
    const size_t keys_bytes = t.fuses_dq ? with_ds : bytes;
    t.tiles = number_divide_up(a->longest_k, BLOCK_ROWS);
    dim3 keys(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->kv_heads));
    if (keys.x > 0) {
        LAUNCH(k, (tiles_backward_keys<D, STEP, MODIFIED>), keys, BACKWARD_THREADS, keys_bytes, t);
    }
    t.tiles = number_divide_up(a->longest_q, BLOCK_ROWS);
    dim3 queries(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->heads));
    if (queries.x > 0) {
        LAUNCH(k, (tiles_backward_queries<D, STEP, MODIFIED>), queries, BACKWARD_THREADS, bytes, t);
    }
    return STATUS_OK;
}

template <int D>
static status launch_width(struct kernels *k, const attention_task<bf16> &t,
                           const struct attention_call *call)
{
    return attention_is_modified(call) ? launch_kernels<D, true>(k, t, call->a)
                                       : launch_kernels<D, false>(k, t, call->a);
}

status attention_tiles_backward(struct kernels *k, const attention_task<bf16> &t,
                                const struct attention_call *call)
{
    switch (t.width) {
    case 32:
        return launch_width<32>(k, t, call);
    case 64:
        return launch_width<64>(k, t, call);
    case 96:
        return launch_width<96>(k, t, call);
    default:
        return launch_width<128>(k, t, call);
    }
}

template <typename T, bool ALIGNED>
static status launch_delta_rows(struct kernels *k, const attention_task<T> &t)
{
    const int lanes = t.width > 128 ? 32 : t.width > 64 ? 16 : 8;
    dim3 grid(count_blocks(t.rows_q, DELTA_THREADS / lanes), static_cast<unsigned>(t.heads));
    if (grid.x == 0) {
        return STATUS_OK;
    }
    if (lanes == 32) {
        LAUNCH(k, (attention_delta<T, 32, ALIGNED>), grid, DELTA_THREADS, 0, t);
    } else if (lanes == 16) {
        LAUNCH(k, (attention_delta<T, 16, ALIGNED>), grid, DELTA_THREADS, 0, t);
    } else {
        LAUNCH(k, (attention_delta<T, 8, ALIGNED>), grid, DELTA_THREADS, 0, t);
    }
    return STATUS_OK;
}

template <typename T>
static status launch_delta(struct kernels *k, float *delta, uint32_t *turns, struct tensor o,
                           struct tensor d_o, const struct attention *a)
{
    attention_task<T> t = {};
    t.o = make_matrix<const T>(o);
    t.d_o = make_matrix<const T>(d_o);
    t.delta = delta;
    t.turns = turns;
    t.rows_q = o.rows;
    t.heads = a->heads;
    t.width = a->head_width;
    bool aligned =
        operation_is_aligned(o) && operation_is_aligned(d_o) && t.width % LANE_ELEMS == 0;
    return aligned ? launch_delta_rows<T, true>(k, t) : launch_delta_rows<T, false>(k, t);
}

/* The scratch memory of a call. turns and sums are NULL where wgmma is not used. */
struct backward_scratch {
    float *delta, *sums;
    uint32_t *turns;
};

static status take_scratch(struct arena *scratch, struct backward_scratch *s, int64_t rows,
                           const struct attention *a, bool uses_wgmma)
{
    const size_t bytes = static_cast<size_t>(rows * a->heads) * sizeof(float);
    void *memory;
    TRY(arena_take(scratch, cuda_align_bytes(bytes), &memory));
    s->delta = static_cast<float *>(memory);
    if (uses_wgmma) {
        TRY(arena_take(scratch, cuda_align_bytes(bytes + sizeof(uint32_t)), &memory));
        s->turns = static_cast<uint32_t *>(memory);
    }
    if (uses_wgmma && a->longest_k > CUDA_ATTENTION_KEYS) {
        TRY(arena_take(scratch, cuda_align_bytes(bytes * static_cast<size_t>(a->head_width)),
                       &memory));
        s->sums = static_cast<float *>(memory);
    }
    return STATUS_OK;
}

extern "C" status cuda_attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                                          struct tensor keys, struct tensor values, struct tensor o,
                                          struct tensor lse, const struct attention *a)
{
    const struct tensor tensors[] = {dq, dkeys, dvalues, d_o, q, keys, values};
    const bool fits_tiles = attention_fits_tiles(a, tensors, 7);
    const bool uses_wgmma = fits_tiles && attention_wgmma_supports_backward(a);
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    struct backward_scratch s = {};
    struct attention_call call = {a, {}};
    TRY(take_scratch(scratch, &s, o.rows, a, uses_wgmma));
    TRY(attention_bias_expand(k, &call.distances, a, true));
    arena_release(scratch, mark);
    TRY(k->dtype == DTYPE_F32 ? launch_delta<float>(k, s.delta, s.turns, o, d_o, a)
                              : launch_delta<bf16>(k, s.delta, s.turns, o, d_o, a));
    if (!fits_tiles) {
        TRY(attention_rows_backward(k, dq, dkeys, dvalues, d_o, q, keys, values, lse, s.delta,
                                    &call));
        return attention_bias_finish(k, &call.distances, a);
    }
    attention_task<bf16> t = make_attention_task<bf16>(q, keys, values, lse, &call);
    t.out = make_matrix<bf16>(dq);
    t.dkeys = make_matrix<bf16>(dkeys);
    t.dvalues = make_matrix<bf16>(dvalues);
    t.d_o = make_matrix<const bf16>(d_o);
    t.delta = s.delta;
    t.turns = s.turns;
    if (t.bias_parts != NULL) {
        TRY(attention_tiles_bias_gradient(k, t));
    }
    bool done = false;
    if (uses_wgmma) {
        TRY(attention_wgmma_backward(k, t, d_o, q, keys, values, s.sums, &call, &done));
    }
    TRY(done ? STATUS_OK : attention_tiles_backward(k, t, &call));
    return attention_bias_finish(k, &call.distances, a);
}
