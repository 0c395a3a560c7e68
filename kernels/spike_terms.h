/* The formulas of trainer/train/step/spike.h, for the host and for kernels. */
#pragma once

#include "kernels/host_device.h"
#include "kernels/spike_score.h"

/* The first SPIKE_OBSERVED_MIN values have a score of 0. The averages cover about SPIKE_MEAN_STEPS
 * and SPIKE_CHANGE_STEPS values. */
enum { SPIKE_OBSERVED_MIN = 64, SPIKE_MEAN_STEPS = 16, SPIKE_CHANGE_STEPS = 64 };

/* spike_get_weight - return the weight of value number `count` in an average over about `steps`
 * values. */
HOST_DEVICE_INLINE double spike_get_weight(int64_t count, int64_t steps)
{
    return 1.0 / (double)(count < steps ? count : steps);
}

/* spike_add_value - add the logarithm x of a value to its averages. */
HOST_DEVICE_INLINE void spike_add_value(struct spike_trend *trend, double x)
{
    trend->count++;
    trend->mean += spike_get_weight(trend->count, SPIKE_MEAN_STEPS) * (x - trend->mean);
    if (trend->count > 1) {
        trend->change += spike_get_weight(trend->count - 1, SPIKE_CHANGE_STEPS) *
                         (fabs(x - trend->last) - trend->change);
    }
    trend->last = x;
}

/* spike_observe_value - compute the score of a value and add the value to its averages.
 *
 * Units     noise: the smallest standard deviation of log(value) */
HOST_DEVICE_INLINE double spike_observe_value(struct spike_trend *trend, double value, double noise)
{
    const double clip = 3; /* of values that enter the averages, in standard deviations */
    const double normal_factor = 0.8862; /* sqrt(pi) / 2 */
    if (!host_device_is_finite(value)) {
        return INFINITY;
    }
    if (value <= 0) {
        return 0;
    }
    double x = log(value), sigma = fmax(normal_factor * trend->change, noise);
    if (trend->count < SPIKE_OBSERVED_MIN) {
        spike_add_value(trend, x);
        return 0;
    }
    double distance = x - trend->mean;
    spike_add_value(trend, trend->mean + fmax(-clip * sigma, fmin(clip * sigma, distance)));
    return distance / sigma;
}

/* spike_score_observe - compute the scores of a step and add its values to the averages.
 *
 * Units     predictions: the loss is the mean of this number of terms */
HOST_DEVICE_INLINE struct spike_score spike_score_observe(struct spike_averages *averages,
                                                          double loss, double gradient_norm,
                                                          double predictions)
{
    const double threshold = 6, smallest_deviation = 0.02;
    double sampling = 1 / sqrt(fmax(1.0, predictions)), noise = fmax(smallest_deviation, sampling);
    double rise = loss - exp(averages->loss.mean);
    struct spike_score score;
    score.loss = spike_observe_value(&averages->loss, loss, noise);
    score.gradient_norm = spike_observe_value(&averages->gradient_norm, gradient_norm, noise);
    if (host_device_is_finite(loss) && score.loss > 0) {
        score.loss = fmin(score.loss, rise / sampling);
    }
    score.is_spike = score.loss > threshold || score.gradient_norm > threshold;
    return score;
}

/* spike_score_decide - perform the computation of spike_score_run.
 *
 * Returns   whether the step is a spike */
HOST_DEVICE_INLINE bool spike_score_decide(struct spike_state *state, const struct spike_inputs *in)
{
    double loss = 0, norm = sqrt(*in->squares) * (1 / fmax(1.0, *in->predictions));
    for (int i = 0; i < SPIKE_LOSS_TERMS; i++) { /* of constant length: no stack on a GPU */
        double count = i < in->terms ? in->sums[in->count[i]] : 0;
        loss += count > 0 ? in->sums[in->sum[i]] / count : 0.0;
    }
    state->score = spike_score_observe(&state->averages, loss, norm, *in->predictions);
    return state->score.is_spike;
}
