/* Stochastic rounding of weights and moments to bf16 (struct rounding in kernels.h).
 *
 *   y = truncate(bits(x) + u), u a random integer of 16 bits: the expectation of y is x
 *
 * The result equals f32_to_bf16_stochastic with the bits of random_u16, as on the CPU. Eight
 * consecutive elements of the whole parameter, from a multiple of eight on, share one Philox block.
 * If the eight elements of a thread are not such a group, it generates both of their blocks. */
#pragma once

#include "kernels/cuda/random.cuh"

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
    uint64_t block_index = index / EIGHT, low = 0, high = 0;
    struct philox_block block = philox_generate(r.key, block_index);
    if (index % EIGHT == 0 && (r.columns == r.pitch || column + EIGHT <= r.columns)) {
        return block;
    }
#pragma unroll 1
    for (int i = 0; i < EIGHT; i++) {
        if (index / EIGHT != block_index) {
            block_index = index / EIGHT;
            block = philox_generate(r.key, block_index);
        }
        int half = static_cast<int>(index % EIGHT);
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
GPU_INLINE void round_eight(float (&x)[EIGHT], const struct rounding &r, int64_t first)
{
    if (!r.stochastic) {
        return;
    }
    const struct philox_block block = draw_rounding_bits(r, first);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        x[i] = round_stochastic(x[i], block.word[i / 2] >> (i % 2 * 16) & 0xffffu);
    }
}
