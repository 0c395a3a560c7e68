/* A task: its settings, documents and prompts.
 *
 *     TRY(task_open("arc.yaml", -1, 0, &t));
 *     for (int64_t i = 0; i < task_document_count(t); i++) {
 *         struct task_request q;
 *         TRY(task_get_request(t, i, &q));
 *         ... task_request_free(&q);
 *     }
 *
 * lm-evaluation-harness makes the same prompts from the file, with the same few-shot examples. */
#pragma once

#include "trainer/evaluation/tasks/task_config.h"

struct task;

/* The texts of a document. */
struct task_request {
    struct json_t *context; /* string: description, few-shot examples and the question */
    struct json_t *choices; /* array of strings, without target_delimiter; NULL: none */
    struct json_t
        *targets; /* array with at least one string; with multiple_choice indices of choices */
};

/* task_open - read a task file and its documents.
 *
 * Units     shots: number of few-shot examples, -1: the number in the file; limit: documents to
 *           evaluate, 0: all
 * Errors    as task_config_read; STATUS_NO_INPUT; STATUS_DATA with file, line and reason */
status task_open(const char *path, int64_t shots, int64_t limit, struct task **out);

/* task_get_config - return the settings of the file. */
const struct task_config *task_get_config(const struct task *t);

/* task_document_count - return the number of documents to evaluate. */
int64_t task_document_count(const struct task *t);

/* task_get_request - create the texts of a document.
 *
 * Memory    the caller calls task_request_free, also after an error
 * Errors    STATUS_DATA with file, line and reason */
status task_get_request(const struct task *t, int64_t index, struct task_request *out);

/* task_request_free - free the texts. */
void task_request_free(struct task_request *q);

/* task_annotate_error - add the file and the line of a document to the pending STATUS_DATA error.
 *
 * Returns   result */
status task_annotate_error(const struct task *t, int64_t index, status result);

/* task_close - free a task and set *t to NULL; NULL is allowed. */
void task_close(struct task **t);
