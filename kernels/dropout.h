/* The dropout scheme: which elements are kept, as a pure function of a key and an index.
 *
 * A site is one place in the model. Its element i is kept if random_u16(key, first + i) >= t, with
 * t = dropout_threshold(probability). Kept elements are scaled by 65536 / (65536 - t), so that the
 * expectation is exact. Eight elements, from a multiple of eight on, share one random block.
 *
 * Source    Srivastava et al. 2014, JMLR 15 */
#pragma once

#include <stdint.h>

#include "base/number.h"

/* The number of this scheme, which checkpoints store. Scheme 1, of version 0.1, kept an element if
 * random_uniform(key, first + i) >= probability. */
enum { DROPOUT_SCHEME = 2 };

struct dropout {
    float probability; /* 0: no dropout */
    uint64_t key;      /* random_key(seed, RANDOM_DROPOUT, step, site) */
    int64_t first;     /* global index of this call's first element; row-major over the site */
    int64_t pitch;     /* dropout_apply only: elements in a row of the site; 0: columns of x */
};

/* dropout_threshold - round a probability to units of 1 / 65536.
 *
 * Operations refuse a probability above 0 for which the result is 0 or 65536. */
static inline int dropout_threshold(float probability)
{
    return (int)(probability * 65536.0f + 0.5f);
}

/* dropout_scale - return the factor of a kept element. */
static inline float dropout_scale(float probability)
{
    return 65536.0f / (float)(65536 - dropout_threshold(probability));
}

/* attention_dropout_pitch - return the elements of a query and head.
 *
 * The keys are padded to a multiple of eight, so that eight adjacent keys share a block. */
static inline int64_t attention_dropout_pitch(int64_t longest_k)
{
    return number_round_up(longest_k, 8);
}
