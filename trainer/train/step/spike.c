#include "trainer/train/step/spike.h"

#include "kernels/spike_terms.h"

struct spike_score spike_observe(struct checkpoint_spikes *spikes, double loss,
                                 double gradient_norm, double predictions)
{
    return spike_score_observe(&spikes->averages, loss, gradient_norm, predictions);
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
