/* What the reference model says of preference pairs: computed once, before training, kept beside the shards.
 *
 * The reference is the model as it stands in the session. The log-probabilities of every pair of every set are read
 * from the set's side file (datasets/shard_logps.h), or computed by all ranks together and written to it, a portion at a
 * time: an interrupted computation goes on where it was. */
#pragma once

#include "trainer/setup/data.h"
#include "trainer/setup/session.h"

struct reference {
    char weights
        [HASH_TEXT_BYTES]; /* what the reference's weights are known by, whatever the layout */
    int sources;
    double *values[RECIPE_SOURCES_MAX]; /* of each training source: [pairs, 2] */
    double *held;                       /* of the held-out set; NULL: none */
};

/* reference_make - of all sets that the recipe names. adapters: those of the model are part of what it is known by;
 * fresh ones are not, as they change nothing. Collective.
 *
 * Errors    of the loader and of shard_logps_read and _write; STATUS_NOT_FINITE; agreed on all ranks, told once */
status reference_make(struct session *s, const struct job_data *data, bool adapters,
                      struct reference *out);
void reference_destroy(struct reference *r);
