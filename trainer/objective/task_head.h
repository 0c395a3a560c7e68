/* The last matrix of a fine-tuning head: its outputs, gradients and reports.
 *
 * The objectives of fine-tuning tasks share these functions. A head has few outputs, so they are
 * copied to the host. There each objective computes its loss and the gradients of the outputs in
 * double precision. The backward pass of the matrix runs on the device. */
#pragma once

#include "base/mirror.h"
#include "trainer/objective/objective.h"

/* Memory for the outputs of a head and their gradients. */
struct task_head {
    struct mirror mirror; /* gradients, outputs, and in bf16 precision the rounded gradients */
    int64_t rows, labels;
};

/* task_head_create - allocate memory for `rows` rows and `labels` outputs (of model_config). */
status task_head_create(struct kernels *k, int64_t rows, int64_t labels, struct task_head *out);
void task_head_destroy(struct task_head *head);

/* task_head_forward - compute the outputs of all rows of in->hidden.
 * A head without a matrix returns the rows themselves.
 *
 * Shapes    *outputs f32 [in->hidden.rows, labels]; *gradients, of the same shape, is where the
 *           caller writes the gradients of the outputs
 * Memory    host memory of in->task_head
 * Order     waits for the device
 * Errors    STATUS_INTERNAL if the batch is larger than planned */
status task_head_forward(struct kernels *k, const struct objective_input *in, const float **outputs,
                         float **gradients);

/* task_head_backward - compute the gradients in `in` from the gradients of the outputs. */
status task_head_backward(struct kernels *k, const struct objective_input *in);

/* The target of a softmax over `count` outputs that are `stride` apart. */
struct task_head_target {
    int64_t count, stride;
    int64_t right; /* index of the right output */
    double weight; /* factor of the gradients */
};

/* task_head_softmax - return -log p(right) of a softmax over some outputs.
 *
 * Shapes    outputs, gradients [count] with stride; gradients = weight (p - [is the right output])
 * Numerics  double precision; *best is the first of the largest outputs */
double task_head_softmax(const float *outputs, float *gradients,
                         const struct task_head_target *target, int64_t *best);

/* task_head_check - check that a batch selects the rows of in->hidden for a head.
 *
 * Errors    STATUS_INTERNAL otherwise */
status task_head_check(const struct batch *batch, const struct objective_input *in);

/* task_head_report - pass each example of a batch to in->sink; no-op without a sink.
 *
 * Shapes    outputs [in->hidden.rows, columns]; an example has `labels_each` labels in
 *           batch->labels, or with 0 as many as it has rows */
status task_head_report(const struct batch *batch, const struct objective_input *in,
                        const float *outputs, int64_t columns, int64_t labels_each);
