/* The GEMM of attention on packed tiles.
 *
 * One register-blocked GEMM serves the two GEMMs of the forward pass and the five of the backward
 * pass. With AMX, tile registers replace the vectors if the operands are pairs of bf16.
 *
 * Numerics  An AMX instruction adds ATTENTION_STEP products in a fixed order (gemm/amx.h). A sum
 *           over queries or keys begins at a row of its sequence that is a multiple of
 *           ATTENTION_STEP. Rows that do not exist or are not visible add zeros. The bits of a sum
 *           therefore depend neither on the division of the work nor on other sequences. */
#pragma once

#include <string.h>

#include "base/number.h"
#include "kernels/cpu/attention/attention_head.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/amx.h"
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

/* With AMX the GEMMs of pairs use tile registers. */
#if defined(__AMX_BF16__)
#include "kernels/cpu/gemm/tiles.h"
enum { ATTENTION_AMX = 1 };
#else
enum { ATTENTION_AMX = 0 };
#endif

/* The arguments of a GEMM: c (+)= a b. Element (row, inner) of a is at row * row_step + inner *
 * inner_step. The rows of b have whole vectors.
 *
 * With AMX, `inner` is a multiple of ATTENTION_TILE. Each row of a consists of runs of
 * ATTENTION_TILE adjacent elements. Two runs are ATTENTION_TILE * inner_step elements apart. The
 * memory of a has whole tiles, because the last tile may be read beyond the last row. The values
 * there do not change c. */
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

/* ---- GEMM with AMX ---- */

/* attention_tiles_begin - configure the tile registers of a thread if its GEMMs use them. */
static inline void attention_tiles_begin(bool tiles)
{
    if (ATTENTION_AMX && tiles) {
        amx_begin();
    }
}

/* attention_tiles_end - release the tile registers of a thread if its GEMMs use them. */
static inline void attention_tiles_end(bool tiles)
{
    if (ATTENTION_AMX && tiles) {
        amx_end();
    }
}

#if defined(__AMX_BF16__)
/* Loads or stores the sums of `tiles` tiles. The register of an instruction must be a constant. */
#define ATTENTION_EACH_SUM(instruction, tiles, c, c_bytes)                                         \
    do {                                                                                           \
        instruction(0, c, c_bytes);                                                                \
        if ((tiles) > 1) {                                                                         \
            instruction(1, (c) + ATTENTION_TILE, c_bytes);                                         \
        }                                                                                          \
        if ((tiles) > 2) {                                                                         \
            instruction(2, (c) + 2 * ATTENTION_TILE, c_bytes);                                     \
        }                                                                                          \
        if ((tiles) > 3) {                                                                         \
            instruction(3, (c) + 3 * ATTENTION_TILE, c_bytes);                                     \
        }                                                                                          \
    } while (0)

/* attention_tiles_row - compute ATTENTION_TILE rows of at most four tiles of columns. Registers 0
 * to 3 hold the sums, register 4 holds a tile of a, and registers 5 to 7 hold tiles of b. */
CPU_INLINE void attention_tiles_row(float *c, int64_t c_stride, const struct attention_gemm *p,
                                    int64_t row, int64_t column, const int tiles)
{
    enum { TILE = ATTENTION_TILE };
    const float *a = p->a + row * p->row_step, *b = p->b + column;
    int64_t c_bytes = c_stride * 4, a_bytes = p->row_step * 4, b_bytes = p->b_stride * 4;
    TILE_FENCE();
    if (p->accumulate) {
        ATTENTION_EACH_SUM(TILE_LOAD, tiles, c, c_bytes);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < p->inner; k += TILE) {
        TILE_LOAD(4, a, a_bytes);
        TILE_LOAD(5, b, b_bytes);
        TILE_MULTIPLY(0, 4, 5);
        if (tiles > 1) {
            TILE_LOAD(6, b + TILE, b_bytes);
            TILE_MULTIPLY(1, 4, 6);
        }
        if (tiles > 2) {
            TILE_LOAD(7, b + 2 * TILE, b_bytes);
            TILE_MULTIPLY(2, 4, 7);
        }
        if (tiles > 3) {
            TILE_LOAD(5, b + 3 * TILE, b_bytes);
            TILE_MULTIPLY(3, 4, 5);
        }
        a += TILE * p->inner_step;
        b += TILE * p->b_stride;
    }
    ATTENTION_EACH_SUM(TILE_STORE, tiles, c, c_bytes);
}

/* attention_tiles_run - compute all rows of at most four tiles of columns. If the last rows are not
 * a whole tile, they are computed in a temporary copy. */
CPU_INLINE void attention_tiles_run(const struct attention_gemm *p, int64_t column, const int tiles)
{
    enum { TILE = ATTENTION_TILE };
    _Alignas(64) float copy[TILE][4 * TILE];
    size_t bytes = (size_t)(tiles * TILE) * sizeof(float);
    for (int64_t row = 0; row < p->rows; row += TILE) {
        float *c = p->c + row * p->c_stride + column;
        int64_t rows = p->rows - row;
        if (rows >= TILE) {
            attention_tiles_row(c, p->c_stride, p, row, column, tiles);
            continue;
        }
        for (int64_t i = 0; i < rows && p->accumulate; i++) {
            memcpy(copy[i], c + i * p->c_stride, bytes);
        }
        attention_tiles_row(copy[0], 4 * TILE, p, row, column, tiles);
        for (int64_t i = 0; i < rows; i++) {
            memcpy(c + i * p->c_stride, copy[i], bytes);
        }
    }
}

/* attention_tiles_gemm - run a GEMM of pairs. */
static inline void attention_tiles_gemm(const struct attention_gemm *p)
{
    for (int64_t column = 0; column < p->columns; column += 4 * ATTENTION_TILE) {
        switch (number_min(number_divide_up(p->columns - column, ATTENTION_TILE), 4)) {
        case 1:
            attention_tiles_run(p, column, 1);
            break;
        case 2:
            attention_tiles_run(p, column, 2);
            break;
        case 3:
            attention_tiles_run(p, column, 3);
            break;
        default:
            attention_tiles_run(p, column, 4);
            break;
        }
    }
}
#endif

/* ---- GEMM with vectors ---- */

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
#if defined(__AMX_BF16__)
    if (p->pairs) {
        attention_tiles_gemm(p);
        return;
    }
#endif
    if (ATTENTION_PAIRS && p->pairs) {
        attention_gemm_run_as(p, true);
    } else {
        attention_gemm_run_as(p, false);
    }
}
