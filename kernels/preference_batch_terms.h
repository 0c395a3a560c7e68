/* The formulas of kernels/preference_batch.h, for the host and for kernels. */
#pragma once

#include "kernels/host_device.h"
#include "kernels/preference_batch.h"
#include "kernels/preference_terms.h"

/* The values by which pairs are sorted: of aot, the margins of the policy and of the reference; of
 * aot_unpaired, the log-ratios of the chosen and of the rejected responses. */
struct preference_values {
    double high, low;
};

/* preference_get_values - return the values of a pair for aot (margins) or aot_unpaired. */
HOST_DEVICE_INLINE struct preference_values
preference_get_values(const struct preference_pair *pair, bool margins)
{
    struct preference_values v;
    if (margins) {
        v.high = pair->logps[CHOSEN] - pair->logps[REJECTED];
        v.low = pair->reference[CHOSEN] - pair->reference[REJECTED];
    } else {
        v.high = pair->logps[CHOSEN] - pair->reference[CHOSEN];
        v.low = pair->logps[REJECTED] - pair->reference[REJECTED];
    }
    return v;
}

/* preference_is_before - return whether x comes before y in the sorted order. Equal values keep the
 * order of the pairs, and NaN comes after all numbers. */
HOST_DEVICE_INLINE bool preference_is_before(const struct preference_ranked *x,
                                             const struct preference_ranked *y)
{
    bool x_nan = x->value != x->value, y_nan = y->value != y->value;
    bool equal = x->value == y->value || (x_nan && y_nan);
    return x->value < y->value || (y_nan && !x_nan) || (equal && x->pair < y->pair);
}

/* preference_add_sorted - add the loss of the difference of two values that have the same position
 * in their sorted orders. */
HOST_DEVICE_INLINE void preference_add_sorted(const struct preference_settings *s,
                                              const struct preference_term *term,
                                              const struct preference_ranked *high,
                                              const struct preference_ranked *low, bool margins,
                                              struct preference_gradient *out)
{
    struct preference_scalar f =
        preference_smoothed_loss(s->beta * (high->value - low->value), s->label_smoothing);
    double gradient = term->weight * s->beta * f.gradient;
    out[high->pair].loss += term->weight * f.value;
    out[high->pair].logps[CHOSEN] += gradient;
    out[margins ? high->pair : low->pair].logps[REJECTED] -= gradient;
}

/* preference_add_sft - add the loss sft of one pair. tokens: of all chosen responses. */
HOST_DEVICE_INLINE void preference_add_sft(const struct preference_term *term,
                                           const struct preference_pair *pair, int64_t count,
                                           double tokens, struct preference_gradient *out)
{
    double scale = -term->weight * (double)count / tokens;
    out->loss += scale * pair->logps[CHOSEN];
    out->logps[CHOSEN] += scale;
}
