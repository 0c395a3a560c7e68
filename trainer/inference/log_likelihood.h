/* Log-likelihoods of given tokens, used by multiple-choice evaluation and `bireme score`. */
#pragma once

#include "kernels/kernels.h"
#include "trainer/model/model.h"

struct log_likelihood_item {
    const int32_t *ids;        /* context and continuation */
    int64_t count;             /* number of ids, at least 2 */
    int64_t scored;            /* length of the scored continuation; 1 <= scored < count */
    double *log_probabilities; /* [scored] one per scored token; NULL: only the sum is computed */
};

struct log_likelihood_result {
    double log_probability; /* sum over the scored tokens, natural logarithm */
    int64_t tokens;         /* number of scored tokens */
    bool greedy;            /* every scored token was the most probable one */
    bool truncated;         /* the start of the context was dropped to fit the model's positions */
};

/* log_likelihood_bytes - return the memory of log_likelihood_run for this number of rows, on the
 * host and the device. */
int64_t log_likelihood_bytes(int64_t rows);

/* log_likelihood_run - score all items, packed into micro-batches of at most `rows` rows.
 *
 * Errors    STATUS_USAGE if a continuation does not fit the model's positions; STATUS_NOT_FINITE */
status log_likelihood_run(struct kernels *k, struct model *m, int64_t rows,
                          const struct log_likelihood_item *items, int64_t count,
                          struct log_likelihood_result *out);

/* log_likelihood_reward - compute the reward of one sequence with a reward model.
 *
 * The reward head reads the last token; `scored` and `log_probabilities` are not used.
 *
 * Errors    STATUS_NOT_FINITE */
status log_likelihood_reward(struct kernels *k, struct model *m,
                             const struct log_likelihood_item *item, double *out);
