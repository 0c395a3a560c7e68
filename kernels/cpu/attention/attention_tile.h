/* Code that the forward and backward pass of attention share: scores, packing of tiles.
 *
 * Packing   A tile of one head is copied out of the strided rows. Their stride, a multiple of a
 *           fraction of a page, would make cache sets collide. Packing also converts bf16 to f32
 *           and transposes the tile where the inner index of the GEMM runs over rows. A tile has
 *           KEYS keys. A row of a tile has head_width elements, padded with zeros to a multiple of
 *           STEP. With AMX, rows of zeros follow the operands of GEMMs that add over rows, so that
 *           the number of rows is also a multiple of STEP. */
#pragma once

#include <math.h>

#include "base/number.h"
#include "kernels/cpu/attention/attention_division.h"
#include "kernels/cpu/attention/attention_gemm.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/vector.h"

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
 * The number is a multiple of ATTENTION_STEP in all variants, so that all variants need the same
 * scratch memory. */
static inline int64_t attention_padded_width(int64_t head_width)
{
    return number_round_up(head_width, ATTENTION_STEP);
}

/* attention_forward_floats - return the floats of a thread's workspace in the forward pass.
 *
 * struct workspace in attention.c defines the layout. */
static inline size_t attention_forward_floats(int64_t padded)
{
    const int64_t queries = ATTENTION_QUERIES, keys = ATTENTION_KEYS;
    return (size_t)((2 * queries + 2 * keys) * padded + ATTENTION_TILE * keys + 17 * queries);
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

/* The layout of packed operands: floats, or pairs of bf16. AMX reads whole tiles of pairs, so the
 * inner sizes are rounded up and the operands end with zeros. */
struct attention_operand_layout {
    bool pairs;
    bool tiles;     /* the GEMMs use AMX; then pairs is true */
    int64_t group;  /* rows of a left operand that are computed together */
    int64_t stride; /* of the left operand's rows, in floats */
    int64_t inner;
};

/* attention_get_operand_layout - return the layout of the operands of a score GEMM. */
static inline struct attention_operand_layout attention_get_operand_layout(enum dtype dtype,
                                                                           int64_t width)
{
    bool pairs = ATTENTION_PAIRS && dtype == DTYPE_BF16, tiles = ATTENTION_AMX && pairs;
    int64_t padded = attention_padded_width(width), stride = pairs ? padded / 2 : padded;
    return (struct attention_operand_layout){
        .pairs = pairs,
        .tiles = tiles,
        .group = tiles ? ATTENTION_TILE : ATTENTION_GROUP,
        .stride = stride,
        .inner = tiles   ? stride
                 : pairs ? (width + 1) / 2
                         : width,
    };
}

/* attention_round_rows - return the number of rows over which a GEMM adds, with rows of zeros. */
static inline int64_t attention_round_rows(const struct attention_operand_layout *f, int64_t rows)
{
    return f->tiles ? number_round_up(rows, ATTENTION_STEP) : rows;
}

/* attention_count_inner - return the inner size of a GEMM that adds over rows. */
static inline int64_t attention_count_inner(const struct attention_operand_layout *f, int64_t rows)
{
    return number_divide_up(attention_round_rows(f, rows), f->pairs ? 2 : 1);
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
        for (int i = 0; i < VECTOR_LANES; i++) {
            cpu_prefetch(t, row + r + VECTOR_LANES + i, column, width);
        }
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

/* attention_pack_over - pack the right operand of a GEMM that adds over rows: [rows][padded], or
 * pairs of rows, [attention_count_inner(rows)][padded]. */
static inline void attention_pack_over(float *to, struct tensor t, int64_t row, int64_t rows,
                                       int64_t column, int64_t width)
{
    struct attention_operand_layout f = attention_get_operand_layout(t.dtype, width);
    if (!f.pairs) {
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
    int64_t packed = (rows + 1) / 2, inner = attention_count_inner(&f, rows);
    memset(to + packed * padded, 0, (size_t)((inner - packed) * padded) * sizeof(float));
}

/* attention_pack_queries - pack rows of q or d_o for the GEMMs that add over queries. They are the
 * right operand (attention_pack_over). With AMX they are the left operand of the transposed
 * product: [rows / STEP, rounded up][padded][TILE] pairs of rows. */
static inline void attention_pack_queries(float *to, struct tensor t, int64_t row, int64_t rows,
                                          int64_t column, int64_t width)
{
    int64_t padded = attention_padded_width(width);
    if (!attention_get_operand_layout(t.dtype, width).tiles) {
        attention_pack_over(to, t, row, rows, column, width);
        return;
    }
    for (int64_t r = 0; r < rows; r += ATTENTION_STEP) {
        for (int64_t c = 0; c < padded; c += VECTOR_LANES, to += ATTENTION_TILE * VECTOR_LANES) {
            vector square[VECTOR_LANES];
            for (int i = 0; i < VECTOR_LANES; i++) {
                int64_t first = r + 2 * i, at = (row + first) * t.stride + column + c;
                int64_t left = number_max(width - c, 0);
                vector low = vector_get(t.data, DTYPE_BF16, at, first < rows ? left : 0);
                vector high =
                    vector_get(t.data, DTYPE_BF16, at + t.stride, first + 1 < rows ? left : 0);
                square[i] = attention_pair(low, high);
            }
            attention_transpose(square);
            memcpy(to, square, sizeof square);
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

/* attention_unpack_transposed - write the transpose of from[padded][KEYS] times factor to rows of
 * t. */
static inline void attention_unpack_transposed(struct tensor t, int64_t row, int64_t rows,
                                               int64_t column, int64_t width, const float *from,
                                               float factor)
{
    for (int64_t r = 0; r < rows; r += VECTOR_LANES) {
        for (int64_t c = 0; c < width; c += VECTOR_LANES) {
            vector square[VECTOR_LANES];
            for (int i = 0; i < VECTOR_LANES; i++) {
                square[i] = vector_load(from + (c + i) * ATTENTION_KEYS + r);
            }
            attention_transpose(square);
            for (int i = 0; i < VECTOR_LANES && r + i < rows; i++) {
                int64_t at = (row + r + i) * t.stride + column + c;
                vector_put(t.data, t.dtype, at, factor * square[i], width - c);
            }
        }
    }
}

/* attention_unpack_keys - write the sums of a tile of keys, dk or dv, times factor to rows of t.
 * With AMX, the sums are transposed. */
static inline void attention_unpack_keys(const struct attention_operand_layout *f, struct tensor t,
                                         int64_t row, int64_t rows, int64_t column, int64_t width,
                                         const float *from, float factor)
{
    if (f->tiles) {
        attention_unpack_transposed(t, row, rows, column, width, from, factor);
    } else {
        attention_unpack(t, row, rows, column, width, from, factor);
    }
}
