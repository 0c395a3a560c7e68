/* The counter-based random generator Philox 4x32-10. The bits equal those of random_philox in
 * base/random.h: tests of dropout and of rounding compare both. */
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
