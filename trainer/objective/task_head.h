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

/* task_head_destroy - release the memory; no-op after a failed or missing task_head_create. */
void task_head_destroy(struct task_head *head);

/* task_head_forward - compute the outputs of all rows of in->hidden.value.
 * A head without a matrix returns the rows themselves.
 *
 * Shapes    *outputs, *gradients f32 [rows of in->hidden.value, labels]; the caller writes the
 *           gradients of the outputs to *gradients
 * Memory    host memory of in->task_head
 * Order     waits for the device
 * Errors    STATUS_INTERNAL if the batch is larger than planned */
status task_head_forward(struct kernels *k, const struct objective_input *in, const float **outputs,
                         float **gradients);

/* task_head_backward - compute the gradients of the head and of in->hidden from those of the
 * outputs. */
status task_head_backward(struct kernels *k, const struct objective_input *in);

/* The target of a softmax over `count` outputs that are `stride` apart. */
struct task_head_target {
    int64_t count, stride;
    int64_t target; /* index of the target output */
    double weight;  /* factor of the gradients */
};

/* task_head_softmax - return -log p(target) of a softmax over some outputs.
 *
 * Shapes    outputs, gradients [count] with stride; gradients = weight (p - [is the target])
 * Numerics  double precision; *best is the first of the largest outputs */
double task_head_softmax(const float *outputs, float *gradients,
                         const struct task_head_target *target, int64_t *best);

/* task_head_check - check that a batch is of this kind and selects the rows of in->hidden.
 *
 * Errors    STATUS_INTERNAL otherwise */
status task_head_check(const struct batch *batch, const struct objective_input *in,
                       enum batch_kind kind);

/* task_head_report - pass each example of a batch to in->sink; no-op without a sink.
 *
 * Shapes    outputs [rows of in->hidden.value, columns]; an example has `labels_each` labels in
 *           batch->task.labels, or with 0 as many as it has rows */
status task_head_report(const struct batch *batch, const struct objective_input *in,
                        const float *outputs, int64_t columns, int64_t labels_each);
