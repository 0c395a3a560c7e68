/* Code that the forward and backward pass of attention share: packing of tiles, GEMM.
 *
 * Packing   A tile of one head is copied out of the strided rows. Their stride, a multiple of a
 *           fraction of a page, would make cache sets collide. Packing also converts bf16 to f32
 *           and transposes the tile where the inner index of the GEMM runs over rows. A tile has
 *           KEYS keys. A row of a tile has head_width elements, padded with zeros to whole vectors.
 * Blocking  One register-blocked GEMM serves the two GEMMs of the forward pass and the five of the
 *           backward pass. */
#pragma once

#include <math.h>

#include "base/number.h"
#include "kernels/cpu/attention/attention_division.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/vector.h"

#if defined(VECTOR_AVX512)
enum { ATTENTION_VECTORS = 4 }; /* columns of a register block: 24 of 32 registers are sums */
#else
enum { ATTENTION_VECTORS = 2 }; /* 12 of 16 registers */
#endif

/* With AVX-512 BF16 the processor multiplies pairs of bf16, at twice the speed of f32. All seven
 * GEMMs use it if the operands are bf16. q k^T and d_o v^T are as exact as in f32. The other five
 * GEMMs round their computed operand, p or ds, to bf16, as tensor-core kernels do. Sums are f32. */
#if defined(__AVX512BF16__)
enum { ATTENTION_PAIRS = 1 };
#else
enum { ATTENTION_PAIRS = 0 };
#endif

static const float attention_log2_e = 1.44269504088896340736f;

/* attention_modify_scores - replace the products q k^T of a row by scores: scale, soft-cap, bias.
 *
 * `key` is the first key of the tile. derivatives, if not NULL, receives the derivatives of the
 * soft-cap. Whole vectors are read and written. */
static inline void attention_modify_scores(const struct attention_head *h, int64_t query,
                                           int64_t key, float *scores, float *derivatives,
                                           int64_t columns)
{
    vector scale = vector_set(h->a->scale), cap = vector_set(h->a->softcap);
    vector inverse = 1.0f / cap;
    for (int64_t c = 0; c < columns; c += VECTOR_LANES) {
        vector s = scale * vector_load(scores + c);
        if (h->a->softcap > 0) {
            vector t = math_tanh_relative(s * inverse);
            s = cap * t;
            if (derivatives != NULL) {
                vector_store(derivatives + c, 1.0f - t * t);
            }
        }
        if (h->bias != NULL) {
            s += vector_load(h->bias + key - query + c);
        }
        vector_store(scores + c, s);
    }
}

/* attention_padded_width - return the floats of a packed row.
 *
 * They are whole vectors of the widest instruction set, so that all variants need the
 * same scratch. */
static inline int64_t attention_padded_width(int64_t head_width)
{
    return number_round_up(head_width, 16);
}

/* attention_forward_floats - return the floats of a thread's workspace in the forward pass.
 *
 * struct workspace in attention.c defines the layout. */
static inline size_t attention_forward_floats(int64_t padded)
{
    const int64_t queries = ATTENTION_QUERIES, keys = ATTENTION_KEYS;
    return (size_t)((2 * queries + 2 * keys) * padded + ATTENTION_GROUP * keys + 17 * queries);
}

/* ---- packing ---- */

/* attention_prefetch - prefetch a row that will be packed later. */
static inline void attention_prefetch(struct tensor t, int64_t row, int64_t column, int64_t width)
{
    cpu_prefetch(t, row + 12, column, width);
}

/* attention_pack_as - copy columns [column, column + width) of `rows` rows of t, from `row` on, to
 * to[rows][padded]. */
CPU_INLINE void attention_pack_as(float *to, struct tensor t, enum dtype dtype, int64_t row,
                                  int64_t rows, int64_t column, int64_t width)
{
    int64_t padded = attention_padded_width(width);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * t.stride + column;
        attention_prefetch(t, row + r, column, width);
        for (int64_t c = 0; c < padded; c += VECTOR_LANES) {
            int64_t left = number_max(width - c, 0);
            vector_store(to + r * padded + c, vector_get(t.data, dtype, at + c, left));
        }
    }
}

/* attention_pack - call attention_pack_as for the dtype of t. */
static inline void attention_pack(float *to, struct tensor t, int64_t row, int64_t rows,
                                  int64_t column, int64_t width)
{
    if (t.dtype == DTYPE_F32) {
        attention_pack_as(to, t, DTYPE_F32, row, rows, column, width);
    } else {
        attention_pack_as(to, t, DTYPE_BF16, row, rows, column, width);
    }
}

/* attention_transpose - transpose a square of vectors.
 *
 * Each of log2(lanes) rounds interleaves row i with row i + lanes / 2 to rows 2 i and 2 i + 1. */
CPU_INLINE void attention_transpose(vector square[VECTOR_LANES])
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

/* attention_pack_transposed_as - write the transpose of at most KEYS rows to to[width rounded
 * up][KEYS]; the columns after `rows` up to a whole vector are 0. */
CPU_INLINE void attention_pack_transposed_as(float *to, struct tensor t, enum dtype dtype,
                                             int64_t row, int64_t rows, int64_t column,
                                             int64_t width)
{
    for (int64_t r = 0; r < rows; r += VECTOR_LANES) {
        for (int i = 0; i < VECTOR_LANES; i++) {
            cpu_prefetch(t, row + r + VECTOR_LANES + i, column, width);
        }
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            vector square[VECTOR_LANES];
            for (int i = 0; i < VECTOR_LANES; i++) {
                int64_t at = (row + r + i) * t.stride + column + c;
                square[i] = r + i < rows ? vector_get(t.data, dtype, at, width - c) : vector_set(0);
            }
            attention_transpose(square);
            for (int i = 0; i < VECTOR_LANES; i++) {
                vector_store(to + (c + i) * ATTENTION_KEYS + r, square[i]);
            }
        }
    }
}

/* attention_pack_transposed - call attention_pack_transposed_as for the dtype of t. */
static inline void attention_pack_transposed(float *to, struct tensor t, int64_t row, int64_t rows,
                                             int64_t column, int64_t width)
{
    if (t.dtype == DTYPE_F32) {
        attention_pack_transposed_as(to, t, DTYPE_F32, row, rows, column, width);
    } else {
        attention_pack_transposed_as(to, t, DTYPE_BF16, row, rows, column, width);
    }
}

/* ---- operands of the GEMM q k^T ---- */

/* The layout of packed operands: floats, or pairs of bf16. */
struct attention_operand_layout {
    bool pairs;
    int64_t stride; /* of the left operand's rows, in floats */
    int64_t inner;
};

/* attention_get_operand_layout - return the layout of the operands of a score GEMM. */
static inline struct attention_operand_layout attention_get_operand_layout(enum dtype dtype,
                                                                           int64_t width)
{
    bool pairs = ATTENTION_PAIRS && dtype == DTYPE_BF16;
    int64_t padded = attention_padded_width(width);
    return (struct attention_operand_layout){pairs, pairs ? padded / 2 : padded,
                                             pairs ? (width + 1) / 2 : width};
}

/* attention_pack_left - pack the left operand: rows of floats, or unchanged bf16, padded
 * with zeros. */
static inline void attention_pack_left(float *to, struct tensor t, int64_t row, int64_t rows,
                                       int64_t column, int64_t width)
{
    struct attention_operand_layout f = attention_get_operand_layout(t.dtype, width);
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

/* attention_pack_right - pack the right operand [inner][KEYS], transposed; a pair of bf16 is
 * transposed as one element. */
static inline void attention_pack_right(float *to, struct tensor t, int64_t row, int64_t rows,
                                        int64_t column, int64_t width)
{
    struct attention_operand_layout f = attention_get_operand_layout(t.dtype, width);
    if (!f.pairs) {
        attention_pack_transposed(to, t, row, rows, column, width);
        return;
    }
    for (int64_t r = 0; r < rows; r += VECTOR_LANES) {
        for (int64_t c = 0; c < f.inner; c += VECTOR_LANES) {
            int64_t left = number_min(width - 2 * c, 2 * VECTOR_LANES);
            vector square[VECTOR_LANES];
            for (int i = 0; i < VECTOR_LANES; i++) {
                const bf16 *from = (const bf16 *)t.data + (row + r + i) * t.stride + column;
                square[i] = vector_set(0);
                if (r + i < rows) {
                    memcpy(&square[i], from + 2 * c, (size_t)left * sizeof *from);
                }
            }
            attention_transpose(square);
            for (int i = 0; i < VECTOR_LANES; i++) {
                vector_store(to + (c + i) * ATTENTION_KEYS + r, square[i]);
            }
        }
    }
}

/* attention_pair - round two vectors of floats to one vector of bf16 pairs. */
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

/* attention_pack_over - pack the right operand of a GEMM over rows: [rows][padded], or pairs of
 * rows, [rows / 2, rounded up][padded]. */
static inline void attention_pack_over(float *to, struct tensor t, int64_t row, int64_t rows,
                                       int64_t column, int64_t width)
{
    if (!attention_get_operand_layout(t.dtype, width).pairs) {
        attention_pack(to, t, row, rows, column, width);
        return;
    }
    int64_t padded = attention_padded_width(width);
    for (int64_t r = 0; r < rows; r += 2) {
        int64_t at = (row + r) * t.stride + column;
        attention_prefetch(t, row + r, column, width);
        attention_prefetch(t, row + r + 1, column, width);
        for (int64_t c = 0; c < padded; c += VECTOR_LANES) {
            int64_t left = number_max(width - c, 0);
            vector low = vector_get(t.data, DTYPE_BF16, at + c, left), high = vector_set(0);
            if (r + 1 < rows) {
                high = vector_get(t.data, DTYPE_BF16, at + t.stride + c, left);
            }
            vector_store(to + r / 2 * padded + c, attention_pair(low, high));
        }
    }
}

/* attention_unpack - write from[rows][padded] times factor to rows of t. */
static inline void attention_unpack(struct tensor t, int64_t row, int64_t rows, int64_t column,
                                    int64_t width, const float *from, float factor)
{
    int64_t padded = attention_padded_width(width);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * t.stride + column;
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            vector x = factor * vector_load(from + r * padded + c);
            vector_put(t.data, t.dtype, at + c, x, width - c);
        }
    }
}

/* ---- GEMM ---- */

/* The arguments of a GEMM: c (+)= a b. Element (row, inner) of a is at row * row_step + inner *
 * inner_step. The rows of b have whole vectors. */
struct attention_gemm {
    float *c;
    int64_t c_stride;
    const float *a;
    int64_t row_step, inner_step;
    const float *b;
    int64_t b_stride;
    int64_t rows, columns, inner; /* columns is rounded up to whole vectors */
    bool accumulate;
    bool pairs; /* the elements of a and b are pairs of bf16; inner counts pairs */
};

/* attention_multiply_pairs - add the products of two pairs of bf16 in each lane to c; the products
 * are exact, the sums f32. */
static inline vector attention_multiply_pairs(vector a, vector b, vector c)
{
#if defined(__AVX512BF16__)
    return (vector)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    (void)a;
    (void)b;
    return c;
#endif
}

/* attention_gemm_block - compute one register block. Its size is constant, so that the loops unroll
 * and sum[][] stays in registers. */
CPU_INLINE void attention_gemm_block(const struct attention_gemm *p, int64_t row, int64_t column,
                                     const int rows, const int vectors, const bool pairs)
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
                sum[i][j] = pairs ? attention_multiply_pairs(left, right[j], sum[i][j])
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

/* attention_gemm_columns - compute all rows of `vectors` vectors of columns. */
CPU_INLINE void attention_gemm_columns(const struct attention_gemm *p, int64_t column,
                                       const int vectors, const bool pairs)
{
    int64_t row = 0;
    for (; row + ATTENTION_GROUP <= p->rows; row += ATTENTION_GROUP) {
        attention_gemm_block(p, row, column, ATTENTION_GROUP, vectors, pairs);
    }
    switch (p->rows - row) {
    case 5:
        attention_gemm_block(p, row, column, 5, vectors, pairs);
        break;
    case 4:
        attention_gemm_block(p, row, column, 4, vectors, pairs);
        break;
    case 3:
        attention_gemm_block(p, row, column, 3, vectors, pairs);
        break;
    case 2:
        attention_gemm_block(p, row, column, 2, vectors, pairs);
        break;
    case 1:
        attention_gemm_block(p, row, column, 1, vectors, pairs);
        break;
    default:
        break;
    }
}

/* attention_gemm_run_as - run a GEMM for one kind of operands. */
CPU_INLINE void attention_gemm_run_as(const struct attention_gemm *p, const bool pairs)
{
    int64_t vectors = number_divide_up(p->columns, VECTOR_LANES), done = 0;
    for (; done + ATTENTION_VECTORS <= vectors; done += ATTENTION_VECTORS) {
        attention_gemm_columns(p, done * VECTOR_LANES, ATTENTION_VECTORS, pairs);
    }
    switch (vectors - done) {
#if defined(VECTOR_AVX512)
    case 3:
        attention_gemm_columns(p, done * VECTOR_LANES, 3, pairs);
        break;
    case 2:
        attention_gemm_columns(p, done * VECTOR_LANES, 2, pairs);
        break;
#endif
    case 1:
        attention_gemm_columns(p, done * VECTOR_LANES, 1, pairs);
        break;
    default:
        break;
    }
}

/* attention_gemm_run - run a GEMM on packed tiles, on the calling thread. */
static __attribute__((noinline)) void attention_gemm_run(const struct attention_gemm *p)
{
    if (ATTENTION_PAIRS && p->pairs) {
        attention_gemm_run_as(p, true);
    } else {
        attention_gemm_run_as(p, false);
    }
}
