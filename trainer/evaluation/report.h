/* Reports an evaluation: fields for metrics.jsonl, a log line, and the value for early stopping. */
#pragma once

#include <stdbool.h>

#include "trainer/evaluation/early_stopping.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/logging/metrics.h"
#include "trainer/objective/objective.h"
#include "trainer/recipe/recipe.h"

enum { EVALUATION_REPORT_FIELDS = 4 + OBJECTIVE_SUMS + EVALUATOR_FIELDS };

/* evaluation_report_means - write the objective's metrics with a nonzero count.
 *
 * Shapes    fields [EVALUATION_REPORT_FIELDS]
 * Returns   the number of fields */
int evaluation_report_means(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                            struct metric *fields);

/* evaluation_report_fields - write all fields of an evaluation.
 *
 * The fields are loss, the number of counted items, the objective's metrics, perplexity and the
 * metrics of the evaluator (NULL: none).
 *
 * Shapes    fields [EVALUATION_REPORT_FIELDS]
 * Returns   the number of fields */
int evaluation_report_fields(const struct objective *o, const double sums[OBJECTIVE_SUMS],
                             const struct evaluator *ev, struct metric *fields);

/* evaluation_report_main - return the name of the metric that describes the objective best, in
 * addition to the loss; for tests. `evaluated` is true in an evaluation and false in training.
 *
 * Returns   NULL: the objective has no metric besides the loss */
const char *evaluation_report_main(const struct objective *o, bool evaluated);

/* evaluation_report_log - log one line about the evaluation. It contains the loss, the metric of
 * the recipe and the main metric of the objective. Parts that do not fit into TEXT_LINE_COLUMNS are
 * left out.
 *
 * Example: "step 20: validation loss 3.1416, perplexity 23.14 (1234 tokens)". */
void evaluation_report_log(const struct objective *o, const char *metric, int64_t step,
                           const struct metric *fields, int count);

/* evaluation_report_value - return the number with this name; NaN if there is none. */
double evaluation_report_value(const struct metric *fields, int count, const char *name);

/* evaluation_report_stopping_rule - create the early-stopping rule of the recipe. labels: the label
 * names as a JSON array, for metrics such as f1.LABEL; NULL: not known, any label is accepted.
 *
 * A name with a slash is accepted if the recipe has tasks; the caller checks it.
 *
 * Memory    out->metric points into the recipe
 * Errors    STATUS_RECIPE if evaluations of this objective have no metric with that name */
status evaluation_report_stopping_rule(const struct recipe *r, const struct objective *o,
                                       const char *labels, struct early_stopping_rule *out);
