/* Stochastic rounding of weights and moments to bf16 (struct rounding in kernels.h).
 *
 * The result equals f32_to_bf16_stochastic with the bits of random_u16, on every instruction set; a
 * test compares them. Eight elements that are adjacent in the parameter share one Philox block. A
 * vector of blocks therefore holds the random bits of eight vectors. They are stored in the order
 * of the elements and then loaded one vector at a time.
 *
 * Source    Gupta et al. 2015, arXiv:1502.02551 */
#pragma once

#include "base/number.h"
#include "kernels/cpu/philox.h"
#include "kernels/kernels.h"

enum { ROUNDING_BLOCK_ELEMS = 8 };

/* rounding_round_vector - round a vector as f32_to_bf16_stochastic does. */
static inline vector_halves rounding_round_vector(vector x, vector_halves random_bits)
{
    vector_words bits = (vector_words)x, size = bits & 0x7fffffffu;
    vector_words nan = (vector_words)(size > 0x7f800000u);
    /* rounding to nearest adds 0x8000 here, or x is exact */
    vector_words near_max = (vector_words)(size >= 0x7f7f0000u);
    vector_words add = __builtin_convertvector(random_bits, vector_words);
    add = (add & ~near_max) | (near_max & ~nan & 0x8000u);
    return __builtin_convertvector(((bits + add) | (nan & 0x400000u)) >> 16, vector_halves);
}

/* rounding_apply_contiguous - round elements that are adjacent in the parameter; `index` is the
 * position of the first one there. */
static inline void rounding_apply_contiguous(bf16 *copy, const float *weights, int64_t count,
                                             uint64_t key, int64_t index)
{
    /* the last load reads a whole vector */
    uint16_t bits[PHILOX_HALVES + VECTOR_LANES] = {0};
    for (int64_t i = 0; i < count;) {
        int64_t skip = (index + i) % ROUNDING_BLOCK_ELEMS, end = i + PHILOX_HALVES - skip;
        const uint16_t *next = bits + skip;
        philox_fill_halves(bits, key, (uint64_t)((index + i) / ROUNDING_BLOCK_ELEMS));
        end = number_min(end, count);
        for (; i < end; i += VECTOR_LANES, next += VECTOR_LANES) {
            int64_t in_vector = number_min(end - i, VECTOR_LANES);
            vector x = vector_get(weights, DTYPE_F32, i, in_vector);
            vector_halves rounded = rounding_round_vector(x, vector_load_halves(next));
            memcpy(copy + i, &rounded, (size_t)in_vector * sizeof *copy);
        }
        i = end;
    }
}

/* rounding_apply - round the elements [first, last) of a slice. */
static inline void rounding_apply(bf16 *copy, const float *weights, int64_t first, int64_t last,
                                  const struct rounding *r)
{
    while (first < last) {
        int64_t position = r->offset + first, row = position / r->columns,
                column = position % r->columns;
        int64_t count = last - first, left = r->columns - column;
        count = r->columns < r->pitch && left < count ? left : count;
        rounding_apply_contiguous(copy + first, weights + first, count, r->key,
                                  r->first + row * r->pitch + column);
        first += count;
    }
}
