/* Task files: a part of the YAML format of lm-evaluation-harness (docs/guide/tasks.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "datasets/text/pattern.h"

enum task_output {
    TASK_MULTIPLE_CHOICE,
    TASK_GENERATE_UNTIL,
    TASK_LOGLIKELIHOOD,
    TASK_LOGLIKELIHOOD_ROLLING,
    TASK_OUTPUTS
};

enum task_metric_kind {
    TASK_ACC,       /* the most probable choice is the target, or greedy decoding gives it */
    TASK_ACC_NORM,  /* the same; log-probabilities are divided by the characters of the choice */
    TASK_ACC_BYTES, /* the same; they are divided by the bytes of the choice */
    TASK_PERPLEXITY,
    TASK_EXACT_MATCH,
    TASK_NUMERIC_MATCH, /* the last numbers of output and target are equal */
    TASK_WORD_PERPLEXITY,
    TASK_BYTE_PERPLEXITY,
    TASK_BITS_PER_BYTE,
    TASK_METRICS
};

enum {
    TASK_METRICS_MAX = 8,
    TASK_FILTERS_MAX = 8,
    TASK_STEPS_MAX = 8,
    TASK_PATTERNS_MAX = 8,
    TASK_STOPS_MAX = 16,
    TASK_RESULT_NAME_BYTES = 64
};

struct task_metric {
    enum task_metric_kind kind;
    bool ignore_case, ignore_punctuation, ignore_numbers; /* of exact_match */
    struct pattern *ignored[TASK_PATTERNS_MAX];           /* removed before the comparison */
    int ignored_count;
};

enum task_step_kind {
    TASK_REGEX,
    TASK_TAKE_FIRST, /* does nothing: there is one output */
    TASK_REMOVE_WHITESPACE,
    TASK_LOWERCASE,
    TASK_UPPERCASE
};

/* A step that changes an output before it is scored. */
struct task_step {
    enum task_step_kind kind;
    struct pattern *pattern; /* TASK_REGEX */
    int64_t group_select;    /* index of the match; -1: the last one */
    const char *fallback;    /* the output without a match */
};

struct task_filter {
    const char *name;
    struct task_step steps[TASK_STEPS_MAX];
    int step_count;
};

struct node;

struct task_config {
    char path[FILE_PATH_BYTES]; /* of the task file */
    const char *name;
    enum task_output output;
    const struct node *data_files; /* dataset_kwargs.data_files */
    const char *training_split, *validation_split, *test_split, *fewshot_split; /* NULL: none */
    const struct node *text, *target, *choice; /* doc_to_text, ...; NULL: none */
    const char *description, *target_delimiter, *fewshot_delimiter;
    int64_t shots;
    bool takes_first_shots; /* fewshot_config.sampler first_n */
    const char *until[TASK_STOPS_MAX];
    int until_count;
    int64_t max_new_tokens;
    double temperature; /* 0: greedy */
    struct task_metric metrics[TASK_METRICS_MAX];
    int metric_count;
    struct task_filter filters[TASK_FILTERS_MAX];
    int filter_count;
    struct node *tree; /* the strings belong to it */
};

/* task_config_read - read a task file.
 *
 * Memory    the caller calls task_config_free, also after an error
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_RECIPE "file:line:column: key: reason";
 *           STATUS_UNAVAILABLE: a key of lm-evaluation-harness that needs Python */
status task_config_read(const char *path, struct task_config *out);

/* task_config_fail - raise STATUS_RECIPE at a value of a task file. */
status task_config_fail(const struct task_config *c, const struct node *node, const char *key,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* task_config_annotate - add the place of a value and its key to the pending STATUS_RECIPE or
 * STATUS_DATA error.
 *
 * Returns   STATUS_RECIPE for these errors, else result */
status task_config_annotate(const struct task_config *c, const struct node *node, const char *key,
                            status result);

/* task_config_result_name - write the name of a result: METRIC, or METRIC,FILTER for a filter with
 * a name.
 *
 * Memory    out[TASK_RESULT_NAME_BYTES] */
void task_config_result_name(const struct task_config *c, int filter, int metric, char *out);

/* task_config_free - free the members of c. */
void task_config_free(struct task_config *c);
