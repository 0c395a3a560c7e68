/* The vectors of all pairs of a global batch, each pair's loss among them, and its slopes.
 *
 *   loss_i = -log( exp(s u_i v_i) / sum_j exp(s u_i v_j) ),  s = 20
 *
 * with unit vectors u of texts and v of what belongs to them: every other pair's second text is a wrong one. N pairs of
 * width C take 6 N^2 C operations, on one core.
 *
 * Source    sentence-transformers' MultipleNegativesRankingLoss; Gao et al. 2021, arXiv:2101.06983 (gradients of a batch
 *           that does not fit: vectors first, their slopes, then the model again) */
#pragma once

#include "comm/comm.h"

enum { VECTORS = 2 }; /* of a pair */

struct whole_vectors {
    int64_t size, width; /* pairs of a full batch; C. 0: not used */
    double *units;       /* [size, 2, C]; zeros where a pair is not known */
    double *slopes;      /* [size, 2, C] of the sum of losses */
    double *losses;      /* [size]; 0 where there is no pair */
    bool *right;         /* [size] whether its own is the nearest */
};

status whole_vectors_create(int64_t size, int64_t width, struct whole_vectors *out);
void whole_vectors_destroy(struct whole_vectors *w);

/* whole_vectors_clear - nothing is known. Then this rank writes units[sample % size] of its share. */
void whole_vectors_clear(struct whole_vectors *w);

/* whole_vectors_gather - all ranks' units, then losses and slopes; collective over those that have other data. A rank
 * whose share is not known says so: *failed on all ranks, and no slopes. */
status whole_vectors_gather(struct comm *data, struct whole_vectors *w, bool known, bool *failed);

/* whole_vectors_slopes - losses and slopes of the first `count` pairs' units. */
void whole_vectors_slopes(struct whole_vectors *w, int64_t count);
