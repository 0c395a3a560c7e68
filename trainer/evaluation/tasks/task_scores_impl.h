/* The scores of the documents of a task, and the metrics that follow from them. Private to
 * trainer/evaluation/tasks. */
#pragma once

#include "comm/comm.h"
#include "trainer/evaluation/tasks/task_run.h"
#include "trainer/inference/log_likelihood.h"

/* A row of values for each document. The values of a document are set on the rank that runs it. */
struct task_scores {
    const struct task *task;
    const struct task_config *config;
    int64_t documents;
    int width;      /* values of a document */
    double *values; /* [documents, width] */
};

/* task_scores_create - allocate the values.
 *
 * Memory    the caller frees *out with task_scores_free()
 * Errors    STATUS_INTERNAL: out of memory */
status task_scores_create(const struct task *t, struct task_scores *out);

/* task_scores_add_likelihoods - add a document of multiple_choice or loglikelihood. */
void task_scores_add_likelihoods(const struct task_scores *s, const struct task_request *q,
                                 const struct log_likelihood_result *results, int64_t count,
                                 int64_t index);

/* task_scores_add_rolling - add a document of loglikelihood_rolling. */
void task_scores_add_rolling(const struct task_scores *s, const json_t *text, double log_likelihood,
                             int64_t index);

/* task_scores_add_output - add a document of generate_until.
 *
 * Errors    STATUS_DATA: a regular expression takes too long */
status task_scores_add_output(const struct task_scores *s, const struct task_request *q,
                              const json_t *text, int64_t index);

/* task_scores_set_truncated - record that the context of a document was truncated. */
void task_scores_set_truncated(const struct task_scores *s, int64_t index);

/* task_scores_make_text - make a string; bytes that are not UTF-8 become U+FFFD. */
status task_scores_make_text(const char *text, size_t bytes, json_t **out);

/* task_scores_print - print the line of a document; file NULL: do nothing.
 *
 * Errors    STATUS_INTERNAL: out of memory */
status task_scores_print(const struct task_scores *s, const struct task_request *q,
                         const json_t *output, int64_t index, FILE *file);

/* task_scores_report - compute the metrics of all documents, the same on all ranks.
 *
 * Order     collective */
status task_scores_report(const struct task_scores *s, struct comm *data, struct task_report *out);

/* task_scores_free - free the values. */
void task_scores_free(struct task_scores *s);
