/* What an evaluation says: for metrics.jsonl, for people, and for what is decided by it. */
#pragma once

#include <stdbool.h>

#include "trainer/evaluation/early_stopping.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/logging/metric.h"
#include "trainer/objective/objective.h"
#include "trainer/recipe/recipe.h"

enum { EVALUATION_FIELDS = 4 + OBJECTIVE_SUMS + GRADING_FIELDS };

/* evaluation_means - into fields[EVALUATION_FIELDS] the objective's own metrics of which something was counted; returns how many. */
int evaluation_means(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                     struct metric *fields);

/* evaluation_fields - likewise loss, what was counted, the objective's metrics, perplexity, and what was graded (NULL:
 * nothing); returns how many. */
int evaluation_fields(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                      const struct grading *g, struct metric *fields);

/* evaluation_tell - "step 20: validation loss 3.1416, perplexity 23.14 (1234 tokens)" to the log. */
void evaluation_tell(const struct objective *o, int64_t step, const struct metric *fields,
                     int count);

/* evaluation_value - the number of this name; NaN where there is none. */
double evaluation_value(const struct metric *fields, int count, const char *name);

/* evaluation_rule - which evaluation is the best one, as the recipe says. It keeps the recipe's text.
 *
 * Errors    STATUS_RECIPE where evaluations of this objective have no number of that name */
status evaluation_rule(const struct recipe *r, const struct objective *o, struct best_rule *out);
