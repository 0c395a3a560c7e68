/* Contrastive loss over all pairs of a global batch.
 *
 *   loss_i = -log( exp(s u_i . v_i) / sum_j exp(s u_i . v_j) ),   s = 20
 *
 * u_i and v_i are the unit vectors of the first and the second text of pair i. The second texts of
 * all other pairs are negatives. N pairs of width C take 6 N^2 C operations on one core.
 *
 * A global batch does not fit on the device at once. Therefore the first pass of the model collects
 * the vectors of all pairs. Then their gradients are computed. The second pass runs backward.
 *
 * Source    sentence-transformers' MultipleNegativesRankingLoss with scale 20; two passes: Gao et
 *           al. 2021, arXiv:2101.06983 */
#pragma once

#include "comm/comm.h"

enum { TEXTS_PER_PAIR = 2 };

struct contrastive_batch {
    int64_t size;         /* pairs of a full global batch; 0: not used */
    int64_t width;        /* C */
    double *unit_vectors; /* [size, 2, C]; zeros for a missing pair */
    double *gradients;    /* [size, 2, C] of the sum of all losses */
    double *losses;       /* [size]; 0 for a missing pair */
    bool *correct;        /* [size] whether the second text of the pair has the highest score */
};

/* contrastive_loss_create - allocate memory for `size` pairs.
 *
 * Errors    STATUS_INTERNAL if memory is exhausted */
status contrastive_loss_create(int64_t size, int64_t width, struct contrastive_batch *out);

/* contrastive_loss_destroy - free the memory and set *batch to zeros; no-op on zeros. */
void contrastive_loss_destroy(struct contrastive_batch *batch);

/* contrastive_loss_clear - remove all pairs. Each rank then writes unit_vectors[sample % size] of
 * its samples. */
void contrastive_loss_clear(struct contrastive_batch *batch);

/* contrastive_loss_gather - compute losses and gradients of all pairs on each rank.
 *
 * Order     collective over the data-parallel group. A rank that has not computed all of its
 *           vectors passes complete = false. Then *failed is true on all ranks, and nothing is
 *           computed
 * Numerics  the sum over the ranks is exact, because all ranks but one add zeros */
status contrastive_loss_gather(struct comm *data, struct contrastive_batch *batch, bool complete,
                               bool *failed);

/* contrastive_loss_compute - compute losses and gradients of the first `count` pairs. */
void contrastive_loss_compute(struct contrastive_batch *batch, int64_t count);
