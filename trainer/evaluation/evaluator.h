/* Computes the metrics that need all examples of an evaluation. It gathers the head's outputs from
 * all ranks and computes scores.h on them.
 *
 *   classify, classify_tokens   precision, recall and F1: averages and per label; the confusion
 *                               matrix
 *   regress                     Pearson's and Spearman's correlation coefficients
 *   answer                      exact match and token F1, averaged over questions (squad.h)
 *
 *     struct evaluator *ev;
 *     TRY(evaluator_create(OBJECTIVE_CLASSIFY, &labels, tokenizer, 0, &ev));
 *     evaluator_begin(ev);
 *     ... step_evaluate, with evaluator_sink(ev) in the step's parts ...
 *     TRY(evaluator_end(ev, mesh.data));
 *     count += evaluator_fields(ev, fields + count);
 *
 * Counts are integer sums and values are sorted by sample index. The metrics are therefore
 * bit-identical for any number of ranks if the outputs are. */
#pragma once

#include "comm/comm.h"
#include "datasets/shard/labels.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/logging/metrics.h"
#include "trainer/objective/objective.h"
#include "trainer/recipe/recipe.h"

/* Per-label metrics and the confusion matrix are reported for at most this number of labels. */
enum { EVALUATOR_LABELS_REPORTED = 32, EVALUATOR_FIELDS = 8 + 4 * EVALUATOR_LABELS_REPORTED };

struct evaluator;

/* evaluator_create - create the evaluator of an objective; *out is NULL if it has no such metrics.
 *
 * Units     threshold: score margin for predicting "no answer" (squad.h)
 * Memory    the label names are copied; the tokenizer, which decodes answers, is borrowed; without
 *           a tokenizer (NULL) answers are not scored
 * Errors    STATUS_INTERNAL if memory runs out */
status evaluator_create(enum recipe_objective objective, const struct labels *names,
                        const struct tokenizer *tokenizer, double threshold,
                        struct evaluator **out);

/* evaluator_destroy - free the evaluator and set *ev to NULL. */
void evaluator_destroy(struct evaluator **ev);

/* evaluator_metric_names - return the names that evaluator_fields writes, without the per-label
 * metrics.
 *
 * Memory    static, terminated by NULL */
const char *const *evaluator_metric_names(enum recipe_objective objective);

/* evaluator_is_label_metric - return whether evaluator_fields writes a per-label metric of this
 * name, such as f1.LABEL. If `labels` is not NULL, LABEL must be one of them.
 *
 * Numerics  false for counts (support.LABEL), which are not compared */
bool evaluator_is_label_metric(enum recipe_objective objective, const struct labels *labels,
                               const char *name);

/* The following functions accept NULL and then do nothing. */

/* evaluator_sink - return the sink that receives each example; NULL if ev is NULL. */
const struct objective_sink *evaluator_sink(const struct evaluator *ev);

/* evaluator_begin - discard all recorded examples. */
void evaluator_begin(struct evaluator *ev);

/* evaluator_end - compute the metrics after the last example.
 *
 * Order     collective over the data-parallel group
 * Errors    STATUS_INTERNAL on all ranks if one of them runs out of memory */
status evaluator_end(struct evaluator *ev, struct comm *data);

/* evaluator_fields - write the metrics to fields[EVALUATOR_FIELDS].
 *
 * With more than EVALUATOR_LABELS_REPORTED labels, per-label metrics and the confusion matrix are
 * omitted. confusion_matrix[i][j] is the number of examples of label i that were predicted as j.
 *
 * Memory    the names are owned by ev
 * Returns   the number of metrics */
int evaluator_fields(const struct evaluator *ev, struct metric *fields);
