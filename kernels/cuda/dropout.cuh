/* Dropout's factors: random_uniform(key, first + element) >= probability, equal to base/random.h bit for
 * bit. One Philox block for each element, of which one word is used: that is the law of kernels.h. */
#pragma once

#include "kernels/cuda/philox.cuh"

GPU_INLINE bool dropout_keeps(const struct dropout &dropout, int64_t element)
{
    uint64_t index = static_cast<uint64_t>(dropout.first + element);
    uint32_t bits = philox_at(dropout.key, index).word[0];
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
