/* Stochastic rounding of a slice's weights to their bf16 copy (struct rounding in kernels.h): equal to
 * f32_to_bf16_drawn with random_half's bits, on every instruction set (a test compares).
 *
 * Eight elements that follow each other in the whole share a Philox block, so a vector of blocks has the bits of eight
 * vectors: they are written down in the elements' order and read back as the elements come. */
#pragma once

#include "kernels/cpu/philox.h"
#include "kernels/kernels.h"

enum { ROUNDING_SHARE = 8, ROUNDING_DRAWN = ROUNDING_SHARE * VECTOR_LANES };

typedef uint16_t rounding_halves __attribute__((vector_size(2 * VECTOR_LANES)));

/* Bits of ROUNDING_DRAWN elements from the beginning of a block on. */
static inline void rounding_draw(uint16_t bits[ROUNDING_DRAWN], uint64_t key, uint64_t block)
{
    const struct philox_blocks drawn = philox_blocks(key, block);
    uint32_t words[ROUNDING_DRAWN / 2];
    for (int lane = 0; lane < VECTOR_LANES; lane++) {
        for (int w = 0; w < 4; w++) {
            words[4 * lane + w] = drawn.word[w][lane];
        }
    }
    memcpy(bits, words, sizeof words);
}

/* f32_to_bf16_drawn of a vector. */
static inline rounding_halves rounding_vector(vector x, rounding_halves halves)
{
    vector_words bits = (vector_words)x, size = bits & 0x7fffffffu;
    vector_words nan = (vector_words)(size > 0x7f800000u);
    vector_words beyond =
        (vector_words)(size >= 0x7f7f0000u); /* where nearest adds 0x8000 or is exact */
    vector_words add = __builtin_convertvector(halves, vector_words);
    add = (add & ~beyond) | (beyond & ~nan & 0x8000u);
    return __builtin_convertvector(((bits + add) | (nan & 0x400000u)) >> 16, rounding_halves);
}

/* Elements that follow each other in the whole too, the first one at `index` there. */
static inline void rounding_line(bf16 *copy, const float *weights, int64_t count, uint64_t key,
                                 int64_t index)
{
    uint16_t bits[ROUNDING_DRAWN + VECTOR_LANES] = {0}; /* the last vector is read whole */
    for (int64_t i = 0; i < count;) {
        int64_t skip = (index + i) % ROUNDING_SHARE, end = i + ROUNDING_DRAWN - skip;
        const uint16_t *next = bits + skip;
        rounding_draw(bits, key, (uint64_t)((index + i) / ROUNDING_SHARE));
        end = end < count ? end : count;
        for (; i < end; i += VECTOR_LANES, next += VECTOR_LANES) {
            int64_t some = end - i < VECTOR_LANES ? end - i : VECTOR_LANES;
            rounding_halves halves;
            memcpy(&halves, next, sizeof halves);
            halves = rounding_vector(vector_get(weights, DTYPE_F32, i, some), halves);
            memcpy(copy + i, &halves, (size_t)some * sizeof *copy);
        }
        i = end;
    }
}

/* rounding_run - the copy of elements [first, last) of a slice. */
static inline void rounding_run(bf16 *copy, const float *weights, int64_t first, int64_t last,
                                const struct rounding *r)
{
    while (first < last) {
        int64_t in = r->offset + first, row = in / r->columns, column = in % r->columns;
        int64_t count = last - first, left = r->columns - column;
        count = r->columns < r->pitch && left < count ? left : count;
        rounding_line(copy + first, weights + first, count, r->key,
                      r->first + row * r->pitch + column);
        first += count;
    }
}
