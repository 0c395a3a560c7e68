/* Attention forward on tensor cores, with an online softmax.
 *
 *   s = scale q k^T,  o = softmax(s) v,  lse = log(sum exp(s))
 *
 * Layout    A block has 128 queries of a head and goes through its keys tile by tile; a warp has 32 of the
 *           queries. Powers are of two: scale and log2(e) are one factor. The keys' copy is on its way
 *           under the softmax and the product with the values, the values' under the scores.
 * Mask      only tiles at an edge are masked by element; tiles that nobody sees are not visited
 * Order     of a causal call, the blocks with the most keys first
 * Source    Dao 2023, arXiv:2307.08691 */
#include "kernels/cuda/attention_tile.cuh"

enum { QUERIES = 128, FORWARD_THREADS = 128, M_TILES = 2 };

/* A query's running maximum (of unscaled scores) and its own sum of powers; rows of a lane: [m][r] is row
 * 16 m + 8 r + lane / 4 of the warp's 32. */
struct running {
    float largest[M_TILES][2], sum[M_TILES][2];
};

/* Scores that a row does not see become -infinity. */
template <int KEYS>
GPU_INLINE void mask_scores(float (&s)[M_TILES][KEYS / 8][4], const attention_task<bf16> &a,
                            const struct attention_sequence &sequence, int64_t query, int64_t key)
{
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t end = visible_end(a, sequence, query + 16 * m + 8 * r);
            int left = static_cast<int>(end - key),
                from = static_cast<int>(visible_begin(a, end) - key);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int j = 8 * n + static_cast<int>(threadIdx.x % 4) * 2 + e;
                    if (j >= left || j < from) {
                        s[m][n][2 * r + e] = -INFINITY;
                    }
                }
            }
        }
    }
}

/* s becomes its exponentials; o and the sums shrink where a larger score came. */
template <int D, int KEYS>
GPU_INLINE void soften(float (&s)[M_TILES][KEYS / 8][4], float (&o)[M_TILES][D / 8][4],
                       struct running &run, float scale)
{
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = run.largest[m][r];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                most = fmaxf(most, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            float base = most == -INFINITY ? 0.0f : most * scale;
            float shrink = gpu_exp2(run.largest[m][r] * scale - base);
            run.largest[m][r] = most;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = gpu_exp2(s[m][n][2 * r + e] * scale - base);
                    s[m][n][2 * r + e] = p;
                    sum += p;
                }
            }
            run.sum[m][r] = run.sum[m][r] * shrink + sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                o[m][n][2 * r] *= shrink;
                o[m][n][2 * r + 1] *= shrink;
            }
        }
    }
}

template <int KEYS>
GPU_INLINE void drop_scores(float (&p)[M_TILES][KEYS / 8][4], const attention_task<bf16> &a,
                            int64_t row, int head, int64_t key)
{
    if (a.dropout.probability > 0) {
        int64_t first = key + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < M_TILES * KEYS / 64; i++) {
            int m = i / (KEYS / 64), n = i % (KEYS / 64) * 8;
            uint32_t kept = kept_bits<false>(a, row + 16 * m, first + 8 * n, head);
#pragma unroll
            for (int bit = 0; bit < 32; bit++) {
                if ((kept >> bit & 1) == 0) {
                    p[m][n + bit / 4][bit % 4] = 0;
                }
            }
        }
    }
}

/* The rows' results; `query` is the lane's first, counted in the sequence. */
template <int D>
GPU_INLINE void store_rows(const attention_task<bf16> &a, const float (&o)[M_TILES][D / 8][4],
                           struct running &run, const struct attention_sequence &s, int64_t query,
                           int head)
{
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = run.sum[m][r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            int64_t i = query + 16 * m + 8 * r;
            factor[r] = sum == 0 ? 0.0f : attention_scale_kept(a) / sum;
            if (a.lse != nullptr && threadIdx.x % 4 == 0 && i < s.queries) {
                a.lse[head * a.lse_stride + s.first_q + i] =
                    sum == 0 ? -INFINITY : run.largest[m][r] * a.scale + logf(sum);
            }
        }
        int64_t first = query - threadIdx.x % 32 / 4 + 16 * m;
        store_sums<D>(a.out, o[m], s.first_q + first, s.queries - first, head * D, factor[0],
                      factor[1]);
    }
}

template <int D, int KEYS>
__global__ void __launch_bounds__(FORWARD_THREADS) tiles_forward(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_q);
    bf16 *tile_k = tile_q + QUERIES * D, *tile_v = tile_k + KEYS * D;
    struct attention_sequence s = sequence_of(a, blockIdx.x / a.tiles);
    int64_t tile = blockIdx.x % a.tiles;
    int64_t first = (a.causal ? a.tiles - 1 - tile : tile) * QUERIES;
    if (first >= s.queries) {
        return;
    }
    int64_t last = s.queries < first + QUERIES ? s.queries - 1 : first + QUERIES - 1;
    int64_t end = visible_end(a, s, last), begin = visible_begin(a, visible_end(a, s, first));
    int head = blockIdx.y, warp = threadIdx.x / 32;
    int64_t column = head / a.group * D;
    int64_t query = first + warp * 32 + threadIdx.x % 32 / 4;
    float o[M_TILES][D / 8][4];
    struct running run;
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        clear(o[m]);
        run.largest[m][0] = run.largest[m][1] = -INFINITY;
        run.sum[m][0] = run.sum[m][1] = 0;
    }
    begin = begin / KEYS * KEYS;
    if (begin < end) {
        tile_load<D, QUERIES, FORWARD_THREADS>(tile_q, a.q, s.first_q + first, s.queries - first,
                                               head * D);
        tile_load<D, KEYS, FORWARD_THREADS>(tile_k, a.keys, s.first_k + begin, s.keys - begin,
                                            column);
        gpu_copy_commit();
        tile_load<D, KEYS, FORWARD_THREADS>(tile_v, a.values, s.first_k + begin, s.keys - begin,
                                            column);
        gpu_copy_commit();
    }
    for (int64_t key = begin; key < end; key += KEYS) {
        int64_t next = key + KEYS;
        gpu_copy_wait<1>();
        __syncthreads();
        float p[M_TILES][KEYS / 8][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            clear(p[m]);
        }
        product_rows<D>(p, tile_q, warp * 32, tile_k);
        __syncthreads();
        if (next < end) {
            tile_load<D, KEYS, FORWARD_THREADS>(tile_k, a.keys, s.first_k + next, s.keys - next,
                                                column);
        }
        gpu_copy_commit();
        if (next > visible_end(a, s, first) || key < visible_begin(a, visible_end(a, s, last))) {
            mask_scores<KEYS>(p, a, s, query, key);
        }
        soften<D, KEYS>(p, o, run, a.scale * log2_e);
        drop_scores<KEYS>(p, a, s.first_q + query, head, key);
        gpu_copy_wait<1>();
        __syncthreads();
        product_scores<D>(o, p, tile_v);
        __syncthreads();
        if (next < end) {
            tile_load<D, KEYS, FORWARD_THREADS>(tile_v, a.values, s.first_k + next, s.keys - next,
                                                column);
        }
        gpu_copy_commit();
    }
    store_rows<D>(a, o, run, s, query, head);
}

/* ---- host ---- */

template <int D, int KEYS>
static status run_width(struct kernels *k, attention_task<bf16> t, const struct attention *a)
{
    const size_t bytes = (QUERIES + 2 * KEYS) * D * sizeof(bf16);
    t.tiles = (a->longest_q + QUERIES - 1) / QUERIES;
    dim3 grid(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->heads));
    if (grid.x > 0) {
        GPU_ALLOW_SHARED((tiles_forward<D, KEYS>), bytes);
        LAUNCH(k, (tiles_forward<D, KEYS>), grid, FORWARD_THREADS, bytes, t);
    }
    return STATUS_OK;
}

status attention_tiles_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention *a)
{
    attention_task<bf16> t = attention_task_of<bf16>(q, keys, values, lse, a);
    t.out = matrix_of<bf16>(o);
    switch (a->head_width) {
    case 32:
        return run_width<32, 64>(k, t, a);
    case 64:
        return run_width<64, 64>(k, t, a);
    case 96:
        return run_width<96, 64>(k, t, a);
    default:
        return run_width<128, 64>(k, t, a);
    }
}

extern "C" status cuda_attention_forward(struct kernels *k, struct tensor o, struct tensor lse,
                                         struct tensor q, struct tensor keys, struct tensor values,
                                         const struct attention *a)
{
    REQUIRE(a->head_width <= ATTENTION_WIDTH_MAX && a->scale > 0, STATUS_INTERNAL,
            "attention: heads of width %lld, scale %g: at most %d, above 0",
            (long long)a->head_width, (double)a->scale, (int)ATTENTION_WIDTH_MAX);
    const struct tensor tensors[] = {o, q, keys, values};
    return attention_fits_tiles(a, tensors, 4)
               ? attention_tiles_forward(k, o, lse, q, keys, values, a)
               : attention_rows_forward(k, o, lse, q, keys, values, a);
}
