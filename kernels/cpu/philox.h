/* Blocks of random bits at consecutive counters, a vector's worth at a time: random_philox of base/random.h bit for
 * bit (tests of dropout and of rounding compare).
 *
 * The counter's upper two words are zero. A round has two products of 32 by 32 bits, which processors have for every
 * other lane: even and odd lanes are multiplied apart, and their halves sorted afterwards. */
#pragma once

#include "kernels/cpu/vector.h"

typedef uint64_t philox_pairs __attribute__((vector_size(4 * VECTOR_LANES)));

struct philox_blocks {
    vector_words word[4];
};

/* The product of the lower half of each pair with a factor below 2^32. */
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

/* Both halves of the products of all lanes with a factor. Pairs are little-endian: the lower half
 * is the even lane. */
static inline void philox_products(vector_words *high, vector_words *low, vector_words x,
                                   uint64_t factor)
{
    const philox_pairs upper = (philox_pairs){0} + UINT64_C(0xffffffff00000000);
    philox_pairs even = philox_multiply((philox_pairs)x, factor);
    philox_pairs odd = philox_multiply((philox_pairs)x >> 32, factor);
    *high = (vector_words)((even >> 32) | (odd & upper));
    *low = (vector_words)((even & ~upper) | (odd << 32));
}

/* philox_blocks - the blocks at counters first, first + 1, ..., one to a lane. */
static inline struct philox_blocks philox_blocks(uint64_t key, uint64_t first)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    vector_words a = (vector_words)vector_index() + (uint32_t)first;
    vector_words b = (vector_words){0} + (uint32_t)(first >> 32);
    b -= (vector_words)(a < (uint32_t)first); /* the lower word went over */
    vector_words c = {0}, d = {0};
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        vector_words high0, low0, high1, low1;
        philox_products(&high0, &low0, a, 0xD2511F53u);
        philox_products(&high1, &low1, c, 0xCD9E8D57u);
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return (struct philox_blocks){{a, b, c, d}};
}
