/* Attention forward on the tensor cores of Hopper (sm_90a): TMA, wgmma and warp specialization.
 *
 *   s = scale q k^T,  o = softmax(s) v,  lse = log(sum exp(s))
 *
 * A soft-cap and a bias modify the scores of a tile before the softmax.
 *
 * Launch    grid (sequences ceil(longest_q / (64 consumers)), heads); block (consumers + 1) * 128,
 *           with two or three consumers. Shared memory: struct shared_layout, 160 KiB for D = 128
 * Layout    Each consumer (a warpgroup) of a block processes 64 queries of a head. The last
 *           warpgroup is the producer: it copies the queries once, and keys and values tile by tile
 *           into a ring of two stages each. A tile is stored as boxes of 64 columns, with rows of
 *           128 bytes, swizzled by TMA.
 * Overlap   A consumer issues the scores of the next tile before the GEMM of this tile's
 *           probabilities with the values, so that this GEMM overlaps the softmax. Consumers issue
 *           in turn, so that the softmax of one overlaps the GEMMs of the others.
 * Mask      As in attention.cu, tiles at an edge of the mask are masked element by element. A box
 *           may reach into the next sequence: its scores are masked and its values set to zero,
 *           since 0 times NaN is NaN.
 * Order     The sums of a row are in the order of its keys, tile by tile, for any number of
 *           consumers.
 * Source    Shah et al. 2024, arXiv:2407.08608 (FlashAttention-3) */
#include "kernels/cuda/attention_softmax.cuh"

enum { KEYS = 128, STAGES = 2, CONSUMER_QUERIES = 64, EDGE = 15 };

/* Byte offsets in shared memory: the queries of each consumer, then keys, then values, in boxes of
 * BOX columns; then the mbarriers. */
template <int D, int CONSUMERS> struct shared_layout {
    static constexpr int queries = CONSUMER_QUERIES * D * 2, tile = KEYS * D * 2;
    static constexpr int keys_at = CONSUMERS * queries, values_at = keys_at + STAGES * tile;
    static constexpr int barriers_at = values_at + STAGES * tile;
    static constexpr int bytes = barriers_at + (1 + 4 * STAGES) * int{sizeof(gpu_mbarrier)};
};

struct tile_ring {
    gpu_mbarrier *full, *empty; /* [STAGES] */
    unsigned char *tiles;
};

/* The work of a block: a sequence, a head, the queries from `first` on, and the tiles of their
 * keys. */
struct block_task {
    struct attention_sequence s;
    int first, begin, head, tiles;
};

template <int CONSUMERS> GPU_INLINE struct block_task make_block_task(const attention_task<bf16> &a)
{
    const int queries = CONSUMERS * CONSUMER_QUERIES;
    struct block_task t;
    t.s = get_sequence(a, blockIdx.x / a.tiles);
    int tile = static_cast<int>(blockIdx.x % a.tiles), end = 0;
    t.first = (a.causal ? static_cast<int>(a.tiles) - 1 - tile : tile) * queries;
    t.begin = 0;
    if (t.first < t.s.queries) {
        int last = t.s.queries < t.first + queries ? t.s.queries - 1 : t.first + queries - 1;
        end = visible_end(a, t.s, last);
        t.begin = visible_begin(a, t.s, t.first) / KEYS * KEYS;
    }
    t.tiles = end > t.begin ? (end - t.begin + KEYS - 1) / KEYS : 0;
    t.head = blockIdx.y;
    return t;
}

#ifdef GPU_HAS_SM90

/* ---- producer ---- */

template <int D>
GPU_INLINE void fetch_tile(const struct tile_ring &r, const gpu_map *map, int t, int row,
                           int column)
{
    int stage = t % STAGES;
    unsigned char *to = r.tiles + stage * KEYS * D * 2;
    gpu_mbarrier_wait(&r.empty[stage], (t / STAGES & 1) ^ 1);
    gpu_mbarrier_expect(&r.full[stage], KEYS * D * 2);
#pragma unroll
    for (int c = 0; c < D / BOX; c++) {
        gpu_copy_box(to + c * KEYS * BOX * 2, map, column + c * BOX, row, &r.full[stage]);
    }
}

template <int D, int CONSUMERS>
GPU_INLINE void run_producer(const attention_task<bf16> &a, const struct block_task &t,
                             unsigned char *queries, gpu_mbarrier *queries_full,
                             const struct tile_ring &keys, const struct tile_ring &values,
                             const gpu_map *map_q, const gpu_map *map_k, const gpu_map *map_v)
{
    int column = t.head / a.group * D, row = t.s.first_k + t.begin;
    gpu_mbarrier_expect(queries_full, CONSUMERS * CONSUMER_QUERIES * D * 2);
    for (int i = 0; i < CONSUMERS * (D / BOX); i++) {
        int c = i / (D / BOX), box = i % (D / BOX);
        gpu_copy_box(queries + i * CONSUMER_QUERIES * BOX * 2, map_q, t.head * D + box * BOX,
                     t.s.first_q + t.first + c * CONSUMER_QUERIES, queries_full);
    }
    for (int i = 0; i < t.tiles; i++) {
        fetch_tile<D>(keys, map_k, i, row + i * KEYS, column);
        fetch_tile<D>(values, map_v, i, row + i * KEYS, column);
    }
}

/* ---- consumers ---- */

/* Lets the other consumers issue, by an arrival at their barriers. In the last round only the
 * consumers with higher numbers still wait, so only they are signalled. A consumer signals
 * the next round only after it has passed its own barrier. The others arrive at that barrier only
 * after they have passed their barriers of this round. So no barrier counts arrivals of two
 * rounds. */
template <int CONSUMERS> GPU_INLINE void signal_turn(int me, bool signal_lower, bool signal_higher)
{
#pragma unroll
    for (int other = 0; other < CONSUMERS; other++) {
        if (other != me && (other < me ? signal_lower : signal_higher)) {
            gpu_barrier_arrive(1 + other, CONSUMERS * WARPGROUP);
        }
    }
}

/* Issues s = q k^T for 64 queries and a tile of keys. */
template <int D>
GPU_INLINE void issue_scores(float (&s)[KEYS / 8][4], const unsigned char *q,
                             const unsigned char *keys)
{
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        int box = kk / 4, within = kk % 4;
        gpu_wgmma(s, gpu_matrix_descriptor(q + box * CONSUMER_QUERIES * BOX * 2) + 2 * within,
                  gpu_matrix_descriptor(keys + box * KEYS * BOX * 2) + 2 * within, kk > 0);
    }
    gpu_wgmma_commit();
}

/* Issues o += p v. */
template <int D>
GPU_INLINE void issue_values(float (&o)[D / 8][4], const uint32_t (&p)[KEYS / 16][4],
                             const unsigned char *values)
{
    uint64_t descriptor = gpu_columns_descriptor(values, KEYS * BOX * 2);
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        gpu_wgmma(o, p[kk], descriptor + 128 * kk, true);
    }
    gpu_wgmma_commit();
}

/* Zeroes the rows of a tile of values from `valid` on, before any consumer multiplies with them. */
template <int D, int CONSUMERS> GPU_INLINE void clear_tail_rows(unsigned char *values, int valid)
{
    const uint4 zero = {0, 0, 0, 0};
    for (int box = 0; box < D / BOX; box++) {
        unsigned char *from = values + (box * KEYS + valid) * BOX * 2;
        for (int i = threadIdx.x; i < (KEYS - valid) * BOX / 8; i += CONSUMERS * WARPGROUP) {
            gpu_store16(from + 16 * i, zero);
        }
    }
    gpu_fence_async();
    gpu_barrier_sync(EDGE, CONSUMERS * WARPGROUP);
}

/* A consumer's number in the block and the queries that it processes. */
struct consumer {
    int number;
    int first, last, query; /* first and last query of the warpgroup, first query of the lane */
};

GPU_INLINE struct consumer make_consumer(const struct block_task &t)
{
    struct consumer c;
    c.number = threadIdx.x / WARPGROUP;
    c.first = t.first + c.number * CONSUMER_QUERIES;
    c.last = c.first + CONSUMER_QUERIES - 1;
    c.last = c.last < t.s.queries ? c.last : t.s.queries - 1;
    c.query = c.first + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    return c;
}

/* Modifies and masks the scores of a tile and replaces them by their exponentials. */
template <bool MODIFIED>
GPU_INLINE void softmax_tile(float (&s)[1][KEYS / 8][4], struct running_softmax<1> &run,
                             float (&rescale)[1][2], const attention_task<bf16> &a,
                             const struct block_task &t, const struct consumer &c, int key)
{
    if (MODIFIED) {
        modify_scores<false>(s, a, t.s, t.head, c.query, key + threadIdx.x % 4 * 2);
    }
    if (key + KEYS > visible_end(a, t.s, c.first) || key < visible_begin(a, t.s, c.last)) {
        mask_scores(s, a, t.s, c.query, key);
    }
    update_softmax(s, run, rescale, a.score_scale * log2_e);
}

template <int D, int CONSUMERS, bool MODIFIED>
GPU_INLINE void compute_tiles(const attention_task<bf16> &a, const struct block_task &t,
                              const struct consumer &c, const unsigned char *queries,
                              const struct tile_ring &keys, const struct tile_ring &values,
                              float (&o)[D / 8][4], struct running_softmax<1> &run)
{
    const int tile_bytes = KEYS * D * 2, own_barrier = 1 + c.number;
    float s[1][KEYS / 8][4], rescale[1][2];
    uint32_t p[KEYS / 16][4];
    signal_turn<CONSUMERS>(c.number, true, false);
    gpu_mbarrier_wait(&keys.full[0], 0);
    gpu_barrier_sync(own_barrier, CONSUMERS * WARPGROUP);
    gpu_wgmma_order(s[0]);
    gpu_wgmma_fence();
    issue_scores<D>(s[0], queries, keys.tiles);
    signal_turn<CONSUMERS>(c.number, t.tiles > 1, true);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(s[0]);
    release_stage(&keys.empty[0]);
    softmax_tile<MODIFIED>(s, run, rescale, a, t, c, t.begin);
    pack_scores(p, s[0]);
    for (int i = 1; i < t.tiles; i++) {
        int stage = i % STAGES, before = (i - 1) % STAGES;
        gpu_mbarrier_wait(&keys.full[stage], i / STAGES & 1);
        gpu_mbarrier_wait(&values.full[before], (i - 1) / STAGES & 1);
        gpu_barrier_sync(own_barrier, CONSUMERS * WARPGROUP);
        gpu_wgmma_order(s[0]);
        gpu_wgmma_order(p);
        gpu_wgmma_order(o);
        gpu_wgmma_fence();
        issue_scores<D>(s[0], queries, keys.tiles + stage * tile_bytes);
        issue_values<D>(o, p, values.tiles + before * tile_bytes);
        signal_turn<CONSUMERS>(c.number, i < t.tiles - 1, true);
        gpu_wgmma_wait<1>();
        gpu_wgmma_order(s[0]);
        release_stage(&keys.empty[stage]);
        softmax_tile<MODIFIED>(s, run, rescale, a, t, c, t.begin + i * KEYS);
        gpu_wgmma_wait<0>();
        gpu_wgmma_order(o);
        release_stage(&values.empty[before]);
        rescale_sums(o, rescale[0]);
        pack_scores(p, s[0]);
    }
    int stage = (t.tiles - 1) % STAGES;
    int valid = t.s.keys - t.begin - (t.tiles - 1) * KEYS;
    gpu_mbarrier_wait(&values.full[stage], (t.tiles - 1) / STAGES & 1);
    if (valid < KEYS) {
        clear_tail_rows<D, CONSUMERS>(values.tiles + stage * tile_bytes, valid);
    }
    gpu_wgmma_order(p);
    gpu_wgmma_order(o);
    gpu_wgmma_fence();
    issue_values<D>(o, p, values.tiles + stage * tile_bytes);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(o);
}

template <int D, int CONSUMERS, bool MODIFIED>
GPU_INLINE void run_consumer(const attention_task<bf16> &a, const struct block_task &t,
                             const unsigned char *queries, gpu_mbarrier *queries_full,
                             const struct tile_ring &keys, const struct tile_ring &values)
{
    struct consumer c = make_consumer(t);
    float o[1][D / 8][4];
    struct running_softmax<1> run;
    clear_running(run);
    clear_sums(o[0]);
    if (t.tiles > 0) {
        gpu_mbarrier_wait(queries_full, 0);
        compute_tiles<D, CONSUMERS, MODIFIED>(
            a, t, c, queries + c.number * CONSUMER_QUERIES * D * 2, keys, values, o[0], run);
    }
    store_rows<D>(a, o, run, t.s, c.query, t.head);
}

#endif

template <int D, int CONSUMERS, int FETCH_REGISTERS, int COMPUTE_REGISTERS, bool MODIFIED>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
    wgmma_forward(const attention_task<bf16> a, const __grid_constant__ gpu_map map_q,
                  const __grid_constant__ gpu_map map_k, const __grid_constant__ gpu_map map_v)
{
#ifdef GPU_HAS_SM90
    using space = shared_layout<D, CONSUMERS>;
    GPU_SHARED_DYNAMIC(unsigned char, memory);
    gpu_require_swizzle_base(memory);
    gpu_mbarrier *barriers = reinterpret_cast<gpu_mbarrier *>(memory + space::barriers_at);
    struct tile_ring keys = {barriers + 1, barriers + 1 + STAGES, memory + space::keys_at};
    struct tile_ring values = {barriers + 1 + 2 * STAGES, barriers + 1 + 3 * STAGES,
                               memory + space::values_at};
    struct block_task t = make_block_task<CONSUMERS>(a);
    if (t.first >= t.s.queries) {
        return;
    }
    if (threadIdx.x == 0) {
        gpu_mbarrier_init(barriers, 1);
        for (int i = 0; i < STAGES; i++) {
            gpu_mbarrier_init(&keys.full[i], 1);
            gpu_mbarrier_init(&values.full[i], 1);
            gpu_mbarrier_init(&keys.empty[i], CONSUMERS * WARPGROUP / 32);
            gpu_mbarrier_init(&values.empty[i], CONSUMERS * WARPGROUP / 32);
        }
        gpu_fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS * WARPGROUP) {
        gpu_registers_lower<FETCH_REGISTERS>();
        if (threadIdx.x == CONSUMERS * WARPGROUP && t.tiles > 0) {
            run_producer<D, CONSUMERS>(a, t, memory, barriers, keys, values, &map_q, &map_k,
                                       &map_v);
        }
    } else {
        gpu_registers_raise<COMPUTE_REGISTERS>();
        run_consumer<D, CONSUMERS, MODIFIED>(a, t, memory, barriers, keys, values);
    }
#endif
}

/* ---- host ---- */

/* FETCH_REGISTERS and COMPUTE_REGISTERS divide the 64 Ki registers of an SM with setmaxnreg. */
template <int D, int CONSUMERS, int FETCH_REGISTERS, int COMPUTE_REGISTERS>
static status launch_wgmma(struct kernels *k, attention_task<bf16> t,
                           const struct attention_call *call, const gpu_map (&maps)[3])
{
    using space = shared_layout<D, CONSUMERS>;
    const struct attention *a = call->a;
    const int queries = CONSUMERS * CONSUMER_QUERIES;
    t.tiles = (a->longest_q + queries - 1) / queries;
    dim3 grid(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->heads));
    if (grid.x > 0) {
        if (attention_is_modified(call)) {
            LAUNCH(k, (wgmma_forward<D, CONSUMERS, FETCH_REGISTERS, COMPUTE_REGISTERS, true>), grid,
                   (CONSUMERS + 1) * WARPGROUP, space::bytes, t, maps[0], maps[1], maps[2]);
        } else {
            LAUNCH(k, (wgmma_forward<D, CONSUMERS, FETCH_REGISTERS, COMPUTE_REGISTERS, false>),
                   grid, (CONSUMERS + 1) * WARPGROUP, space::bytes, t, maps[0], maps[1], maps[2]);
        }
    }
    return STATUS_OK;
}

status attention_wgmma_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention_call *call, bool *done)
{
    const struct attention *a = call->a;
    gpu_map maps[3];
    *done = (a->head_width == 64 || a->head_width == 128) && !(a->dropout.probability > 0) &&
            a->shared_prefix_offsets == NULL && wgmma_is_enabled() &&
            wgmma_make_map(&maps[0], q, CONSUMER_QUERIES) && wgmma_make_map(&maps[1], keys, KEYS) &&
            wgmma_make_map(&maps[2], values, KEYS);
    if (!*done) {
        return STATUS_OK;
    }
    attention_task<bf16> t = make_attention_task<bf16>(q, keys, values, lse, call);
    t.out = make_matrix<bf16>(o);
    if (a->head_width == 128) {
        return launch_wgmma<128, 2, 24, 240>(k, t, call, maps);
    }
    return a->longest_q > 2 * CONSUMER_QUERIES ? launch_wgmma<64, 3, 32, 160>(k, t, call, maps)
                                               : launch_wgmma<64, 2, 24, 240>(k, t, call, maps);
}
