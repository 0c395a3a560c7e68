/* Log-likelihoods of given tokens: what multiple-choice evaluation and `bireme score` are made of. */
#pragma once

#include "kernels/kernels.h"
#include "trainer/model/model.h"

struct score_item {
    const int32_t *ids; /* context and continuation */
    int64_t count;      /* at least 2 */
    int64_t scored;     /* the last so many are scored; the rest is context; 1 <= scored < count */
    double *each;       /* [scored] their log-probabilities; NULL: the sum is all that is wanted */
};

struct score_result {
    double log_probability; /* sum over the scored tokens, natural logarithm */
    int64_t tokens;         /* scored */
    bool greedy;            /* each scored token was the most probable one */
    bool cut; /* the beginning did not fit into the model's positions and was left out */
};

/* score_run - all items, packed into micro-batches of up to `rows` rows.
 *
 * Errors    STATUS_USAGE if a continuation alone is longer than the model's positions; STATUS_NOT_FINITE */
status score_run(struct kernels *k, struct model *m, int64_t rows, const struct score_item *items,
                 int64_t count, struct score_result *out);

/* score_reward - what a reward model says of the whole item, read at its last token.
 *
 * Errors    STATUS_NOT_FINITE */
status score_reward(struct kernels *k, struct model *m, const struct score_item *item, double *out);
