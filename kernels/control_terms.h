/* The formulas of kernels/control.h, for the host and for kernels. */
#pragma once

#include "kernels/control.h"
#include "kernels/host_device.h"

/* control_get_clip_factor - return the factor of control_clip_factor. */
HOST_DEVICE_INLINE double control_get_clip_factor(double norm, double max_norm)
{
    const double guard = 1e-6; /* the norm may be 0 */
    return max_norm > 0 ? fmin(1.0, max_norm / (norm + guard)) : 1.0;
}

/* control_get_trust_ratio - return the trust ratio of a tensor of LAMB.
 *
 * Units     weights, update: sums of squares */
HOST_DEVICE_INLINE double control_get_trust_ratio(double weights, double update)
{
    return weights != 0 && update != 0 ? sqrt(weights / update) : 1.0;
}

/* control_decide - perform the computation of control_decide_update. */
HOST_DEVICE_INLINE void control_decide(struct update_control *control, const struct update_sums *s)
{
    double scale = 1 / fmax(1.0, *s->count);
    double norm = host_device_multiply(sqrt(*s->squares), scale);
    control->gradient_scale = (float)(scale * control_get_clip_factor(norm, s->max_norm));
    if (!host_device_is_finite(*s->loss) || !host_device_is_finite(*s->squares)) {
        control->skip = 1;
    }
}
