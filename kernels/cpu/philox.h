/* The counter-based generator Philox4x32-10, for a vector of consecutive counters at a time. It
 * generates 16 random bits for each of eight elements of a counter (random_u16 of base/random.h).
 *
 * The tests of dropout and rounding compare the bits with random_u16. The upper two words of the
 * counter are zero. A round multiplies 32-bit words to 64-bit results. Processors have this
 * instruction for every other lane only. Therefore even and odd lanes are multiplied separately,
 * and the halves of the results are interleaved afterwards.
 *
 * Source    Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3" */
#pragma once

#include "kernels/cpu/vector.h"

typedef uint64_t philox_pairs __attribute__((vector_size(4 * VECTOR_LANES)));

enum { PHILOX_HALVES = 8 * VECTOR_LANES }; /* random halves of a vector of blocks */

/* philox_multiply - multiply the lower half of each pair by a factor below 2^32. */
static inline philox_pairs philox_multiply(philox_pairs x, uint64_t factor)
{
#if defined(VECTOR_AVX512)
    return (philox_pairs)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((long long)factor));
#elif defined(VECTOR_AVX2)
    return (philox_pairs)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((long long)factor));
#else
    return (x & UINT64_C(0xffffffff)) * factor;
#endif
}

/* philox_multiply_wide - compute both halves of the products of all lanes with a factor.
 *
 * Pairs are little-endian: the lower half is the even lane. */
static inline void philox_multiply_wide(vector_words *high, vector_words *low, vector_words x,
                                        uint64_t factor)
{
    const philox_pairs upper = (philox_pairs){0} + UINT64_C(0xffffffff00000000);
    philox_pairs even = philox_multiply((philox_pairs)x, factor);
    philox_pairs odd = philox_multiply((philox_pairs)x >> 32, factor);
    *high = (vector_words)((even >> 32) | (odd & upper));
    *low = (vector_words)((even & ~upper) | (odd << 32));
}

/* philox_store_blocks - store the blocks of four words, one block for each lane.
 *
 * Transposes groups of four lanes: row j has the blocks of the lanes j, 4 + j, 8 + j, ... */
static inline void philox_store_blocks(uint16_t halves[PHILOX_HALVES], vector_words a,
                                       vector_words b, vector_words c, vector_words d)
{
    vector_bits low = {0}, high = {0}, low_pair = {0}, high_pair = {0};
    for (int i = 0; i < VECTOR_LANES; i++) {
        int group = i / 4 * 4, second = i % 2 * VECTOR_LANES;
        low[i] = group + i % 4 / 2 + second;
        high[i] = low[i] + 2;
        low_pair[i] = group + i % 2 + i % 4 / 2 * VECTOR_LANES;
        high_pair[i] = low_pair[i] + 2;
    }
    vector_words ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low);
    vector_words rows[4];
    rows[0] = __builtin_shuffle(ab, cd, low_pair);
    rows[1] = __builtin_shuffle(ab, cd, high_pair);
    ab = __builtin_shuffle(a, b, high);
    cd = __builtin_shuffle(c, d, high);
    rows[2] = __builtin_shuffle(ab, cd, low_pair);
    rows[3] = __builtin_shuffle(ab, cd, high_pair);
    memcpy(halves, rows, sizeof rows);
}

/* philox_fill_halves - generate the random halves of the blocks `first`, `first` + 1, ... */
static inline void philox_fill_halves(uint16_t halves[PHILOX_HALVES], uint64_t key, uint64_t first)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    vector_words a = {0}; /* counters in the order of philox_store_blocks */
    for (int lane = 0; lane < VECTOR_LANES; lane++) {
        a[lane] = (uint32_t)(lane % 4 * (VECTOR_LANES / 4) + lane / 4);
    }
    a += (uint32_t)first;
    vector_words b = (vector_words){0} + (uint32_t)(first >> 32);
    b -= (vector_words)(a < (uint32_t)first); /* carry from the lower word */
    vector_words c = {0}, d = {0};
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        vector_words high0, low0, high1, low1;
        philox_multiply_wide(&high0, &low0, a, 0xD2511F53u);
        philox_multiply_wide(&high1, &low1, c, 0xCD9E8D57u);
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    philox_store_blocks(halves, a, b, c, d);
}
