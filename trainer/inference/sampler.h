/* From one row of logits to the next token: penalties, temperature, top-k, top-p, a draw.
 *
 * The draw is a pure function of (seed, sample, position): the same call gives the same text. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct sampler_settings {
    double temperature;        /* 0: the most probable token */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 1: all */
    double repetition_penalty; /* 1: none */
    uint64_t seed;
};

struct sampler;

/* sampler_create - working memory for a vocabulary. */
status sampler_create(const struct sampler_settings *settings, int64_t vocabulary,
                      struct sampler **out);
void sampler_destroy(struct sampler **s);

/* sampler_penalise - divide the logits of ids already there by the penalty, or multiply where negative.
 *
 * Source    Keskar et al. 2019 (CTRL), arXiv:1909.05858; each id once, as in Hugging Face */
void sampler_penalise(const struct sampler *s, float *logits, const int32_t *ids, int64_t count);

/* sampler_choose - the next id; logits [V] are overwritten. Ties go to the smaller id.
 *
 * Units     sample counts the texts of a run, position the tokens of a text
 * Errors    STATUS_NOT_FINITE if a logit is not finite
 * Source    Fan et al. 2018 (top-k), Holtzman et al. 2020, arXiv:1904.09751 (top-p) */
status sampler_choose(struct sampler *s, float *logits, uint64_t sample, uint64_t position,
                      int32_t *out);

/* sampler_log_softmax - logits [V] become log-probabilities, in double precision sums.
 *
 * Errors    STATUS_NOT_FINITE if a logit is not finite */
status sampler_log_softmax(float *logits, int64_t vocabulary);
