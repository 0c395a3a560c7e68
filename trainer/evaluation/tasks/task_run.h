/* Runs a task with a model and computes its metrics.
 *
 * The documents are distributed over the data-parallel ranks. Every rank gets the values of all
 * documents and adds them in their order, so that the metrics do not depend on the ranks. */
#pragma once

#include <stdio.h>

#include "comm/mesh.h"
#include "datasets/tokenizer/tokenizer.h"
#include "kernels/kernels.h"
#include "trainer/evaluation/tasks/task.h"
#include "trainer/inference/stop_poll.h"
#include "trainer/model/model.h"

enum { TASK_RESULTS_MAX = TASK_METRICS_MAX * TASK_FILTERS_MAX };

struct task_model {
    struct kernels *kernels;
    struct model *model;
    const struct tokenizer *tokenizer;
    const struct mesh *mesh;
    int64_t rows;       /* maximum rows of a micro-batch */
    int64_t max_tokens; /* of a context with its continuation, at most the positions of the model */
    uint64_t seed;      /* of the samples of generate_until */
    const struct stop_poll *poll; /* NULL: tasks cannot be stopped */
};

/* A metric: exact_match, or exact_match,FILTER for a named filter. */
struct task_result {
    char name[TASK_RESULT_NAME_BYTES];
    double value;
    double standard_error; /* NaN for one document */
};

struct task_report {
    int64_t documents;
    int64_t truncated; /* documents with a context that lost its beginning */
    bool stopped;      /* by poll, before the end; there are no results */
    int count;
    struct task_result results[TASK_RESULTS_MAX];
};

/* task_run_bytes - return the planned memory of task_run, on the host and the device, without the
 * texts of the documents.
 *
 * Units     ranks: that share the model; rows and max_tokens as in struct task_model */
int64_t task_run_bytes(const struct task_config *c, const struct model_config *config,
                       enum dtype dtype, int ranks, int64_t rows, int64_t max_tokens);

/* task_run - evaluate all documents of a task.
 *
 * `samples` receives a JSON line for each document of this rank, with its targets, outputs and
 * scores. NULL: no lines are written.
 *
 * Order     collective
 * Numerics  means have the standard error of the mean, as in lm-evaluation-harness. The errors of
 *           bits_per_byte and perplexities come from the ratio estimator and the delta method;
 *           lm-evaluation-harness reports a bootstrap error or none
 * Errors    STATUS_DATA with the document; STATUS_NOT_FINITE; the same on all ranks */
status task_run(const struct task_model *m, const struct task *t, FILE *samples,
                struct task_report *out);
