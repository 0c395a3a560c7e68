/* Stochastic rounding of weights to their bf16 copy (struct rounding in kernels.h): f32_to_bf16_drawn with
 * random_half's bits, as on the CPU. Eight elements that follow each other in the whole share a Philox block; where a
 * thread's eight are not such eight, it makes the blocks that they lie in. */
#pragma once

#include "kernels/cuda/philox.cuh"

/* A number that bf16 holds, so that storing it rounds no more. */
GPU_INLINE float rounding_drawn(float x, uint32_t half)
{
    uint32_t bits = gpu_bits(x);
    bool beyond =
        (bits & 0x7fffffffu) >= 0x7f7f0000u; /* the largest finite number: as to nearest */
    return beyond ? x : gpu_from_bits((bits + half) & 0xffff0000u);
}

/* Sixteen bits for each of eight elements of a slice, from `at` on. */
GPU_INLINE struct philox_block rounding_bits(const struct rounding &r, int64_t at)
{
    int64_t in = r.offset + at, column = r.columns < r.pitch ? in % r.columns : 0;
    uint64_t index = static_cast<uint64_t>(
        r.first + (r.columns < r.pitch ? in / r.columns * r.pitch + column : in));
    uint64_t known = index / EIGHT, low = 0, high = 0;
    struct philox_block block = philox_at(r.key, known);
    if (index % EIGHT == 0 && (r.columns == r.pitch || column + EIGHT <= r.columns)) {
        return block;
    }
#pragma unroll 1
    for (int i = 0; i < EIGHT; i++) {
        if (index / EIGHT != known) {
            known = index / EIGHT;
            block = philox_at(r.key, known);
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

/* rounding_eight - eight weights of a slice, from `at` on, as their copy has them. */
GPU_INLINE void rounding_eight(float (&x)[EIGHT], const struct rounding &r, int64_t at)
{
    if (!r.stochastic) {
        return;
    }
    const struct philox_block block = rounding_bits(r, at);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        x[i] = rounding_drawn(x[i], block.word[i / 2] >> (i % 2 * 16) & 0xffffu);
    }
}
