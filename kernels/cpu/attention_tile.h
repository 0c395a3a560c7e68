/* What attention's forward and backward passes share: which keys a query sees, tiles packed as
 * floats, and one register-blocked product for all of their seven products.
 *
 * Packing copies a tile of one head out of the strided rows (whose stride, a multiple of a page's
 * fraction, makes cache sets collide), turns bf16 to float and, where the product's inner index
 * must run over rows, transposes. Tiles hold KEYS keys; a row of a tile is head_width rounded up to
 * whole vectors, padded with zeros. */
#pragma once

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/vector.h"

#define ATTENTION_INLINE static inline __attribute__((always_inline))

enum {
    ATTENTION_QUERIES = 256, /* query rows that the forward pass packs a tile of keys for */
    ATTENTION_KEYS = 64,     /* keys of a tile: whole vectors in every instruction set */
    ATTENTION_GROUP = 6,     /* rows of a register block */
    ATTENTION_WIDTH = 256,   /* largest head width */
#if defined(VECTOR_AVX512)
    ATTENTION_VECTORS = 4, /* columns of a register block: 24 of 32 registers are sums */
#else
    ATTENTION_VECTORS = 2, /* 12 of 16 registers */
#endif
};

/* Where the processor multiplies pairs of bf16, twice as fast as floats, all seven products do it if the
 * operands are stored so. Scores and d_o v^T are as exact as with floats; the other five round their computed
 * factor, p or ds, to bf16, as tiles on tensor cores do; sums stay floats. */
#if defined(__AVX512BF16__)
enum { ATTENTION_PAIRS = 1 };
#else
enum { ATTENTION_PAIRS = 0 };
#endif

static const float attention_log2_e = 1.44269504088896340736f;
static const float attention_ln_2 = 0.69314718055994530942f;

/* One head of one sequence. Rows of q, o, lse count from first_q, rows of k and v from first_k. */
struct attention_head {
    const struct attention *a;
    int64_t head, kv_head;
    int64_t first_q, queries;
    int64_t first_k, keys;
    struct cpu_range hidden; /* keys that queries behind them do not see */
};

static inline struct attention_head attention_head_of(const struct attention *a, int64_t sequence,
                                                      int64_t head)
{
    const int32_t *branch = a->branches != NULL ? a->branches + 2 * sequence : NULL;
    return (struct attention_head){
        .hidden = {branch != NULL ? branch[0] : 0, branch != NULL ? branch[1] : 0},
        .a = a,
        .head = head,
        .kv_head = head / (a->heads / a->kv_heads),
        .first_q = a->cu_q[sequence],
        .queries = a->cu_q[sequence + 1] - a->cu_q[sequence],
        .first_k = a->cu_k[sequence],
        .keys = a->cu_k[sequence + 1] - a->cu_k[sequence],
    };
}

/* The dropout element of a query's key 0. */
static inline int64_t attention_element(const struct attention_head *h, int64_t query)
{
    int heads = h->a->all_heads > 0 ? h->a->all_heads : h->a->heads;
    return ((h->first_q + query) * heads + h->a->first_head + h->head) * h->a->longest_k;
}

/* Query i sees the keys first .. last - 1; both grow with i. */
static inline struct cpu_range attention_visible(const struct attention_head *h, int64_t i)
{
    int64_t last = h->a->causal ? i + h->keys - h->queries + 1 : h->keys;
    last = last < 0 ? 0 : last;
    int64_t first = h->a->window > 0 && last > h->a->window ? last - h->a->window : 0;
    return (struct cpu_range){first, last};
}

/* The rows from `query` on see none of the keys [first, last): they lie in the other branch. */
static inline bool attention_all_hidden(const struct attention_head *h, int64_t query,
                                        int64_t first, int64_t last)
{
    return query >= h->hidden.last && first >= h->hidden.first && last <= h->hidden.last;
}

/* What query i does not see of the tile that begins with `key`, in keys of the tile; empty: low is not below high. */
struct attention_gap {
    int32_t low, high;
};

static inline struct attention_gap attention_gap_of(const struct attention_head *h, int64_t i,
                                                    int64_t key)
{
    if (i < h->hidden.last || key >= h->hidden.last || key + ATTENTION_KEYS <= h->hidden.first) {
        return (struct attention_gap){0, 0};
    }
    int64_t low = h->hidden.first - key, high = h->hidden.last - key;
    return (struct attention_gap){(int32_t)(low < 0 ? 0 : low),
                                  (int32_t)(high < ATTENTION_KEYS ? high : ATTENTION_KEYS)};
}

/* Floats of a packed row: whole vectors of the widest kind, so that scratch is the same for all. */
static inline int64_t attention_padded(int64_t head_width)
{
    return (head_width + 15) / 16 * 16;
}

/* Floats that a thread of the forward pass works in: attention.c's struct work. */
static inline size_t attention_forward_floats(int64_t padded)
{
    const int64_t queries = ATTENTION_QUERIES, keys = ATTENTION_KEYS;
    return (size_t)((2 * queries + 2 * keys) * padded + ATTENTION_GROUP * keys + 17 * queries);
}

/* ---- packing ---- */

/* Ask for a row that is packed a while later. */
static inline void attention_prefetch(struct tensor t, int64_t row, int64_t column, int64_t width)
{
    cpu_prefetch(t, row + 12, column, width);
}

/* to[rows][padded] = columns [column, column + width) of `rows` rows of t from `row` on */
ATTENTION_INLINE void attention_pack_as(float *to, struct tensor t, enum dtype dtype, int64_t row,
                                        int64_t rows, int64_t column, int64_t width)
{
    int64_t padded = attention_padded(width);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * t.stride + column;
        attention_prefetch(t, row + r, column, width);
        for (int64_t c = 0; c < padded; c += VECTOR_LANES) {
            int64_t left = width - c < 0 ? 0 : width - c;
            vector_store(to + r * padded + c, vector_get(t.data, dtype, at + c, left));
        }
    }
}

static inline void attention_pack(float *to, struct tensor t, int64_t row, int64_t rows,
                                  int64_t column, int64_t width)
{
    if (t.dtype == DTYPE_F32) {
        attention_pack_as(to, t, DTYPE_F32, row, rows, column, width);
    } else {
        attention_pack_as(to, t, DTYPE_BF16, row, rows, column, width);
    }
}

/* Transpose a square of vectors: log2(lanes) rounds, each of which interleaves row i with row
 * i + lanes / 2 into rows 2 i and 2 i + 1. */
ATTENTION_INLINE void attention_turn(vector square[VECTOR_LANES])
{
    vector_bits low = {0}, high = {0};
    for (int i = 0; i < VECTOR_LANES; i++) {
        low[i] = i / 2 + i % 2 * VECTOR_LANES;
        high[i] = low[i] + VECTOR_LANES / 2;
    }
#pragma GCC unroll 4
    for (int round = 1; round < VECTOR_LANES; round *= 2) {
        vector next[VECTOR_LANES];
#pragma GCC unroll 8
        for (int i = 0; i < VECTOR_LANES / 2; i++) {
            next[2 * i] = __builtin_shuffle(square[i], square[i + VECTOR_LANES / 2], low);
            next[2 * i + 1] = __builtin_shuffle(square[i], square[i + VECTOR_LANES / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VECTOR_LANES; i++) {
            square[i] = next[i];
        }
    }
}

/* to[width rounded up][KEYS] = the transpose of up to KEYS rows; columns from `rows` on are 0 */
ATTENTION_INLINE void attention_pack_turned_as(float *to, struct tensor t, enum dtype dtype,
                                               int64_t row, int64_t rows, int64_t column,
                                               int64_t width)
{
    for (int64_t r = 0; r < ATTENTION_KEYS; r += VECTOR_LANES) {
        for (int i = 0; i < VECTOR_LANES; i++) {
            cpu_prefetch(t, row + r + VECTOR_LANES + i, column, width);
        }
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            vector square[VECTOR_LANES];
            for (int i = 0; i < VECTOR_LANES; i++) {
                int64_t at = (row + r + i) * t.stride + column + c;
                square[i] = r + i < rows ? vector_get(t.data, dtype, at, width - c) : vector_set(0);
            }
            attention_turn(square);
            for (int i = 0; i < VECTOR_LANES; i++) {
                vector_store(to + (c + i) * ATTENTION_KEYS + r, square[i]);
            }
        }
    }
}

static inline void attention_pack_turned(float *to, struct tensor t, int64_t row, int64_t rows,
                                         int64_t column, int64_t width)
{
    if (t.dtype == DTYPE_F32) {
        attention_pack_turned_as(to, t, DTYPE_F32, row, rows, column, width);
    } else {
        attention_pack_turned_as(to, t, DTYPE_BF16, row, rows, column, width);
    }
}

/* ---- the factors of a score product ---- */

struct attention_factors {
    bool pairs;
    int64_t stride; /* of the left factor's rows, in floats */
    int64_t inner;
};

static inline struct attention_factors attention_factors_of(enum dtype dtype, int64_t width)
{
    bool pairs = ATTENTION_PAIRS && dtype == DTYPE_BF16;
    int64_t padded = attention_padded(width);
    return (struct attention_factors){pairs, pairs ? padded / 2 : padded,
                                      pairs ? (width + 1) / 2 : width};
}

/* The left factor: rows as floats, or as they are, padded with zeros. */
static inline void attention_pack_left(float *to, struct tensor t, int64_t row, int64_t rows,
                                       int64_t column, int64_t width)
{
    struct attention_factors f = attention_factors_of(t.dtype, width);
    if (!f.pairs) {
        attention_pack(to, t, row, rows, column, width);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        const bf16 *from = (const bf16 *)t.data + (row + r) * t.stride + column;
        bf16 *packed = (bf16 *)(void *)(to + r * f.stride);
        attention_prefetch(t, row + r, column, width);
        memcpy(packed, from, (size_t)width * sizeof *from);
        memset(packed + width, 0, (size_t)(2 * f.stride - width) * sizeof *from);
    }
}

/* The right factor: [inner][KEYS], transposed; pairs are transposed as one. */
static inline void attention_pack_right(float *to, struct tensor t, int64_t row, int64_t rows,
                                        int64_t column, int64_t width)
{
    struct attention_factors f = attention_factors_of(t.dtype, width);
    if (!f.pairs) {
        attention_pack_turned(to, t, row, rows, column, width);
        return;
    }
    for (int64_t r = 0; r < ATTENTION_KEYS; r += VECTOR_LANES) {
        for (int64_t c = 0; c < f.inner; c += VECTOR_LANES) {
            int64_t left = width - 2 * c < 2 * VECTOR_LANES ? width - 2 * c : 2 * VECTOR_LANES;
            vector square[VECTOR_LANES];
            for (int i = 0; i < VECTOR_LANES; i++) {
                const bf16 *from = (const bf16 *)t.data + (row + r + i) * t.stride + column;
                square[i] = vector_set(0);
                if (r + i < rows) {
                    memcpy(&square[i], from + 2 * c, (size_t)left * sizeof *from);
                }
            }
            attention_turn(square);
            for (int i = 0; i < VECTOR_LANES; i++) {
                vector_store(to + (c + i) * ATTENTION_KEYS + r, square[i]);
            }
        }
    }
}

/* Two vectors of floats, rounded, as one of pairs. */
static inline vector attention_pair(vector low, vector high)
{
#if defined(__AVX512BF16__)
    __m512i first = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)low));
    __m512i second = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)high));
    return (vector)_mm512_or_si512(first, _mm512_slli_epi32(second, 16));
#else
    (void)high;
    return low;
#endif
}

/* The right factor of a product over rows: [rows][padded], or pairs of rows, [rows / 2, rounded up][padded]. */
static inline void attention_pack_over(float *to, struct tensor t, int64_t row, int64_t rows,
                                       int64_t column, int64_t width)
{
    if (!attention_factors_of(t.dtype, width).pairs) {
        attention_pack(to, t, row, rows, column, width);
        return;
    }
    int64_t padded = attention_padded(width);
    for (int64_t r = 0; r < rows; r += 2) {
        int64_t at = (row + r) * t.stride + column;
        attention_prefetch(t, row + r, column, width);
        attention_prefetch(t, row + r + 1, column, width);
        for (int64_t c = 0; c < padded; c += VECTOR_LANES) {
            int64_t left = width - c < 0 ? 0 : width - c;
            vector low = vector_get(t.data, DTYPE_BF16, at + c, left), high = vector_set(0);
            if (r + 1 < rows) {
                high = vector_get(t.data, DTYPE_BF16, at + t.stride + c, left);
            }
            vector_store(to + r / 2 * padded + c, attention_pair(low, high));
        }
    }
}

/* rows of t = from[rows][padded] factor */
static inline void attention_unpack(struct tensor t, int64_t row, int64_t rows, int64_t column,
                                    int64_t width, const float *from, float factor)
{
    int64_t padded = attention_padded(width);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * t.stride + column;
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            vector x = factor * vector_load(from + r * padded + c);
            vector_put(t.data, t.dtype, at + c, x, width - c);
        }
    }
}

/* ---- products ---- */

/* c (+)= a b, where a's element (row, inner) is at row * row_step + inner * inner_step, and b has
 * whole vectors in its rows. */
struct attention_product {
    float *c;
    int64_t c_stride;
    const float *a;
    int64_t row_step, inner_step;
    const float *b;
    int64_t b_stride;
    int64_t rows, columns, inner; /* columns is rounded up to whole vectors */
    bool accumulate;
    bool pairs; /* a's and b's elements are pairs of bf16, inner counts pairs */
};

/* c + the products of two pairs of bf16 in each lane: exact products, sums as floats. */
static inline vector attention_dot(vector a, vector b, vector c)
{
#if defined(__AVX512BF16__)
    return (vector)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    (void)a;
    (void)b;
    return c;
#endif
}

/* A register block of constant size: the loops unroll, sum[][] lives in registers. */
ATTENTION_INLINE void attention_block(const struct attention_product *p, int64_t row,
                                      int64_t column, const int rows, const int vectors,
                                      const bool pairs)
{
    vector sum[ATTENTION_GROUP][ATTENTION_VECTORS];
    float *c = p->c + row * p->c_stride + column;
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            sum[i][j] =
                p->accumulate ? vector_load(c + i * p->c_stride + j * VECTOR_LANES) : vector_set(0);
        }
    }
    const float *a = p->a + row * p->row_step, *b = p->b + column;
    int64_t row_step = p->row_step;
    for (int64_t k = p->inner; k > 0; k--) {
        vector right[ATTENTION_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            right[j] = vector_load(b + j * VECTOR_LANES);
        }
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            vector left = vector_set(a[i * row_step]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) {
                sum[i][j] = pairs ? attention_dot(left, right[j], sum[i][j])
                                  : vector_fma(left, right[j], sum[i][j]);
            }
        }
        a += p->inner_step;
        b += p->b_stride;
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            vector_store(c + i * p->c_stride + j * VECTOR_LANES, sum[i][j]);
        }
    }
}

ATTENTION_INLINE void attention_columns(const struct attention_product *p, int64_t column,
                                        const int vectors, const bool pairs)
{
    int64_t row = 0;
    for (; row + ATTENTION_GROUP <= p->rows; row += ATTENTION_GROUP) {
        attention_block(p, row, column, ATTENTION_GROUP, vectors, pairs);
    }
    switch (p->rows - row) {
    case 5:
        attention_block(p, row, column, 5, vectors, pairs);
        break;
    case 4:
        attention_block(p, row, column, 4, vectors, pairs);
        break;
    case 3:
        attention_block(p, row, column, 3, vectors, pairs);
        break;
    case 2:
        attention_block(p, row, column, 2, vectors, pairs);
        break;
    case 1:
        attention_block(p, row, column, 1, vectors, pairs);
        break;
    default:
        break;
    }
}

ATTENTION_INLINE void attention_multiply_as(const struct attention_product *p, const bool pairs)
{
    int64_t vectors = (p->columns + VECTOR_LANES - 1) / VECTOR_LANES, done = 0;
    for (; done + ATTENTION_VECTORS <= vectors; done += ATTENTION_VECTORS) {
        attention_columns(p, done * VECTOR_LANES, ATTENTION_VECTORS, pairs);
    }
    switch (vectors - done) {
#if defined(VECTOR_AVX512)
    case 3:
        attention_columns(p, done * VECTOR_LANES, 3, pairs);
        break;
    case 2:
        attention_columns(p, done * VECTOR_LANES, 2, pairs);
        break;
#endif
    case 1:
        attention_columns(p, done * VECTOR_LANES, 1, pairs);
        break;
    default:
        break;
    }
}

static __attribute__((noinline)) void attention_multiply(const struct attention_product *p)
{
    if (ATTENTION_PAIRS && p->pairs) {
        attention_multiply_as(p, true);
    } else {
        attention_multiply_as(p, false);
    }
}
