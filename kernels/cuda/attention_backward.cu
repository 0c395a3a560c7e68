/* Attention backward on tensor cores, deterministic by construction: each gradient has one owner.
 *
 *   p = exp(scale q k^T - lse),  ds = p (m (d_o v^T) - delta),  delta = d_o . o
 *   dv = (m p)^T d_o,  dk = scale ds^T q,  dq = scale ds k          (m: dropout's factors)
 *
 * Keys      a block has 128 keys of a key-value head and goes through the query heads of its group and
 *           their queries in order. It computes the scores transposed, so that p^T and ds^T are in
 *           registers where they are operands of dv and dk.
 * Queries   a block has 128 queries of a head and goes through the keys.
 *           Seven products instead of the five that atomic additions would need, no f32 copy of dq.
 * Short     of a sequence whose keys are all in one block that block makes dq too, from ds^T put into shared
 *           memory: five products. Which of the two it is depends on the sequence alone.
 * Source    Dao 2023, arXiv:2307.08691, with the loops split */
#include "kernels/cuda/attention_tile.cuh"

enum { DELTA_THREADS = 256, OWNED = 128, BACKWARD_THREADS = 256 };

/* A warp for each row and head. */
template <typename T>
__global__ void __launch_bounds__(DELTA_THREADS) attention_delta(const attention_task<T> a)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * (DELTA_THREADS / 32) + threadIdx.x / 32;
    if (row >= a.rows_q) {
        return;
    }
    float sum = 0;
    for (int64_t c = threadIdx.x % 32; c < a.width; c += 32) {
        int64_t column = blockIdx.y * a.width + c;
        sum += gpu_float(a.o.data[row * a.o.stride + column]) *
               gpu_float(a.d_o.data[row * a.d_o.stride + column]);
    }
    sum = team_sum<32>(sum, nullptr);
    if (threadIdx.x % 32 == 0) {
        a.delta[blockIdx.y * a.rows_q + row] = sum;
    }
}

/* p of 16 keys (down) and STEP queries (across) from their scores: 0 where a query does not see a key. */
template <int STEP>
GPU_INLINE void powers_transposed(float (&p)[1][STEP / 8][4], const attention_task<bf16> &a,
                                  const struct attention_sequence &s, int64_t key, int64_t query,
                                  const float *lse)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int i = 8 * n + lane % 4 * 2 + e;
            int64_t end = query + i < s.queries ? visible_end(a, s, query + i) : 0;
            int left = static_cast<int>(end - key - lane / 4);
            int from = static_cast<int>(visible_begin(a, end) - key - lane / 4);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float power = gpu_exp2(p[0][n][2 * r + e] * (a.scale * log2_e) - lse[i]);
                p[0][n][2 * r + e] = 8 * r < left && 8 * r >= from ? power : 0.0f;
            }
        }
    }
}

/* p of what is hidden is 0 too. */
template <int STEP>
GPU_INLINE void hide_transposed(float (&p)[1][STEP / 8][4], const attention_task<bf16> &a,
                                int64_t key, int64_t query)
{
    struct hidden_keys h = hidden_of(a);
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

/* What of 16 x STEP accumulators dropout keeps, a bit each. */
template <int STEP, bool TRANSPOSED>
GPU_INLINE void kept_words(uint32_t (&words)[STEP / 64], const attention_task<bf16> &a, int64_t row,
                           int64_t key, int head)
{
#pragma unroll
    for (int i = 0; i < STEP / 64; i++) {
        words[i] = a.dropout.probability > 0
                       ? kept_bits<TRANSPOSED>(a, row + (TRANSPOSED ? 64 * i : 0),
                                               key + (TRANSPOSED ? 0 : 64 * i), head)
                       : ~0u;
    }
}

/* Whether one block has all keys of a sequence: then it makes dq. */
GPU_INLINE bool is_short(const struct attention_sequence &s)
{
    return s.keys > 0 && s.keys <= OWNED;
}

/* dq of STEP queries of a head, complete: a warp has 16 of them and half of the columns. */
template <int D, int STEP>
GPU_INLINE void short_queries(const attention_task<bf16> &a, const struct attention_sequence &s,
                              const bf16 *tile_ds, const bf16 *tile_k, int64_t query, int head)
{
    int warp = threadIdx.x / 32, row = warp % (STEP / 16) * 16, half = warp / (STEP / 16);
    float dq[D / 16][4];
    clear(dq);
    product_columns<D, OWNED, STEP>(dq, tile_ds, row, tile_k, half * (D / 16));
    store_sums<D / 2>(a.out, dq, s.first_q + query + row, s.queries - query - row,
                      head * D + half * (D / 2), a.scale, a.scale);
}

template <int D, int STEP>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    tiles_backward_keys(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_k);
    GPU_SHARED(float, lse, STEP);
    GPU_SHARED(float, delta, STEP);
    bf16 *tile_v = tile_k + OWNED * D, *tile_q = tile_v + OWNED * D, *tile_o = tile_q + STEP * D;
    bf16 *tile_ds = tile_o + STEP * D;
    struct attention_sequence s = sequence_of(a, blockIdx.x / a.tiles);
    int64_t first = blockIdx.x % a.tiles * OWNED;
    if (first >= s.keys) {
        return;
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t column = blockIdx.y * D, key = first + warp * 16;
    /* Queries from the first that sees our first key to the last that sees our last one. */
    int64_t offset = s.queries - s.keys, from = a.causal && first + offset > 0 ? first + offset : 0;
    int64_t to = s.queries;
    if (a.causal && a.window > 0 && first + OWNED + offset + a.window < to) {
        to = first + OWNED + offset + a.window;
    }
    struct hidden_keys h = hidden_of(a);
    if (first >= h.begin && first + OWNED <= h.end) {
        to = h.end;
    }
    if (is_short(s)) { /* dq of queries that see nothing is 0 */
        from = 0;
        to = s.queries;
    }
    from = from / STEP * STEP;
    float dk[1][D / 8][4], dv[1][D / 8][4], kept = attention_scale_kept(a);
    clear(dk[0]);
    clear(dv[0]);
    tile_load<D, OWNED, BACKWARD_THREADS>(tile_k, a.keys, s.first_k + first, s.keys - first,
                                          column);
    tile_load<D, OWNED, BACKWARD_THREADS>(tile_v, a.values, s.first_k + first, s.keys - first,
                                          column);
    gpu_copy_commit();
    for (int head = blockIdx.y * a.group; head < static_cast<int>(blockIdx.y + 1) * a.group;
         head++) {
        for (int64_t query = from; query < to; query += STEP) {
            int64_t row = s.first_q + query;
            tile_load<D, STEP, BACKWARD_THREADS>(tile_q, a.q, row, s.queries - query, head * D);
            gpu_copy_commit();
            tile_load<D, STEP, BACKWARD_THREADS>(tile_o, a.d_o, row, s.queries - query, head * D);
            gpu_copy_commit();
            if (threadIdx.x < STEP) {
                bool inside = query + threadIdx.x < s.queries;
                int64_t at = row + threadIdx.x;
                lse[threadIdx.x] = inside ? a.lse[head * a.lse_stride + at] * log2_e : 0.0f;
                delta[threadIdx.x] = inside ? a.delta[head * a.rows_q + at] : 0.0f;
            }
            gpu_copy_wait<1>();
            __syncthreads();
            float p[1][STEP / 8][4], ds[1][STEP / 8][4];
            clear(p[0]);
            clear(ds[0]);
            product_rows<D>(p, tile_k, warp * 16, tile_q);
            powers_transposed<STEP>(p, a, s, key, query, lse);
            if (a.branches != nullptr) {
                hide_transposed<STEP>(p, a, key, query);
            }
            gpu_copy_wait<0>();
            __syncthreads();
            product_rows<D>(ds, tile_v, warp * 16, tile_o);
            uint32_t bits[STEP / 64];
            kept_words<STEP, true>(bits, a, row + lane % 4 * 2, key + lane / 4, head);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    bool keeps = (bits[n / 8] >> (n % 8 * 4 + e) & 1) != 0;
                    float d =
                        (keeps ? ds[0][n][e] * kept : 0.0f) - delta[8 * n + lane % 4 * 2 + e % 2];
                    ds[0][n][e] = p[0][n][e] * d;
                    p[0][n][e] = keeps ? p[0][n][e] : 0.0f;
                }
            }
            product_scores<D>(dv, p, tile_o);
            product_scores<D>(dk, ds, tile_q);
            if (is_short(s)) {
                scores_to_tile(tile_ds, warp * 16, ds[0]);
                __syncthreads();
                short_queries<D, STEP>(a, s, tile_ds, tile_k, query, head);
            }
            __syncthreads();
        }
    }
    gpu_copy_wait<0>();
    store_sums<D>(a.dvalues, dv[0], s.first_k + key, s.keys - key, column, kept, kept);
    store_sums<D>(a.dkeys, dk[0], s.first_k + key, s.keys - key, column, a.scale, a.scale);
}

template <int D, int STEP>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    tiles_backward_queries(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_q);
    bf16 *tile_o = tile_q + OWNED * D, *tile_k = tile_o + OWNED * D, *tile_v = tile_k + STEP * D;
    struct attention_sequence s = sequence_of(a, blockIdx.x / a.tiles);
    int64_t tile = blockIdx.x % a.tiles;
    int64_t first = (a.causal ? a.tiles - 1 - tile : tile) * OWNED;
    if (first >= s.queries || is_short(s)) {
        return;
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    int64_t column = head / a.group * D, query = first + warp * 16 + lane / 4;
    int64_t last = s.queries < first + OWNED ? s.queries - 1 : first + OWNED - 1;
    int64_t end = visible_end(a, s, last), begin = visible_begin(a, visible_end(a, s, first));
    float dq[1][D / 8][4], lse[2], delta[2], kept = attention_scale_kept(a);
    clear(dq[0]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool inside = query + 8 * r < s.queries;
        int64_t row = s.first_q + query + 8 * r;
        lse[r] = inside ? a.lse[head * a.lse_stride + row] * log2_e : 0.0f;
        delta[r] = inside ? a.delta[head * a.rows_q + row] : 0.0f;
    }
    tile_load<D, OWNED, BACKWARD_THREADS>(tile_q, a.q, s.first_q + first, s.queries - first,
                                          head * D);
    tile_load<D, OWNED, BACKWARD_THREADS>(tile_o, a.d_o, s.first_q + first, s.queries - first,
                                          head * D);
    gpu_copy_commit();
    for (int64_t key = begin / STEP * STEP; key < end; key = next_keys<STEP>(a, first, key)) {
        tile_load<D, STEP, BACKWARD_THREADS>(tile_k, a.keys, s.first_k + key, s.keys - key, column);
        gpu_copy_commit();
        tile_load<D, STEP, BACKWARD_THREADS>(tile_v, a.values, s.first_k + key, s.keys - key,
                                             column);
        gpu_copy_commit();
        gpu_copy_wait<1>();
        __syncthreads();
        float p[1][STEP / 8][4], ds[1][STEP / 8][4];
        clear(p[0]);
        clear(ds[0]);
        product_rows<D>(p, tile_q, warp * 16, tile_k);
        gpu_copy_wait<0>();
        __syncthreads();
        product_rows<D>(ds, tile_o, warp * 16, tile_v);
        uint32_t bits[STEP / 64];
        kept_words<STEP, false>(bits, a, s.first_q + query, key + lane % 4 * 2, head);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t seen = query + 8 * r < s.queries ? visible_end(a, s, query + 8 * r) : 0;
            int left = static_cast<int>(seen - key - lane % 4 * 2);
            int from = static_cast<int>(visible_begin(a, seen) - key - lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    int j = 8 * n + e % 2;
                    bool keeps = (bits[n / 8] >> (n % 8 * 4 + e) & 1) != 0;
                    float power = gpu_exp2(p[0][n][e] * (a.scale * log2_e) - lse[r]);
                    float d = (keeps ? ds[0][n][e] * kept : 0.0f) - delta[r];
                    ds[0][n][e] = j < left && j >= from ? power * d : 0.0f;
                }
            }
        }
        if (a.branches != nullptr) {
            hide(ds, a, query, key, 0);
        }
        product_scores<D>(dq, ds, tile_k);
        __syncthreads();
    }
    gpu_copy_wait<0>();
    int64_t row = first + warp * 16;
    store_sums<D>(a.out, dq[0], s.first_q + row, s.queries - row, head * D, a.scale, a.scale);
}

/* ---- host ---- */

template <int D>
static status run_width(struct kernels *k, attention_task<bf16> t, const struct attention *a)
{
    constexpr int STEP = 64;
    const size_t bytes = (2 * OWNED + 2 * STEP) * D * sizeof(bf16);
    const size_t keys_bytes = bytes + OWNED * STEP * sizeof(bf16);
    t.tiles = (a->longest_k + OWNED - 1) / OWNED;
    dim3 keys(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->kv_heads));
    if (keys.x > 0) {
        GPU_ALLOW_SHARED((tiles_backward_keys<D, STEP>), keys_bytes);
        LAUNCH(k, (tiles_backward_keys<D, STEP>), keys, BACKWARD_THREADS, keys_bytes, t);
    }
    t.tiles = (a->longest_q + OWNED - 1) / OWNED;
    dim3 queries(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->heads));
    if (queries.x > 0) {
        GPU_ALLOW_SHARED((tiles_backward_queries<D, STEP>), bytes);
        LAUNCH(k, (tiles_backward_queries<D, STEP>), queries, BACKWARD_THREADS, bytes, t);
    }
    return STATUS_OK;
}

status attention_tiles_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                                struct tensor dvalues, struct tensor d_o, struct tensor q,
                                struct tensor keys, struct tensor values, struct tensor lse,
                                const float *delta, const struct attention *a)
{
    attention_task<bf16> t = attention_task_of<bf16>(q, keys, values, lse, a);
    t.out = matrix_of<bf16>(dq);
    t.dkeys = matrix_of<bf16>(dkeys);
    t.dvalues = matrix_of<bf16>(dvalues);
    t.d_o = matrix_of<const bf16>(d_o);
    t.delta = const_cast<float *>(delta);
    switch (a->head_width) {
    case 32:
        return run_width<32>(k, t, a);
    case 64:
        return run_width<64>(k, t, a);
    case 96:
        return run_width<96>(k, t, a);
    default:
        return run_width<128>(k, t, a);
    }
}

template <typename T>
static status delta_run(struct kernels *k, float *delta, struct tensor o, struct tensor d_o,
                        const struct attention *a)
{
    attention_task<T> t = {};
    t.o = matrix_of<const T>(o);
    t.d_o = matrix_of<const T>(d_o);
    t.delta = delta;
    t.rows_q = o.rows;
    t.width = a->head_width;
    dim3 grid(blocks_for(o.rows, DELTA_THREADS / 32), static_cast<unsigned>(a->heads));
    if (grid.x > 0) {
        LAUNCH(k, attention_delta<T>, grid, DELTA_THREADS, 0, t);
    }
    return STATUS_OK;
}

extern "C" status cuda_attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                                          struct tensor keys, struct tensor values, struct tensor o,
                                          struct tensor lse, const struct attention *a)
{
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, static_cast<size_t>(o.rows * a->heads) * sizeof(float), &memory));
    arena_release(scratch, mark);
    float *delta = static_cast<float *>(memory);
    TRY(k->dtype == DTYPE_F32 ? delta_run<float>(k, delta, o, d_o, a)
                              : delta_run<bf16>(k, delta, o, d_o, a));
    const struct tensor tensors[] = {dq, dkeys, dvalues, d_o, q, keys, values};
    return attention_fits_tiles(a, tensors, 7)
               ? attention_tiles_backward(k, dq, dkeys, dvalues, d_o, q, keys, values, lse, delta,
                                          a)
               : attention_rows_backward(k, dq, dkeys, dvalues, d_o, q, keys, values, lse, delta,
                                         a);
}
