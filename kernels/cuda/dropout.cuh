/* Dropout factors: an element is kept where random_u16(key, first + element) >= t, with t =
 * dropout_threshold(probability), as kernels/dropout.h defines.
 *
 * The bits equal those of base/random.h. Eight elements, from a multiple of eight on, share one
 * Philox block. */
#pragma once

#include "kernels/cuda/philox.cuh"

/* The same as dropout_threshold and dropout_scale, on the device. */
GPU_INLINE uint32_t get_dropout_threshold(const struct dropout &dropout)
{
    return static_cast<uint32_t>(dropout.probability * 65536.0f + 0.5f);
}

GPU_INLINE float get_dropout_scale(const struct dropout &dropout)
{
    return 65536.0f / static_cast<float>(65536u - get_dropout_threshold(dropout));
}

/* Returns whether a single element is kept. */
GPU_INLINE bool dropout_is_kept(const struct dropout &dropout, int64_t element)
{
    uint64_t index = static_cast<uint64_t>(dropout.first + element);
    const struct philox_block block = philox_generate(dropout.key, index / EIGHT);
    uint32_t lower = index % 4 < 2 ? block.word[0] : block.word[1];
    uint32_t upper = index % 4 < 2 ? block.word[2] : block.word[3];
    uint32_t half = (index % EIGHT < 4 ? lower : upper) >> (index % 2 * 16) & 0xffffu;
    return half >= get_dropout_threshold(dropout);
}

/* Returns bit i for each of eight elements, from a multiple of eight on: whether element i is
 * kept. */
GPU_INLINE uint32_t get_kept_byte(const struct dropout &dropout, int64_t element)
{
    const struct philox_block block =
        philox_generate(dropout.key, static_cast<uint64_t>(dropout.first + element) / EIGHT);
    uint32_t threshold = get_dropout_threshold(dropout), kept = 0;
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        uint32_t half = block.word[i / 2] >> (i % 2 * 16) & 0xffffu;
        kept |= (half >= threshold ? 1u : 0u) << i;
    }
    return kept;
}

/* Multiplies x by the factors of eight consecutive elements, from `element` on. They have two
 * blocks if `element` is not a multiple of eight. */
GPU_INLINE void dropout_apply_eight(float (&x)[EIGHT], const struct dropout &dropout,
                                    int64_t element)
{
    if (!(dropout.probability > 0)) {
        return;
    }
    int skip = static_cast<int>(static_cast<uint64_t>(dropout.first + element) % EIGHT);
    uint32_t kept = 0;
#pragma unroll 1
    for (int i = 0; i < EIGHT + skip; i += EIGHT) {
        kept |= get_kept_byte(dropout, element - skip + i) << i;
    }
    kept >>= skip;
    float scale = get_dropout_scale(dropout);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        x[i] = (kept >> i & 1) != 0 ? x[i] * scale : 0.0f;
    }
}
