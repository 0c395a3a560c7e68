/* Attention backward on the tensor cores of Hopper (sm_90a): TMA, wgmma and warp specialization.
 * attention_backward.cu states the formulas and computes delta.
 *
 * Launch    grid (multiprocessors, at most work items); block 384: two consumers (warpgroups) and a
 *           producer. Shared memory: struct backward_space, 227 KiB for D = 64, 226 KiB for D = 128
 * Work      An item is 128 keys of a sequence and key-value head. A block processes items until
 *           none is left. It copies keys and values of an item once, and iterates over the tiles
 *           of their queries (128 for D = 64, 64 for D = 128) and the query heads of the group.
 *           Each consumer has 64 keys. It keeps s^T and ds^T in registers, where the GEMMs of dv
 *           and dk read them. Both consumers store ds^T to shared memory, and each computes half of
 *           the tile's dq = ds k. A step has five GEMMs.
 * Overlap   dq of a step is computed in the next step, even if it belongs to the next item. A
 *           consumer therefore issues its GEMMs of dv, dk and the next scores before it waits for
 *           ds^T of the other consumer. One consumer computes the softmax while the other one uses
 *           the tensor cores.
 * Order     The sums of dq are f32 in global memory. The blocks of a tile add to them in turn, from
 *           the first keys to the last: the first block stores, the last one rounds the sum to
 *           bf16. One block sums dk and dv, from the last queries to the first. The bits of a
 *           sequence depend only on its data.
 * Deadlock  An item waits only for items with earlier keys of its sequence and head. These have
 *           lower tickets. A block processes its items in the order of their tickets, so the
 *           unfinished item with the lowest ticket never waits.
 * Tiles     For D = 128 a tile has 64 queries, also for full attention. With 80 queries, dv, dk,
 *           s^T and dp^T alone need 208 of 232 registers, and 80 is not a multiple of the 64
 *           queries of a swizzled box.
 * Templates D: head width. N: a thread has [N][4] values of a tile with 8 N columns.
 *           GENERAL: with a soft-cap, a position bias or dropout (modify_tile). A step then
 *           computes its scores itself, not the previous step.
 * Others    Other head widths, fp32, rows that cannot be read 16 bytes at a time and other GPUs use
 *           attention_backward.cu or attention_rows.cu. BIREME_ATTENTION=mma selects these files
 *           too.
 * Source    Shah et al. 2024, arXiv:2407.08608 (FlashAttention-3) */
#include "kernels/cuda/attention/attention_wgmma_work.cuh"

#ifdef GPU_HAS_SM90

/* ---- consumers ---- */

/* Issues d = k q^T for the consumer's 64 rows of a tile of keys or values and a tile of queries. */
template <int D, int N>
GPU_INLINE void issue_transposed(float (&d)[N][4], const unsigned char *keys,
                                 const unsigned char *q)
{
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        int box = kk / 4, within = kk % 4;
        gpu_wgmma(d, gpu_matrix_descriptor(keys + box * KEYS * BOX * 2) + 2 * within,
                  gpu_matrix_descriptor(q + box * 8 * N * BOX * 2) + 2 * within, kk > 0);
    }
    gpu_wgmma_commit();
}

/* Issues sums += p b, for p in registers and a tile of queries. */
template <int D, int N>
GPU_INLINE void issue_rows(float (&sums)[D / 8][4], const uint32_t (&p)[N][4],
                           const unsigned char *b)
{
    uint64_t descriptor = gpu_columns_descriptor(b, 16 * N * BOX * 2);
#pragma unroll
    for (int kk = 0; kk < N; kk++) {
        gpu_wgmma(sums, p[kk], descriptor + 128 * kk, true);
    }
    gpu_wgmma_commit();
}

/* Issues the consumer's half of dq = ds k. The half is 64 queries if D = 64, else 64 columns. */
template <int D>
GPU_INLINE void issue_dq(float (&dq)[SUM_COLUMNS / 8][4], const unsigned char *ds,
                         const unsigned char *keys, int consumer)
{
    int box = consumer * KEYS * BOX * 2;
    uint64_t rows = gpu_columns_descriptor(ds + (D == 64 ? box : 0), KEYS * BOX * 2);
    uint64_t columns = gpu_columns_descriptor(keys + (D == 64 ? 0 : box), KEYS * BOX * 2);
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        gpu_wgmma_columns(dq, rows + 128 * kk, columns + 128 * kk, kk > 0);
    }
    gpu_wgmma_commit();
}

/* Stores ds^T, rounded to bf16, in swizzled boxes of 64 queries. */
template <int N>
GPU_INLINE void store_ds(unsigned char *ds, const uint32_t (&packed)[N][4], int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int kk = 0; kk < N; kk++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i % 2 * 8, chunk = 2 * kk + i / 2;
            int at = chunk / 8 * KEYS * BOX * 2 + r * BOX * 2 + ((chunk ^ (r & 7)) & 7) * 16;
            *reinterpret_cast<uint32_t *>(ds + at + lane % 4 * 4) = packed[kk][i];
        }
    }
}

/* Zeroes the rows of a tile from `valid` on, in boxes of `rows` rows, by all consumers. */
template <int D, int ROWS> GPU_INLINE void clear_tile_rows(unsigned char *tile, int valid)
{
    const uint4 zero = {0, 0, 0, 0};
    for (int box = 0; box < D / BOX; box++) {
        unsigned char *from = tile + (box * ROWS + valid) * BOX * 2;
        for (int i = threadIdx.x; i < (ROWS - valid) * BOX / 8; i += CONSUMER_THREADS) {
            gpu_store16(from + 16 * i, zero);
        }
    }
}

GPU_INLINE void wait_for_consumers()
{
    gpu_fence_async();
    gpu_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS);
}

/* Transposes the 4 x 4 words of four lanes: word j of lane i becomes word i of lane j. */
GPU_INLINE void transpose_words(uint32_t (&w)[4])
{
    bool is_odd = threadIdx.x % 2 != 0, is_high = threadIdx.x % 4 >= 2;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        uint32_t got = __shfl_xor_sync(~0u, is_odd ? w[j] : w[j + 1], 1);
        w[j] = is_odd ? got : w[j];
        w[j + 1] = is_odd ? w[j + 1] : got;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t got = __shfl_xor_sync(~0u, is_high ? w[j] : w[j + 2], 2);
        w[j] = is_high ? got : w[j];
        w[j + 2] = is_high ? w[j + 2] : got;
    }
}

/* Stores the lane's two rows of 16, multiplied by a factor, as store_sums does, but 16 bytes at a
 * time. Four lanes store 64 adjacent bytes: complete sectors. */
template <int D>
GPU_INLINE void store_rows(const matrix<bf16> &to, const float (&sums)[D / 8][4], int64_t first,
                           int valid, int64_t column, float factor)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        bf16 *at = to.data + (first + row) * to.stride + column + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < D / 8; n += 4) {
            uint32_t w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                w[j] = gpu_pack(sums[n + j][2 * r] * factor, sums[n + j][2 * r + 1] * factor);
            }
            transpose_words(w);
            if (row < valid) {
                gpu_store16(at + 8 * n, uint4{w[0], w[1], w[2], w[3]});
            }
        }
    }
}

/* A step of a block: the number of its item, a query head, the first query of a tile, and the
 * number of earlier steps. */
struct step {
    int item, head, query, number;
};

/* Returns the byte offset of the lane's columns 0 and 1 in a consumer's half of the tile of dq.
 * The columns from 8 n on are at this offset xor 32 n. Therefore the order of columns in memory
 * differs between rows, and a warp has no bank conflicts. */
template <int D> GPU_INLINE int get_dq_offset(const struct consumer &c)
{
    int row = (D == 64 ? 64 * c.number : 0) + c.row, column = D == 64 ? 0 : 64 * c.number;
    int lane = threadIdx.x % 32;
    return (row * D + column) * int{sizeof(float)} + (lane / 4 & 3) * 32 + lane % 4 * 8;
}

/* Writes a consumer's half of dq to the tile that is added to the sums. If the block is the last to
 * add, adds the sum to dq instead, and stores dq. */
template <int D>
GPU_INLINE void add_half(float (&dq)[SUM_COLUMNS / 8][4], const attention_task<bf16> &a,
                         const struct block_item &t, const struct consumer &c,
                         unsigned char *memory, block_barriers *b, const struct step &p)
{
    struct rank rank = get_rank(a, t, p.query, backward_space<D>::queries);
    unsigned char *tile = memory + backward_space<D>::dq_at;
    const int at = get_dq_offset<D>(c), next = 8 * D * int{sizeof(float)}; /* eight rows later */
    gpu_mbarrier_wait(&b->dq_ready, p.number & 1);
    if (!rank.last) {
#pragma unroll
        for (int n = 0; n < SUM_COLUMNS / 8; n++) {
            unsigned char *to = tile + (at ^ 32 * n);
            *reinterpret_cast<float2 *>(to) = {dq[n][0], dq[n][1]};
            *reinterpret_cast<float2 *>(to + next) = {dq[n][2], dq[n][3]};
        }
        gpu_fence_async();
        gpu_barrier_arrive(DQ_DONE, DQ_THREADS);
        return;
    }
    if (rank.number > 0) {
#pragma unroll
        for (int n = 0; n < SUM_COLUMNS / 8; n++) {
            const unsigned char *from = tile + (at ^ 32 * n);
            float2 low = *reinterpret_cast<const float2 *>(from);
            float2 high = *reinterpret_cast<const float2 *>(from + next);
            dq[n][0] += low.x;
            dq[n][1] += low.y;
            dq[n][2] += high.x;
            dq[n][3] += high.y;
        }
    }
    gpu_barrier_arrive(DQ_DONE, DQ_THREADS);
    int row =
        p.query + (D == 64 ? 64 * c.number : 0) + c.row - static_cast<int>(threadIdx.x % 32 / 4);
    store_rows<SUM_COLUMNS>(a.out, dq, t.s.first_q + row, t.s.queries - row,
                            p.head * D + (D == 64 ? 0 : 64 * c.number), a.scale);
}

/* Adds a consumer's half of dq of a step. If it was the last one of its item, releases the item. */
template <int D>
GPU_INLINE void add_dq(float (&dq)[SUM_COLUMNS / 8][4], const attention_task<bf16> &a,
                       const struct consumer &c, unsigned char *memory, block_barriers *b,
                       const struct step &p, bool is_last)
{
    add_half<D>(dq, a, b->items[p.item % ITEMS], c, memory, b, p);
    if (is_last) {
        __syncwarp();
        release_stage(&b->item_empty[p.item % ITEMS]);
    }
}

/* Zeroes dq of the queries before the first tile, which attend to no key. */
template <int D>
GPU_INLINE void clear_first_dq(const attention_task<bf16> &a, const struct block_item &t)
{
    int count = t.from * backward_space<D>::queries;
    count = count < t.s.queries ? count : t.s.queries;
    const int chunks = a.group * (D / 8);
    for (int i = threadIdx.x; i < count * chunks; i += CONSUMER_THREADS) {
        int64_t row = t.s.first_q + i / chunks;
        bf16 *to = a.out.data + row * a.out.stride + t.kv_head * a.group * D + i % chunks * 8;
        gpu_store16(to, uint4{0, 0, 0, 0});
    }
}

/* Returns a number that all lanes have. ptxas then computes with it in uniform registers. */
GPU_INLINE int make_uniform(int number)
{
    return __shfl_sync(~0u, number, 0);
}

template <int D>
GPU_INLINE struct step first_step(const attention_task<bf16> &a, const struct block_item &t,
                                  int item, int number)
{
    return {item, t.kv_head * a.group, (t.to - 1) * backward_space<D>::queries, number};
}

/* Waits for the keys and values of an item. Zeroes their rows after the end of the sequence. */
template <int D>
GPU_INLINE void wait_keys(const struct block_item &t, unsigned char *memory, block_barriers *b,
                          int item)
{
    gpu_mbarrier_wait(&b->keys_full[item % ITEMS], item / ITEMS & 1);
    if (t.first + KEYS > t.s.keys) {
        clear_tile_rows<D, KEYS>(get_keys<D>(memory, item), t.s.keys - t.first);
        clear_tile_rows<D, KEYS>(get_values<D>(memory, item), t.s.keys - t.first);
        wait_for_consumers();
    }
}

/* Computes the step after p. At the end of an item, waits for the next item of the block. Returns
 * false if that item has no steps, or there is none. */
template <int D>
GPU_INLINE bool find_next_step(struct step &next, const attention_task<bf16> &a,
                               const struct block_item &t, unsigned char *memory, block_barriers *b,
                               const struct step &p)
{
    const int queries = backward_space<D>::queries;
    next = {p.item, p.head + 1, p.query, p.number + 1};
    if (next.head < (t.kv_head + 1) * a.group) {
        return true;
    }
    next.head = t.kv_head * a.group;
    next.query -= queries;
    if (next.query >= t.from * queries) {
        return true;
    }
    struct block_item after = get_item(b, p.item + 1);
    next = first_step<D>(a, after, p.item + 1, p.number + 1);
    if (after.from >= after.to) {
        return false;
    }
    wait_keys<D>(after, memory, b, next.item);
    return true;
}

/* Issues the scores of a step. First zeroes the rows of its tile of queries after the end of the
 * sequence, which may be NaN: 0 times NaN is NaN. If the step does not exist, issues any GEMM, and
 * the caller ignores the result. */
template <int D, int N>
GPU_INLINE void start_step(float (&s)[1][N][4], const struct consumer &c, unsigned char *memory,
                           block_barriers *b, const struct step &p, bool exists)
{
    using space = backward_space<D>;
    int stage = p.number % STAGES, phase = p.number / STAGES & 1;
    unsigned char *q = memory + space::q_at + stage * space::tile;
    if (exists) {
        int left = b->items[p.item % ITEMS].s.queries - p.query;
        gpu_mbarrier_wait(&b->q_full[stage], phase);
        if (left < space::queries) {
            unsigned char *d_o = memory + space::d_o_at + stage * space::tile;
            gpu_mbarrier_wait(&b->d_o_full[stage], phase);
            clear_tile_rows<D, space::queries>(q, left);
            clear_tile_rows<D, space::queries>(d_o, left);
            wait_for_consumers();
        }
    }
    gpu_wgmma_order(s[0]);
    gpu_wgmma_fence();
    issue_transposed<D>(s[0], get_keys<D>(memory, p.item) + c.number * CONSUMER_KEYS * BOX * 2, q);
}

/* Issues the GEMM of dq of a step. If the step exists, first waits until both consumers have stored
 * its ds^T. Otherwise it does not wait, and the caller ignores the result. */
template <int D>
GPU_INLINE void start_dq(float (&dq)[SUM_COLUMNS / 8][4], const struct consumer &c,
                         unsigned char *memory, block_barriers *b, const struct step &p,
                         bool exists)
{
    using space = backward_space<D>;
    if (exists) {
        gpu_mbarrier_wait(&b->ds_full[p.number & 1], p.number / 2 & 1);
    }
    gpu_wgmma_order(dq);
    gpu_wgmma_fence();
    issue_dq<D>(dq, memory + space::ds_at + (p.number & 1) * space::ds, get_keys<D>(memory, p.item),
                c.number);
}

/* Starts the sums of an item. */
template <int D>
GPU_INLINE void start_item(struct consumer &c, float (&dk)[D / 8][4], float (&dv)[D / 8][4],
                           const attention_task<bf16> &a, const struct block_item &t)
{
    c.first = t.first + c.number * CONSUMER_KEYS;
    c.key = c.first + c.row;
    clear_sums(dk);
    clear_sums(dv);
    if (t.tile == 0) {
        clear_first_dq<D>(a, t);
    }
}

template <int D>
GPU_INLINE void store_item(const attention_task<bf16> &a, const struct block_item &t,
                           const struct consumer &c, const float (&dk)[D / 8][4],
                           const float (&dv)[D / 8][4])
{
    int row = c.key - static_cast<int>(threadIdx.x % 32 / 4);
    store_rows<D>(a.dvalues, dv, t.s.first_k + row, t.s.keys - row, t.kv_head * D,
                  attention_dropout_scale(a));
    store_rows<D>(a.dkeys, dk, t.s.first_k + row, t.s.keys - row, t.kv_head * D, a.scale);
}

/* Processes a step of the item t. Unless GENERAL, the caller or the previous step has computed the
 * scores of this step, and this step computes those of the next one. Computes dq of the step
 * `before`, if it exists, so that no consumer waits for the other one between its GEMMs. At the end
 * of the item, stores dk and dv. Returns whether a step follows, and stores it in `next`. */
template <int D, bool GENERAL>
GPU_INLINE bool
compute_step(float (&s)[1][backward_space<D>::queries / 8][4], float (&dk)[D / 8][4],
             float (&dv)[D / 8][4], const attention_task<bf16> &a, const struct block_item &t,
             const struct consumer &c, unsigned char *memory, block_barriers *b,
             const struct step &p, const struct step &before, bool has_before, struct step &next)
{
    using space = backward_space<D>;
    constexpr int N = space::queries / 8;
    int stage = p.number % STAGES, phase = p.number / STAGES & 1;
    const unsigned char *values =
        get_values<D>(memory, p.item) + c.number * CONSUMER_KEYS * BOX * 2;
    const unsigned char *q = memory + space::q_at + stage * space::tile;
    const unsigned char *d_o = memory + space::d_o_at + stage * space::tile;
    unsigned char *ds_tile = memory + space::ds_at + (p.number & 1) * space::ds;
    const float *stats = reinterpret_cast<const float *>(memory + space::stats_at);
    const float *lse = stats + stage * 2 * space::queries, *delta = lse + space::queries;
    float ds[N][4], dq[SUM_COLUMNS / 8][4];
    if (GENERAL) {
        start_step<D>(s, c, memory, b, p, true);
    }
    start_dq<D>(dq, c, memory, b, before, has_before);
    gpu_mbarrier_wait(&b->stats_full[stage], phase);
    if (!GENERAL) {
        mask_tile(s[0], a, t, c, p.query);
        compute_probabilities<0, N / 2>(s[0], a, lse);
        gpu_wgmma_order(s[0]);
    }
    /* ptxas may move exponentials after a wait for wgmma. It does not if a loop before the wait
     * uses their results. */
    gpu_mbarrier_wait(&b->d_o_full[stage], phase);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(s[0]);
    gpu_wgmma_order(dq);
    if (has_before) {
        add_dq<D>(dq, a, c, memory, b, before, before.item != p.item);
    }
    gpu_wgmma_order(ds);
    gpu_wgmma_fence();
    issue_transposed<D>(ds, values, d_o);
    if (!GENERAL) {
        compute_probabilities<N / 2, N>(s[0], a, lse);
        gpu_wgmma_order(s[0]);
        /* This wait returns at once, since both barriers are complete. Its argument depends on the
         * exponentials, so ptxas cannot move them after the next wait for wgmma. */
        bool any = has_sign<N / 2>(s[0]);
        gpu_mbarrier_wait(any ? &b->stats_full[stage] : &b->d_o_full[stage], phase);
    }
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(ds);
    if (GENERAL) {
        uint32_t kept[N / 8];
        modify_tile(s, ds, kept, a, t, c, p.head, p.query, delta);
        mask_tile(s[0], a, t, c, p.query);
        compute_probabilities<0, N>(s[0], a, lse);
        multiply_kept(ds, s[0], kept);
    } else {
        compute_ds(ds, s[0], delta);
    }
    uint32_t p_packed[N / 2][4], ds_packed[N / 2][4];
    pack_scores(ds_packed, ds);
    gpu_wgmma_order(ds_packed);
    pack_scores(p_packed, s[0]);
    gpu_wgmma_order(dv);
    gpu_wgmma_order(p_packed);
    gpu_wgmma_fence();
    issue_rows<D>(dv, p_packed, d_o);
    store_ds(ds_tile, ds_packed, c.number * CONSUMER_KEYS + c.row);
    gpu_fence_async();
    gpu_mbarrier_arrive(&b->ds_full[p.number & 1]);
    gpu_wgmma_order(dk);
    gpu_wgmma_order(ds_packed);
    gpu_wgmma_fence();
    issue_rows<D>(dk, ds_packed, q);
    gpu_wgmma_wait<1>();
    gpu_wgmma_order(dv);
    release_stage(&b->d_o_empty[stage]);
    bool exists = find_next_step<D>(next, a, t, memory, b, p);
    next.number = p.number + 1;
    next.item = make_uniform(next.item);
    if (!GENERAL) {
        start_step<D>(s, c, memory, b, next, exists);
    }
    gpu_wgmma_wait<GENERAL ? 0 : 1>();
    gpu_wgmma_order(dk);
    release_stage(&b->q_empty[stage]);
    if (next.item != p.item) {
        store_item<D>(a, t, c, dk, dv);
    }
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(s[0]);
    return exists;
}

/* Computes and adds dq of the last step of an item that no step follows. */
template <int D>
GPU_INLINE void finish_dq(const attention_task<bf16> &a, const struct consumer &c,
                          unsigned char *memory, block_barriers *b, const struct step &p)
{
    float dq[SUM_COLUMNS / 8][4];
    start_dq<D>(dq, c, memory, b, p, true);
    gpu_wgmma_wait<0>();
    gpu_wgmma_order(dq);
    add_dq<D>(dq, a, c, memory, b, p, true);
}

/* Processes items from step p on, until no step follows. Returns the step after. */
template <int D, bool GENERAL>
GPU_INLINE struct step compute_items(const attention_task<bf16> &a, struct consumer &c,
                                     unsigned char *memory, block_barriers *b,
                                     float (&dk)[D / 8][4], float (&dv)[D / 8][4], struct step p)
{
    float s[1][backward_space<D>::queries / 8][4];
    struct step before = {p.item, 0, 0, p.number - 1};
    bool has_before = false, exists;
    wait_keys<D>(b->items[p.item % ITEMS], memory, b, p.item);
    if (!GENERAL) {
        start_step<D>(s, c, memory, b, p, true);
        gpu_wgmma_wait<0>();
        gpu_wgmma_order(s[0]);
    }
#pragma unroll 1
    do {
        p.number = make_uniform(p.number);
        p.item = make_uniform(p.item);
        before.number = p.number - 1;
        before.item = make_uniform(before.item);
        struct block_item copy = b->items[p.item % ITEMS];
        /* For D = 128 and GENERAL there are too few registers for a copy. */
        const struct block_item &t = D == 128 && GENERAL ? b->items[p.item % ITEMS] : copy;
        struct step next;
        exists =
            compute_step<D, GENERAL>(s, dk, dv, a, t, c, memory, b, p, before, has_before, next);
        if (next.item != p.item && exists) {
            start_item<D>(c, dk, dv, a, b->items[next.item % ITEMS]);
        }
        before = p;
        p = next;
        has_before = true;
    } while (exists);
    finish_dq<D>(a, c, memory, b, before);
    return p;
}

template <int D, bool GENERAL>
GPU_INLINE void run_consumer(const attention_task<bf16> &a, unsigned char *memory,
                             block_barriers *b)
{
    struct consumer c;
    struct step p = {};
    float dk[D / 8][4], dv[D / 8][4];
    c.number = make_uniform(static_cast<int>(threadIdx.x / WARPGROUP));
    c.row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll 1
    for (;;) {
        struct block_item t = get_item(b, p.item);
        if (!is_item(t)) {
            return;
        }
        start_item<D>(c, dk, dv, a, t);
        if (t.from < t.to) {
            p = first_step<D>(a, t, p.item, p.number);
            p = compute_items<D, GENERAL>(a, c, memory, b, dk, dv, p);
        } else {
            store_item<D>(a, t, c, dk, dv);
            __syncwarp();
            release_stage(&b->item_empty[p.item % ITEMS]);
            p.item++;
        }
    }
}

template <int D>
GPU_INLINE void run_producer(const attention_task<bf16> &a, const backward_plan &plan,
                             unsigned char *memory, block_barriers *b, const backward_maps *maps)
{
    int warp = static_cast<int>(threadIdx.x / 32), step = 0;
    if (warp == COPY_WARP) {
        if (threadIdx.x % 32 == 0) {
            copy_tiles<D>(a, plan, memory, b, maps);
        }
        return;
    }
    if (warp > DQ_WARP) {
        return;
    }
#pragma unroll 1
    for (int number = 0;; number++) {
        struct block_item t = take_item(b, number);
        if (!is_item(t)) {
            return;
        }
        if (warp == DQ_WARP) {
            add_tiles<D>(a, plan, t, memory, b);
        } else {
            float *stats = reinterpret_cast<float *>(memory + backward_space<D>::stats_at);
            load_stats<D>(a, t, stats, b, step);
            step += count_steps(a, t);
        }
    }
}

#endif

template <int D, bool GENERAL>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    wgmma_backward(const attention_task<bf16> a, const backward_plan plan,
                   const __grid_constant__ backward_maps maps)
{
#ifdef GPU_HAS_SM90
    using space = backward_space<D>;
    GPU_SHARED_DYNAMIC(unsigned char, memory);
    gpu_require_swizzle_base(memory);
    block_barriers *b = reinterpret_cast<block_barriers *>(memory + space::barriers_at);
    if (threadIdx.x == 0) {
        for (int i = 0; i < ITEMS; i++) { /* emptied by the consumers and two warps */
            gpu_mbarrier_init(&b->item_full[i], 1);
            gpu_mbarrier_init(&b->keys_full[i], 2);
            gpu_mbarrier_init(&b->item_empty[i], CONSUMER_THREADS / 32 + 2);
        }
        gpu_mbarrier_init(&b->dq_ready, 1);
        gpu_mbarrier_init(&b->ds_full[0], CONSUMER_THREADS);
        gpu_mbarrier_init(&b->ds_full[1], CONSUMER_THREADS);
        for (int i = 0; i < STAGES; i++) {
            gpu_mbarrier_init(&b->q_full[i], 1);
            gpu_mbarrier_init(&b->d_o_full[i], 1);
            gpu_mbarrier_init(&b->stats_full[i], 32);
            gpu_mbarrier_init(&b->q_empty[i], CONSUMER_THREADS / 32);
            gpu_mbarrier_init(&b->d_o_empty[i], CONSUMER_THREADS / 32);
        }
        gpu_fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS) {
        gpu_registers_lower<FETCH_REGISTERS>();
        run_producer<D>(a, plan, memory, b, &maps);
    } else {
        gpu_registers_raise<COMPUTE_REGISTERS>();
        run_consumer<D, GENERAL>(a, memory, b);
    }
#endif
}

/* ---- host ---- */

template <int D>
static status launch_wgmma(struct kernels *k, const attention_task<bf16> &t,
                           const struct attention_call *call, const backward_plan &plan,
                           const backward_maps &maps)
{
    const int bytes = backward_space<D>::bytes;
    dim3 grid(static_cast<unsigned>(number_min(plan.items, gpu_processors())));
    if (attention_is_modified(call) || call->a->dropout.probability > 0) {
        LAUNCH(k, (wgmma_backward<D, true>), grid, BLOCK_THREADS, bytes, t, plan, maps);
    } else {
        LAUNCH(k, (wgmma_backward<D, false>), grid, BLOCK_THREADS, bytes, t, plan, maps);
    }
    return STATUS_OK;
}

/* Returns the number of pairs of a section: operands of SECTION_BYTES, but at least two items for
 * each multiprocessor. All sections have this number, except that the last one may be smaller. */
static int64_t choose_section(const struct attention *a, int64_t pairs, int64_t tiles)
{
    /* bytes of q, d_o and the sums of the heads of a pair */
    int64_t bytes = a->longest_q * a->head_width * (a->heads / a->kv_heads) * 8;
    int64_t most = 1 + SECTION_BYTES / bytes, least = 1 + 2 * gpu_processors() / tiles;
    int64_t section = most > least ? most : least;
    int64_t sections = (pairs + section - 1) / section;
    return (pairs + sections - 1) / sections;
}

bool attention_wgmma_supports_backward(const struct attention *a)
{
    return (a->head_width == 64 || a->head_width == 128) && a->sequences > 0 && a->longest_q > 0 &&
           a->longest_k > 0 && wgmma_is_enabled();
}

status attention_wgmma_backward(struct kernels *k, const attention_task<bf16> &t, struct tensor d_o,
                                struct tensor q, struct tensor keys, struct tensor values,
                                float *sums, const struct attention_call *call, bool *done)
{
    const struct attention *a = call->a;
    const int64_t queries = a->head_width == 64 ? 128 : 64;
    const int64_t pairs = a->sequences * a->kv_heads, tiles = (a->longest_k + KEYS - 1) / KEYS;
    backward_maps maps;
    *done = pairs * tiles <= INT32_MAX / 2 &&
            wgmma_make_map(&maps.q, q, static_cast<int>(queries)) &&
            wgmma_make_map(&maps.d_o, d_o, static_cast<int>(queries)) &&
            wgmma_make_map(&maps.keys, keys, KEYS) && wgmma_make_map(&maps.values, values, KEYS);
    if (!*done) {
        return STATUS_OK;
    }
    backward_plan plan = {};
    plan.sums = sums;
    plan.kv_heads = a->kv_heads;
    plan.pairs = static_cast<int>(pairs);
    plan.tiles = static_cast<int>(tiles);
    plan.items = plan.pairs * plan.tiles;
    plan.section = static_cast<int>(choose_section(a, pairs, tiles));
    return a->head_width == 64 ? launch_wgmma<64>(k, t, call, plan, maps)
                               : launch_wgmma<128>(k, t, call, plan, maps);
}
