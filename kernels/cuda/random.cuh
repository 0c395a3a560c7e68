/* Random numbers, dropout factors and stochastic rounding.
 *
 * The counter-based generator is Philox 4x32-10. An element is kept where
 * random_u16(key, first + element) >= t, with t = dropout_threshold(probability), as
 * kernels/dropout.h defines. Eight elements, from a multiple of eight on, share one Philox block.
 *
 * The bits are the same as with base/random.h: tests of dropout and of rounding compare both. */
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
    const struct philox_block block = philox_generate(dropout.key, index / LANE_ELEMS);
    uint32_t lower = index % 4 < 2 ? block.word[0] : block.word[1];
    uint32_t upper = index % 4 < 2 ? block.word[2] : block.word[3];
    uint32_t half = (index % LANE_ELEMS < 4 ? lower : upper) >> (index % 2 * 16) & 0xffffu;
    return half >= get_dropout_threshold(dropout);
}

/* Returns bit i for each of eight elements, from a multiple of eight on: whether element i
 * is kept. */
GPU_INLINE uint32_t get_kept_byte(const struct dropout &dropout, int64_t element)
{
    const struct philox_block block =
        philox_generate(dropout.key, static_cast<uint64_t>(dropout.first + element) / LANE_ELEMS);
    uint32_t threshold = get_dropout_threshold(dropout), kept = 0;
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        uint32_t half = block.word[i / 2] >> (i % 2 * 16) & 0xffffu;
        kept |= (half >= threshold ? 1u : 0u) << i;
    }
    return kept;
}

/* Returns eight bits: bit i is set if dropout keeps element `element` + i. The elements need two
 * blocks of random numbers if `element` is not a multiple of eight. */
GPU_INLINE uint32_t dropout_kept_eight(const struct dropout &dropout, int64_t element)
{
    int skip = static_cast<int>(static_cast<uint64_t>(dropout.first + element) % LANE_ELEMS);
    uint32_t kept = 0;
#pragma unroll 1
    for (int i = 0; i < LANE_ELEMS + skip; i += LANE_ELEMS) {
        kept |= get_kept_byte(dropout, element - skip + i) << i;
    }
    return kept >> skip;
}

/* Multiplies the kept elements by scale and sets the others to 0. kept: dropout_kept_eight. */
GPU_INLINE void dropout_scale_eight(float (&x)[LANE_ELEMS], uint32_t kept, float scale)
{
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        x[i] = (kept >> i & 1) != 0 ? x[i] * scale : 0.0f;
    }
}

/* Multiplies x by the factors of eight consecutive elements, from `element` on. */
GPU_INLINE void dropout_apply_eight(float (&x)[LANE_ELEMS], const struct dropout &dropout,
                                    int64_t element)
{
    if (dropout.probability > 0) {
        uint32_t kept = dropout_kept_eight(dropout, element);
        dropout_scale_eight(x, kept, get_dropout_scale(dropout));
    }
}

/* Computes dropout_apply_eight if dropout.first + `element` is a multiple of eight and dropout is
 * active. The caller computes the threshold and the scale once. */
GPU_INLINE void dropout_apply_block(float (&x)[LANE_ELEMS], const struct dropout &dropout,
                                    int64_t element, uint32_t threshold, float scale)
{
    const struct philox_block block =
        philox_generate(dropout.key, static_cast<uint64_t>(dropout.first + element) / LANE_ELEMS);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        uint32_t half = block.word[i / 2] >> (i % 2 * 16) & 0xffffu;
        x[i] = half >= threshold ? x[i] * scale : 0.0f;
    }
}

/* ---- stochastic rounding of weights and moments to bf16 (struct rounding in kernels.h) ----
 *
 *   y = truncate(bits(x) + u), u a random integer of 16 bits: the expectation of y is x
 *
 * The result equals f32_to_bf16_stochastic with the bits of random_u16, as on the CPU. Eight
 * consecutive elements of the whole parameter, from a multiple of eight on, share one Philox block.
 * If the eight elements of a thread are not such a group, it generates both of their blocks. */

/* Returns an f32 that bf16 represents exactly, so that the store does not round again. */
GPU_INLINE float round_stochastic(float x, uint32_t half)
{
    uint32_t bits = gpu_bits(x);
    bool is_max_or_beyond =
        (bits & 0x7fffffffu) >= 0x7f7f0000u; /* the largest finite bf16: rounded to nearest */
    return is_max_or_beyond ? x : gpu_from_bits((bits + half) & 0xffff0000u);
}

/* Draws 16 random bits for each of eight elements of a slice, from `first` on. */
GPU_INLINE struct philox_block draw_rounding_bits(const struct rounding &r, int64_t first)
{
    int64_t offset = r.offset + first, column = r.columns < r.pitch ? offset % r.columns : 0;
    uint64_t index = static_cast<uint64_t>(
        r.first + (r.columns < r.pitch ? offset / r.columns * r.pitch + column : offset));
    uint64_t block_index = index / LANE_ELEMS, low = 0, high = 0;
    struct philox_block block = philox_generate(r.key, block_index);
    if (index % LANE_ELEMS == 0 && (r.columns == r.pitch || column + LANE_ELEMS <= r.columns)) {
        return block;
    }
#pragma unroll 1
    for (int i = 0; i < LANE_ELEMS; i++) {
        if (index / LANE_ELEMS != block_index) {
            block_index = index / LANE_ELEMS;
            block = philox_generate(r.key, block_index);
        }
        int half = static_cast<int>(index % LANE_ELEMS);
        uint32_t lower = half < 2 ? block.word[0] : block.word[1];
        uint32_t upper = half < 6 ? block.word[2] : block.word[3];
        uint64_t bits = (half < 4 ? lower : upper) >> (half % 2 * 16) & 0xffffu;
        low = low >> 16 | high << 48;
        high = high >> 16 | bits << 48;
        index += static_cast<uint64_t>(++column == r.columns ? r.pitch - r.columns + 1 : 1);
        column = column == r.columns ? 0 : column;
    }
    return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
             static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
}

/* Rounds eight elements of a slice, from `first` on, to values of bf16. */
GPU_INLINE void round_eight(float (&x)[LANE_ELEMS], const struct rounding &r, int64_t first)
{
    if (!r.stochastic) {
        return;
    }
    const struct philox_block block = draw_rounding_bits(r, first);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        x[i] = round_stochastic(x[i], block.word[i / 2] >> (i % 2 * 16) & 0xffffu);
    }
}
