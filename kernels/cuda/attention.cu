/* Attention forward on tensor cores, with an online softmax.
 *
 *   s = scale q k^T,  o = softmax(s) v,  lse = log(sum exp(s))
 *
 * Layout    A block has 128 queries of a head and goes through its keys tile by tile; a warp has 32 of the
 *           queries. The keys' copy is on its way under the softmax and the product with the values, the
 *           values' under the scores.
 * Mask      only tiles at an edge are masked by element, and those of a prompt's two answers; tiles that nobody sees
 *           are not visited
 * Order     of a causal call, the blocks with the most keys first
 * Source    Dao 2023, arXiv:2307.08691 */
#include "kernels/cuda/attention_softmax.cuh"

enum { QUERIES = 128, FORWARD_THREADS = 128, M_TILES = 2 };

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
    float o[M_TILES][D / 8][4], shrink[M_TILES][2];
    struct running<M_TILES> run;
    running_clear(run);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        clear(o[m]);
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
    for (int64_t key = begin, next; key < end; key = next) {
        next = next_keys<KEYS>(a, first, key);
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
        if (key + KEYS > visible_end(a, s, first) ||
            key < visible_begin(a, visible_end(a, s, last))) {
            mask_scores(p, a, s, query, key);
        }
        if (a.branches != nullptr) {
            hide(p, a, query, key, -INFINITY);
        }
        exponentials(p, run, shrink, a.scale * log2_e);
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            shrink_sums(o[m], shrink[m]);
        }
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
    if (!attention_fits_tiles(a, tensors, 4)) {
        return attention_rows_forward(k, o, lse, q, keys, values, a);
    }
    bool done = false;
    TRY(attention_wgmma_forward(k, o, lse, q, keys, values, a, &done));
    return done ? STATUS_OK : attention_tiles_forward(k, o, lse, q, keys, values, a);
}
