/* Tracks the best evaluation of a run and the number of evaluations since then. It selects the
 * checkpoint named best and ends a run that no longer improves, as transformers'
 * load_best_model_at_end and EarlyStoppingCallback do.
 *
 * Checkpoints do not store this state. A resumed run computes it again from the "evaluate" lines of
 * metrics.jsonl up to its step. Evaluations before the first step are ignored, because there is no
 * checkpoint of them to keep. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct early_stopping_rule {
    const char *metric; /* its name in metrics.jsonl */
    bool greater_is_better;
    double min_improvement; /* a smaller improvement does not reset the patience counter */
    int64_t patience;       /* evaluations; 0: never stop */
};

struct early_stopping {
    bool has_value;                 /* false until the first valid evaluation */
    double value;                   /* best value so far */
    int64_t step, patience_counter; /* step of `value`; evaluations since the last improvement */
};

/* early_stopping_update - record one evaluation.
 *
 * Returns   whether it is the best so far; NaN is never the best */
bool early_stopping_update(const struct early_stopping_rule *rule, struct early_stopping *s,
                           int64_t step, double value);

/* early_stopping_should_stop - return true if the patience is exhausted. */
bool early_stopping_should_stop(const struct early_stopping_rule *rule,
                                const struct early_stopping *s);

/* early_stopping_restore - compute the state from the lines of metrics.jsonl up to `step`.
 *
 * A missing file gives the initial state.
 *
 * Errors    STATUS_PERMISSION, STATUS_DATA if the file cannot be read */
status early_stopping_restore(const struct early_stopping_rule *rule, const char *path,
                              int64_t step, struct early_stopping *out);
