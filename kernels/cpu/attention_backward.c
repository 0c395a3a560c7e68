/* Attention, backward: dq, dk, dv, with probabilities that are recomputed from q, k and lse.
 *
 * For each row, with d = d_o . o and the dropout factors m:
 *   p_j = exp(scale q . k_j - lse),  dv_j += m_j p_j d_o,  ds_j = p_j (m_j d_o . v_j - d)
 *   dq += scale ds_j k_j,  dk_j += scale ds_j q
 * With a soft-cap c, the score s_j = c tanh(scale q . k_j / c) replaces scale q . k_j, and ds_j is
 * multiplied by 1 - (s_j / c)^2. The gradient of a bias is ds_j, before this factor.
 *
 * Blocking  Five GEMMs for each query head, tile of keys and tile of queries. dk and dv of a tile
 *           of keys stay in the cache; dq of the head is a separate f32 matrix. Causal tiles above
 *           the diagonal are skipped, tiles on it are reduced to the visible keys.
 * Threads   Work items are (sequence, key-value head); all sequences of a part of the bias gradient
 *           (attention_bias.h) have the same thread. So each sum belongs to one thread and has
 *           one order, and no score is computed twice. A split by queries and by keys would need
 *           seven GEMMs instead of five.
 *
 * Source    Dao et al. 2022, arXiv:2205.14135 */
#include <inttypes.h>
#include <omp.h>

#include "kernels/cpu/attention_bias.h"

enum { KEYS = ATTENTION_KEYS, ROWS = 64, GROUP = ATTENTION_GROUP };

struct tensors {
    struct tensor dq, dkeys, dvalues, d_o, q, keys, values, o, lse;
};

/* The workspace of a thread. */
struct workspace {
    float *keys, *keys_transposed, *values_transposed; /* [KEYS][padded], [padded][KEYS] */
    float *q, *d_o;                                    /* [longest_q][padded] */
    float *q_operand, *d_o_operand;                    /* the same, as operands of a score GEMM */
    float *p, *ds;                                     /* [ROWS][KEYS] */
    float *ds_operand;      /* left operand of the GEMM for dk: ds itself, or pairs of its rows */
    float *derivatives;     /* [ROWS][KEYS] derivatives of the soft-cap; pack_row_pairs overwrites
                             * rows that are not needed any more */
    float *dot;             /* [longest_q] d_o . o */
    float *lse;             /* [longest_q], in base 2 */
    float *dq;              /* [longest_q][padded] */
    float *dkeys, *dvalues; /* [longest_k][padded], or one tile of it */
    float *bias_sums;       /* gradients of the bias of a head by distance; NULL: none */
    int64_t padded;
    struct attention_operand_layout layout;
    bool is_kv_shared; /* several query heads share a key-value head: dkeys, dvalues are whole */
};

static size_t count_workspace_floats(int64_t padded, int64_t queries, int64_t keys)
{
    int64_t rounded = (queries + 15) / 16 * 16;
    return (size_t)(3 * KEYS * padded + 3 * ROWS * KEYS + 2 * rounded + 5 * queries * padded +
                    2 * keys * padded);
}

static struct workspace make_workspace(float *memory, int64_t padded, int64_t queries, int64_t keys)
{
    struct workspace w = {.padded = padded};
    int64_t rounded = (queries + 15) / 16 * 16;
    struct {
        float **part;
        int64_t floats;
    } parts[] = {
        {&w.keys, KEYS * padded},
        {&w.keys_transposed, KEYS * padded},
        {&w.values_transposed, KEYS * padded},
        {&w.q, queries * padded},
        {&w.d_o, queries * padded},
        {&w.q_operand, queries * padded},
        {&w.d_o_operand, queries * padded},
        {&w.p, ROWS * KEYS},
        {&w.ds, ROWS * KEYS},
        {&w.ds_operand, ROWS * KEYS},
        {&w.dot, rounded},
        {&w.lse, rounded},
        {&w.dq, queries * padded},
        {&w.dkeys, keys * padded},
        {&w.dvalues, keys * padded},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].part = memory;
        memory += parts[i].floats;
    }
    w.derivatives = w.ds_operand;
    return w;
}

static int64_t count_accumulated_keys(int heads, int kv_heads, int64_t longest)
{
    return heads == kv_heads ? KEYS : longest;
}

/* The limits do not contain the number of key-value heads, so the scratch memory is sized for
 * several query heads per key-value head. */
size_t CPU(attention_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    (void)dtype;
    int64_t padded = attention_padded_width(limits->head_width);
    int64_t keys = limits->sequence > KEYS ? limits->sequence : KEYS;
    size_t forward = attention_forward_floats(padded);
    size_t backward = limits->training ? count_workspace_floats(padded, limits->sequence, keys) : 0;
    size_t floats = forward > backward ? forward : backward;
    return (size_t)threads * cpu_scratch_align(floats * sizeof(float)) +
           attention_bias_scratch(threads, limits);
}

/* Packs q and d_o of the head once for all tiles of keys, and computes d_o . o and lse (as a power
 * of two) of each row. A row without visible keys gets p = exp2(-inf) = 0. */
static void prepare_head(const struct workspace *w, const struct attention_head *h,
                         struct tensors v)
{
    int64_t width = h->a->head_width, column = h->head * width;
    const float *lse = (const float *)v.lse.data + h->head * v.lse.stride + h->first_q;
    attention_pack_over(w->q, v.q, h->first_q, h->queries, column, width);
    attention_pack_over(w->d_o, v.d_o, h->first_q, h->queries, column, width);
    if (w->layout.pairs) {
        attention_pack_left(w->q_operand, v.q, h->first_q, h->queries, column, width);
        attention_pack_left(w->d_o_operand, v.d_o, h->first_q, h->queries, column, width);
    }
    for (int64_t i = 0; i < h->queries; i++) {
        int64_t row = h->first_q + i;
        attention_prefetch(v.o, row, column, width);
        vector sum = vector_set(0);
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            int64_t at = row * v.o.stride + column + c, at_d = row * v.d_o.stride + column + c;
            sum = vector_fma(vector_get(v.d_o.data, v.d_o.dtype, at_d, width - c),
                             vector_get(v.o.data, v.o.dtype, at, width - c), sum);
        }
        w->dot[i] = vector_sum(sum);
        w->lse[i] = lse[i] == -INFINITY ? INFINITY : lse[i] * attention_log2_e;
    }
    memset(w->dq, 0, (size_t)(h->queries * w->padded) * sizeof(float));
}

/* A tile: keys [key, key + keys), queries [query, query + rows) of one head. */
struct tile {
    int64_t key, keys;
    int64_t query, rows;
    float *dkeys, *dvalues; /* of the tile's keys */
};

/* Converts the scores of a row to probabilities; keys that are not visible get 0. */
static void compute_probabilities_row(const struct workspace *w, const struct attention_head *h,
                                      const struct tile *t, int64_t row, int64_t columns)
{
    struct cpu_range visible = attention_visible_keys(h, t->query + row);
    int32_t low = (int32_t)(visible.first > t->key ? visible.first - t->key : 0);
    int32_t high = (int32_t)(visible.last < t->key + t->keys ? visible.last - t->key : t->keys);
    float *p = w->p + row * KEYS;
    if (h->is_modified) {
        attention_modify_scores(h, t->query + row, t->key, p, w->derivatives + row * KEYS, columns);
    }
    vector factor = vector_set(h->score_scale * attention_log2_e);
    vector base = vector_set(-w->lse[t->query + row]);
    struct attention_gap gap = attention_get_gap(h, t->query + row, t->key);
    bool whole = low == 0 && high >= columns && gap.low >= gap.high;
    for (int64_t c = 0; c < columns; c += VECTOR_LANES) {
        vector value = math_exp2(vector_fma(vector_load(p + c), factor, base));
        if (!whole || columns - c < VECTOR_LANES) {
            vector_bits at = vector_index() + (int32_t)c;
            vector_bits mask = (at >= low) & (at < high) & ((at < gap.low) | (at >= gap.high));
            value = vector_select(mask, value, vector_set(0));
        }
        vector_store(p + c, value);
    }
    for (int64_t c = (columns + VECTOR_LANES - 1) / VECTOR_LANES * VECTOR_LANES; c < KEYS;
         c += VECTOR_LANES) {
        vector_store(p + c, vector_set(0));
        vector_store(w->ds + row * KEYS + c, vector_set(0));
    }
}

/* Computes ds = p (m dp - d), times the derivative of the soft-cap, and replaces p by m p. */
static void compute_ds_row(const struct workspace *w, const struct attention_head *h,
                           const struct tile *t, int64_t row, int64_t columns)
{
    float *p = w->p + row * KEYS, *ds = w->ds + row * KEYS;
    vector dot = vector_set(w->dot[t->query + row]);
    struct dropout_row factors;
    dropout_begin(&factors, h->a->dropout, attention_dropout_element(h, t->query + row) + t->key);
    float *sums = w->bias_sums != NULL
                      ? w->bias_sums + attention_distance_zero(h->a, h->queries, h->keys) + t->key -
                            (t->query + row)
                      : NULL;
    for (int64_t c = 0; c < columns; c += VECTOR_LANES) {
        vector value = vector_load(p + c), dp = vector_load(ds + c);
        if (dropout_active(h->a->dropout)) {
            vector keep = dropout_next(&factors);
            dp = vector_fma(dp, keep, -dot); /* one rounding, however the loop is compiled */
            vector_store(p + c, value * keep);
        } else {
            dp -= dot;
        }
        vector gradient = value * dp;
        if (sums != NULL) {
            vector_store(sums + c, vector_load(sums + c) + gradient);
        }
        if (h->a->softcap > 0) {
            gradient *= vector_load(w->derivatives + row * KEYS + c);
        }
        vector_store(ds + c, gradient);
    }
}

/* Packs p and ds of an even row and the next row as pairs. The pairs of p overwrite rows that are
 * already paired. ds is also stored as bf16, in place. Rows end with zeros. */
static void pack_row_pairs(const struct workspace *w, const struct tile *t, int64_t row)
{
    bool both = row + 1 < t->rows;
    float *p = w->p + row * KEYS, *ds = w->ds + row * KEYS;
    for (int64_t c = 0; c < KEYS; c += VECTOR_LANES) {
        vector low = vector_load(ds + c), high = both ? vector_load(ds + KEYS + c) : vector_set(0);
        vector p_high = both ? vector_load(p + KEYS + c) : vector_set(0);
        vector_store(w->p + row / 2 * KEYS + c, attention_pair(vector_load(p + c), p_high));
        vector_store(w->ds_operand + row / 2 * KEYS + c, attention_pair(low, high));
        vector_store_bf16((bf16 *)(void *)ds + c, low);
        if (both) {
            vector_store_bf16((bf16 *)(void *)(ds + KEYS) + c, high);
        }
    }
}

/* Returns the largest number of columns to which a row in [first, last) of a tile attends. */
static int64_t count_visible_columns(const struct attention_head *h, const struct tile *t,
                                     int64_t last)
{
    int64_t end = attention_visible_keys(h, t->query + last - 1).last - t->key;
    return end < 0 ? 0 : end < t->keys ? end : t->keys;
}

static void compute_tile_scores(const struct workspace *w, const struct attention_head *h,
                                const struct tile *t)
{
    struct attention_operand_layout f = w->layout;
    for (int64_t r = 0; r < t->rows; r += GROUP) {
        int64_t last = r + GROUP < t->rows ? r + GROUP : t->rows;
        int64_t columns = count_visible_columns(h, t, last);
        attention_gemm_run(&(struct attention_gemm){
            w->p + r * KEYS, KEYS, w->q_operand + (t->query + r) * f.stride, f.stride, 1,
            w->keys_transposed, KEYS, last - r, columns, f.inner, false, f.pairs});
        for (int64_t i = r; i < last; i++) {
            compute_probabilities_row(w, h, t, i, columns);
        }
    }
    for (int64_t r = 0; r < t->rows; r += GROUP) {
        int64_t last = r + GROUP < t->rows ? r + GROUP : t->rows;
        int64_t columns = count_visible_columns(h, t, last);
        attention_gemm_run(&(struct attention_gemm){
            w->ds + r * KEYS, KEYS, w->d_o_operand + (t->query + r) * f.stride, f.stride, 1,
            w->values_transposed, KEYS, last - r, columns, f.inner, false, f.pairs});
        for (int64_t i = r; i < last; i++) {
            compute_ds_row(w, h, t, i, columns);
        }
        for (int64_t i = r; i < last && f.pairs; i += 2) {
            pack_row_pairs(w, t, i);
        }
    }
}

static void accumulate_tile_gradients(const struct workspace *w, const struct attention_head *h,
                                      const struct tile *t)
{
    int64_t width = h->a->head_width, padded = w->padded;
    bool pairs = w->layout.pairs;
    int64_t rows_per_element = pairs ? 2 : 1; /* rows or keys per element of a GEMM operand */
    for (int64_t r = 0; r < t->rows; r += GROUP) {
        int64_t last = r + GROUP < t->rows ? r + GROUP : t->rows;
        attention_gemm_run(&(struct attention_gemm){
            w->dq + (t->query + r) * padded, padded, w->ds + r * KEYS, KEYS, 1, w->keys, padded,
            last - r, width,
            (count_visible_columns(h, t, last) + rows_per_element - 1) / rows_per_element, true,
            pairs});
    }
    int64_t begin = 0; /* first row that attends to this group of keys; increases with the keys */
    for (int64_t j = 0; j < t->keys; j += GROUP) {
        int64_t keys = j + GROUP < t->keys ? GROUP : t->keys - j;
        while (begin < t->rows && attention_visible_keys(h, t->query + begin).last <= t->key + j) {
            begin++;
        }
        int64_t first = begin / rows_per_element,
                right = (t->query / rows_per_element + first) * padded;
        struct attention_gemm gemm = {t->dvalues + j * padded,
                                      padded,
                                      w->p + first * KEYS + j,
                                      1,
                                      KEYS,
                                      w->d_o + right,
                                      padded,
                                      keys,
                                      width,
                                      (t->rows + rows_per_element - 1) / rows_per_element - first,
                                      true,
                                      pairs};
        attention_gemm_run(&gemm);
        gemm.c = t->dkeys + j * padded;
        gemm.a = w->ds_operand + first * KEYS + j;
        gemm.b = w->q + right;
        attention_gemm_run(&gemm);
    }
}

static void process_tile(const struct workspace *w, const struct attention_head *h,
                         const struct tile *t)
{
    if (count_visible_columns(h, t, t->rows) == 0 ||
        attention_visible_keys(h, t->query).first >= t->key + t->keys ||
        attention_is_tile_hidden(h, t->query, t->key, t->key + t->keys)) {
        return;
    }
    compute_tile_scores(w, h, t);
    accumulate_tile_gradients(w, h, t);
}

static void process_key_tile(const struct workspace *w, const struct attention_head *h,
                             struct tensors v, int64_t key, bool first_head, bool last_head)
{
    int64_t width = h->a->head_width, row = h->first_k + key, column = h->kv_head * width;
    struct tile t = {.key = key, .keys = h->keys - key < KEYS ? h->keys - key : KEYS};
    size_t offset = w->is_kv_shared ? (size_t)(key * w->padded) : 0;
    t.dkeys = w->dkeys + offset;
    t.dvalues = w->dvalues + offset;
    if (first_head) {
        memset(t.dkeys, 0, (size_t)(t.keys * w->padded) * sizeof(float));
        memset(t.dvalues, 0, (size_t)(t.keys * w->padded) * sizeof(float));
    }
    attention_pack_over(w->keys, v.keys, row, t.keys, column, width);
    attention_pack_right(w->keys_transposed, v.keys, row, t.keys, column, width);
    attention_pack_right(w->values_transposed, v.values, row, t.keys, column, width);
    for (t.query = 0; t.query < h->queries; t.query += ROWS) {
        t.rows = h->queries - t.query < ROWS ? h->queries - t.query : ROWS;
        process_tile(w, h, &t);
    }
    if (last_head) {
        attention_unpack(v.dkeys, row, t.keys, column, width, t.dkeys, h->a->scale);
        attention_unpack(v.dvalues, row, t.keys, column, width, t.dvalues, 1.0f);
    }
}

static void process_kv_head(const struct workspace *w, const struct attention *a,
                            const struct attention_distances *d, struct tensors v, int64_t sequence,
                            int64_t kv_head)
{
    int64_t group = a->heads / a->kv_heads, width = a->head_width;
    for (int64_t i = 0; i < group; i++) {
        struct attention_head h = attention_make_head(a, d, sequence, kv_head * group + i);
        if (w->bias_sums != NULL) {
            memset(w->bias_sums, 0, (size_t)d->span * sizeof(float));
        }
        prepare_head(w, &h, v);
        for (int64_t key = 0; key < h.keys; key += KEYS) {
            process_key_tile(w, &h, v, key, i == 0, i == group - 1);
        }
        attention_unpack(v.dq, h.first_q, h.queries, h.head * width, width, w->dq, a->scale);
        if (w->bias_sums != NULL) {
            attention_bias_finish_head(d, &h, sequence, w->bias_sums);
        }
    }
}

static void process_thread_items(const struct workspace *w, const struct attention *a,
                                 const struct attention_distances *d, struct tensors v, int thread,
                                 int threads)
{
    for (int64_t i = 0; i < a->sequences; i++) {
        int64_t item = i % ATTENTION_BIAS_PARTS * a->kv_heads;
        for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head++) {
            if (item++ % threads == thread) {
                process_kv_head(w, a, d, v, i, kv_head);
            }
        }
    }
}

status CPU(attention_backward)(struct kernels *k, struct tensor dq, struct tensor dkeys,
                               struct tensor dvalues, struct tensor d_o, struct tensor q,
                               struct tensor keys, struct tensor values, struct tensor o,
                               struct tensor lse, const struct attention *a)
{
    REQUIRE(a->head_width <= ATTENTION_WIDTH && a->scale > 0, STATUS_INTERNAL,
            "attention: head width %" PRId64 " (at most %d), scale %g (above 0)", a->head_width,
            ATTENTION_WIDTH, (double)a->scale);
    struct arena *scratch = &cpu_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    int64_t padded = attention_padded_width(a->head_width);
    int64_t summed = count_accumulated_keys(a->heads, a->kv_heads, a->longest_k);
    size_t bytes =
        cpu_scratch_align(count_workspace_floats(padded, a->longest_q, summed) * sizeof(float));
    void *memory;
    struct attention_distances distances;
    TRY(attention_bias_make(&distances, scratch, a, true, k->threads));
    TRY(arena_take(scratch, (size_t)k->threads * bytes, &memory));
    struct tensors v = {dq, dkeys, dvalues, d_o, q, keys, values, o, lse};
#pragma omp parallel num_threads(k->threads)
    {
        int thread = omp_get_thread_num();
        float *thread_memory = (float *)(void *)((char *)memory + (size_t)thread * bytes);
        struct workspace w = make_workspace(thread_memory, padded, a->longest_q, summed);
        w.layout = attention_get_operand_layout(q.dtype, a->head_width);
        if (!w.layout.pairs) {
            w.q_operand = w.q;
            w.d_o_operand = w.d_o;
            w.ds_operand = w.ds;
        }
        w.is_kv_shared = a->heads != a->kv_heads;
        if (distances.parts != NULL) {
            char *sums = (char *)distances.sums + (size_t)thread * distances.thread_bytes;
            w.bias_sums = (float *)(void *)sums;
        }
        process_thread_items(&w, a, &distances, v, thread, omp_get_num_threads());
    }
    attention_bias_finish(&distances, a);
    arena_release(scratch, mark);
    return STATUS_OK;
}
