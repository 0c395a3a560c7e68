/* Attention forward: softmax(scale q k^T) v, one tile of keys after the other.
 *
 * For each row the running maximum m of the scores, the running sum l of exp(s - m) and the output
 * row scaled likewise are kept; when a tile raises m to m', l and the row are multiplied by
 * exp(m - m') (Milakov, Gimelshein 2018). Exponentials are powers of two: scale log2(e) is one
 * factor inside the fused multiply-add that subtracts m.
 *
 * Work is dealt out as (sequence, block of QUERIES rows, head), so a tile of keys is packed once
 * for QUERIES rows; rows go through score product, softmax and value product in groups that stay in
 * registers and the nearest cache. A sequence's results depend on nothing outside of it.
 *
 * A single query row (generation) reads keys and values where they lie: it is bound by memory. */
#include <omp.h>

#include "kernels/cpu/attention_tile.h"

enum { QUERIES = ATTENTION_QUERIES, KEYS = ATTENTION_KEYS, GROUP = ATTENTION_GROUP, SUMS = 16 };

struct views {
    struct tensor o, lse, q, keys, values;
};

/* A thread's memory, and the rows it is at. */
struct work {
    float *q, *o;       /* [QUERIES][padded] */
    float *turned_keys; /* [padded][KEYS] */
    float *values;      /* [KEYS][padded], or pairs of keys */
    float *scores;      /* [GROUP][KEYS], then the probabilities; as bf16 at the rows' beginnings */
    float *most;        /* [QUERIES] running maximum, in powers of two */
    float *sums;        /* [QUERIES][SUMS] running sum, lane by lane */
    int64_t padded;
    struct attention_factors factors; /* of scores */
};

static struct work work_of(float *memory, enum dtype dtype, int64_t width)
{
    int64_t padded = attention_padded(width);
    struct work w = {.padded = padded, .factors = attention_factors_of(dtype, width)};
    w.q = memory;
    w.o = w.q + QUERIES * padded;
    w.turned_keys = w.o + QUERIES * padded;
    w.values = w.turned_keys + KEYS * padded;
    w.scores = w.values + KEYS * padded;
    w.most = w.scores + GROUP * KEYS;
    w.sums = w.most + QUERIES;
    return w;
}

/* A higher maximum: what was summed before counts for less. */
static void shrink_row(const struct work *w, int64_t block_row, vector factor)
{
    float *sums = w->sums + block_row * SUMS, *o = w->o + block_row * w->padded;
    for (int i = 0; i < SUMS; i++) {
        sums[i] *= factor[0];
    }
    for (int64_t c = 0; c < w->padded; c += VECTOR_LANES) {
        vector_store(o + c, factor * vector_load(o + c));
    }
}

/* One tile's columns of one row: visible scores to powers of two above the row's maximum. */
static void softmax_row(const struct work *w, const struct attention_head *h, int64_t query,
                        int64_t block_row, int64_t group_row, int64_t first_key, int64_t columns)
{
    enum { VECTORS = KEYS / VECTOR_LANES };
    float *scores = w->scores + group_row * KEYS;
    struct cpu_range see = attention_visible(h, query);
    int32_t low = (int32_t)(see.first > first_key ? see.first - first_key : 0);
    int32_t high = (int32_t)(see.last < first_key + KEYS ? see.last - first_key : KEYS);
    int count = (int)((columns + VECTOR_LANES - 1) / VECTOR_LANES);
    struct attention_gap gap = attention_gap_of(h, query, first_key);
    vector s[VECTORS], most = vector_set(-INFINITY);
    bool whole = low == 0 && high >= count * VECTOR_LANES && gap.low >= gap.high;
    for (int i = 0; i < count; i++) {
        s[i] = vector_load(scores + i * VECTOR_LANES);
        if (!whole) {
            vector_bits at = vector_index() + i * VECTOR_LANES;
            vector_bits seen = (at >= low) & (at < high) & ((at < gap.low) | (at >= gap.high));
            s[i] = vector_select(seen, s[i], vector_set(-INFINITY));
        }
        most = vector_max(most, s[i]);
    }
    float factor = h->a->scale * attention_log2_e;
    float before = w->most[block_row], now = vector_maximum(most) * factor;
    float *sums = w->sums + block_row * SUMS;
    if (now > before) {
        w->most[block_row] = now;
        if (before > -INFINITY) {
            shrink_row(w, block_row, math_exp2(vector_set(before - now)));
        }
    } else {
        now = before;
    }
    vector base = vector_set(now == -INFINITY ? 0.0f : -now), sum = vector_load(sums);
    for (int i = 0; i < count; i++) {
        vector p = math_exp2(vector_fma(s[i], vector_set(factor), base));
        sum += p;
        if (dropout_active(h->a->dropout)) {
            int64_t key = first_key + i * VECTOR_LANES;
            p *= dropout_vector(h->a->dropout, attention_element(h, query) + key);
        }
        if (w->factors.pairs) {
            vector_store_bf16((bf16 *)(void *)scores + i * VECTOR_LANES, p);
        } else {
            vector_store(scores + i * VECTOR_LANES, p);
        }
    }
    vector_store(sums, sum);
}

/* Rows [first, last) of the block, at most GROUP, against the packed tile. */
static void tile_rows(const struct work *w, const struct attention_head *h, int64_t block,
                      int64_t first, int64_t last, int64_t first_key)
{
    int64_t end = attention_visible(h, block + last - 1).last;
    int64_t columns = (end < first_key + KEYS ? end : first_key + KEYS) - first_key;
    if (columns <= 0 || attention_visible(h, block + first).first >= first_key + KEYS ||
        attention_all_hidden(h, block + first, first_key, first_key + columns)) {
        return;
    }
    int64_t width = h->a->head_width;
    struct attention_factors f = w->factors;
    attention_multiply(&(struct attention_product){w->scores, KEYS, w->q + first * f.stride,
                                                   f.stride, 1, w->turned_keys, KEYS, last - first,
                                                   columns, f.inner, false, f.pairs});
    for (int64_t r = first; r < last; r++) {
        softmax_row(w, h, block + r, r, r - first, first_key, columns);
    }
    attention_multiply(&(struct attention_product){
        w->o + first * w->padded, w->padded, w->scores, KEYS, 1, w->values, w->padded, last - first,
        width, f.pairs ? (columns + 1) / 2 : columns, true, f.pairs});
}

static void finish_row(const struct work *w, const struct attention_head *h, struct views v,
                       int64_t query, int64_t block_row)
{
    struct cpu_range see = attention_visible(h, query);
    float sum = 0;
    for (int i = 0; i < SUMS; i++) {
        sum += w->sums[block_row * SUMS + i];
    }
    bool blind = see.first >= see.last;
    int64_t row = h->first_q + query, width = h->a->head_width;
    attention_unpack(v.o, row, 1, h->head * width, width, w->o + block_row * w->padded,
                     blind ? 1.0f : 1.0f / sum);
    if (v.lse.data != NULL) {
        ((float *)v.lse.data)[h->head * v.lse.stride + row] =
            blind ? -INFINITY : (w->most[block_row] + log2f(sum)) * attention_ln_2;
    }
}

static void forward_block(const struct work *w, const struct attention_head *h, struct views v,
                          int64_t block)
{
    int64_t width = h->a->head_width;
    int64_t rows = h->queries - block < QUERIES ? h->queries - block : QUERIES;
    attention_pack_left(w->q, v.q, h->first_q + block, rows, h->head * width, width);
    memset(w->o, 0, (size_t)(rows * w->padded) * sizeof(float));
    memset(w->sums, 0, (size_t)(rows * SUMS) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        w->most[r] = -INFINITY;
    }
    int64_t begin = attention_visible(h, block).first / KEYS * KEYS;
    int64_t end = attention_visible(h, block + rows - 1).last;
    for (int64_t key = begin; key < end; key += KEYS) {
        int64_t count = h->keys - key < KEYS ? h->keys - key : KEYS;
        if (attention_all_hidden(h, block, key, key + count)) {
            continue;
        }
        int64_t row = h->first_k + key, column = h->kv_head * width;
        attention_pack_right(w->turned_keys, v.keys, row, count, column, width);
        attention_pack_over(w->values, v.values, row, count, column, width);
        for (int64_t r = 0; r < rows; r += GROUP) {
            tile_rows(w, h, block, r, r + GROUP < rows ? r + GROUP : rows, key);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        finish_row(w, h, v, block + r, r);
    }
}

/* ---- one query row ---- */

ATTENTION_INLINE float dot(const float *q, struct tensor t, enum dtype dtype, int64_t at,
                           int64_t width)
{
    vector sum[2] = {{0}};
    for (int64_t c = 0; c < width; c += VECTOR_LANES) {
        vector x = vector_get(t.data, dtype, at + c, width - c);
        sum[c / VECTOR_LANES % 2] = vector_fma(vector_load(q + c), x, sum[c / VECTOR_LANES % 2]);
    }
    return vector_sum(sum[0] + sum[1]);
}

ATTENTION_INLINE void add_value(float *o, float p, struct tensor t, enum dtype dtype, int64_t at,
                                int64_t width)
{
    for (int64_t c = 0; c < width; c += VECTOR_LANES) {
        vector x = vector_get(t.data, dtype, at + c, width - c);
        vector_store(o + c, vector_fma(vector_set(p), x, vector_load(o + c)));
    }
}

ATTENTION_INLINE void single_row_as(const struct work *w, const struct attention_head *h,
                                    struct views v, enum dtype dtype)
{
    int64_t width = h->a->head_width, column = h->kv_head * width;
    struct cpu_range see = attention_visible(h, 0);
    for (int64_t key = see.first / KEYS * KEYS; key < see.last; key += KEYS) {
        int64_t from = key > see.first ? key : see.first;
        int64_t to = key + KEYS < see.last ? key + KEYS : see.last;
        for (int64_t j = from; j < to; j++) {
            int64_t at = (h->first_k + j) * v.keys.stride + column;
            attention_prefetch(v.keys, h->first_k + j, column, width);
            w->scores[j - key] = dot(w->q, v.keys, dtype, at, width);
        }
        softmax_row(w, h, 0, 0, 0, key, to - key);
        for (int64_t j = from; j < to; j++) {
            int64_t at = (h->first_k + j) * v.values.stride + column;
            attention_prefetch(v.values, h->first_k + j, column, width);
            add_value(w->o, w->scores[j - key], v.values, dtype, at, width);
        }
    }
    finish_row(w, h, v, 0, 0);
}

static void single_row(const struct work *thread, const struct attention_head *h, struct views v)
{
    int64_t width = h->a->head_width;
    struct work row = *thread, *w = &row;
    row.factors.pairs = false;
    attention_pack(w->q, v.q, h->first_q, 1, h->head * width, width);
    memset(w->o, 0, (size_t)w->padded * sizeof(float));
    memset(w->sums, 0, SUMS * sizeof(float));
    w->most[0] = -INFINITY;
    if (v.keys.dtype == DTYPE_F32) {
        single_row_as(w, h, v, DTYPE_F32);
    } else {
        single_row_as(w, h, v, DTYPE_BF16);
    }
}

/* ---- all of it ---- */

static void forward_share(const struct work *w, const struct attention *a, struct views v,
                          int thread, int threads)
{
    int64_t item = 0;
    for (int64_t i = 0; i < a->sequences; i++) {
        int64_t queries = a->cu_q[i + 1] - a->cu_q[i];
        for (int64_t block = 0; block < queries; block += QUERIES) {
            for (int64_t head = 0; head < a->heads; head++) {
                if (item++ % threads != thread) {
                    continue;
                }
                struct attention_head h = attention_head_of(a, i, head);
                if (queries == 1) {
                    single_row(w, &h, v);
                } else {
                    forward_block(w, &h, v, block);
                }
            }
        }
    }
}

status CPU(attention_forward)(struct kernels *k, struct tensor o, struct tensor lse,
                              struct tensor q, struct tensor keys, struct tensor values,
                              const struct attention *a)
{
    REQUIRE(a->head_width <= ATTENTION_WIDTH && a->scale > 0, STATUS_INTERNAL,
            "attention: head width %lld (at most %d), scale %g (above 0)", (long long)a->head_width,
            ATTENTION_WIDTH, (double)a->scale);
    struct arena *scratch = &cpu_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t padded = attention_padded(a->head_width);
    size_t bytes = cpu_scratch_rounded(attention_forward_floats(padded) * sizeof(float));
    void *memory;
    TRY(arena_take(scratch, (size_t)k->threads * bytes, &memory));
    struct views v = {o, lse, q, keys, values};
#pragma omp parallel num_threads(k->threads)
    {
        int thread = omp_get_thread_num();
        float *own = (float *)(void *)((char *)memory + (size_t)thread * bytes);
        struct work w = work_of(own, q.dtype, a->head_width);
        forward_share(&w, a, v, thread, omp_get_num_threads());
    }
    arena_release(scratch, mark);
    return STATUS_OK;
}
