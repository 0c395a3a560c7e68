/* The attention backward pass with wgmma, without its GEMMs: the order of the work, the producers,
 * and the scores of a tile.
 *
 * Sections  A section is a group of pairs (sequence, key-value head). Tickets go through the pairs
 *           of a section, key tile by key tile, then through the next section. The number of pairs
 *           limits the operands in the L2 cache. All sections have almost the same size.
 * Order     Tickets and turns begin with the first key tile of a sequence. An item iterates over
 *           its tiles of queries from the last to the first, and over the query heads within each
 *           tile. Without a window, all items of a pair use the same tile the same time after their
 *           start. Items with earlier keys start earlier, so few items wait for a turn. A tile is
 *           read again while it is in the L2 cache. With a causal mask the last items of a section
 *           are the shortest, so that all blocks end at almost the same time. In the opposite order
 *           of the keys, a few blocks would process the longest items at the end.
 * Items     A multiprocessor has one block, which processes items until the tickets end. Warp 0 of
 *           the producer takes a ticket when it has copied all tiles of the item before. It passes
 *           the item to the other warps in a ring of two slots. The values and keys of items are in
 *           a ring of four tiles if D = 64, else of three. With three tiles, the keys of an item
 *           take the place of the values of the item before, after its last step has used them. A
 *           consumer continues with the next item without a break. In the last step of an item it
 *           issues the first scores of the next item. In the first step of the next item it
 *           computes the last dq of this one.
 * Producer  Warp 0 copies tiles by TMA into rings of two stages. Warp 1 loads lse and delta. Warp 2
 *           waits for turns, adds dq to the sums by TMA, and passes the turns to the next blocks.
 *           It does this for a step while the consumers compute the next step. The consumers and
 *           warp 2 share one tile of dq in shared memory.
 * Barriers  In each step warp 2 completes dq_ready: the tile is free or, if the block is the last
 *           to add, contains the sum. Then the consumers write or read it and arrive at DQ_DONE.
 *           Warp 2 completes dq_ready only after DQ_DONE of the step before, and the consumers
 *           arrive at DQ_DONE only after dq_ready. Therefore neither is a full step ahead, and a
 *           barrier never counts arrivals of two steps. Warp 2 waits only for its consumers and for
 *           blocks with lower tickets. A consumer waits only for earlier steps, the other consumer
 *           and the producer. Therefore no schedule of warps leads to a deadlock. */
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"

enum {
    KEYS = CUDA_ATTENTION_KEYS,
    STAGES = 2,
    ITEMS = 2,
    CONSUMERS = 2,
    CONSUMER_KEYS = 64,
    SUM_COLUMNS = 64
};
enum { BLOCK_THREADS = (CONSUMERS + 1) * WARPGROUP, CONSUMER_THREADS = CONSUMERS * WARPGROUP };
enum { FETCH_REGISTERS = 40, COMPUTE_REGISTERS = 232 };
enum { COPY_WARP = CONSUMER_THREADS / 32, STATS_WARP, DQ_WARP }; /* of the producer */
enum { ALL_CONSUMERS = 1, DQ_DONE };                             /* named barriers */
enum { DQ_THREADS = CONSUMER_THREADS + 32 };
enum { SECTION_BYTES = 24 << 20 };

/* A block's 128 keys of a sequence and key-value head, and the tiles of queries [from, to) that
 * attend to them. `first` is the first key of the tile. */
struct block_item {
    struct attention_sequence s;
    struct hidden_keys hidden;
    int kv_head, tile, first, from, to; /* kv_head is -1 after the last item of the block */
};

/* The barriers and the ring of items of a block, in shared memory. */
struct block_barriers {
    gpu_mbarrier item_full[ITEMS], item_empty[ITEMS], keys_full[ITEMS]; /* keys and values */
    gpu_mbarrier q_full[STAGES], d_o_full[STAGES], stats_full[STAGES];
    gpu_mbarrier q_empty[STAGES], d_o_empty[STAGES];
    gpu_mbarrier dq_ready, ds_full[2]; /* ds_full: of even and odd steps */
    struct block_item items[ITEMS];
};

/* Byte offsets in shared memory. */
template <int D> struct backward_space {
    static constexpr int queries = D == 64 ? 128 : 64;
    static constexpr int keys = KEYS * D * 2, tile = queries * D * 2, ds = KEYS * queries * 2;
    static constexpr int key_tiles = D == 64 ? 4 : 3; /* values and keys of items in turn */
    static constexpr int q_at = key_tiles * keys, d_o_at = q_at + STAGES * tile;
    static constexpr int ds_at = d_o_at + STAGES * tile, dq_at = ds_at + 2 * ds;
    static constexpr int stats_at = dq_at + queries * D * int{sizeof(float)};
    static constexpr int barriers_at = stats_at + STAGES * 2 * queries * int{sizeof(float)};
    static constexpr int bytes = barriers_at + int{sizeof(block_barriers)};
};

/* Returns the values of an item of the block. */
template <int D> GPU_INLINE unsigned char *get_values(unsigned char *memory, int number)
{
    return memory + 2 * number % backward_space<D>::key_tiles * backward_space<D>::keys;
}

/* Returns the keys of an item of the block. */
template <int D> GPU_INLINE unsigned char *get_keys(unsigned char *memory, int number)
{
    return memory + (2 * number + 1) % backward_space<D>::key_tiles * backward_space<D>::keys;
}

struct backward_maps {
    gpu_map q, d_o, keys, values;
};

/* The division of tickets into items, and the memory for the order of the blocks. */
struct backward_plan {
    float *sums; /* of dq: [heads, rows of q, D], columns as in get_dq_offset */
    int kv_heads, pairs, section, tiles; /* pairs: sequences x kv_heads */
    int items;                           /* pairs x tiles */
};

/* The queries that attend to a key from `first` to `last`. */
struct query_range {
    int begin, end;
};

GPU_INLINE struct query_range get_queries(const attention_task<bf16> &a,
                                          const struct attention_sequence &s, int first, int last)
{
    int offset = s.queries - s.keys, window = static_cast<int>(a.window);
    struct query_range r = {0, s.queries};
    if (a.causal || window > 0) {
        r.begin = first + offset + (a.causal ? 0 : 1 - window);
    }
    if (window > 0 && last + offset + window < r.end) {
        r.end = last + offset + window;
    }
    return r;
}

template <int D>
GPU_INLINE struct block_item make_item(const attention_task<bf16> &a, const backward_plan &plan,
                                       int ticket)
{
    const int queries = backward_space<D>::queries;
    struct block_item t;
    int begin = ticket / (plan.section * plan.tiles) * plan.section;
    int pairs = plan.pairs - begin < plan.section ? plan.pairs - begin : plan.section;
    int within = ticket - begin * plan.tiles, pair = begin + within % pairs;
    int sequence = pair / plan.kv_heads;
    t.s = get_sequence(a, sequence);
    t.hidden = {0, 0};
    if (a.shared_prefix_offsets != nullptr) {
        t.hidden = {a.shared_prefix_offsets[2 * sequence],
                    a.shared_prefix_offsets[2 * sequence + 1]};
    }
    t.kv_head = pair % plan.kv_heads;
    t.tile = within / pairs;
    t.first = t.tile * KEYS;
    struct query_range r = get_queries(a, t.s, t.first, t.first + KEYS - 1);
    int from = r.begin < 0 ? 0 : r.begin < t.s.queries ? r.begin : t.s.queries;
    t.from = t.s.keys > 0 ? from / queries : (t.s.queries + queries - 1) / queries;
    t.to = r.end > 0 ? (r.end + queries - 1) / queries : 0;
    return t;
}

#ifdef GPU_HAS_SM90

/* The place of an item among the items that add to the dq of a tile of queries: the number of
 * earlier key tiles, and whether it is the last to add. */
struct rank {
    int number;
    bool last;
};

GPU_INLINE struct rank get_rank(const attention_task<bf16> &a, const struct block_item &t,
                                int query, int queries)
{
    int last = query + queries < t.s.queries ? query + queries - 1 : t.s.queries - 1;
    return {t.tile - visible_begin(a, t.s, query) / KEYS,
            t.first + KEYS >= visible_end(a, t.s, last)};
}

/* Waits for an item of the block and returns it. */
GPU_INLINE struct block_item get_item(block_barriers *b, int number)
{
    gpu_mbarrier_wait(&b->item_full[number % ITEMS], number / ITEMS & 1);
    return b->items[number % ITEMS];
}

/* Waits for an item of the block, releases its slot and returns the item. */
GPU_INLINE struct block_item take_item(block_barriers *b, int number)
{
    struct block_item t = get_item(b, number);
    __syncwarp();
    release_stage(&b->item_empty[number % ITEMS]);
    return t;
}

GPU_INLINE bool is_item(const struct block_item &t)
{
    return t.kv_head >= 0;
}

GPU_INLINE int count_steps(const attention_task<bf16> &a, const struct block_item &t)
{
    return t.from < t.to ? (t.to - t.from) * a.group : 0;
}

/* ---- producer ---- */

/* Takes tickets until an item has keys, or no item is left. Skips items without keys, except for
 * tile 0 of a sequence, for which the block zeroes dq. */
template <int D>
GPU_INLINE struct block_item draw_item(const attention_task<bf16> &a, const backward_plan &plan)
{
    struct block_item t, none = {};
    none.kv_head = -1;
    do {
        int ticket = static_cast<int>(gpu_take_ticket(a.turns + a.heads * a.rows_q));
        if (ticket >= plan.items) {
            return none;
        }
        t = make_item<D>(a, plan, ticket);
    } while (t.first >= t.s.keys && t.tile > 0);
    return t;
}

template <int D, int ROWS>
GPU_INLINE void copy_tile(unsigned char *to, const gpu_map *map, int row, int column,
                          gpu_mbarrier *full)
{
    gpu_mbarrier_expect(full, ROWS * D * 2);
#pragma unroll
    for (int box = 0; box < D / BOX; box++) {
        gpu_copy_box(to + box * ROWS * BOX * 2, map, column + box * BOX, row, full);
    }
}

/* Fills a slot with an item, and copies its values and keys. `steps` counts the block's earlier
 * steps. */
template <int D>
GPU_INLINE void copy_item(const struct block_item &t, int number, int steps, unsigned char *memory,
                          block_barriers *b, const backward_maps *maps)
{
    int slot = number % ITEMS, row = t.s.first_k + t.first, column = t.kv_head * D;
    gpu_mbarrier *full = &b->keys_full[slot];
    gpu_mbarrier_wait(&b->item_empty[slot], (number / ITEMS & 1) ^ 1);
    b->items[slot] = t;
    gpu_mbarrier_arrive(&b->item_full[slot]);
    if (t.from >= t.to) {
        gpu_mbarrier_arrive(full);
        gpu_mbarrier_arrive(full);
        return;
    }
    copy_tile<D, KEYS>(get_values<D>(memory, number), &maps->values, row, column, full);
    if (backward_space<D>::key_tiles == 3 && steps > 0) {
        gpu_mbarrier_wait(&b->d_o_empty[(steps - 1) % STAGES], (steps - 1) / STAGES & 1);
    }
    copy_tile<D, KEYS>(get_keys<D>(memory, number), &maps->keys, row, column, full);
}

template <int D>
GPU_INLINE void copy_tiles(const attention_task<bf16> &a, const backward_plan &plan,
                           unsigned char *memory, block_barriers *b, const backward_maps *maps)
{
    using space = backward_space<D>;
    int i = 0;
#pragma unroll 1
    for (int number = 0;; number++) {
        struct block_item t = draw_item<D>(a, plan);
        copy_item<D>(t, number, i, memory, b, maps);
        if (!is_item(t)) {
            return;
        }
        for (int m = t.to - 1; m >= t.from; m--) {
#pragma unroll 1
            for (int head = t.kv_head * a.group; head < (t.kv_head + 1) * a.group; head++, i++) {
                int stage = i % STAGES, phase = (i / STAGES & 1) ^ 1;
                int row = t.s.first_q + m * space::queries;
                gpu_mbarrier_wait(&b->q_empty[stage], phase);
                copy_tile<D, space::queries>(memory + space::q_at + stage * space::tile, &maps->q,
                                             row, head * D, &b->q_full[stage]);
                gpu_mbarrier_wait(&b->d_o_empty[stage], phase);
                copy_tile<D, space::queries>(memory + space::d_o_at + stage * space::tile,
                                             &maps->d_o, row, head * D, &b->d_o_full[stage]);
            }
        }
    }
}

/* Loads lse, in base two, and delta of the queries of each tile. lse is infinite for rows without
 * keys, so that p is 0 there. */
template <int D>
GPU_INLINE void load_stats(const attention_task<bf16> &a, const struct block_item &t, float *stats,
                           block_barriers *b, int i)
{
    const int queries = backward_space<D>::queries;
    for (int m = t.to - 1; m >= t.from; m--) {
#pragma unroll 1
        for (int head = t.kv_head * a.group; head < (t.kv_head + 1) * a.group; head++, i++) {
            int stage = i % STAGES;
            float *to = stats + stage * 2 * queries;
            gpu_mbarrier_wait(&b->q_empty[stage], (i / STAGES & 1) ^ 1);
            for (int row = threadIdx.x % 32; row < queries; row += 32) {
                int query = m * queries + row;
                bool inside = query < t.s.queries;
                int64_t at = t.s.first_q + query;
                to[row] = inside ? get_lse_base_two(a.lse[head * a.lse_stride + at]) : INFINITY;
                to[queries + row] = inside ? a.delta[head * a.rows_q + at] : 0.0f;
            }
            gpu_mbarrier_arrive(&b->stats_full[stage]);
        }
    }
}

/* Passes a turn, if there is one, when the additions have ended. */
GPU_INLINE void pass_turn(uint32_t *&turn)
{
    if (turn != nullptr) {
        gpu_bulk_wait();
        gpu_turn_pass(turn);
        turn = nullptr;
    }
}

/* Adds the tiles of dq to the sums in their turn. Where the block is the last to add, copies the
 * sum to shared memory instead. The tile is free when an addition has read it. Therefore the turn
 * is passed in the next step, or at the end of the item. */
template <int D>
GPU_INLINE void add_tiles(const attention_task<bf16> &a, const backward_plan &plan,
                          const struct block_item &t, unsigned char *memory, block_barriers *b)
{
    const int queries = backward_space<D>::queries;
    unsigned char *tile = memory + backward_space<D>::dq_at;
    bool leads = threadIdx.x % 32 == 0;
    uint32_t *added = nullptr; /* the turn to pass */
    for (int m = t.to - 1; m >= t.from; m--) {
        struct rank r = get_rank(a, t, m * queries, queries);
#pragma unroll 1
        for (int head = t.kv_head * a.group; head < (t.kv_head + 1) * a.group; head++) {
            int left = t.s.queries - m * queries;
            int bytes = (left < queries ? left : queries) * D * int{sizeof(float)};
            int64_t row = head * a.rows_q + t.s.first_q + m * queries;
            float *sum = plan.sums + row * D;
            uint32_t *turn = a.turns + row;
            bool loads = r.last && r.number > 0;
            if (leads && !loads) {
                gpu_mbarrier_arrive(&b->dq_ready);
                pass_turn(added);
            }
            if (leads && r.number > 0) {
                gpu_turn_wait(turn, static_cast<uint32_t>(r.number));
                gpu_fence_async_global();
            }
            if (leads && loads) {
                gpu_mbarrier_expect(&b->dq_ready, bytes);
                gpu_bulk_load(tile, sum, bytes, &b->dq_ready);
                pass_turn(added);
            }
            __syncwarp();
            gpu_barrier_sync(DQ_DONE, DQ_THREADS);
            if (leads && !r.last) {
                if (r.number > 0) {
                    gpu_bulk_add(sum, tile, bytes);
                } else {
                    gpu_bulk_store(sum, tile, bytes);
                }
                gpu_bulk_commit();
                gpu_bulk_wait_read();
                added = turn;
            }
            __syncwarp();
        }
    }
    if (leads) {
        pass_turn(added);
    }
}

/* ---- consumers: the scores of a tile in registers; rows are keys, columns queries ---- */

/* A consumer's number in the block, and its keys and rows. */
struct consumer {
    int number, first, key; /* first key of the consumer, and of the lane */
    int row;                /* first of the lane's rows of 64 */
};

/* Sets the scores of queries that do not attend to a key to -infinity. `key` is the first of the
 * lane's two keys. */
template <int N>
GPU_INLINE void mask_transposed(float (&s)[N][4], const attention_task<bf16> &a,
                                const struct block_item &t, int key, int query)
{
    const int first = query + static_cast<int>(threadIdx.x % 4) * 2; /* of the lane */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* the queries that attend to a key, relative to `first` */
        struct query_range range = get_queries(a, t.s, key + 8 * r, key + 8 * r);
        int begin = range.begin - first, end = key + 8 * r < t.s.keys ? range.end - first : 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                bool is_visible = 8 * n + e >= begin && 8 * n + e < end;
                s[n][2 * r + e] = is_visible ? s[n][2 * r + e] : -INFINITY;
            }
        }
    }
    if (t.hidden.end > t.hidden.begin) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (is_hidden(t.hidden, first + 8 * n + e % 2, key + e / 2 * 8)) {
                    s[n][e] = -INFINITY;
                }
            }
        }
    }
}

GPU_INLINE float2 load_pair(const float *p)
{
    return *reinterpret_cast<const float2 *>(p);
}

/* Multiplies dp - delta by the factors of dropout and by the derivative of the soft-cap, which
 * needs the scores. The scores are modified here; kept states which elements dropout keeps. */
template <int N>
GPU_INLINE void modify_tile(float (&s)[1][N][4], float (&ds)[N][4], uint32_t (&kept)[N / 8],
                            const attention_task<bf16> &a, const struct block_item &t,
                            const struct consumer &c, int head, int query, const float *delta)
{
    int column = threadIdx.x % 4 * 2;
    get_kept_words<8 * N, true>(kept, a, t.s.first_q + query + column, c.key, head);
    if (a.softcap > 0 || a.bias != nullptr) {
        modify_scores<true>(s, a, t.s, head, query + column, c.key);
    }
    float keep_scale = attention_dropout_scale(a);
#pragma unroll
    for (int n = 0; n < N; n++) {
        float2 pair = load_pair(delta + 8 * n + column);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool is_kept = (kept[n / 8] >> (n % 8 * 4 + e) & 1) != 0;
            float d = (is_kept ? ds[n][e] * keep_scale : 0.0f) - (e % 2 == 0 ? pair.x : pair.y);
            ds[n][e] = d * softcap_derivative(a, s[0][n][e]);
        }
    }
}

/* Masks the scores of a tile, if a query does not attend to a key. */
template <int N>
GPU_INLINE void mask_tile(float (&s)[N][4], const attention_task<bf16> &a,
                          const struct block_item &t, const struct consumer &c, int query)
{
    int last = query + 8 * N < t.s.queries ? query + 8 * N - 1 : t.s.queries - 1;
    if (query + 8 * N > t.s.queries || t.hidden.end > t.hidden.begin ||
        c.first + CONSUMER_KEYS > visible_end(a, t.s, query) ||
        c.first < visible_begin(a, t.s, last)) {
        mask_transposed(s, a, t, c.key, query);
    }
}

/* Replaces the scores of accumulators BEGIN to END by p. */
template <int BEGIN, int END, int N>
GPU_INLINE void compute_probabilities(float (&s)[N][4], const attention_task<bf16> &a,
                                      const float *lse)
{
    const float factor = a.score_scale * log2_e;
#pragma unroll
    for (int n = BEGIN; n < END; n++) {
        float2 pair = load_pair(lse + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = gpu_exp2(fmaf(s[n][e], factor, -(e % 2 == 0 ? pair.x : pair.y)));
        }
    }
}

/* Returns whether an accumulator from BEGIN on is negative. None is, but ptxas cannot detect it. */
template <int BEGIN, int N> GPU_INLINE bool has_sign(const float (&p)[N][4])
{
    uint32_t bits = 0;
#pragma unroll
    for (int n = BEGIN; n < N; n++) {
        bits |= gpu_bits(p[n][0]) | gpu_bits(p[n][1]) | gpu_bits(p[n][2]) | gpu_bits(p[n][3]);
    }
    return bits >> 31 != 0;
}

/* Computes ds = p (dp - delta). */
template <int N>
GPU_INLINE void compute_ds(float (&ds)[N][4], const float (&p)[N][4], const float *delta)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        float2 pair = load_pair(delta + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ds[n][e] = p[n][e] * (ds[n][e] - (e % 2 == 0 ? pair.x : pair.y));
        }
    }
}

/* Multiplies ds by p, then sets p to 0 where dropout does not keep the element. */
template <int N>
GPU_INLINE void multiply_kept(float (&ds)[N][4], float (&p)[N][4], const uint32_t (&kept)[N / 8])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            ds[n][e] *= p[n][e];
            p[n][e] = (kept[n / 8] >> (n % 8 * 4 + e) & 1) != 0 ? p[n][e] : 0.0f;
        }
    }
}

#endif
