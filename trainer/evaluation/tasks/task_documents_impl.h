/* The documents of a split: rows of JSON Lines files. Private to trainer/evaluation/tasks. */
#pragma once

#include <jansson.h>

#include "trainer/evaluation/tasks/task_config.h"

struct task_document {
    json_t *value; /* an object */
    const char *path;
    int64_t line;
};

struct task_documents {
    struct task_document *rows; /* [count] */
    int64_t count, capacity;
    char **paths; /* [path_count] */
    int path_count;
    json_t *features; /* object with a key for each field of any row */
};

/* task_documents_read - read the files of a split, which dataset_kwargs.data_files names.
 *
 * A path is relative to the folder of the task file.
 *
 * Memory    the caller calls task_documents_free, also after an error
 * Errors    STATUS_RECIPE: there is no such split; STATUS_NO_INPUT; STATUS_DATA */
status task_documents_read(const struct task_config *c, const char *split,
                           struct task_documents *out);

/* task_documents_free - free the documents. */
void task_documents_free(struct task_documents *d);
