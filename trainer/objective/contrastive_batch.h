/* The pairs of a global batch for the contrastive loss (kernels/contrastive_loss.h): their memory,
 * and their exchange between the ranks.
 *
 * The activations of a global batch do not fit on the device at once, so a step has two passes. The
 * first pass collects the vectors of all pairs, from which their gradients are computed. The second
 * pass runs backward. The host does not wait for the device.
 *
 * Source    two passes: Gao et al. 2021, arXiv:2101.06983 */
#pragma once

#include "comm/comm.h"
#include "kernels/contrastive_loss.h"
#include "kernels/kernels.h"
#include "trainer/objective/pair_exchange.h"

struct contrastive_batch {
    struct contrastive_pairs pairs; /* missing pairs are zero on a CPU, not initialized on a GPU */
    struct pair_exchange exchange;
    struct kernels *kernels;
    void *memory; /* of all arrays */
};

/* contrastive_batch_bytes - return the device memory for `size` pairs of this width. */
int64_t contrastive_batch_bytes(enum device_kind kind, int64_t size, int64_t width);

/* contrastive_batch_create - allocate memory for `size` pairs on the device of k. ranks: of the
 * data-parallel group.
 *
 * Errors    STATUS_INTERNAL if memory is exhausted */
status contrastive_batch_create(struct kernels *k, int64_t size, int64_t width, int ranks,
                                struct contrastive_batch *out);

/* contrastive_batch_destroy - free the memory and set *batch to zeros; no-op on zeros. */
void contrastive_batch_destroy(struct contrastive_batch *batch);

/* contrastive_batch_clear - remove all pairs, on the stream of the kernels. */
status contrastive_batch_clear(struct contrastive_batch *batch);

/* contrastive_batch_add - add the pairs of a micro-batch of this rank. rows: as in
 * contrastive_loss_pool. */
status contrastive_batch_add(struct contrastive_batch *batch, struct tensor rows,
                             const struct contrastive_texts *texts);

/* contrastive_batch_gather - compute results and gradients of all pairs on each rank.
 *
 * Order     queued; collective over the data-parallel group. A rank that has not added all of its
 *           pairs passes complete = false. Then *failed is true on all ranks, and nothing is
 *           computed
 * Numerics  the exchange does not change the vectors */
status contrastive_batch_gather(struct comm *data, struct contrastive_batch *batch, bool complete,
                                bool *failed);

/* contrastive_batch_read_sums - compute the sums over all gathered pairs.
 *
 * Order     waits for the device */
status contrastive_batch_read_sums(const struct contrastive_batch *batch,
                                   double sums[CONTRASTIVE_SUMS]);
