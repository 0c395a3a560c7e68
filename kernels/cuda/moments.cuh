/* The moments of AdamW and LAMB: averages with weights beta and 1 - beta.
 *
 * The sum of two floats represents beta, and bf16 moments are rounded stochastically, as on the CPU
 * (kernels/cpu/moments.h). */
#pragma once

#include "kernels/cuda/rounding.cuh"

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

/* Returns the address of element `index` of an array of moments. */
static inline void *get_moment_address(const void *moments, enum dtype dtype, int64_t index)
{
    return static_cast<char *>(const_cast<void *>(moments)) +
           static_cast<size_t>(index) * dtype_bytes(dtype);
}

/* ---- device ---- */

GPU_INLINE bool is_skipped(const struct adamw &s)
{
    return s.control != nullptr && s.control->skip != 0;
}

/* Returns the factor of the gradients. */
GPU_INLINE float get_gradient_scale(const struct adamw &s)
{
    return s.control != nullptr ? s.control->gradient_scale : s.gradient_scale;
}

/* Returns beta moment + (1 - beta) value. */
GPU_INLINE float update_moment(const struct moment_rate &r, float moment, float value)
{
    return r.beta * moment + (r.beta_remainder * moment + r.one_minus_beta * value);
}

/* Rounds eight moments of a slice, from `first` on, to values of the type that stores them. index:
 * 0 or 1, the moment. */
GPU_INLINE void round_moments(float (&)[EIGHT], const float *, const struct adamw &, int, int64_t)
{
}

GPU_INLINE void round_moments(float (&x)[EIGHT], const bf16 *, const struct adamw &s, int index,
                              int64_t first)
{
    struct rounding rounding = s.rounding;
    rounding.stochastic = true;
    rounding.key = s.moment_keys[index];
    round_eight(x, rounding, first);
}
