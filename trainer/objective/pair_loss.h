/* Preference losses over all pairs of a global batch (aot, aot_unpaired, sft): the memory of the
 * pairs, and their exchange between the ranks.
 *
 * Each rank stores the pairs of its part of the batch. The gather exchanges them. Then each rank
 * computes the gradients of all pairs (kernels/preference_batch.h). On a GPU the host does not wait
 * for the device. */
#pragma once

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "kernels/preference_batch.h"
#include "trainer/objective/pair_exchange.h"

struct pair_loss_batch {
    struct preference_batch pairs;
    struct pair_exchange exchange;
    struct kernels *kernels;
    void *memory;    /* of all arrays of pairs */
    double *reduced; /* buffer of the all-reduce; NULL on a GPU */
};

/* pair_loss_bytes - return the device memory for `size` pairs. */
int64_t pair_loss_bytes(int64_t size);

/* pair_loss_create - allocate memory for `size` pairs on the device of k. ranks: of the
 * data-parallel group.
 *
 * Errors    STATUS_INTERNAL if memory is exhausted */
status pair_loss_create(struct kernels *k, int64_t size, int ranks, struct pair_loss_batch *out);

/* pair_loss_destroy - free the memory and set *batch to zeros; no-op on zeros. */
void pair_loss_destroy(struct pair_loss_batch *batch);

/* pair_loss_clear - remove all pairs, on the stream of the kernels. */
status pair_loss_clear(struct pair_loss_batch *batch);

/* pair_loss_add - store the pairs of a micro-batch of this rank. logps, rows: as in
 * preference_batch_store; first: sample number of pair 0.
 *
 * Order     queued */
status pair_loss_add(struct pair_loss_batch *batch, const double *logps,
                     const struct preference_rows *rows, int64_t first);

/* pair_loss_gather - compute the gradients of all pairs on each rank.
 *
 * Order     queued; collective over the data-parallel group. A rank that has not stored all of its
 *           pairs passes complete = false. Then *failed is true on all ranks, and no gradients are
 *           computed
 * Numerics  the exchange does not change the values */
status pair_loss_gather(struct comm *data, const struct preference_settings *settings,
                        struct pair_loss_batch *batch, bool complete, bool *failed);

/* pair_loss_add_losses - add the losses of all gathered pairs to *sum.
 *
 * Order     waits for the device */
status pair_loss_add_losses(const struct pair_loss_batch *batch, double *sum);
