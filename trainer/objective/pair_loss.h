/* Losses that look at all pairs of a global batch: what the ranks know of their shares, brought together. */
#pragma once

#include "comm/comm.h"
#include "trainer/objective/preference.h"

struct whole_batch {
    int64_t size; /* pairs of a full batch */
    struct preference_pair *pairs;
    struct preference_slope *slopes;
    double *exchanged;
};

status whole_batch_create(int64_t size, struct whole_batch *out);
void whole_batch_destroy(struct whole_batch *w);

/* whole_batch_clear - nothing is known. Then this rank writes pairs[sample % size] of its share. */
void whole_batch_clear(struct whole_batch *w);

/* whole_batch_gather - the slopes of all pairs, on all ranks; collective over those that have other data. A rank whose
 * share is not known says so: *failed on all ranks, and no slopes. */
status whole_batch_gather(struct comm *data, const struct preference_settings *settings,
                          struct whole_batch *w, bool known, bool *failed);
