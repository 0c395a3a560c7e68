/* The tasks of `bireme evaluate --task` and of evaluate.tasks, and their metrics. */
#pragma once

#include "trainer/evaluation/tasks/task_run.h"

enum { TASK_SET_MAX = 16, TASK_SET_FIELDS = 64, TASK_FIELD_BYTES = 128 };

struct task_set {
    struct task *tasks[TASK_SET_MAX];
    int count;
};

/* One number of the results, named TASK/METRIC, TASK/METRIC_stderr, TASK/documents or
 * TASK/truncated. */
struct task_field {
    char name[TASK_FIELD_BYTES];
    double value; /* NaN: undefined */
    bool is_count;
};

/* task_set_is_file - return whether a path names a task file: *.yaml or *.yml. */
bool task_set_is_file(const char *path);

/* task_set_open - read task files and their documents.
 *
 * Units     shots: -1: the number in each file; limit: documents of each task, 0: all
 * Memory    the caller calls task_set_close, also after an error
 * Errors    as task_open; STATUS_RECIPE: two tasks have the same name, or there are too many
 *           tasks or metrics */
status task_set_open(char *const *paths, int count, int64_t shots, int64_t limit,
                     struct task_set *out);

/* task_set_run - run all tasks and write their metrics to fields[TASK_SET_FIELDS].
 *
 * Order     collective
 * Returns   *count: number of fields; 0 if m->poll has stopped the tasks
 * Errors    as task_run */
status task_set_run(const struct task_set *set, const struct task_model *m, FILE *samples,
                    struct task_field *fields, int *count);

/* task_set_has_metric - return whether the results of the tasks have a metric of this name. */
bool task_set_has_metric(const struct task_set *set, const char *name);

/* task_set_close - free the tasks. */
void task_set_close(struct task_set *set);
