/* Attention forward on the tensor cores of Hopper (sm_90a): TMA, wgmma and warp specialization.
 *
 *   s = scale q k^T,  o = softmax(s) v,  lse = log(sum exp(s))
 *
 * A soft-cap and a bias modify the scores of a tile before the softmax.
 *
 * Launch    grid (sequences * ceil(longest_q / S::block_queries), query heads of a group, key-value
 *           heads); block S::threads. Shared memory: struct forward_shape, 160 KiB for heads of 128
 *           and 112 KiB for heads of 64
 * Layout    Each consumer (a warpgroup) of a block processes 64 queries of a head. Keys and values
 *           are copied tile by tile into a ring of S::stages stages each. A tile is stored as boxes
 *           of 64 columns, with rows of 128 bytes, swizzled by TMA.
 * Copies    With one block per multiprocessor, a further warpgroup is the producer. With two
 *           blocks there are too few registers for a producer, so the first thread of each block
 *           copies. The start and the end of one block then overlap the GEMMs of the other.
 * Overlap   With a producer, a consumer issues the scores of the next tile before the GEMM of this
 *           tile's probabilities with the values, so that this GEMM overlaps the softmax. With
 *           S::in_turn, consumers issue in turn, so that the softmax of one overlaps the GEMMs of
 *           the others. Without a producer, the probabilities reuse the registers of the scores,
 *           and a consumer finishes a tile before the next one. Its softmax overlaps the GEMMs of
 *           the other three consumers of the multiprocessor.
 * Mask      As in attention.cu, tiles at an edge of the mask are masked element by element, 64 keys
 *           at a time. Without a producer, a consumer computes only the first half of its last tile
 *           if its queries attend to no key of the second half. A box may reach into the next
 *           sequence: its scores are masked and its values set to zero, since 0 times NaN is NaN.
 * Order     The sums of a row are in the order of its keys, tile by tile, for any number
 *           of consumers.
 * Source    Shah et al. 2024, arXiv:2407.08608 (FlashAttention-3) */
#include "kernels/cuda/attention/attention_softmax.cuh"

enum { CONSUMER_QUERIES = 64, EDGE = 15 };

/* The shape of a block: head width, keys of a tile, consumers, blocks of a multiprocessor, and
 * whether consumers issue in turn. A block with a producer divides its registers with setmaxnreg.
 *
 * Byte offsets in shared memory: the queries of each consumer, then keys, then values, in boxes of
 * BOX columns; then the mbarriers. */
template <int HEAD_WIDTH, int TILE_KEYS, int WARPGROUPS, int BLOCKS, bool IN_TURN>
struct forward_shape {
    static constexpr int D = HEAD_WIDTH, KEYS = TILE_KEYS, CONSUMERS = WARPGROUPS;
    static constexpr int blocks = BLOCKS, stages = D == 64 ? 3 : 2;
    static constexpr bool has_producer = BLOCKS == 1, in_turn = IN_TURN;
    static constexpr int threads = (CONSUMERS + has_producer) * WARPGROUP;
    static constexpr int block_queries = CONSUMERS * CONSUMER_QUERIES;
    static constexpr int fetch_registers = 24, compute_registers = 240; /* two consumers */
    static constexpr int queries = CONSUMER_QUERIES * D * 2, tile = KEYS * D * 2;
    static constexpr int keys_at = CONSUMERS * queries, values_at = keys_at + stages * tile;
    static constexpr int barriers_at = values_at + stages * tile;
    static constexpr int bytes = barriers_at + (1 + 4 * stages) * int{sizeof(gpu_mbarrier)};
};

struct tile_ring {
    gpu_mbarrier *full, *empty; /* [stages] */
    unsigned char *tiles;
    const gpu_map *map;
};

/* The shared memory of a block, and the operands that are copied into it. */
struct block_memory {
    unsigned char *queries;
    gpu_mbarrier *queries_full;
    const gpu_map *map_q;
    struct tile_ring keys, values;
};

/* The work of a block: a sequence, a head, the queries from `first` on, and the tiles of
 * their keys. */
struct block_task {
    struct attention_sequence s;
    int first, begin, head, kv_head, tiles;
};

template <class S> GPU_INLINE struct block_task make_block_task(const attention_task<bf16> &a)
{
    const int queries = S::block_queries;
    struct block_task t;
    unsigned tiles = static_cast<unsigned>(a.tiles), tile = blockIdx.x % tiles;
    t.s = get_sequence(a, blockIdx.x / tiles);
    t.first = static_cast<int>(a.causal ? tiles - 1 - tile : tile) * queries;
    int end = 0;
    t.begin = 0;
    if (t.first < t.s.queries) {
        int last = t.s.queries < t.first + queries ? t.s.queries - 1 : t.first + queries - 1;
        end = visible_end(a, t.s, last);
        t.begin = visible_begin(a, t.s, t.first) / S::KEYS * S::KEYS;
    }
    t.tiles = end > t.begin ? (end - t.begin + S::KEYS - 1) / S::KEYS : 0;
    t.kv_head = blockIdx.z;
    t.head = blockIdx.z * gridDim.y + blockIdx.y;
    return t;
}

#ifdef GPU_HAS_SM90

/* ---- copies ---- */

template <class S>
GPU_INLINE void fetch_queries(const struct block_task &t, const struct block_memory &m)
{
    const int boxes = S::D / BOX;
    gpu_mbarrier_expect(m.queries_full, S::CONSUMERS * S::queries);
    for (int i = 0; i < S::CONSUMERS * boxes; i++) {
        gpu_copy_box(m.queries + i * CONSUMER_QUERIES * BOX * 2, m.map_q,
                     t.head * S::D + i % boxes * BOX,
                     t.s.first_q + t.first + i / boxes * CONSUMER_QUERIES, m.queries_full);
    }
}

/* Copies tile i, if the block has one, after all consumers have released its stage. */
template <class S>
GPU_INLINE void fetch_tile(const struct block_task &t, const struct tile_ring &r, int i)
{
    int stage = i % S::stages;
    if (i >= t.tiles) {
        return;
    }
    gpu_mbarrier_wait(&r.empty[stage], (i / S::stages & 1) ^ 1);
    gpu_mbarrier_expect(&r.full[stage], S::tile);
#pragma unroll
    for (int c = 0; c < S::D / BOX; c++) {
        gpu_copy_box(r.tiles + stage * S::tile + c * S::KEYS * BOX * 2, r.map,
                     t.kv_head * S::D + c * BOX, t.s.first_k + t.begin + i * S::KEYS,
                     &r.full[stage]);
    }
}

/* Copies the queries and the first tiles of a block. */
template <class S>
GPU_INLINE void fetch_first(const struct block_task &t, const struct block_memory &m, int tiles)
{
    fetch_queries<S>(t, m);
    for (int i = 0; i < tiles; i++) {
        fetch_tile<S>(t, m.keys, i);
        fetch_tile<S>(t, m.values, i);
    }
}

/* Without a producer, the first thread refills the stages of tile i - 2 while its consumer computes
 * tile i. It waits until the other consumers have released these stages. This cannot deadlock: all
 * tiles that the others need before this release are already copied or on the way. */
template <class S>
GPU_INLINE void refill_stages(const struct block_task &t, const struct block_memory &m, int i)
{
    if (!S::has_producer && threadIdx.x == 0 && i > 1) {
        fetch_tile<S>(t, m.keys, i - 2 + S::stages);
        fetch_tile<S>(t, m.values, i - 2 + S::stages);
    }
}

/* ---- consumers ---- */

/* Waits for the turn of a consumer to issue. */
template <class S> GPU_INLINE void wait_turn(int me)
{
    if (S::in_turn) {
        gpu_barrier_sync(1 + me, S::CONSUMERS * WARPGROUP);
    }
}

/* Lets the other consumers issue, by an arrival at their barriers. In the last round only the
 * consumers with higher numbers still wait, so only they are signalled. A consumer signals the next
 * round only after it has passed its own barrier. The others arrive at that barrier only after they
 * have passed their barriers of this round. Therefore no barrier counts arrivals of two rounds. */
template <class S> GPU_INLINE void signal_turn(int me, bool signal_lower, bool signal_higher)
{
#pragma unroll
    for (int other = 0; other < (S::in_turn ? S::CONSUMERS : 0); other++) {
        if (other != me && (other < me ? signal_lower : signal_higher)) {
            gpu_barrier_arrive(1 + other, S::CONSUMERS * WARPGROUP);
        }
    }
}

/* Issues s = q k^T for 64 queries and the first 8 N keys of a tile. */
template <class S, int N>
GPU_INLINE void issue_scores(float (&s)[N][4], const unsigned char *q, const unsigned char *keys)
{
#pragma unroll
    for (int kk = 0; kk < S::D / 16; kk++) {
        int box = kk / 4, within = kk % 4;
        gpu_wgmma(s, gpu_matrix_descriptor(q + box * CONSUMER_QUERIES * BOX * 2) + 2 * within,
                  gpu_matrix_descriptor(keys + box * S::KEYS * BOX * 2) + 2 * within, kk > 0);
    }
    gpu_wgmma_commit();
}

/* Issues o += p v for the first 16 N keys of a tile. */
template <class S, int N>
GPU_INLINE void issue_values(float (&o)[S::D / 8][4], const uint32_t (&p)[N][4],
                             const unsigned char *values)
{
    uint64_t descriptor = gpu_columns_descriptor(values, S::KEYS * BOX * 2);
#pragma unroll
    for (int kk = 0; kk < N; kk++) {
        gpu_wgmma(o, p[kk], descriptor + 128 * kk, true);
    }
    gpu_wgmma_commit();
}

/* Zeroes the rows of a tile of values from `valid` on, before any consumer multiplies with them.
 * Every consumer calls it. */
template <class S> GPU_INLINE void clear_tail_rows(unsigned char *values, int valid)
{
    const uint4 zero = {0, 0, 0, 0};
    for (int box = 0; box < S::D / BOX; box++) {
        unsigned char *from = values + (box * S::KEYS + valid) * BOX * 2;
        for (int i = threadIdx.x; i < (S::KEYS - valid) * BOX / 8; i += S::CONSUMERS * WARPGROUP) {
            gpu_store16(from + 16 * i, zero);
        }
    }
    gpu_fence_async();
    gpu_barrier_sync(EDGE, S::CONSUMERS * WARPGROUP);
}

/* A consumer's number in the block, the queries that it processes, and the tiles of their keys. */
struct consumer {
    int number;
    int first, last, query; /* first and last query of the warpgroup, first query of the lane */
    int tiles;
    bool half; /* no query of the consumer attends to the second half of the last tile */
};

template <class S>
GPU_INLINE struct consumer make_consumer(const attention_task<bf16> &a, const struct block_task &t)
{
    struct consumer c;
    /* With a number from a shuffle, ptxas computes in uniform registers. */
    c.number = __shfl_sync(~0u, static_cast<int>(threadIdx.x / WARPGROUP), 0);
    c.first = t.first + c.number * CONSUMER_QUERIES;
    c.last = c.first + CONSUMER_QUERIES - 1;
    c.last = c.last < t.s.queries ? c.last : t.s.queries - 1;
    c.query = c.first + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    int keys = c.first < t.s.queries ? visible_end(a, t.s, c.last) - t.begin : 0;
    c.tiles = keys > 0 ? (keys + S::KEYS - 1) / S::KEYS : 0;
    c.half = c.tiles * S::KEYS - keys >= S::KEYS / 2;
    return c;
}

/* Modifies and masks the scores of a tile and replaces them by their exponentials. */
template <bool MODIFIED, int N>
GPU_INLINE void softmax_tile(float (&s)[1][N][4], struct running_softmax<1> &run,
                             float (&rescale)[1][2], const attention_task<bf16> &a,
                             const struct block_task &t, const struct consumer &c, int key)
{
    if (MODIFIED) {
        modify_scores<false>(s, a, t.s, t.head, c.query, key + threadIdx.x % 4 * 2);
    }
    int end = visible_end(a, t.s, c.first), begin = visible_begin(a, t.s, c.last);
    if (key + 8 * N > end || key < begin) {
#pragma unroll
        for (int n = 0; n < N; n += 8) {
            if (key + 8 * n + 64 > end || key + 8 * n < begin) {
                mask_scores(s, a, t.s, c.query, key, n, n + 8);
            }
        }
    }
    update_softmax(s, run, rescale, MODIFIED ? log2_e : a.score_scale * log2_e);
}

/* Waits for tile i of the values; rows after the keys of the sequence become zeros. */
template <class S>
GPU_INLINE const unsigned char *wait_values(const struct block_task &t,
                                            const struct tile_ring &values, int i)
{
    int stage = i % S::stages, valid = t.s.keys - t.begin - i * S::KEYS;
    gpu_mbarrier_wait(&values.full[stage], i / S::stages & 1);
    if (valid < S::KEYS) {
        clear_tail_rows<S>(values.tiles + stage * S::tile, valid);
    }
    return values.tiles + stage * S::tile;
}

/* Takes part in the rounds of tiles to which no query of the consumer attends. */
template <class S>
GPU_INLINE void skip_tiles(const struct block_task &t, const struct block_memory &m,
                           const struct consumer &c)
{
    for (int i = c.tiles; i < t.tiles; i++) {
        int stage = i % S::stages;
        refill_stages<S>(t, m, i);
        gpu_mbarrier_wait(&m.keys.full[stage], i / S::stages & 1);
        wait_turn<S>(c.number);
        signal_turn<S>(c.number, i < t.tiles - 1, true);
        __syncwarp();
        release_stage(&m.keys.empty[stage]);
        wait_values<S>(t, m.values, i);
        __syncwarp();
        release_stage(&m.values.empty[stage]);
    }
}

template <class S, bool MODIFIED>
GPU_INLINE void compute_tiles(const attention_task<bf16> &a, const struct block_task &t,
                              const struct block_memory &m, const struct consumer &c,
                              float (&o)[S::D / 8][4], struct running_softmax<1> &run)
{
    const int KEYS = S::KEYS;
    const unsigned char *queries = m.queries + c.number * S::queries;
    const struct tile_ring &keys = m.keys, &values = m.values;
    float s[1][KEYS / 8][4], rescale[1][2];
    uint32_t p[KEYS / 16][4];
    gpu_mbarrier_wait(&keys.full[0], 0);
    wait_turn<S>(c.number);
    gpu_wgmma_order(s[0]);
    gpu_wgmma_fence();
    issue_scores<S>(s[0], queries, keys.tiles);
    signal_turn<S>(c.number, t.tiles > 1, true);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(s[0]);
    release_stage(&keys.empty[0]);
    softmax_tile<MODIFIED>(s, run, rescale, a, t, c, t.begin);
    pack_scores(p, s[0]);
    gpu_mbarrier_wait(&values.full[0], 0);
    for (int i = 1; i < c.tiles; i++) {
        int stage = i % S::stages, before = (i + S::stages - 1) % S::stages;
        gpu_mbarrier_wait(&keys.full[stage], i / S::stages & 1);
        wait_turn<S>(c.number);
        gpu_wgmma_order(s[0]);
        gpu_wgmma_order(p);
        gpu_wgmma_order(o);
        gpu_wgmma_fence();
        issue_scores<S>(s[0], queries, keys.tiles + stage * S::tile);
        issue_values<S>(o, p, values.tiles + before * S::tile);
        signal_turn<S>(c.number, i < t.tiles - 1, true);
        gpu_wgmma_wait<1>();
        gpu_wgmma_order(s[0]);
        release_stage(&keys.empty[stage]);
        softmax_tile<MODIFIED>(s, run, rescale, a, t, c, t.begin + i * KEYS);
        /* Without this branch, ptxas moves the wait for the GEMM before the softmax. */
        gpu_mbarrier_wait(&values.full[stage], i / S::stages & 1);
        gpu_wgmma_wait<0>();
        gpu_wgmma_order(o);
        release_stage(&values.empty[before]);
        rescale_sums(o, rescale[0]);
        pack_scores(p, s[0]);
    }
    const unsigned char *last = wait_values<S>(t, values, c.tiles - 1);
    gpu_wgmma_order(p);
    gpu_wgmma_order(o);
    gpu_wgmma_fence();
    issue_values<S>(o, p, last);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(o);
    release_stage(&values.empty[(c.tiles - 1) % S::stages]);
}

/* Adds the first KEYS keys of tile i to the sums of a consumer. */
template <class S, bool MODIFIED, int KEYS>
GPU_INLINE void compute_tile(const attention_task<bf16> &a, const struct block_task &t,
                             const struct block_memory &m, const struct consumer &c, int i,
                             float (&o)[S::D / 8][4], struct running_softmax<1> &run)
{
    float s[1][KEYS / 8][4], rescale[1][2];
    uint32_t p[KEYS / 16][4];
    int stage = i % S::stages;
    gpu_mbarrier_wait(&m.keys.full[stage], i / S::stages & 1);
    gpu_wgmma_order(s[0]);
    gpu_wgmma_fence();
    issue_scores<S>(s[0], m.queries + c.number * S::queries, m.keys.tiles + stage * S::tile);
    refill_stages<S>(t, m, i);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(s[0]);
    release_stage(&m.keys.empty[stage]);
    softmax_tile<MODIFIED>(s, run, rescale, a, t, c, t.begin + i * S::KEYS);
    rescale_sums(o, rescale[0]);
    pack_scores(p, s[0]);
    const unsigned char *values = wait_values<S>(t, m.values, i);
    gpu_wgmma_order(p);
    gpu_wgmma_order(o);
    gpu_wgmma_fence();
    issue_values<S>(o, p, values);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(o);
    release_stage(&m.values.empty[stage]);
}

template <class S, bool MODIFIED>
GPU_INLINE void compute_tiles_in_order(const attention_task<bf16> &a, const struct block_task &t,
                                       const struct block_memory &m, const struct consumer &c,
                                       float (&o)[S::D / 8][4], struct running_softmax<1> &run)
{
    int whole = c.tiles - c.half;
    for (int i = 0; i < whole; i++) {
        compute_tile<S, MODIFIED, S::KEYS>(a, t, m, c, i, o, run);
    }
    if (c.half) {
        compute_tile<S, MODIFIED, S::KEYS / 2>(a, t, m, c, whole, o, run);
    }
}

template <class S, bool MODIFIED>
GPU_INLINE void run_consumer(const attention_task<bf16> &a, const struct block_task &t,
                             const struct block_memory &m)
{
    struct consumer c = make_consumer<S>(a, t);
    float o[1][S::D / 8][4];
    struct running_softmax<1> run;
    clear_running(run);
    clear_sums(o[0]);
    if (t.tiles > 0) {
        signal_turn<S>(c.number, true, false);
        if (c.tiles > 0) {
            gpu_mbarrier_wait(m.queries_full, 0);
            if (S::has_producer) {
                compute_tiles<S, MODIFIED>(a, t, m, c, o[0], run);
            } else {
                compute_tiles_in_order<S, MODIFIED>(a, t, m, c, o[0], run);
            }
        }
        skip_tiles<S>(t, m, c);
    }
    store_rows<S::D>(a, o, run, t.s, c.query, t.head);
}

#endif

template <class S, bool MODIFIED>
__global__ void __launch_bounds__(S::threads, S::blocks)
    wgmma_forward(const attention_task<bf16> a, const __grid_constant__ gpu_map map_q,
                  const __grid_constant__ gpu_map map_k, const __grid_constant__ gpu_map map_v)
{
#ifdef GPU_HAS_SM90
    GPU_SHARED_DYNAMIC(unsigned char, memory);
    gpu_require_swizzle_base(memory);
    gpu_mbarrier *barriers = reinterpret_cast<gpu_mbarrier *>(memory + S::barriers_at);
    gpu_mbarrier *of_keys = barriers + 1, *of_values = of_keys + 2 * S::stages;
    struct block_memory m = {
        memory,
        barriers,
        &map_q,
        {of_keys, of_keys + S::stages, memory + S::keys_at, &map_k},
        {of_values, of_values + S::stages, memory + S::values_at, &map_v},
    };
    struct block_task t = make_block_task<S>(a);
    if (t.first >= t.s.queries) {
        return;
    }
    if (threadIdx.x == 0) {
        gpu_mbarrier_init(barriers, 1);
        for (int i = 0; i < S::stages; i++) {
            gpu_mbarrier_init(&m.keys.full[i], 1);
            gpu_mbarrier_init(&m.values.full[i], 1);
            gpu_mbarrier_init(&m.keys.empty[i], S::CONSUMERS * WARPGROUP / 32);
            gpu_mbarrier_init(&m.values.empty[i], S::CONSUMERS * WARPGROUP / 32);
        }
        gpu_fence_async();
        if (!S::has_producer && t.tiles > 0) {
            fetch_first<S>(t, m, S::stages);
        }
    }
    __syncthreads();
    if (!S::has_producer) {
        run_consumer<S, MODIFIED>(a, t, m);
    } else if (threadIdx.x >= S::CONSUMERS * WARPGROUP) {
        gpu_registers_lower<S::fetch_registers>();
        if (threadIdx.x == S::CONSUMERS * WARPGROUP && t.tiles > 0) {
            fetch_first<S>(t, m, t.tiles);
        }
    } else {
        gpu_registers_raise<S::compute_registers>();
        run_consumer<S, MODIFIED>(a, t, m);
    }
#endif
}

/* ---- host ---- */

template <class S>
static status launch_wgmma(struct kernels *k, attention_task<bf16> t, struct tensor q,
                           struct tensor keys, struct tensor values,
                           const struct attention_call *call, bool *done)
{
    const struct attention *a = call->a;
    gpu_map maps[3];
    *done = wgmma_make_map(&maps[0], q, CONSUMER_QUERIES) &&
            wgmma_make_map(&maps[1], keys, S::KEYS) && wgmma_make_map(&maps[2], values, S::KEYS);
    t.tiles = (a->longest_q + S::block_queries - 1) / S::block_queries;
    dim3 grid(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(t.group),
              static_cast<unsigned>(a->kv_heads));
    if (!*done || grid.x == 0) {
        return STATUS_OK;
    }
    if (attention_is_modified(call)) {
        LAUNCH(k, (wgmma_forward<S, true>), grid, S::threads, S::bytes, t, maps[0], maps[1],
               maps[2]);
    } else {
        LAUNCH(k, (wgmma_forward<S, false>), grid, S::threads, S::bytes, t, maps[0], maps[1],
               maps[2]);
    }
    return STATUS_OK;
}

status attention_wgmma_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention_call *call, bool *done)
{
    const struct attention *a = call->a;
    *done = false;
    if ((a->head_width != 64 && a->head_width != 128) || a->dropout.probability > 0 ||
        a->shared_prefix_offsets != NULL || !wgmma_is_enabled()) {
        return STATUS_OK;
    }
    attention_task<bf16> t = make_attention_task<bf16>(q, keys, values, lse, call);
    t.out = make_matrix<bf16>(o);
    if (a->head_width == 128) {
        return launch_wgmma<forward_shape<128, 128, 2, 1, true>>(k, t, q, keys, values, call, done);
    }
    return launch_wgmma<forward_shape<64, 128, 2, 2, false>>(k, t, q, keys, values, call, done);
}
