/* The moments of AdamW and LAMB: averages with weights beta and 1 - beta.
 *
 * The sum of two floats represents beta, as on the CPU (kernels/cpu/moments.h). */
#pragma once

#include "kernels/cuda/operation.cuh"

struct moment_rate {
    float beta, beta_remainder, one_minus_beta;
};

struct moment_rates {
    struct moment_rate first, second;
};

/* ---- host ---- */

static inline struct moment_rate make_moment_rate(double beta)
{
    float rounded = static_cast<float>(beta);
    return {rounded, static_cast<float>(beta - static_cast<double>(rounded)),
            static_cast<float>(1.0 - beta)};
}

static inline struct moment_rates make_moment_rates(const struct adamw *s)
{
    return {make_moment_rate(s->beta1), make_moment_rate(s->beta2)};
}

/* ---- device ---- */

/* Returns beta moment + (1 - beta) value. */
GPU_INLINE float update_moment(const struct moment_rate &r, float moment, float value)
{
    return r.beta * moment + (r.beta_remainder * moment + r.one_minus_beta * value);
}
