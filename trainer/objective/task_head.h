/* What the objectives of fine-tuning tasks share: the task's small matrix behind the rows of the model's head.
 *
 * Its outputs are few, so that they come to the host, where each objective makes its loss and the slopes of it in
 * double precision; from the slopes the matrix goes backward on the device. */
#pragma once

#include "base/mirror.h"
#include "trainer/objective/objective.h"

struct head_memory {
    struct mirror mirror; /* slopes, outputs, and where the precision is bf16 the slopes rounded */
    int64_t rows, labels;
};

/* head_create - for so many rows at most, and the labels of model_config. */
status head_create(struct kernels *k, int64_t rows, int64_t labels, struct head_memory *out);
void head_destroy(struct head_memory *memory);

/* head_forward - the outputs of all rows that the head has read, and where their slopes are to be written. Where there is no
 * matrix the outputs are the rows themselves.
 *
 * Shapes    outputs, slopes f32 [views->hidden.rows, labels], on the host, the views' memory
 * Order     waits for the device */
status head_forward(struct kernels *k, const struct objective_views *views, const float **outputs,
                    float **slopes);

/* head_backward - from the slopes to the gradients that the views name. */
status head_backward(struct kernels *k, const struct objective_views *views);

/* Which of several outputs is right: they are `count` numbers, `stride` apart. */
struct head_choice {
    int64_t count, stride, right;
    double weight; /* of the loss's slopes */
};

/* head_softmax - -log of the right one's share of exp(outputs); slopes weight (share - [is the right one]); best: the
 * first of the largest. */
double head_softmax(const float *outputs, float *slopes, const struct head_choice *choice,
                    int64_t *best);

/* head_check - the batch has rows for a head, and their number is the views'.  Errors: STATUS_INTERNAL */
status head_check(const struct batch *batch, const struct objective_views *views);

/* head_tell - each example to the views' sink, where there is one.
 *
 * Shapes    outputs [views->hidden.rows, columns]; labels: of an example as many as each has of `each` (0: as many as
 *           it has rows), or NULL */
status head_tell(const struct batch *batch, const struct objective_views *views,
                 const float *outputs, int64_t columns, int64_t each);
