/* Random numbers and dropout factors.
 *
 * The counter-based generator is Philox 4x32-10. An element is kept where
 * random_u16(key, first + element) >= t, with t = dropout_threshold(probability), as
 * kernels/dropout.h defines. Eight elements, from a multiple of eight on, share one Philox block.
 *
 * The bits equal those of base/random.h: tests of dropout and of rounding compare both. */
#pragma once

#include "kernels/cuda/operation.cuh"

struct philox_block {
    uint32_t word[4];
};

/* philox_generate - return the four random words of a counter. The upper two words of the counter
 * are zero. */
GPU_INLINE struct philox_block philox_generate(uint64_t key, uint64_t index)
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
    return {{a, b, c, d}};
}

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

/* Returns eight bits: bit i is set if dropout keeps element `element` + i. The elements need two
 * blocks of random numbers if `element` is not a multiple of eight. */
GPU_INLINE uint32_t dropout_kept_eight(const struct dropout &dropout, int64_t element)
{
    int skip = static_cast<int>(static_cast<uint64_t>(dropout.first + element) % EIGHT);
    uint32_t kept = 0;
#pragma unroll 1
    for (int i = 0; i < EIGHT + skip; i += EIGHT) {
        kept |= get_kept_byte(dropout, element - skip + i) << i;
    }
    return kept >> skip;
}

/* Multiplies the kept elements by scale and sets the others to 0. kept: dropout_kept_eight. */
GPU_INLINE void dropout_scale_eight(float (&x)[EIGHT], uint32_t kept, float scale)
{
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        x[i] = (kept >> i & 1) != 0 ? x[i] * scale : 0.0f;
    }
}

/* Multiplies x by the factors of eight consecutive elements, from `element` on. */
GPU_INLINE void dropout_apply_eight(float (&x)[EIGHT], const struct dropout &dropout,
                                    int64_t element)
{
    if (dropout.probability > 0) {
        uint32_t kept = dropout_kept_eight(dropout, element);
        dropout_scale_eight(x, kept, get_dropout_scale(dropout));
    }
}

/* Computes dropout_apply_eight if dropout.first + `element` is a multiple of eight and dropout is
 * active. The caller computes the threshold and the scale once. */
GPU_INLINE void dropout_apply_block(float (&x)[EIGHT], const struct dropout &dropout,
                                    int64_t element, uint32_t threshold, float scale)
{
    const struct philox_block block =
        philox_generate(dropout.key, static_cast<uint64_t>(dropout.first + element) / EIGHT);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        uint32_t half = block.word[i / 2] >> (i % 2 * 16) & 0xffffu;
        x[i] = half >= threshold ? x[i] * scale : 0.0f;
    }
}
