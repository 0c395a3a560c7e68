/* Dropout factors: an element is kept where random_uniform(key, first + element) >= probability.
 *
 * The bits equal those of base/random.h. Each element draws one Philox block and uses one word of
 * it, as kernels.h defines (struct dropout). */
#pragma once

#include "kernels/cuda/philox.cuh"

GPU_INLINE bool dropout_is_kept(const struct dropout &dropout, int64_t element)
{
    uint64_t index = static_cast<uint64_t>(dropout.first + element);
    uint32_t bits = philox_generate(dropout.key, index).word[0];
    return static_cast<float>(bits >> 8) * 0x1p-24f >= dropout.probability;
}

/* Returns the factor of a kept element. */
GPU_INLINE float dropout_scale(const struct dropout &dropout)
{
    return 1.0f / (1.0f - dropout.probability);
}

/* Multiplies x by the factors of eight consecutive elements, from `element` on. */
GPU_INLINE void dropout_apply_eight(float (&x)[EIGHT], const struct dropout &dropout,
                                    int64_t element)
{
    if (!(dropout.probability > 0)) {
        return;
    }
    float scale = dropout_scale(dropout);
    for (int i = 0; i < EIGHT; i++) {
        x[i] = dropout_is_kept(dropout, element + i) ? x[i] * scale : 0.0f;
    }
}
