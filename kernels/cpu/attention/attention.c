/* Attention, forward: o = softmax(scale q k^T) v, one tile of keys after the other.
 *
 * A soft-cap and a bias modify the scores of a tile before the softmax.
 *
 * Each row keeps the running maximum m of its scores, the running sum l of exp(s - m), and the
 * output row in the same scale. If a tile raises m to m', l and the output row are multiplied by
 * exp(m - m'). Exponentials are powers of two: exp(s - m) is 2^((s - m) log2(e)). The difference
 * s - m is computed before the product. A fused multiply-add of s log2(e) - m log2(e) would save an
 * instruction, but m log2(e) is rounded. For scores above 2^31, this rounding error alone would
 * make the power of two overflow.
 *
 * Blocking  A tile of keys and values is packed once for QUERIES rows. Groups of rows go through
 *           the score GEMM, the softmax and the value GEMM, so that they stay in registers and in
 *           the L1 cache. A single query row (generation) reads keys and values where they are,
 *           because it is limited by memory bandwidth.
 * Threads   Each thread has a range of rows (attention_division.h). The results of a row depend
 *           neither on the range nor on other sequences.
 *
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135 */
#include <omp.h>

#include "base/number.h"
#include "kernels/cpu/attention/attention_bias.h"

enum { QUERIES = ATTENTION_QUERIES, KEYS = ATTENTION_KEYS, SUMS = 16 };

struct tensors {
    struct tensor o, lse, q, keys, values;
};

/* The workspace of a thread. */
struct workspace {
    float *q, *o;           /* [QUERIES][padded] */
    float *keys_transposed; /* [padded][KEYS] */
    float *values;          /* [KEYS][padded], or pairs of keys */
    float *scores;  /* [TILE][KEYS] scores, then probabilities; as bf16 at the start of each row */
    float *row_max; /* [QUERIES] running maximum of the scores, before score_scale */
    float *sums;    /* [QUERIES][SUMS] running sums of the lanes */
    int64_t padded;
    struct attention_operand_layout layout; /* of the score GEMM */
};

static struct workspace make_workspace(float *memory, enum dtype dtype, int64_t width)
{
    int64_t padded = attention_padded_width(width);
    struct workspace w = {.padded = padded, .layout = attention_get_operand_layout(dtype, width)};
    w.q = memory;
    w.o = w.q + QUERIES * padded;
    w.keys_transposed = w.o + QUERIES * padded;
    w.values = w.keys_transposed + KEYS * padded;
    w.scores = w.values + KEYS * padded;
    w.row_max = w.scores + ATTENTION_TILE * KEYS;
    w.sums = w.row_max + QUERIES;
    return w;
}

/* Rescales the sums and the output of a row after its maximum has increased. */
static void rescale_row(const struct workspace *w, int64_t block_row, vector factor)
{
    float *sums = w->sums + block_row * SUMS, *o = w->o + block_row * w->padded;
    for (int i = 0; i < SUMS; i++) {
        sums[i] *= factor[0];
    }
    for (int64_t c = 0; c < w->padded; c += VECTOR_LANES) {
        vector_store(o + c, factor * vector_load(o + c));
    }
}

/* Converts the scores of one row and one tile to probabilities relative to the row's maximum. */
static void compute_softmax_row(const struct workspace *w, const struct attention_head *h,
                                int64_t query, int64_t block_row, int64_t group_row,
                                int64_t first_key, int64_t columns)
{
    enum { VECTORS = KEYS / VECTOR_LANES };
    float *scores = w->scores + group_row * KEYS;
    struct cpu_range visible = attention_visible_keys(h, query);
    int32_t low = (int32_t)(visible.first > first_key ? visible.first - first_key : 0);
    int32_t high = (int32_t)(visible.last < first_key + KEYS ? visible.last - first_key : KEYS);
    int count = (int)number_divide_up(columns, VECTOR_LANES);
    struct attention_gap gap = attention_get_gap(h, query, first_key);
    if (h->is_modified) {
        attention_modify_scores(h, query, first_key, scores, NULL, columns);
    }
    vector s[VECTORS], row_max = vector_set(-INFINITY);
    bool whole = low == 0 && high >= count * VECTOR_LANES && gap.low >= gap.high;
    for (int i = 0; i < count; i++) {
        s[i] = vector_load(scores + i * VECTOR_LANES);
        if (!whole) {
            vector_bits at = vector_index() + i * VECTOR_LANES;
            vector_bits mask = (at >= low) & (at < high) & ((at < gap.low) | (at >= gap.high));
            s[i] = vector_select(mask, s[i], vector_set(-INFINITY));
        }
        row_max = vector_max(row_max, s[i]);
    }
    float factor = h->score_scale * attention_log2_e;
    float before = w->row_max[block_row], now = vector_maximum(row_max);
    float *sums = w->sums + block_row * SUMS;
    if (now > before) {
        w->row_max[block_row] = now;
        if (before > -INFINITY) {
            rescale_row(w, block_row, math_exp2(vector_set((before - now) * factor)));
        }
    } else {
        now = before;
    }
    vector base = vector_set(now == -INFINITY ? 0.0f : now), sum = vector_load(sums);
    struct dropout_row factors;
    bool drop = dropout_active(h->a->dropout);
    if (drop) {
        dropout_begin(&factors, h->a->dropout, attention_dropout_element(h, query) + first_key);
    }
    for (int i = 0; i < count; i++) {
        vector p = math_exp2((s[i] - base) * factor);
        sum += p;
        if (drop) {
            p *= dropout_next(&factors);
        }
        if (w->layout.pairs) {
            vector_store_bf16((bf16 *)(void *)scores + i * VECTOR_LANES, p);
        } else {
            vector_store(scores + i * VECTOR_LANES, p);
        }
    }
    vector_store(sums, sum);
    if (count % 2 != 0 && w->layout.tiles) {
        vector_store_bf16((bf16 *)(void *)scores + count * VECTOR_LANES, vector_set(0));
    }
}

/* Processes rows [first, last) of the block, at most one group, with the packed tile. */
static void process_tile_rows(const struct workspace *w, const struct attention_head *h,
                              int64_t block, int64_t first, int64_t last, int64_t first_key)
{
    int64_t end = attention_visible_keys(h, block + last - 1).last;
    int64_t columns = number_min(end, first_key + KEYS) - first_key;
    if (columns <= 0 || attention_visible_keys(h, block + first).first >= first_key + KEYS ||
        attention_is_tile_hidden(h, block + first, first_key, first_key + columns)) {
        return;
    }
    int64_t width = h->a->head_width;
    struct attention_operand_layout f = w->layout;
    attention_gemm_run(&(struct attention_gemm){w->scores, KEYS, w->q + first * f.stride, f.stride,
                                                1, w->keys_transposed, KEYS, last - first, columns,
                                                f.inner, false, f.pairs});
    for (int64_t r = first; r < last; r++) {
        compute_softmax_row(w, h, block + r, r, r - first, first_key, columns);
    }
    attention_gemm_run(&(struct attention_gemm){w->o + first * w->padded, w->padded, w->scores,
                                                KEYS, 1, w->values, w->padded, last - first, width,
                                                attention_count_inner(&f, columns), true, f.pairs});
}

static void finish_row(const struct workspace *w, const struct attention_head *h, struct tensors t,
                       int64_t query, int64_t block_row)
{
    struct cpu_range visible = attention_visible_keys(h, query);
    float sum = 0;
    for (int i = 0; i < SUMS; i++) {
        sum += w->sums[block_row * SUMS + i];
    }
    bool is_empty = visible.first >= visible.last;
    int64_t row = h->first_q + query, width = h->a->head_width;
    attention_unpack(t.o, row, 1, h->head * width, width, w->o + block_row * w->padded,
                     is_empty ? 1.0f : 1.0f / sum);
    if (t.lse.data != NULL) {
        ((float *)t.lse.data)[h->head * t.lse.stride + row] =
            is_empty ? -INFINITY : w->row_max[block_row] * h->score_scale + logf(sum);
    }
}

/* Processes `rows` rows from `block` on. They are in one block of QUERIES rows. */
static void process_query_block(const struct workspace *w, const struct attention_head *h,
                                struct tensors t, int64_t block, int64_t rows)
{
    int64_t width = h->a->head_width;
    attention_pack_left(w->q, t.q, h->first_q + block, rows, h->head * width, width);
    memset(w->o, 0, (size_t)(rows * w->padded) * sizeof(float));
    memset(w->sums, 0, (size_t)(rows * SUMS) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        w->row_max[r] = -INFINITY;
    }
    int64_t begin = attention_visible_keys(h, block).first / KEYS * KEYS;
    int64_t end = attention_visible_keys(h, block + rows - 1).last;
    for (int64_t key = begin; key < end; key += KEYS) {
        int64_t count = number_min(h->keys - key, KEYS);
        if (attention_is_tile_hidden(h, block, key, key + count)) {
            continue;
        }
        int64_t row = h->first_k + key, column = h->kv_head * width;
        attention_pack_right(w->keys_transposed, t.keys, row, count, column, width);
        attention_pack_over(w->values, t.values, row, count, column, width);
        for (int64_t r = 0; r < rows; r += w->layout.group) {
            process_tile_rows(w, h, block, r, number_min(r + w->layout.group, rows), key);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        finish_row(w, h, t, block + r, r);
    }
}

/* ---- one query row ---- */

CPU_INLINE float compute_dot(const float *q, struct tensor t, enum dtype dtype, int64_t at,
                             int64_t width)
{
    vector sum[2] = {{0}};
    for (int64_t c = 0; c < width; c += VECTOR_LANES) {
        vector x = vector_get(t.data, dtype, at + c, width - c);
        sum[c / VECTOR_LANES % 2] = vector_fma(vector_load(q + c), x, sum[c / VECTOR_LANES % 2]);
    }
    return vector_sum(sum[0] + sum[1]);
}

CPU_INLINE void add_value(float *o, float p, struct tensor t, enum dtype dtype, int64_t at,
                          int64_t width)
{
    for (int64_t c = 0; c < width; c += VECTOR_LANES) {
        vector x = vector_get(t.data, dtype, at + c, width - c);
        vector_store(o + c, vector_fma(vector_set(p), x, vector_load(o + c)));
    }
}

CPU_INLINE void process_single_row_as(const struct workspace *w, const struct attention_head *h,
                                      struct tensors t, enum dtype dtype)
{
    int64_t width = h->a->head_width, column = h->kv_head * width;
    struct cpu_range visible = attention_visible_keys(h, 0);
    for (int64_t key = visible.first / KEYS * KEYS; key < visible.last; key += KEYS) {
        int64_t from = number_max(key, visible.first);
        int64_t to = number_min(key + KEYS, visible.last);
        for (int64_t j = from; j < to; j++) {
            int64_t at = (h->first_k + j) * t.keys.stride + column;
            attention_prefetch(t.keys, h->first_k + j, column, width);
            w->scores[j - key] = compute_dot(w->q, t.keys, dtype, at, width);
        }
        compute_softmax_row(w, h, 0, 0, 0, key, to - key);
        for (int64_t j = from; j < to; j++) {
            int64_t at = (h->first_k + j) * t.values.stride + column;
            attention_prefetch(t.values, h->first_k + j, column, width);
            add_value(w->o, w->scores[j - key], t.values, dtype, at, width);
        }
    }
    finish_row(w, h, t, 0, 0);
}

static void process_single_row(const struct workspace *thread, const struct attention_head *h,
                               struct tensors t)
{
    int64_t width = h->a->head_width;
    struct workspace row = *thread, *w = &row;
    row.layout.pairs = row.layout.tiles = false;
    attention_pack(w->q, t.q, h->first_q, 1, h->head * width, width);
    memset(w->o, 0, (size_t)w->padded * sizeof(float));
    memset(w->sums, 0, SUMS * sizeof(float));
    w->row_max[0] = -INFINITY;
    if (t.keys.dtype == DTYPE_F32) {
        process_single_row_as(w, h, t, DTYPE_F32);
    } else {
        process_single_row_as(w, h, t, DTYPE_BF16);
    }
}

/* ---- work items ---- */

/* Processes rows [first, last) of a head. */
static void process_rows(const struct workspace *w, const struct attention_head *h,
                         struct tensors t, int64_t first, int64_t last)
{
    if (h->queries == 1 && first < last) {
        process_single_row(w, h, t);
        return;
    }
    for (int64_t row = first, next; row < last; row = next) {
        next = row / QUERIES * QUERIES + QUERIES;
        next = number_min(next, last);
        process_query_block(w, h, t, row, next - row);
    }
}

/* Processes the rows of a thread (attention_division.h). */
static void process_thread_rows(const struct workspace *w, const struct attention *a,
                                const struct attention_distances *d, struct tensors t, int thread,
                                int threads)
{
    int64_t group = w->layout.group;
    struct attention_position begin = attention_range_begin(a, group, thread, threads);
    struct attention_position end = attention_range_begin(a, group, thread + 1, threads);
    for (int64_t i = begin.head; i <= end.head && i < a->sequences * a->heads; i++) {
        struct attention_head h = attention_make_head(a, d, i / a->heads, i % a->heads);
        process_rows(w, &h, t, i == begin.head ? begin.row : 0,
                     i == end.head ? end.row : h.queries);
    }
}

status CPU(attention_forward)(struct kernels *k, struct tensor o, struct tensor lse,
                              struct tensor q, struct tensor keys, struct tensor values,
                              const struct attention *a)
{
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t padded = attention_padded_width(a->head_width);
    size_t bytes = cpu_scratch_align(attention_forward_floats(padded) * sizeof(float));
    void *memory;
    struct attention_distances distances;
    TRY(attention_bias_make(&distances, scratch, a, false, k->threads));
    TRY(arena_take(scratch, (size_t)k->threads * bytes, &memory));
    struct tensors t = {o, lse, q, keys, values};
#pragma omp parallel num_threads(k->threads)
    {
        int thread = omp_get_thread_num();
        float *thread_memory = (float *)(void *)((char *)memory + (size_t)thread * bytes);
        struct workspace w = make_workspace(thread_memory, q.dtype, a->head_width);
        attention_tiles_begin(w.layout.tiles);
        process_thread_rows(&w, a, &distances, t, thread, omp_get_num_threads());
        attention_tiles_end(w.layout.tiles);
    }
    arena_release(scratch, mark);
    return STATUS_OK;
}
