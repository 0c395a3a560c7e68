/* The moments of AdamW and LAMB: averages with weights beta and 1 - beta.
 *
 * The sum of two floats represents beta. With one float, an average over 1 / (1 - beta) steps is
 * wrong by the rounding error of beta times this number of steps: 1.7e-4 for beta 0.9999. */
#pragma once

#include "kernels/cpu/vector.h"

struct moment_rate {
    vector beta, beta_remainder, one_minus_beta;
};

/* moment_rate_make - split beta into floats. */
static inline struct moment_rate moment_rate_make(double beta)
{
    return (struct moment_rate){
        .beta = vector_set((float)beta),
        .beta_remainder = vector_set((float)(beta - (double)(float)beta)),
        .one_minus_beta = vector_set((float)(1.0 - beta)),
    };
}

/* moment_update - return beta moment + (1 - beta) value. */
static inline vector moment_update(const struct moment_rate *r, vector moment, vector value)
{
    vector rest = vector_fma(r->beta_remainder, moment, r->one_minus_beta * value);
    return vector_fma(r->beta, moment, rest);
}
