/* The metrics that need every example of an evaluation: what the heads said of each is taken from all ranks, and
 * graded (grade.h). classify, classify_tokens: precision, recall and F1, averaged and of each label. regress: Pearson's
 * and Spearman's correlations. answer: exact matches and F1 of words, a mean over questions (grade_windows.h).
 *
 *     struct grading *g;
 *     TRY(grading_create("classify", &labels, tokenizer, 0, &g));   NULL for objectives that have no such metrics
 *     grading_begin(g);
 *     ... step_evaluate, with grading_sink(g) in the step's parts ...
 *     TRY(grading_end(g, mesh.data));
 *     count += grading_fields(g, fields + count);
 *
 * Counts are sums of integers and values are put in the order of the examples' numbers, so that the metrics are the
 * same bits at any number of ranks, as far as the outputs are. */
#pragma once

#include "comm/comm.h"
#include "datasets/shard/labels.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/logging/metric.h"
#include "trainer/objective/objective.h"

enum { GRADING_LABELS_TOLD = 32, GRADING_FIELDS = 8 + 4 * GRADING_LABELS_TOLD };

struct grading;

/* grading_create - names: of the labels; they are copied. tokenizer: for answers, the caller's; NULL: they are not graded. threshold: of
 * having no answer (grade_windows.h). *out NULL where the objective has no such metrics.
 *
 * Errors    STATUS_INTERNAL (memory) */
status grading_create(const char *objective, const struct labels *names,
                      const struct tokenizer *tokenizer, double threshold, struct grading **out);
void grading_destroy(struct grading **g);

/* grading_names - what grading_fields will have, but for single labels'; NULL ends the list. */
const char *const *grading_names(const char *objective);

/* All of these do nothing for NULL. */
const struct objective_sink *grading_sink(const struct grading *g);
void grading_begin(struct grading *g);

/* grading_end - after the last example. Collective over the ranks that have other examples.
 *
 * Errors    STATUS_INTERNAL (memory), on all ranks */
status grading_end(struct grading *g, struct comm *data);

/* grading_fields - into fields[GRADING_FIELDS]; returns how many. Of more than GRADING_LABELS_TOLD labels single ones
 * are not told. Names live as long as g. */
int grading_fields(const struct grading *g, struct metric *fields);
