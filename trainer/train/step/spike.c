#include "trainer/train/step/spike.h"

#include <math.h>

static const double threshold = 6;
static const double clip = 3; /* of values that enter the averages, in standard deviations */
static const double smallest_deviation = 0.02;
static const double normal_factor = 0.8862; /* sqrt(pi) / 2 */

enum { OBSERVED_MIN = 64, MEAN_STEPS = 16, CHANGE_STEPS = 64 };

/* Returns the weight of value number `count` in an average over about `steps` values. */
static double get_weight(int64_t count, int64_t steps)
{
    return 1.0 / (double)(count < steps ? count : steps);
}

static void add_to_trend(struct checkpoint_trend *trend, double x)
{
    trend->count++;
    trend->mean += get_weight(trend->count, MEAN_STEPS) * (x - trend->mean);
    if (trend->count > 1) {
        trend->change +=
            get_weight(trend->count - 1, CHANGE_STEPS) * (fabs(x - trend->last) - trend->change);
    }
    trend->last = x;
}

/* Adds a value and returns its score. `noise` is the smallest standard deviation of log(value). */
static double observe_value(struct checkpoint_trend *trend, double value, double noise)
{
    if (!isfinite(value)) {
        return INFINITY;
    }
    if (value <= 0) {
        return 0;
    }
    double x = log(value), sigma = fmax(normal_factor * trend->change, noise);
    if (trend->count < OBSERVED_MIN) {
        add_to_trend(trend, x);
        return 0;
    }
    double distance = x - trend->mean;
    add_to_trend(trend, trend->mean + fmax(-clip * sigma, fmin(clip * sigma, distance)));
    return distance / sigma;
}

struct spike_score spike_observe(struct checkpoint_spikes *spikes, double loss,
                                 double gradient_norm, double predictions)
{
    double sampling = 1 / sqrt(fmax(1, predictions)), noise = fmax(smallest_deviation, sampling);
    double rise = loss - exp(spikes->loss.mean);
    struct spike_score score = {.loss = observe_value(&spikes->loss, loss, noise),
                                .gradient_norm =
                                    observe_value(&spikes->gradient_norm, gradient_norm, noise)};
    if (isfinite(loss) && score.loss > 0) {
        score.loss = fmin(score.loss, rise / sampling);
    }
    score.is_spike = score.loss > threshold || score.gradient_norm > threshold;
    return score;
}

bool spike_add_skipped(struct checkpoint_spikes *spikes, struct checkpoint_samples samples)
{
    struct checkpoint_samples *ranges = spikes->skipped;
    int count = spikes->skipped_count;
    while (count > 0 && samples.first <= ranges[count - 1].end) { /* merge with the last ones */
        count--;
        samples.first = samples.first < ranges[count].first ? samples.first : ranges[count].first;
        samples.end = samples.end > ranges[count].end ? samples.end : ranges[count].end;
    }
    if (count == CHECKPOINT_SPIKES_MAX) {
        return false;
    }
    ranges[count++] = samples;
    spikes->skipped_count = count;
    return true;
}
