/* Dropout factors of consecutive elements: random_uniform(key, first + i) >= probability, computed
 * for a vector's worth of counters at a time. Equal to base/random.h bit for bit (a test compares).
 *
 * Only word 0 of a Philox block is used and a counter's upper words are zero, but all ten rounds
 * are needed: about 6 cycles an element with AVX-512. */
#pragma once

#include "kernels/cpu/vector.h"
#include "kernels/kernels.h"

enum { DROPOUT_WIDTH = 16 };

static inline bool dropout_active(struct dropout dropout)
{
    return dropout.probability > 0;
}

/* dropout_words - word 0 of the blocks at counters first, first + 1, ... */
static inline void dropout_words(uint32_t words[DROPOUT_WIDTH], uint64_t key, uint64_t first)
{
    uint32_t a[DROPOUT_WIDTH], b[DROPOUT_WIDTH], c[DROPOUT_WIDTH] = {0}, d[DROPOUT_WIDTH] = {0};
    for (uint32_t i = 0; i < DROPOUT_WIDTH; i++) {
        a[i] = (uint32_t)(first + i);
        b[i] = (uint32_t)((first + i) >> 32);
    }
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < DROPOUT_WIDTH; i++) {
            uint64_t product0 = (uint64_t)0xD2511F53u * a[i];
            uint64_t product1 = (uint64_t)0xCD9E8D57u * c[i];
            a[i] = (uint32_t)(product1 >> 32) ^ b[i] ^ key0;
            b[i] = (uint32_t)product1;
            c[i] = (uint32_t)(product0 >> 32) ^ d[i] ^ key1;
            d[i] = (uint32_t)product0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    memcpy(words, a, sizeof a);
}

/* dropout_factors - 0 or 1 / (1 - probability) for elements element, element + 1, ... of a call. */
static inline void dropout_factors(float factors[DROPOUT_WIDTH], struct dropout dropout,
                                   int64_t element)
{
    uint32_t words[DROPOUT_WIDTH];
    dropout_words(words, dropout.key, (uint64_t)(dropout.first + element));
    float scale = 1.0f / (1.0f - dropout.probability);
    for (int i = 0; i < DROPOUT_WIDTH; i++) {
        float u = (float)(int32_t)(words[i] >> 8) * 0x1p-24f;
        factors[i] = u >= dropout.probability ? scale : 0.0f;
    }
}

/* dropout_vector - likewise as many as a vector holds. */
static inline vector dropout_vector(struct dropout dropout, int64_t element)
{
    float factors[DROPOUT_WIDTH];
    dropout_factors(factors, dropout, element);
    return vector_load(factors);
}
