/* Dropout factors of consecutive elements: random_uniform(key, first + i) >= probability, for a
 * vector's worth of counters at a time. Equal to base/random.h bit for bit (a test compares).
 *
 * Only word 0 of each Philox block is used, and the counter's upper two words are zero, but all ten
 * rounds are needed. A round has two products of 32 by 32 bits, which processors have for every
 * other lane: even and odd lanes are multiplied apart, and their halves sorted afterwards. */
#pragma once

#include "kernels/cpu/vector.h"
#include "kernels/kernels.h"

typedef uint64_t dropout_pairs __attribute__((vector_size(4 * VECTOR_LANES)));

static inline bool dropout_active(struct dropout dropout)
{
    return dropout.probability > 0;
}

/* The product of the lower half of each pair with a factor below 2^32. */
static inline dropout_pairs dropout_multiply(dropout_pairs x, uint64_t factor)
{
#if defined(VECTOR_AVX512)
    return (dropout_pairs)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((long long)factor));
#elif defined(VECTOR_AVX2)
    return (dropout_pairs)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((long long)factor));
#else
    return (x & UINT64_C(0xffffffff)) * factor;
#endif
}

/* Both halves of the products of all lanes with a factor. Pairs are little-endian: the lower half
 * is the even lane. */
static inline void dropout_products(vector_words *high, vector_words *low, vector_words x,
                                    uint64_t factor)
{
    const dropout_pairs upper = (dropout_pairs){0} + UINT64_C(0xffffffff00000000);
    dropout_pairs even = dropout_multiply((dropout_pairs)x, factor);
    dropout_pairs odd = dropout_multiply((dropout_pairs)x >> 32, factor);
    *high = (vector_words)((even >> 32) | (odd & upper));
    *low = (vector_words)((even & ~upper) | (odd << 32));
}

/* dropout_bits - word 0 of the blocks at counters first, first + 1, ... */
static inline vector_words dropout_bits(uint64_t key, uint64_t first)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    vector_words a = (vector_words)vector_index() + (uint32_t)first;
    vector_words b = (vector_words){0} + (uint32_t)(first >> 32);
    b -= (vector_words)(a < (uint32_t)first); /* the lower word went over */
    vector_words c = {0}, d = {0};
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        vector_words high0, low0, high1, low1;
        dropout_products(&high0, &low0, a, 0xD2511F53u);
        dropout_products(&high1, &low1, c, 0xCD9E8D57u);
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return a;
}

/* dropout_vector - 0 or 1 / (1 - probability) for the call's elements from `element` on. */
static inline vector dropout_vector(struct dropout dropout, int64_t element)
{
    vector_words bits = dropout_bits(dropout.key, (uint64_t)(dropout.first + element));
    vector u = __builtin_convertvector((vector_bits)(bits >> 8), vector) * 0x1p-24f;
    vector_bits kept = u >= dropout.probability;
    return (vector)((vector_bits)vector_set(1.0f / (1.0f - dropout.probability)) & kept);
}
