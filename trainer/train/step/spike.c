#include "trainer/train/step/spike.h"

#include "kernels/spike_terms.h"

static struct spike_trend read_trend(const struct checkpoint_trend *t)
{
    return (struct spike_trend){t->mean, t->change, t->last, t->count};
}

static struct checkpoint_trend write_trend(const struct spike_trend *t)
{
    return (struct checkpoint_trend){t->mean, t->change, t->last, t->count};
}

struct spike_averages spike_get_averages(const struct checkpoint_spikes *spikes)
{
    return (struct spike_averages){read_trend(&spikes->loss), read_trend(&spikes->gradient_norm)};
}

void spike_set_averages(struct checkpoint_spikes *spikes, const struct spike_averages *averages)
{
    spikes->loss = write_trend(&averages->loss);
    spikes->gradient_norm = write_trend(&averages->gradient_norm);
}

struct spike_score spike_observe(struct checkpoint_spikes *spikes, double loss,
                                 double gradient_norm, double predictions)
{
    struct spike_averages averages = spike_get_averages(spikes);
    struct spike_score score = spike_score_observe(&averages, loss, gradient_norm, predictions);
    spike_set_averages(spikes, &averages);
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
