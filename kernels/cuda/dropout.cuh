/* Dropout's factors: random_uniform(key, first + element) >= probability, equal to base/random.h bit for
 * bit. One Philox block for each element, of which one word is used: that is the law of kernels.h. */
#pragma once

#include "kernels/cuda/operation.cuh"

GPU_INLINE uint32_t dropout_bits(uint64_t key, uint64_t index)
{
    uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    uint32_t a = static_cast<uint32_t>(index), b = static_cast<uint32_t>(index >> 32), c = 0, d = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, a), low0 = 0xD2511F53u * a;
        uint32_t high1 = __umulhi(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return a;
}

GPU_INLINE bool dropout_keeps(const struct dropout &dropout, int64_t element)
{
    uint32_t bits = dropout_bits(dropout.key, static_cast<uint64_t>(dropout.first + element));
    return static_cast<float>(bits >> 8) * 0x1p-24f >= dropout.probability;
}

/* What a kept element is multiplied by. */
GPU_INLINE float dropout_scale(const struct dropout &dropout)
{
    return 1.0f / (1.0f - dropout.probability);
}

/* x times the factors of eight elements in a row. */
GPU_INLINE void dropout_eight(float (&x)[EIGHT], const struct dropout &dropout, int64_t element)
{
    if (!(dropout.probability > 0)) {
        return;
    }
    float scale = dropout_scale(dropout);
    for (int i = 0; i < EIGHT; i++) {
        x[i] = dropout_keeps(dropout, element + i) ? x[i] * scale : 0.0f;
    }
}
