/* Attention forward on Hopper's tensor cores (sm_90a): TMA, wgmma, and warps that have parts.
 *
 * Layout    A block has 64 queries of a head for each of its consumers (warpgroups); the warpgroup after them only
 *           fetches: queries once, keys and values tile by tile into a ring of two stages each. Tiles are boxes of
 *           64 columns, rows of 128 bytes, swizzled by TMA.
 * Overlap   The scores of the next tile are issued before the product of this one's probabilities with the values,
 *           so that the softmax runs under it. Consumers take turns in issuing: one's softmax runs under the
 *           others' products.
 * Mask      as attention.cu: by element in tiles at an edge. A box may reach into the next sequence: its scores are
 *           masked, and its values made zero, since 0 times NaN is NaN.
 * Order     a row's sums are in the order of its keys, tile by tile, whatever the number of consumers
 * Source    Shah et al. 2024, arXiv:2407.08608 (FlashAttention-3) */
#include "kernels/cuda/attention_softmax.cuh"

#include <cstdlib>

enum { KEYS = 128, STAGES = 2, WARPGROUP = 128, CONSUMER_QUERIES = 64, BOX = 64, EDGE = 15 };

/* Shared memory: queries of each consumer, keys, values; boxes of BOX columns one after the other. */
template <int D, int CONSUMERS> struct room {
    static constexpr int queries = CONSUMER_QUERIES * D * 2, tile = KEYS * D * 2;
    static constexpr int keys_at = CONSUMERS * queries, values_at = keys_at + STAGES * tile;
    static constexpr int bytes = values_at + STAGES * tile;
};

struct ring {
    gpu_mbarrier *full, *empty; /* [STAGES] */
    unsigned char *tiles;
};

/* What a block is about: a sequence, a head, its queries from `first` on and the keys that these see. */
struct block_task {
    struct attention_sequence s;
    int first, begin, head, tiles;
};

template <int CONSUMERS> GPU_INLINE struct block_task block_task_of(const attention_task<bf16> &a)
{
    const int queries = CONSUMERS * CONSUMER_QUERIES;
    struct block_task t;
    t.s = sequence_of(a, blockIdx.x / a.tiles);
    int tile = static_cast<int>(blockIdx.x % a.tiles), end = 0;
    t.first = (a.causal ? static_cast<int>(a.tiles) - 1 - tile : tile) * queries;
    t.begin = 0;
    if (t.first < t.s.queries) {
        int last = t.s.queries < t.first + queries ? t.s.queries - 1 : t.first + queries - 1;
        end = visible_end(a, t.s, last);
        t.begin = visible_begin(a, visible_end(a, t.s, t.first)) / KEYS * KEYS;
    }
    t.tiles = end > t.begin ? (end - t.begin + KEYS - 1) / KEYS : 0;
    t.head = blockIdx.y;
    return t;
}

#ifdef GPU_HAS_SM90

/* ---- the one that fetches ---- */

template <int D>
GPU_INLINE void fetch(const struct ring &r, const gpu_map *map, int t, int row, int column)
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
GPU_INLINE void fetch_all(const attention_task<bf16> &a, const struct block_task &t,
                          unsigned char *queries, gpu_mbarrier *queries_full,
                          const struct ring &keys, const struct ring &values, const gpu_map *map_q,
                          const gpu_map *map_k, const gpu_map *map_v)
{
    int column = t.head / a.group * D, row = t.s.first_k + t.begin;
    gpu_mbarrier_expect(queries_full, CONSUMERS * CONSUMER_QUERIES * D * 2);
    for (int i = 0; i < CONSUMERS * (D / BOX); i++) {
        int c = i / (D / BOX), box = i % (D / BOX);
        gpu_copy_box(queries + i * CONSUMER_QUERIES * BOX * 2, map_q, t.head * D + box * BOX,
                     t.s.first_q + t.first + c * CONSUMER_QUERIES, queries_full);
    }
    for (int i = 0; i < t.tiles; i++) {
        fetch<D>(keys, map_k, i, row + i * KEYS, column);
        fetch<D>(values, map_v, i, row + i * KEYS, column);
    }
}

/* ---- those who compute ---- */

/* Consumers issue in turns. A turn is passed to all others; in the last round nobody waits for it but those who are
 * behind in that round. */
template <int CONSUMERS> GPU_INLINE void pass_turn(int me, bool to_before, bool to_behind)
{
#pragma unroll
    for (int other = 0; other < CONSUMERS; other++) {
        if (other != me && (other < me ? to_before : to_behind)) {
            gpu_barrier_arrive(1 + other, CONSUMERS * WARPGROUP);
        }
    }
}

/* s = q k^T of 64 queries and a tile of keys; issued. */
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

/* o += p v; issued. */
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

/* A stage is given back: each warp says so for itself. */
GPU_INLINE void give_back(gpu_mbarrier *empty)
{
    if (threadIdx.x % 32 == 0) {
        gpu_mbarrier_arrive(empty);
    }
}

GPU_INLINE void pack_scores(uint32_t (&p)[KEYS / 16][4], const float (&s)[KEYS / 8][4])
{
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        p[kk][0] = gpu_pack(s[2 * kk][0], s[2 * kk][1]);
        p[kk][1] = gpu_pack(s[2 * kk][2], s[2 * kk][3]);
        p[kk][2] = gpu_pack(s[2 * kk + 1][0], s[2 * kk + 1][1]);
        p[kk][3] = gpu_pack(s[2 * kk + 1][2], s[2 * kk + 1][3]);
    }
}

/* The rows of a tile of values from `valid` on become zero, before anybody multiplies with them. */
template <int D, int CONSUMERS> GPU_INLINE void clear_rows(unsigned char *values, int valid)
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

/* What a consumer is at: its queries' first row, its scores' place in the block. */
struct consumer {
    int number;
    int first, last, query; /* of the warpgroup, and the lane's first */
};

GPU_INLINE struct consumer consumer_of(const struct block_task &t)
{
    struct consumer c;
    c.number = threadIdx.x / WARPGROUP;
    c.first = t.first + c.number * CONSUMER_QUERIES;
    c.last = c.first + CONSUMER_QUERIES - 1;
    c.last = c.last < t.s.queries ? c.last : t.s.queries - 1;
    c.query = c.first + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    return c;
}

/* Scores that came become exponentials. */
GPU_INLINE void soften(float (&s)[1][KEYS / 8][4], struct running<1> &run, float (&shrink)[1][2],
                       const attention_task<bf16> &a, const struct block_task &t,
                       const struct consumer &c, int key)
{
    if (key + KEYS > visible_end(a, t.s, c.first) ||
        key < visible_begin(a, visible_end(a, t.s, c.last))) {
        mask_scores(s, a, t.s, c.query, key);
    }
    exponentials(s, run, shrink, a.scale * log2_e);
}

template <int D, int CONSUMERS>
GPU_INLINE void compute_tiles(const attention_task<bf16> &a, const struct block_task &t,
                              const struct consumer &c, const unsigned char *queries,
                              const struct ring &keys, const struct ring &values,
                              float (&o)[D / 8][4], struct running<1> &run)
{
    const int tile_bytes = KEYS * D * 2, turn = 1 + c.number;
    float s[1][KEYS / 8][4], shrink[1][2];
    uint32_t p[KEYS / 16][4];
    pass_turn<CONSUMERS>(c.number, true, false);
    gpu_mbarrier_wait(&keys.full[0], 0);
    gpu_barrier_sync(turn, CONSUMERS * WARPGROUP);
    gpu_wgmma_fence();
    issue_scores<D>(s[0], queries, keys.tiles);
    pass_turn<CONSUMERS>(c.number, t.tiles > 1, true);
    gpu_wgmma_wait<0>();
    gpu_wgmma_settle(s[0]);
    give_back(&keys.empty[0]);
    soften(s, run, shrink, a, t, c, t.begin);
    pack_scores(p, s[0]);
    for (int i = 1; i < t.tiles; i++) {
        int stage = i % STAGES, before = (i - 1) % STAGES;
        gpu_mbarrier_wait(&keys.full[stage], i / STAGES & 1);
        gpu_mbarrier_wait(&values.full[before], (i - 1) / STAGES & 1);
        gpu_barrier_sync(turn, CONSUMERS * WARPGROUP);
        gpu_wgmma_fence();
        issue_scores<D>(s[0], queries, keys.tiles + stage * tile_bytes);
        issue_values<D>(o, p, values.tiles + before * tile_bytes);
        pass_turn<CONSUMERS>(c.number, i < t.tiles - 1, true);
        gpu_wgmma_wait<1>();
        gpu_wgmma_settle(s[0]);
        give_back(&keys.empty[stage]);
        soften(s, run, shrink, a, t, c, t.begin + i * KEYS);
        gpu_wgmma_wait<0>();
        gpu_wgmma_settle(o);
        give_back(&values.empty[before]);
        shrink_sums(o, shrink[0]);
        pack_scores(p, s[0]);
    }
    int stage = (t.tiles - 1) % STAGES;
    int valid = t.s.keys - t.begin - (t.tiles - 1) * KEYS;
    gpu_mbarrier_wait(&values.full[stage], (t.tiles - 1) / STAGES & 1);
    if (valid < KEYS) {
        clear_rows<D, CONSUMERS>(values.tiles + stage * tile_bytes, valid);
    }
    gpu_wgmma_fence();
    issue_values<D>(o, p, values.tiles + stage * tile_bytes);
    gpu_wgmma_wait<0>();
    gpu_wgmma_settle(o);
}

template <int D, int CONSUMERS>
GPU_INLINE void compute(const attention_task<bf16> &a, const struct block_task &t,
                        const unsigned char *queries, gpu_mbarrier *queries_full,
                        const struct ring &keys, const struct ring &values)
{
    struct consumer c = consumer_of(t);
    float o[1][D / 8][4];
    struct running<1> run;
    running_clear(run);
    clear(o[0]);
    if (t.tiles > 0) {
        gpu_mbarrier_wait(queries_full, 0);
        compute_tiles<D, CONSUMERS>(a, t, c, queries + c.number * CONSUMER_QUERIES * D * 2, keys,
                                    values, o[0], run);
    }
    store_rows<D>(a, o, run, t.s, c.query, t.head);
}

#endif

template <int D, int CONSUMERS, int FETCH_REGISTERS, int COMPUTE_REGISTERS>
__global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
    wgmma_forward(const attention_task<bf16> a, const __grid_constant__ gpu_map map_q,
                  const __grid_constant__ gpu_map map_k, const __grid_constant__ gpu_map map_v)
{
#ifdef GPU_HAS_SM90
    using space = room<D, CONSUMERS>;
    GPU_SHARED_DYNAMIC(unsigned char, memory);
    GPU_SHARED(gpu_mbarrier, barriers, 1 + 4 * STAGES);
    struct ring keys = {barriers + 1, barriers + 1 + STAGES, memory + space::keys_at};
    struct ring values = {barriers + 1 + 2 * STAGES, barriers + 1 + 3 * STAGES,
                          memory + space::values_at};
    struct block_task t = block_task_of<CONSUMERS>(a);
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
            fetch_all<D, CONSUMERS>(a, t, memory, barriers, keys, values, &map_q, &map_k, &map_v);
        }
    } else {
        gpu_registers_raise<COMPUTE_REGISTERS>();
        compute<D, CONSUMERS>(a, t, memory, barriers, keys, values);
    }
#endif
}

/* ---- host ---- */

/* The registers of an SM's 64 Ki, as setmaxnreg shares them out. */
template <int D, int CONSUMERS, int FETCH_REGISTERS, int COMPUTE_REGISTERS>
static status run_wide(struct kernels *k, attention_task<bf16> t, const struct attention *a,
                       const gpu_map (&maps)[3])
{
    using space = room<D, CONSUMERS>;
    const int queries = CONSUMERS * CONSUMER_QUERIES;
    t.tiles = (a->longest_q + queries - 1) / queries;
    dim3 grid(static_cast<unsigned>(a->sequences * t.tiles), static_cast<unsigned>(a->heads));
    if (grid.x > 0) {
        GPU_ALLOW_SHARED((wgmma_forward<D, CONSUMERS, FETCH_REGISTERS, COMPUTE_REGISTERS>),
                         space::bytes);
        LAUNCH(k, (wgmma_forward<D, CONSUMERS, FETCH_REGISTERS, COMPUTE_REGISTERS>), grid,
               (CONSUMERS + 1) * WARPGROUP, space::bytes, t, maps[0], maps[1], maps[2]);
    }
    return STATUS_OK;
}

/* BIREME_ATTENTION=mma measures the other kernel on the same GPU. */
static bool is_wanted()
{
    const char *wanted = getenv("BIREME_ATTENTION");
    return gpu_capability() == 9 && (wanted == nullptr || strcmp(wanted, "mma") != 0);
}

static bool map_make(gpu_map *map, struct tensor t, int rows)
{
    return gpu_map_make(map, t.data, t.rows, t.columns, t.stride, rows, BOX);
}

status attention_wgmma_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention *a, bool *done)
{
    gpu_map maps[3];
    *done = (a->head_width == 64 || a->head_width == 128) && !(a->dropout.probability > 0) &&
            a->branches == NULL && is_wanted() && map_make(&maps[0], q, CONSUMER_QUERIES) &&
            map_make(&maps[1], keys, KEYS) && map_make(&maps[2], values, KEYS);
    if (!*done) {
        return STATUS_OK;
    }
    attention_task<bf16> t = attention_task_of<bf16>(q, keys, values, lse, a);
    t.out = matrix_of<bf16>(o);
    if (a->head_width == 128) {
        return run_wide<128, 2, 24, 240>(k, t, a, maps);
    }
    return a->longest_q > 2 * CONSUMER_QUERIES ? run_wide<64, 3, 32, 160>(k, t, a, maps)
                                               : run_wide<64, 2, 24, 240>(k, t, a, maps);
}
