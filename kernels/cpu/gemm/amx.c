#include "kernels/cpu/gemm/amx.h"

#include <immintrin.h>

#include "base/number.h"
#include "kernels/cpu/gemm/tiles.h"

/* A tile register has 16 rows of 64 bytes. A register of a holds 16 rows with 32 elements each. A
 * register of b holds 16 columns with 32 elements each, stored as 16 rows of pairs. A register of
 * sums holds 16 x 16 sums. A block of the output fills four registers. */
enum { SIDE = 16, INNER = AMX_INNER, REGISTER = SIDE * INNER, ROW_BYTES = 64 };

bool amx_is_available(void)
{
    return TILE_IS_AVAILABLE();
}

/* The operand of LDTILECFG: palette 1, and the rows and bytes of each of the eight registers. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} configuration = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

_Static_assert(sizeof configuration == 64, "the size of the operand of LDTILECFG");

void amx_begin(void)
{
    TILE_CONFIGURE(&configuration);
}

void amx_end(void)
{
    TILE_RELEASE();
}

/* Exchanges the rows and columns of 16 x 16 words of 32 bits. */
static inline void transpose_words(__m512i r[SIDE])
{
    __m512i t[SIDE];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Returns a mask of the first `count` of 32 lanes. */
static inline __mmask32 mask_lanes(int64_t count)
{
    return count >= INNER ? UINT32_MAX : (UINT32_C(1) << number_max(count, 0)) - 1;
}

/* Loads up to 32 elements from each of up to 16 rows. */
static inline void load_rows(__m512i r[SIDE], const bf16 *from, int64_t stride, int64_t rows,
                             int64_t elements)
{
    __mmask32 mask = mask_lanes(elements);
    for (int i = 0; i < SIDE; i++) {
        bool exists = i < rows;
        r[i] = _mm512_maskz_loadu_epi16(exists ? mask : 0, from + (exists ? i * stride : 0));
    }
}

/* Loads up to 16 elements from each of up to 32 rows. Each word of r[i] is a pair from the rows 2 i
 * and 2 i + 1. */
static inline void load_pairs(__m512i r[SIDE], const bf16 *from, int64_t stride, int64_t rows,
                              int64_t elements)
{
    __mmask16 mask = (__mmask16)mask_lanes(number_min(elements, SIDE));
    for (int i = 0; i < SIDE; i++) {
        bool has_even = 2 * i < rows, has_odd = 2 * i + 1 < rows;
        const bf16 *even = from + (has_even ? 2 * i * stride : 0);
        const bf16 *odd = from + (has_odd ? (2 * i + 1) * stride : 0);
        __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_even ? mask : 0, even));
        __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_odd ? mask : 0, odd));
        r[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
}

/* Packs two registers: 32 rows of a or 32 columns of b. `position` is the first row or column, and
 * `inner` is the first of 32 inner indexes. In a register of a, each row holds 32 inner indexes of
 * one row of a. In a register of b, each row holds one pair of inner indexes for each of 16 columns
 * of b. If a pair counts as one element, one layout is the transpose of the other. */
static inline void pack_registers(bf16 *to, const struct amx_source *s, int64_t position,
                                  int64_t inner, bool is_a)
{
    for (int64_t i = position; i < position + AMX_SIDE; i += SIDE, to += REGISTER) {
        __m512i r[SIDE];
        int64_t count = s->count - i, indexes = s->inner - inner;
        const bf16 *from = s->from;
        if (count > 0) {
            from += s->transposed ? inner * s->stride + i : i * s->stride + inner;
        }
        if (s->transposed) {
            load_pairs(r, from, s->stride, count > 0 ? indexes : 0, count);
        } else {
            load_rows(r, from, s->stride, count, indexes);
        }
        if (s->transposed == is_a) {
            transpose_words(r);
        }
        for (int j = 0; j < SIDE; j++) {
            _mm512_store_si512(to + j * INNER, r[j]);
        }
    }
}

/* Copies panels. The matrix is read in the order of its rows. */
static inline void pack_panels(bf16 *to, const struct amx_source *s, bool is_a)
{
    const int64_t panel = amx_panel_elems(s->inner);
    const int64_t outer = s->transposed ? s->inner : s->count;
    const int64_t inner = s->transposed ? s->count : s->inner;
    for (int64_t i = 0; i < outer; i += AMX_SIDE) {
        for (int64_t j = 0; j < inner; j += AMX_SIDE) {
            int64_t position = s->transposed ? j : i, first = s->transposed ? i : j;
            pack_registers(to + position / AMX_SIDE * panel + first * AMX_SIDE, s, position, first,
                           is_a);
        }
    }
}

void amx_pack_a(bf16 *to, const struct amx_source *s)
{
    pack_panels(to, s, true);
}

void amx_pack_b(bf16 *to, const struct amx_source *s)
{
    pack_panels(to, s, false);
}

/* Registers 0 to 3 hold the quarters of the block, registers 4 and 5 rows of a, and registers 6 and
 * 7 columns of b. One panel of a is multiplied by many panels of b and stays in the L1 cache. Each
 * panel of b is read once per panel of a. TILE_LOAD_ONCE loads it, so that it does not replace the
 * panel of a in the cache. */
void amx_multiply(float *c, int64_t stride, const bf16 *a, const bf16 *b, int64_t inner,
                  struct amx_start start)
{
    int64_t c_bytes = stride * (int64_t)sizeof(float);
    TILE_FENCE();
    if (start.values == NULL) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        int64_t start_bytes = start.stride * (int64_t)sizeof(float);
        const float *lower = start.values + SIDE * start.stride;
        TILE_LOAD(0, start.values, start_bytes);
        TILE_LOAD(1, start.values + SIDE, start_bytes);
        TILE_LOAD(2, lower, start_bytes);
        TILE_LOAD(3, lower + SIDE, start_bytes);
    }
    for (int64_t i = 0; i < inner; i += INNER, a += 2 * REGISTER, b += 2 * REGISTER) {
        TILE_LOAD(4, a, ROW_BYTES);
        TILE_LOAD_ONCE(6, b, ROW_BYTES);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD_ONCE(7, b + REGISTER, ROW_BYTES);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, a + REGISTER, ROW_BYTES);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, c, c_bytes);
    TILE_STORE(1, c + SIDE, c_bytes);
    TILE_STORE(2, c + SIDE * stride, c_bytes);
    TILE_STORE(3, c + SIDE * stride + SIDE, c_bytes);
}

/* Stores up to 32 sums as bf16. */
static inline void store_row(bf16 *to, const float *sums, __mmask32 mask, bool accumulate)
{
    __m512 low = _mm512_load_ps(sums), high = _mm512_load_ps(sums + SIDE);
    if (accumulate) {
        __m512i old = _mm512_maskz_loadu_epi16(mask, to);
        __m512i old_low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(old));
        __m512i old_high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(old, 1));
        low = _mm512_add_ps(low, _mm512_castsi512_ps(_mm512_slli_epi32(old_low, 16)));
        high = _mm512_add_ps(high, _mm512_castsi512_ps(_mm512_slli_epi32(old_high, 16)));
    }
    _mm512_mask_storeu_epi16(to, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

void amx_store(bf16 *c, int64_t stride, const float *block, int64_t rows, int64_t columns,
               bool accumulate)
{
    __mmask32 mask = mask_lanes(columns);
    for (int64_t i = 0; i < rows; i++) {
        store_row(c + i * stride, block + i * AMX_SIDE, mask, accumulate);
    }
}
