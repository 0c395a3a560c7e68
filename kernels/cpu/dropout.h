/* Dropout factors of consecutive elements: random_uniform(key, first + i) >= probability, for a
 * vector's worth of counters at a time. Equal to base/random.h bit for bit (a test compares).
 *
 * Only word 0 of each Philox block is used, but all ten rounds are needed. */
#pragma once

#include "kernels/cpu/philox.h"
#include "kernels/kernels.h"

static inline bool dropout_active(struct dropout dropout)
{
    return dropout.probability > 0;
}

/* dropout_vector - 0 or 1 / (1 - probability) for the call's elements from `element` on. */
static inline vector dropout_vector(struct dropout dropout, int64_t element)
{
    uint64_t first = (uint64_t)(dropout.first + element);
    vector_words bits = philox_blocks(dropout.key, first).word[0];
    vector u = __builtin_convertvector((vector_bits)(bits >> 8), vector) * 0x1p-24f;
    vector_bits kept = u >= dropout.probability;
    return (vector)((vector_bits)vector_set(1.0f / (1.0f - dropout.probability)) & kept);
}
