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
 *           the diagonal are skipped, tiles on it are reduced to the visible keys. With AMX, dk and
 *           dv of a tile are transposed. Then p and ds are right operands, which need no transpose.
 * Threads   Work items are (sequence, key-value head); all sequences of a part of the bias gradient
 *           (attention_bias.h) have the same thread. Each sum therefore belongs to one thread and
 *           has one order, and no score is computed twice. If there are few items for the threads,
 *           they are divided by keys (attention_division.h). The queries are then packed once for
 *           all threads, which add to dq in the same order (dq_order). A split by queries and by
 *           keys would need seven GEMMs instead of five.
 *
 * Source    Dao et al. 2022, arXiv:2205.14135 */
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "base/number.h"
#include "kernels/cpu/attention/attention_bias.h"

enum { KEYS = ATTENTION_KEYS, ROWS = 64, GROUP = ATTENTION_GROUP };

struct tensors {
    struct tensor dq, dkeys, dvalues, d_o, q, keys, values, o, lse;
};

/* The workspace of a thread. */
struct workspace {
    float *keys, *keys_transposed, *values_transposed; /* [KEYS][padded], [padded][KEYS] */
    float *q, *d_o;                                    /* [longest_q][padded], or pairs of rows */
    float *q_operand, *d_o_operand;                    /* the same, as operands of a score GEMM */
    float *p, *ds;                                     /* [ROWS][KEYS] */
    float *ds_operand;      /* operand of the GEMM for dk: ds itself, or pairs of its rows */
    float *derivatives;     /* [ROWS][KEYS] derivatives of the soft-cap; pack_row_pairs overwrites
                             * rows that are not needed any more */
    float *dot;             /* [longest_q] d_o . o */
    float *lse;             /* [longest_q], in base 2 */
    float *dq;              /* [longest_q][padded] */
    float *dkeys, *dvalues; /* [longest_k][padded], or one tile of it. With AMX the tiles are
                             * transposed: [padded][KEYS] */
    float *bias_sums;       /* gradients of the bias of a head by distance; NULL: none */
    int64_t padded;
    struct attention_operand_layout layout;
    bool is_kv_shared; /* several query heads share a key-value head: dkeys, dvalues are whole */
};

static size_t count_workspace_floats(int64_t padded, int64_t queries, int64_t keys)
{
    int64_t rounded = number_round_up(queries, ATTENTION_STEP);
    return (size_t)(3 * KEYS * padded + 3 * ROWS * KEYS + 2 * rounded + 5 * rounded * padded +
                    2 * keys * padded);
}

static struct workspace make_workspace(float *memory, int64_t padded, int64_t queries, int64_t keys)
{
    struct workspace w = {.padded = padded};
    int64_t rounded = number_round_up(queries, ATTENTION_STEP);
    struct {
        float **part;
        int64_t floats;
    } parts[] = {
        {&w.keys, KEYS * padded},
        {&w.keys_transposed, KEYS * padded},
        {&w.values_transposed, KEYS * padded},
        {&w.q, rounded * padded},
        {&w.d_o, rounded * padded},
        {&w.q_operand, rounded * padded},
        {&w.d_o_operand, rounded * padded},
        {&w.p, ROWS * KEYS},
        {&w.ds, ROWS * KEYS},
        {&w.ds_operand, ROWS * KEYS},
        {&w.dot, rounded},
        {&w.lse, rounded},
        {&w.dq, rounded * padded},
        {&w.dkeys, keys * padded},
        {&w.dvalues, keys * padded},
    };
    for (int i = 0; i < COUNT(parts); i++) {
        *parts[i].part = memory;
        memory += parts[i].floats;
    }
    w.derivatives = w.ds_operand;
    return w;
}

static int64_t count_accumulated_keys(int heads, int kv_heads, int64_t longest)
{
    return heads == kv_heads ? KEYS : number_round_up(longest, KEYS);
}

static size_t compute_order_bytes(int64_t query_tiles, int heads)
{
    return cpu_scratch_align((size_t)(query_tiles * heads) * sizeof(int32_t));
}

/* Returns the packed row at which a sequence begins. `row` is its first row before packing. If
 * `row` is the total number of rows and `sequence` is the number of sequences, the function returns
 * the number of packed rows. Sequences begin at multiples of ATTENTION_STEP. */
static int64_t get_packed_row(int64_t row, int64_t sequence)
{
    return number_round_up(row + sequence * (ATTENTION_STEP - 1), ATTENTION_STEP);
}

/* Returns the floats of the packed queries of a head: q, d_o, dot, lse. */
static int64_t count_packed_floats(int64_t packed_rows, int64_t width)
{
    return packed_rows * (2 * attention_padded_width(width) + 2);
}

/* Returns the bytes of f32 sums for dq, if dq cannot hold them. */
static size_t compute_sums_bytes(enum dtype dtype, int64_t width, int64_t rows, int heads)
{
    enum { WIDEST_VECTOR = 16 }; /* all variants need the same scratch memory */
    int64_t padded = attention_padded_width(width);
    bool is_needed = dtype != DTYPE_F32 || width % WIDEST_VECTOR != 0;
    return is_needed ? cpu_scratch_align((size_t)(rows * heads * padded) * sizeof(float)) : 0;
}

/* The limits do not contain the number of key-value heads, so the scratch memory is sized for
 * several query heads per key-value head. */
size_t CPU(attention_scratch)(enum dtype dtype, int threads, const struct kernels_limits *limits)
{
    int64_t padded = attention_padded_width(limits->head_width);
    int64_t keys = number_round_up(limits->sequence, KEYS);
    size_t forward = attention_forward_floats(padded);
    size_t backward = limits->training ? count_workspace_floats(padded, limits->sequence, keys) : 0;
    size_t floats = forward > backward ? forward : backward;
    size_t order = 0;
    if (threads > 2 && limits->training) { /* a sequence has at least one row */
        int64_t rows =
            get_packed_row(limits->rows, attention_most_sequences(limits->rows, threads));
        int64_t floats_per_head = count_packed_floats(rows, limits->head_width);
        order = compute_order_bytes(limits->rows / ROWS + limits->rows, limits->heads) +
                compute_sums_bytes(dtype, limits->head_width, limits->rows, limits->heads) +
                cpu_scratch_align((size_t)(floats_per_head * limits->heads) * sizeof(float));
    }
    return (size_t)threads * cpu_scratch_align(floats * sizeof(float)) + order +
           attention_bias_scratch(threads, limits);
}

/* Packs q and d_o of some query rows of the head for all tiles of keys, and computes d_o . o and
 * lse (as a power of two) of each row. A row without visible keys gets p = exp2(-inf) = 0. The
 * first row is a multiple of ROWS. */
static void prepare_rows(const struct workspace *w, const struct attention_head *h,
                         struct tensors v, struct cpu_range rows)
{
    int64_t width = h->a->head_width, column = h->head * width;
    int64_t row = h->first_q + rows.first, count = rows.last - rows.first;
    int64_t packed = rows.first / (w->layout.pairs ? 2 : 1) * w->padded;
    const float *lse = (const float *)v.lse.data + h->head * v.lse.stride + h->first_q;
    if (w->layout.pairs) {
        int64_t operand = rows.first * w->layout.stride;
        attention_pack_left(w->q_operand + operand, v.q, row, count, column, width);
        attention_pack_left(w->d_o_operand + operand, v.d_o, row, count, column, width);
    }
    attention_pack_queries(w->q + packed, v.q, row, count, column, width);
    attention_pack_queries(w->d_o + packed, v.d_o, row, count, column, width);
    for (int64_t i = rows.first; i < rows.last; i++) {
        int64_t from = h->first_q + i;
        attention_prefetch(v.o, from, column, width);
        vector sum = vector_set(0);
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            int64_t at = from * v.o.stride + column + c, at_d = from * v.d_o.stride + column + c;
            sum = vector_fma(vector_get(v.d_o.data, v.d_o.dtype, at_d, width - c),
                             vector_get(v.o.data, v.o.dtype, at, width - c), sum);
        }
        w->dot[i] = vector_sum(sum);
        w->lse[i] = lse[i] == -INFINITY ? INFINITY : lse[i] * attention_log2_e;
    }
}

/* A tile: keys [key, key + keys), queries [query, query + rows) of one head. */
struct tile {
    int64_t key, keys;
    int64_t query, rows;
    float *dkeys, *dvalues; /* of the tile's keys */
    float *dq;              /* of the tile's queries */
    int64_t dq_stride;
};

/* Converts the scores of a row to probabilities; keys that are not visible get 0. If scores are
 * above 2^24, lse has a rounding error of 1 or more. The exponent is therefore limited, because
 * infinite probabilities would make all gradients NaN. */
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
        vector exponent = vector_fma(vector_load(p + c), factor, base);
        vector value = math_exp2(vector_min(vector_set(1.0f), exponent));
        if (!whole || columns - c < VECTOR_LANES) {
            vector_bits at = vector_index() + (int32_t)c;
            vector_bits mask = (at >= low) & (at < high) & ((at < gap.low) | (at >= gap.high));
            value = vector_select(mask, value, vector_set(0));
        }
        vector_store(p + c, value);
    }
    int64_t end = attention_round_rows(&w->layout, t->keys);
    for (int64_t c = number_round_up(columns, VECTOR_LANES); c < end; c += VECTOR_LANES) {
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
    int64_t end = attention_round_rows(&w->layout, t->keys);
    for (int64_t c = 0; c < end; c += VECTOR_LANES) {
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

/* Sets the pairs of rows between the last row of a tile and the end of a step to zero. */
static void clear_row_pairs(const struct workspace *w, const struct tile *t)
{
    int64_t first = (t->rows + 1) / 2, end = attention_count_inner(&w->layout, t->rows);
    size_t bytes = (size_t)((end - first) * KEYS) * sizeof(float);
    memset(w->p + first * KEYS, 0, bytes);
    memset(w->ds_operand + first * KEYS, 0, bytes);
}

/* Returns the largest number of columns to which a row in [first, last) of a tile attends. */
static int64_t count_visible_columns(const struct attention_head *h, const struct tile *t,
                                     int64_t last)
{
    int64_t end = attention_visible_keys(h, t->query + last - 1).last - t->key;
    return number_clamp(end, 0, t->keys);
}

static void compute_tile_scores(const struct workspace *w, const struct attention_head *h,
                                const struct tile *t)
{
    struct attention_operand_layout f = w->layout;
    for (int64_t r = 0; r < t->rows; r += f.group) {
        int64_t last = number_min(r + f.group, t->rows);
        int64_t columns = count_visible_columns(h, t, last);
        attention_gemm_run(&(struct attention_gemm){
            w->p + r * KEYS, KEYS, w->q_operand + (t->query + r) * f.stride, f.stride, 1,
            w->keys_transposed, KEYS, last - r, columns, f.inner, false, f.pairs});
        for (int64_t i = r; i < last; i++) {
            compute_probabilities_row(w, h, t, i, columns);
        }
    }
    for (int64_t r = 0; r < t->rows; r += f.group) {
        int64_t last = number_min(r + f.group, t->rows);
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
    if (f.tiles) {
        clear_row_pairs(w, t);
    }
}

static void accumulate_dq(const struct workspace *w, const struct attention_head *h,
                          const struct tile *t)
{
    for (int64_t r = 0; r < t->rows; r += w->layout.group) {
        int64_t last = number_min(r + w->layout.group, t->rows);
        attention_gemm_run(&(struct attention_gemm){
            t->dq + r * t->dq_stride, t->dq_stride, w->ds + r * KEYS, KEYS, 1, w->keys, w->padded,
            last - r, h->a->head_width,
            attention_count_inner(&w->layout, count_visible_columns(h, t, last)), true,
            w->layout.pairs});
    }
}

/* Adds to the transposed tiles of dk and dv: dv^T += d_o^T p, dk^T += q^T ds. */
static void accumulate_transposed(const struct workspace *w, const struct attention_head *h,
                                  const struct tile *t)
{
    enum { TILE = ATTENTION_TILE };
    int64_t first = t->query / 2 * w->padded, rows = number_round_up(h->a->head_width, TILE);
    int64_t inner = attention_count_inner(&w->layout, t->rows);
    attention_gemm_run(&(struct attention_gemm){t->dvalues, KEYS, w->d_o + first, TILE, w->padded,
                                                w->p, KEYS, rows, t->keys, inner, true, true});
    attention_gemm_run(&(struct attention_gemm){t->dkeys, KEYS, w->q + first, TILE, w->padded,
                                                w->ds_operand, KEYS, rows, t->keys, inner, true,
                                                true});
}

static void accumulate_dk_dv(const struct workspace *w, const struct attention_head *h,
                             const struct tile *t)
{
    if (w->layout.tiles) {
        accumulate_transposed(w, h, t);
        return;
    }
    int64_t width = h->a->head_width, padded = w->padded;
    bool pairs = w->layout.pairs;
    int64_t rows_per_element = pairs ? 2 : 1; /* rows per element of a GEMM operand */
    int64_t begin = 0; /* first row that attends to this group of keys; increases with the keys */
    for (int64_t j = 0; j < t->keys; j += GROUP) {
        int64_t keys = number_min(GROUP, t->keys - j);
        while (begin < t->rows && attention_visible_keys(h, t->query + begin).last <= t->key + j) {
            begin++;
        }
        int64_t first = begin / rows_per_element,
                right = (t->query / rows_per_element + first) * padded,
                inner = number_divide_up(t->rows, rows_per_element) - first;
        attention_gemm_run(&(struct attention_gemm){
            t->dvalues + j * padded, padded, w->p + first * KEYS + j, 1, KEYS, w->d_o + right,
            padded, keys, width, inner, true, pairs});
        attention_gemm_run(&(struct attention_gemm){
            t->dkeys + j * padded, padded, w->ds_operand + first * KEYS + j, 1, KEYS, w->q + right,
            padded, keys, width, inner, true, pairs});
    }
}

static bool is_tile_visible(const struct attention_head *h, const struct tile *t)
{
    return count_visible_columns(h, t, t->rows) > 0 &&
           attention_visible_keys(h, t->query).first < t->key + t->keys &&
           !attention_is_tile_hidden(h, t->query, t->key, t->key + t->keys);
}

/* ---- additions to dq by several threads ---- */

/* Several threads add the products of different keys to the same sums for dq. Each tile of queries
 * of a head has a counter: the number of the work item that is added next. Therefore the order is
 * the same as with one thread. The sums are in dq itself, or in scratch memory if dq is not f32 or
 * its heads are not whole vectors. */
struct dq_order {
    _Atomic int32_t *next;
    int64_t item_keys; /* keys of a work item */
    struct tensor dq;
    float *sums;   /* [heads][rows][padded], or NULL */
    float *packed; /* [heads] packed queries, which all work items read */
    int64_t packed_rows;
};

static int64_t count_query_tiles(const struct attention *a)
{
    return a->cu_q[a->sequences] / ROWS + a->sequences;
}

static _Atomic int32_t *get_next(const struct dq_order *order, const struct attention_head *h,
                                 int64_t sequence, int64_t query)
{
    int64_t tile = h->first_q / ROWS + sequence + query / ROWS;
    return &order->next[tile * h->a->heads + h->head];
}

/* Returns the distance of two rows of the sums. */
static int64_t get_sums_stride(const struct workspace *w, const struct dq_order *order)
{
    return order->sums != NULL ? w->padded : order->dq.stride;
}

/* Returns the sums of a query. */
static float *get_sums(const struct workspace *w, const struct dq_order *order,
                       const struct attention_head *h, int64_t query)
{
    int64_t row = h->first_q + query;
    return order->sums != NULL
               ? order->sums + (h->head * order->dq.rows + row) * w->padded
               : (float *)order->dq.data + row * order->dq.stride + h->head * h->a->head_width;
}

/* Sets dq and the sums of a query to 0. */
static void clear_query(const struct workspace *w, const struct dq_order *order,
                        const struct attention_head *h, int64_t query)
{
    size_t size = dtype_bytes(order->dq.dtype), width = (size_t)h->a->head_width;
    size_t at = (size_t)((h->first_q + query) * order->dq.stride) + (size_t)h->head * width;
    memset((char *)order->dq.data + at * size, 0, width * size);
    if (order->sums != NULL) {
        memset(get_sums(w, order, h, query), 0, (size_t)w->padded * sizeof(float));
    }
}

/* Returns a workspace with the packed queries of a head instead of those of the thread. */
static struct workspace use_packed_queries(const struct workspace *w, const struct dq_order *order,
                                           const struct attention_head *h, int64_t sequence)
{
    struct workspace r = *w;
    int64_t rows = order->packed_rows, first = get_packed_row(h->first_q, sequence);
    int64_t floats = rows * w->padded / (w->layout.pairs ? 2 : 1); /* of one matrix */
    float *memory = order->packed + h->head * count_packed_floats(rows, h->a->head_width);
    r.q = memory + first * w->padded / (w->layout.pairs ? 2 : 1);
    r.d_o = r.q + floats;
    r.q_operand = w->layout.pairs ? memory + 2 * floats + first * w->layout.stride : r.q;
    r.d_o_operand = r.q_operand + floats;
    r.dot = memory + 2 * rows * w->padded + first;
    r.lse = r.dot + rows;
    return r;
}

/* Packs a tile of queries, sets its sums to 0 and its counter to the first work item. */
static void begin_query_tile(const struct workspace *w, const struct dq_order *order,
                             const struct attention_head *h, struct tensors v, int64_t sequence,
                             int64_t query)
{
    struct workspace packed = use_packed_queries(w, order, h, sequence);
    int64_t last = number_min(query + ROWS, h->queries);
    prepare_rows(&packed, h, v, (struct cpu_range){query, last});
    for (int64_t i = query; i < last; i++) {
        clear_query(w, order, h, i);
    }
    *get_next(order, h, sequence, query) =
        (int32_t)(attention_visible_keys(h, query).first / order->item_keys);
}

/* Begins all tiles of queries. Call it in a parallel region. */
static void begin_dq_order(const struct workspace *w, const struct dq_order *order,
                           struct tensors v, const struct attention *a,
                           const struct attention_distances *d)
{
    int64_t heads = a->sequences * a->heads, tiles = number_divide_up(a->longest_q, ROWS);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tiles * heads; i++) {
        int64_t sequence = i / tiles / a->heads, query = i % tiles * ROWS;
        struct attention_head h = attention_make_head(a, d, sequence, i / tiles % a->heads);
        if (query < h.queries) {
            begin_query_tile(w, order, &h, v, sequence, query);
        }
    }
}

/* Writes the sums of a tile of queries to dq, times the scale. */
static void finish_dq(const struct workspace *w, const struct dq_order *order,
                      const struct attention_head *h, const struct tile *t)
{
    int64_t width = h->a->head_width;
    if (order->sums != NULL) {
        attention_unpack(order->dq, h->first_q + t->query, t->rows, h->head * width, width, t->dq,
                         h->a->scale);
        return;
    }
    vector scale = vector_set(h->a->scale);
    for (int64_t i = 0; i < t->rows; i++) {
        float *dq = t->dq + i * get_sums_stride(w, order);
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            vector_store(dq + c, scale * vector_load(dq + c));
        }
    }
}

/* Waits until the products of the earlier work items have been added. Then adds the products of t.
 * The last item also multiplies the sums by the scale. */
static void add_dq_in_order(const struct workspace *w, const struct attention_head *h,
                            struct tile *t, const struct dq_order *order, int64_t sequence)
{
    enum { SPINS = 1000 };
    _Atomic int32_t *next = get_next(order, h, sequence, t->query);
    int32_t number = (int32_t)(t->key / order->item_keys);
    for (int i = 0; atomic_load_explicit(next, memory_order_acquire) != number; i++) {
        if (i >= SPINS) {
            sched_yield(); /* there may be more threads than cores */
        }
    }
    t->dq = get_sums(w, order, h, t->query);
    t->dq_stride = get_sums_stride(w, order);
    accumulate_dq(w, h, t);
    if (attention_visible_keys(h, t->query + t->rows - 1).last <= t->key + t->keys) {
        finish_dq(w, order, h, t);
    }
    atomic_store_explicit(next, number + 1, memory_order_release);
}

/* ---- work items ---- */

/* Processes all queries of a head with one tile of keys. With an order, the tile has the keys of a
 * work item, and dq is added in this order. */
static void process_key_tile(const struct workspace *w, const struct attention_head *h,
                             struct tensors v, int64_t sequence, int64_t key,
                             const struct dq_order *order)
{
    int64_t width = h->a->head_width, row = h->first_k + key, column = h->kv_head * width;
    int64_t group = h->a->heads / h->a->kv_heads, member = h->head % group;
    int64_t most = order != NULL ? order->item_keys : KEYS;
    struct tile t = {.key = key, .keys = number_min(h->keys - key, most)};
    size_t offset = w->is_kv_shared ? (size_t)(key * w->padded) : 0;
    t.dkeys = w->dkeys + offset;
    t.dvalues = w->dvalues + offset;
    if (member == 0) {
        memset(t.dkeys, 0, (size_t)(KEYS * w->padded) * sizeof(float));
        memset(t.dvalues, 0, (size_t)(KEYS * w->padded) * sizeof(float));
    }
    attention_pack_over(w->keys, v.keys, row, t.keys, column, width);
    attention_pack_right(w->keys_transposed, v.keys, row, t.keys, column, width);
    attention_pack_right(w->values_transposed, v.values, row, t.keys, column, width);
    for (t.query = 0; t.query < h->queries; t.query += ROWS) {
        t.rows = number_min(h->queries - t.query, ROWS);
        if (!is_tile_visible(h, &t)) {
            continue;
        }
        compute_tile_scores(w, h, &t);
        accumulate_dk_dv(w, h, &t);
        if (order != NULL) {
            add_dq_in_order(w, h, &t, order, sequence);
        } else {
            t.dq = w->dq + t.query * w->padded;
            t.dq_stride = w->padded;
            accumulate_dq(w, h, &t);
        }
    }
    if (member == group - 1) {
        attention_unpack_keys(&w->layout, v.dkeys, row, t.keys, column, width, t.dkeys,
                              h->a->scale);
        attention_unpack_keys(&w->layout, v.dvalues, row, t.keys, column, width, t.dvalues, 1.0f);
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
        prepare_rows(w, &h, v, (struct cpu_range){0, h.queries});
        memset(w->dq, 0, (size_t)(h.queries * w->padded) * sizeof(float));
        for (int64_t key = 0; key < h.keys; key += KEYS) {
            process_key_tile(w, &h, v, sequence, key, NULL);
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
        for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head++) {
            if (attention_head_thread(a, i, kv_head, threads) == thread) {
                process_kv_head(w, a, d, v, i, kv_head);
            }
        }
    }
}

/* Processes the keys of work items; a thread takes the next one when it is idle. Call it in a
 * parallel region. */
static void process_items(const struct workspace *w, const struct attention *a,
                          const struct attention_distances *d, struct tensors v,
                          const struct dq_order *order)
{
    int64_t group = a->heads / a->kv_heads, items = attention_count_items(a, order->item_keys);
    begin_dq_order(w, order, v, a, d);
#pragma omp for schedule(monotonic : dynamic, 1)
    for (int64_t i = 0; i < items; i++) {
        struct attention_item item = attention_get_item(a, order->item_keys, i);
        for (int64_t j = 0; j < group; j++) {
            struct attention_head h =
                attention_make_head(a, d, item.sequence, item.kv_head * group + j);
            if (item.key < h.keys) {
                struct workspace packed = use_packed_queries(w, order, &h, item.sequence);
                process_key_tile(&packed, &h, v, item.sequence, item.key, order);
            }
        }
    }
}

/* Allocates the counters, sums and packed queries of *order. */
static status allocate_order(struct arena *scratch, const struct attention *a,
                             struct dq_order *order)
{
    void *memory;
    size_t bytes = compute_sums_bytes(order->dq.dtype, a->head_width, order->dq.rows, a->heads);
    TRY(arena_take(scratch, compute_order_bytes(count_query_tiles(a), a->heads), &memory));
    order->next = memory;
    if (bytes > 0) {
        TRY(arena_take(scratch, bytes, &memory));
        order->sums = memory;
    }
    order->packed_rows = get_packed_row(order->dq.rows, a->sequences);
    int64_t floats = count_packed_floats(order->packed_rows, a->head_width) * a->heads;
    TRY(arena_take(scratch, (size_t)floats * sizeof(float), &memory));
    order->packed = memory;
    return STATUS_OK;
}

status CPU(attention_backward)(struct kernels *k, struct tensor dq, struct tensor dkeys,
                               struct tensor dvalues, struct tensor d_o, struct tensor q,
                               struct tensor keys, struct tensor values, struct tensor o,
                               struct tensor lse, const struct attention *a)
{
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
    struct dq_order order = {.item_keys = attention_item_keys(a, k->threads), .dq = dq};
    bool divide = order.item_keys > 0;
    TRY(divide ? allocate_order(scratch, a, &order) : STATUS_OK);
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
        w.is_kv_shared = !divide && a->heads != a->kv_heads;
        if (distances.parts != NULL) {
            char *sums = (char *)distances.sums + (size_t)thread * distances.thread_bytes;
            w.bias_sums = (float *)(void *)sums;
        }
        attention_tiles_begin(w.layout.tiles);
        if (divide) {
            process_items(&w, a, &distances, v, &order);
        } else {
            process_thread_items(&w, a, &distances, v, thread, omp_get_num_threads());
        }
        attention_tiles_end(w.layout.tiles);
    }
    attention_bias_finish(&distances, a);
    arena_release(scratch, mark);
    return STATUS_OK;
}
