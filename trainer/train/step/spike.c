#include "trainer/train/step/spike.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "kernels/spike_terms.h"

enum { RANKS_TEXT_BYTES = 512 };

struct spike_score spike_observe(struct checkpoint_spikes *spikes, double loss,
                                 double gradient_norm, double predictions)
{
    return spike_score_observe(&spikes->averages, loss, gradient_norm, predictions);
}

/* Lists the ranks with this decision. Returns their number. */
static int list_ranks(const bool *decisions, int ranks, bool decision, char text[RANKS_TEXT_BYTES])
{
    int count = 0, listed = 0;
    char rank[TEXT_NUMBER_BYTES];
    text[0] = '\0';
    for (int r = 0; r < ranks; r++) {
        count += decisions[r] == decision;
    }
    for (int r = 0; r < ranks; r++) {
        if (decisions[r] == decision) {
            snprintf(rank, sizeof rank, "%d", r);
            text_append_item(text, RANKS_TEXT_BYTES, rank, listed++, count, "and");
        }
    }
    return count;
}

static status raise_difference(const bool *decisions, int ranks)
{
    char found[RANKS_TEXT_BYTES], others[RANKS_TEXT_BYTES];
    int found_count = list_ranks(decisions, ranks, true, found);
    int other_count = list_ranks(decisions, ranks, false, others);
    RAISE(STATUS_DIVERGED,
          "rank%s %s found a loss spike in this step and rank%s %s did not, although all have the "
          "same loss and gradient norm. Their C libraries or GPUs may differ, or a host may be "
          "faulty. This step is not saved; use equal hosts or train.on_spike: warn, then start "
          "again to resume from the last checkpoint",
          text_plural(found_count), found, text_plural(other_count), others);
}

status spike_require_same_decision(struct comm *world, bool is_spike)
{
    double found = is_spike;
    bool *decisions = NULL;
    TRY(comm_sum_doubles(world, &found, 1));
    if (found == 0 || found == comm_size(world)) {
        return STATUS_OK;
    }
    TRY(comm_abort_on_error(world, ALLOCATE(decisions, comm_size(world), "the ranks of a spike")));
    status result = comm_all_gather_bytes(world, decisions, &is_spike, sizeof is_spike);
    KEEP_FIRST(result, raise_difference(decisions, comm_size(world)));
    free(decisions);
    return comm_agree(world, result);
}

bool spike_add_skipped(struct checkpoint_spikes *spikes, struct checkpoint_samples samples)
{
    struct checkpoint_samples *ranges = spikes->skipped;
    int count = spikes->skipped_count;
    while (count > 0 && samples.first <= ranges[count - 1].end) { /* merge with the last ones */
        count--;
        samples.first = number_min(samples.first, ranges[count].first);
        samples.end = number_max(samples.end, ranges[count].end);
    }
    if (count == CHECKPOINT_SPIKES_MAX) {
        return false;
    }
    ranges[count++] = samples;
    spikes->skipped_count = count;
    return true;
}
