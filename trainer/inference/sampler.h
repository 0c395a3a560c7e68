/* Selects the next token from one row of logits: repetition penalty, temperature, top-k, top-p and
 * a random draw.
 *
 * The draw is a pure function of (seed, sample, position), so equal calls return equal tokens. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct sampler_settings {
    double temperature;        /* 0: greedy, always the most probable token */
    int64_t top_k;             /* 0: all tokens */
    double top_p;              /* 1: all tokens */
    double repetition_penalty; /* 1: none */
    uint64_t seed;
};

struct sampler;

/* sampler_create - allocate the working memory for a vocabulary. Any settings may be used with it.
 *
 * Errors    STATUS_INTERNAL if memory is exhausted */
status sampler_create(int64_t vocabulary, struct sampler **out);

/* sampler_destroy - free the sampler and set *s to NULL. */
void sampler_destroy(struct sampler **s);

/* sampler_apply_penalty - divide positive logits of the given ids by the repetition penalty and
 * multiply negative ones by it.
 *
 * Repeated ids are penalized once, as in Hugging Face.
 *
 * Shapes    logits [V], or log-probabilities in beam search; ids [count]
 * Source    Keskar et al. 2019 (CTRL), arXiv:1909.05858 */
void sampler_apply_penalty(const struct sampler *s, double penalty, float *logits,
                           const int32_t *ids, int64_t count);

/* sampler_choose - select the next token id. Equal logits are resolved to the smaller id.
 *
 * Shapes    logits [V], not changed
 * Units     sample: index of the sequence in this run; position: index of the token in it
 * Errors    STATUS_NOT_FINITE if a logit is not finite
 * Source    Fan et al. 2018 (top-k), Holtzman et al. 2020, arXiv:1904.09751 (top-p) */
status sampler_choose(struct sampler *s, const struct sampler_settings *settings,
                      const float *logits, uint64_t sample, uint64_t position, int32_t *out);

/* sampler_log_sum - compute the logarithm of the sum of the exponentials of all logits. The
 * log-probability of a token is its logit minus this number.
 *
 * Shapes    logits [V], not changed
 * Numerics  the sum is accumulated in double precision
 * Errors    STATUS_NOT_FINITE if a logit is not finite */
status sampler_log_sum(const float *logits, int64_t vocabulary, double *out);

/* sampler_log_softmax - replace logits by log-probabilities.
 *
 * Shapes    logits [V]
 * Numerics  the sum is accumulated in double precision
 * Errors    STATUS_NOT_FINITE if a logit is not finite */
status sampler_log_softmax(float *logits, int64_t vocabulary);
