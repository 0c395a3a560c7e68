/* Log-probabilities of preference pairs under the reference model: computed once before training
 * and stored next to the shards.
 *
 * The reference model is the session's model with its current weights. The log-probabilities of
 * each data set are read from its side file (datasets/shard/shard_logps.h). If the file is missing
 * or incomplete, all ranks compute the missing ones together and append them in blocks. An
 * interrupted computation therefore continues where it stopped. */
#pragma once

#include "trainer/setup/data.h"
#include "trainer/setup/session.h"

struct reference_logprobs {
    char weights_fingerprint[HASH_TEXT_BYTES]; /* of the reference model */
    int sources;
    double *values[RECIPE_SOURCES_MAX]; /* of each training source: [pairs, 2] */
    double *validation;                 /* of the validation set; NULL: none */
};

/* reference_logprobs_compute - read or compute the log-probabilities of all data sets of the
 * recipe. The fingerprint covers the model's adapters if `adapters` is true. Pass false for new
 * adapters, which do not change the model.
 *
 * Memory    release *out with reference_logprobs_destroy, also after an error
 * Order     collective
 * Errors    errors of the loader, shard_logps_read and shard_logps_write; STATUS_NOT_FINITE;
 *           STATUS_STOPPED after a signal, with the finished part saved; agreed on all ranks */
status reference_logprobs_compute(struct session *s, const struct data_setup *data, bool adapters,
                                  struct reference_logprobs *out);

/* reference_logprobs_destroy - free the values. */
void reference_logprobs_destroy(struct reference_logprobs *r);
