/* Attention forward on tensor cores (sm_80), with an online softmax.
 *
 *   s = scale q k^T,  o = softmax(s) v,  lse = log(sum exp(s))
 *
 * A soft-cap and a bias modify the scores of a tile before the softmax.
 *
 * Launch    grid (sequences ceil(longest_q / 128), heads); block 128. Shared memory: 128 queries,
 *           64 keys and 64 values, (128 + 2 * 64) * D * 2 bytes; 64 KiB for D = 128
 * Layout    A block processes 128 queries of one head and iterates over the keys in tiles of 64;
 *           each warp has 32 queries. The copy of the next keys overlaps the softmax and the GEMM
 *           with the values; the copy of the next values overlaps the GEMM of the scores.
 * Mask      Tiles at the edge of the mask, and tiles of calls with two responses to one prompt, are
 *           masked element by element. Tiles without keys for the queries of the block are skipped.
 * Order     In a causal call, the blocks with the most keys start first.
 * Source    Dao 2023, arXiv:2307.08691 */

#include "kernels/cuda/attention/attention_softmax.cuh"

enum { BLOCK_QUERIES = 128, FORWARD_THREADS = 128, M_TILES = 2 };

template <int KEYS>
GPU_INLINE void apply_dropout(float (&p)[M_TILES][KEYS / 8][4], const attention_task<bf16> &a,
                              int64_t row, int head, int64_t key)
{
    if (a.dropout.probability > 0) {
        int64_t first = key + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < M_TILES * KEYS / 64; i++) {
            int m = i / (KEYS / 64), n = i % (KEYS / 64) * 8;
            uint32_t kept = get_kept_bits<false>(a, row + 16 * m, first + 8 * n, head);
#pragma unroll
            for (int bit = 0; bit < 32; bit++) {
                if ((kept >> bit & 1) == 0) {
                    p[m][n + bit / 4][bit % 4] = 0;
                }
            }
        }
    }
}

template <int D, int KEYS, bool MODIFIED>
__global__ void __launch_bounds__(FORWARD_THREADS) tiles_forward(const attention_task<bf16> a)
{
    GPU_SHARED_DYNAMIC(bf16, tile_q);
    bf16 *tile_k = tile_q + BLOCK_QUERIES * D, *tile_v = tile_k + KEYS * D;
    struct attention_sequence s = get_sequence(a, blockIdx.x / a.tiles);
    int64_t tile = blockIdx.x % a.tiles;
    int64_t first = (a.causal ? a.tiles - 1 - tile : tile) * BLOCK_QUERIES;
    if (first >= s.queries) {
        return;
    }
    int64_t last = s.queries < first + BLOCK_QUERIES ? s.queries - 1 : first + BLOCK_QUERIES - 1;
    int64_t end = visible_end(a, s, last), begin = visible_begin(a, s, first);
    int head = blockIdx.y, warp = threadIdx.x / 32;
    int64_t column = head / a.group * D;
    int64_t query = first + warp * 32 + threadIdx.x % 32 / 4;
    float o[M_TILES][D / 8][4], rescale[M_TILES][2];
    struct running_softmax<M_TILES> run;
    clear_running(run);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        clear_sums(o[m]);
    }
    begin = begin / KEYS * KEYS;
    if (begin < end) {
        load_tile<D, BLOCK_QUERIES, FORWARD_THREADS>(tile_q, a.q, s.first_q + first,
                                                     s.queries - first, head * D);
        load_tile<D, KEYS, FORWARD_THREADS>(tile_k, a.keys, s.first_k + begin, s.keys - begin,
                                            column);
        gpu_copy_commit();
        load_tile<D, KEYS, FORWARD_THREADS>(tile_v, a.values, s.first_k + begin, s.keys - begin,
                                            column);
        gpu_copy_commit();
    }
    for (int64_t key = begin, next; key < end; key = next) {
        next = find_next_tile<KEYS>(a, first, key);
        gpu_copy_wait<1>();
        __syncthreads();
        float p[M_TILES][KEYS / 8][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            clear_sums(p[m]);
        }
        mma_abt<D>(p, tile_q, warp * 32, tile_k);
        if (MODIFIED) {
            modify_scores<false>(p, a, s, head, query, key + threadIdx.x % 4 * 2);
        }
        __syncthreads();
        if (next < end) {
            load_tile<D, KEYS, FORWARD_THREADS>(tile_k, a.keys, s.first_k + next, s.keys - next,
                                                column);
        }
        gpu_copy_commit();
        if (key + KEYS > visible_end(a, s, first) || key < visible_begin(a, s, last)) {
            mask_scores(p, a, s, query, key);
        }
        if (a.shared_prefix_offsets != nullptr) {
            mask_hidden(p, a, query, key, -INFINITY);
        }
        update_softmax(p, run, rescale, a.score_scale * log2_e);
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            rescale_sums(o[m], rescale[m]);
        }
        apply_dropout<KEYS>(p, a, s.first_q + query, head, key);
        gpu_copy_wait<1>();
        __syncthreads();
        mma_pb<D>(o, p, tile_v);
        __syncthreads();
        if (next < end) {
            load_tile<D, KEYS, FORWARD_THREADS>(tile_v, a.values, s.first_k + next, s.keys - next,
                                                column);
        }
        gpu_copy_commit();
    }
    store_rows<D>(a, o, run, s, query, head);
}

/* ---- host ---- */

template <int D, int KEYS>
static status launch_width(struct kernels *k, attention_task<bf16> t,
                           const struct attention_call *call)
{
    const struct attention *a = call->a;
    const size_t bytes = (BLOCK_QUERIES + 2 * KEYS) * D * sizeof(bf16);
    t.tiles = number_divide_up(a->longest_q, BLOCK_QUERIES);
    dim3 grid(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->heads));
    if (grid.x > 0) {
        if (attention_is_modified(call)) {
            LAUNCH(k, (tiles_forward<D, KEYS, true>), grid, FORWARD_THREADS, bytes, t);
        } else {
            LAUNCH(k, (tiles_forward<D, KEYS, false>), grid, FORWARD_THREADS, bytes, t);
        }
    }
    return STATUS_OK;
}

status attention_tiles_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention_call *call)
{
    attention_task<bf16> t = make_attention_task<bf16>(q, keys, values, lse, call);
    t.out = make_matrix<bf16>(o);
    switch (t.width) {
    case 32:
        return launch_width<32, 64>(k, t, call);
    case 64:
        return launch_width<64, 64>(k, t, call);
    case 96:
        return launch_width<96, 64>(k, t, call);
    default:
        return launch_width<128, 64>(k, t, call);
    }
}

static status run_forward(struct kernels *k, struct tensor o, struct tensor lse, struct tensor q,
                          struct tensor keys, struct tensor values,
                          const struct attention_call *call)
{
    const struct tensor tensors[] = {o, q, keys, values};
    if (!attention_fits_tiles(call->a, tensors, 4)) {
        return attention_rows_forward(k, o, lse, q, keys, values, call);
    }
    bool done = false;
    TRY(attention_wgmma_forward(k, o, lse, q, keys, values, call, &done));
    return done ? STATUS_OK : attention_tiles_forward(k, o, lse, q, keys, values, call);
}

extern "C" status cuda_attention_forward(struct kernels *k, struct tensor o, struct tensor lse,
                                         struct tensor q, struct tensor keys, struct tensor values,
                                         const struct attention *a)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    struct attention_call call = {a, {}};
    TRY(attention_bias_expand(k, &call.distances, a, false));
    arena_release(scratch, mark);
    return run_forward(k, o, lse, q, keys, values, &call);
}
