/* Dropout factors of consecutive elements, for a vector of counters at a time.
 *
 * An element is kept if random_uniform(key, first + i) >= probability. The factors equal those of
 * base/random.h bit for bit; a test compares them. Only word 0 of each Philox block is used. */
#pragma once

#include "kernels/cpu/philox.h"
#include "kernels/kernels.h"

/* dropout_active - return whether any element can be dropped. */
static inline bool dropout_active(struct dropout dropout)
{
    return dropout.probability > 0;
}

/* dropout_vector - compute the factors, 0 or 1 / (1 - probability), of the elements from `element`
 * on. */
static inline vector dropout_vector(struct dropout dropout, int64_t element)
{
    uint64_t first = (uint64_t)(dropout.first + element);
    vector_words bits = philox_generate(dropout.key, first).word[0];
    vector u = __builtin_convertvector((vector_bits)(bits >> 8), vector) * 0x1p-24f;
    vector_bits kept = u >= dropout.probability;
    return (vector)((vector_bits)vector_set(1.0f / (1.0f - dropout.probability)) & kept);
}
