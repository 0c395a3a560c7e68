/* Preference losses over all pairs of a global batch: the exchange of the pairs between the ranks.
 *
 * Each rank stores the pairs of its part of the batch. The gather sums them over the ranks. Then
 * each rank computes the gradients of all pairs (preference.h: aot, aot_unpaired, sft). */
#pragma once

#include "comm/comm.h"
#include "trainer/objective/preference.h"

struct pair_loss_batch {
    int64_t size; /* pairs of a full global batch; 0: not used */
    struct preference_pair *pairs;
    struct preference_gradient *gradients;
    double *reduced; /* buffer of the all-reduce */
};

/* pair_loss_create - allocate memory for `size` pairs.
 *
 * Errors    STATUS_INTERNAL if memory is exhausted */
status pair_loss_create(int64_t size, struct pair_loss_batch *out);

/* pair_loss_destroy - free the memory and set *batch to zeros; no-op on zeros. */
void pair_loss_destroy(struct pair_loss_batch *batch);

/* pair_loss_clear - remove all pairs. Each rank then writes pairs[sample % size] of its samples. */
void pair_loss_clear(struct pair_loss_batch *batch);

/* pair_loss_gather - compute the gradients of all pairs on each rank.
 *
 * Order     collective over the data-parallel group. A rank that has not computed all of its pairs
 *           passes complete = false. Then *failed is true on all ranks, and no gradients are
 *           computed
 * Numerics  the sum over the ranks is exact, because all ranks but one add zeros */
status pair_loss_gather(struct comm *data, const struct preference_settings *settings,
                        struct pair_loss_batch *batch, bool complete, bool *failed);
