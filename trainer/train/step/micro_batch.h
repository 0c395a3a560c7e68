/* One micro-batch: forward, loss and backward. Training, evaluation and `bench step` all use
 * micro_batch_run. Only this function connects batch, model, objective and gradient buckets. */
#pragma once

#include "trainer/model/model.h"
#include "trainer/objective/objective.h"
#include "trainer/objective/workspace.h"
#include "trainer/train/step/sharded_optimizer.h"

/* The objects that all micro-batches of a run share. */
struct micro_batch_context {
    struct kernels *kernels;
    struct model *model;
    const struct objective *objective;
    struct workspace *workspace;
    struct sharded_optimizer *optimizer;          /* NULL: no gradients are computed */
    const struct preference_settings *preference; /* NULL: the objective needs none */
    const struct objective_sink *sink; /* receives the examples of an evaluation; NULL: unused */
    double *reference_logps;           /* output of objective_dpo_reference; else NULL */
    uint64_t seed;                     /* of dropout */
    double label_smoothing;            /* 0: none */
};

struct micro_batch {
    const struct batch *batch;        /* host arrays */
    const struct batch *device_batch; /* the same batch with device arrays */
    int64_t step;                     /* for dropout */
    int64_t first_row, first_output;  /* indices of row 0 and output 0 in the global batch */
    double example_weight;            /* predictions per example of the step */
    bool training;                    /* dropout is on, and forward keeps activations */
    bool gradient;                    /* run backward and reduce the gradients */
    bool first_micro_batch;           /* gradients are set instead of added to */
    bool has_hidden;                  /* `hidden` is the result of forward; forward is skipped */
    struct tensor hidden;             /* [N, C] */
    double *device_sums;              /* f64 [OBJECTIVE_SUMS] on the device, zero */
    double *host_sums;                /* [OBJECTIVE_SUMS], zero */
};

/* micro_batch_workspace_shape - return the sizes of the workspace for micro-batches of this model.
 *
 * Units     rows: maximum N; batch_size: examples of a global batch; 0: the loss is a sum over
 *           examples */
struct workspace_shape micro_batch_workspace_shape(const struct model *m, int64_t rows,
                                                   int64_t batch_size, bool training);

/* micro_batch_run - run forward, the loss and, with m->gradient, backward. It sets m->hidden.
 *
 * Order     work is queued on the stream of the kernels. Gradients of a bucket are reduced as soon
 *           as they are final. Every rank of the data-parallel group must therefore run the same
 *           number of micro-batches with gradients
 * Numerics  the sums of the micro-batch are device_sums + host_sums
 * Errors    errors of the model, the objective and the collectives */
status micro_batch_run(const struct micro_batch_context *c, struct micro_batch *m);
