/* The last matrix of a fine-tuning head: its outputs, gradients and reports.
 *
 * The objectives of fine-tuning tasks share these functions. task_head_run does all of their work
 * on the device. Objective embed computes its own loss between task_head_outputs and
 * task_head_backward. */
#pragma once

#include "base/device/mirror.h"
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

/* task_head_run - compute the loss of a batch, pass its examples to in->sink, and with `gradient`
 * compute the gradients of the head and of in->hidden.
 *
 * Shapes    sum i of enum head_loss_sum is written to in->device_sums[OBJECTIVE_LOSS + i]. An
 *           example has labels_each labels in batch->task.labels, or with 0 as many as it has rows
 * Order     queued; waits for the device only if there is a sink
 * Errors    STATUS_INTERNAL if the batch is larger than planned; errors of the sink */
status task_head_run(struct kernels *k, const struct batch *batch, const struct objective_input *in,
                     const struct head_loss *loss, int64_t labels_each, bool gradient);

/* task_head_outputs - compute the outputs of all rows of in->hidden.value.
 * A head without a matrix returns the rows themselves.
 *
 * Shapes    *out f32 [rows of in->hidden.value, labels]
 * Memory    device memory of in->task_head
 * Order     queued
 * Errors    STATUS_INTERNAL if the batch is larger than planned */
status task_head_outputs(struct kernels *k, const struct objective_input *in, struct tensor *out);

/* task_head_forward - compute the outputs of all rows and copy them to host memory.
 *
 * Shapes    *outputs f32 [rows of in->hidden.value, labels]
 * Memory    *outputs is host memory of in->task_head
 * Order     waits for the device
 * Errors    as in task_head_outputs */
status task_head_forward(struct kernels *k, const struct objective_input *in,
                         const float **outputs);

/* task_head_gradients - return the device memory for the gradients of the outputs. */
struct tensor task_head_gradients(const struct objective_input *in);

/* task_head_backward - compute the gradients of the head and of in->hidden from the gradients of
 * the outputs (task_head_gradients).
 *
 * Order     queued */
status task_head_backward(struct kernels *k, const struct objective_input *in);

/* task_head_check_labels - check that each of `count` labels is in [0, labels).
 *
 * allow_ignored: BATCH_IGNORED is allowed too
 * Errors    STATUS_INTERNAL with the first wrong label */
status task_head_check_labels(const int32_t *batch_labels, int64_t count, int64_t labels,
                              bool allow_ignored);

/* task_head_check - check that a batch is of this kind and selects the rows of in->hidden.
 *
 * Errors    STATUS_INTERNAL otherwise */
status task_head_check(const struct batch *batch, const struct objective_input *in,
                       enum batch_kind kind);
