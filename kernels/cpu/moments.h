/* The moments of AdamW and LAMB: averages with weights beta and 1 - beta.
 *
 * The sum of two floats represents beta. With one float, an average over 1 / (1 - beta) steps is
 * wrong by the rounding error of beta times this number of steps: 1.7e-4 for beta 0.9999.
 *
 * Moments in bf16 are rounded stochastically. Rounding to nearest would keep a second moment at its
 * value, because beta 0.999 changes it by less than half of the distance to the next bf16. */
#pragma once

#include "kernels/cpu/rounding.h"
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

/* A part of many tensors (adamw_parts.h): its first element in the arrays and in the moments. */
struct moment_part {
    int64_t first, moment, count;
    struct adamw settings;
};

/* moment_get_part - return part i. Its settings are `all` with the weight decay of the part. */
static inline struct moment_part moment_get_part(const struct adamw_parts *p, int64_t i,
                                                 const struct adamw *all)
{
    const struct adamw_part *part = &p->parts[i];
    struct moment_part out = {part->first - p->origin, part->moment, part->count, *all};
    out.settings.weight_decay = part->weight_decay;
    return out;
}

/* moment_update - return beta moment + (1 - beta) value. */
static inline vector moment_update(const struct moment_rate *r, vector moment, vector value)
{
    vector rest = vector_fma(r->beta_remainder, moment, r->one_minus_beta * value);
    return vector_fma(r->beta, moment, rest);
}

/* moment_round - round `count` moments to bf16; `first` is the position of the first one in the
 * slice. index: 0 or 1, the moment. */
static inline void moment_round(bf16 *moment, const float *values, int64_t first, int64_t count,
                                int index, const struct adamw *s)
{
    struct rounding rounding = s->rounding;
    rounding.key = s->moment_keys[index];
    rounding.offset += first;
    rounding_apply(moment, values, 0, count, &rounding);
}

/* moment_is_skipped - return whether the step changes nothing. */
static inline bool moment_is_skipped(const struct adamw *s)
{
    return s->control != NULL && s->control->skip != 0;
}

/* moment_get_scale - return the factor of the gradients. */
static inline float moment_get_scale(const struct adamw *s)
{
    return s->control != NULL ? s->control->gradient_scale : s->gradient_scale;
}
