/* The best evaluation of a run so far, and how many have passed since: for the checkpoint that is kept, and for the
 * end of a run that gets no better. As transformers' load_best_model_at_end and EarlyStoppingCallback have it.
 *
 * Nothing of it is in checkpoints: it is a function of metrics.jsonl's "evaluate" lines, which a resumed run has up
 * to its step. Evaluations before the first step do not count: there is nothing to keep of them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct best_rule {
    const char *metric; /* its name in the lines */
    bool greater;       /* is better */
    double improvement; /* what is not better by more than this does not renew the patience */
    int64_t patience;   /* evaluations; 0: without end */
};

struct best {
    bool known;
    double value;
    int64_t step, waited; /* waited: evaluations since the last improvement */
};

/* best_note - one more evaluation; true: it is the best so far. A value that is NaN never is. */
bool best_note(const struct best_rule *rule, struct best *b, int64_t step, double value);

/* best_is_over - the patience has come to its end. */
bool best_is_over(const struct best_rule *rule, const struct best *b);

/* best_recall - from the lines of metrics.jsonl up to this step; a file that is not there has none.
 *
 * Errors    STATUS_PERMISSION, STATUS_DATA where it cannot be read */
status best_recall(const struct best_rule *rule, const char *path, int64_t step, struct best *out);
