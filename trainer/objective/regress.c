/* Objective regress, regression: one number for a sequence.
 *
 *   loss = sum (output - target)^2 / sequences,   output = w h + b
 *
 * Source    transformers' ...ForSequenceClassification with problem_type regression and one label
 *           */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { ABSOLUTE_ERROR = OBJECTIVE_LOSS + (int)HEAD_LOSS_ABSOLUTE };

static status regress_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_input *in, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(in->label_head.weight.rows == 1 && batch->task.float_labels != NULL, STATUS_INTERNAL,
            "objective regress needs target values and a head of 1 output, not %" PRId64,
            in->label_head.weight.rows);
    const struct head_loss loss = {.kind = HEAD_LOSS_SQUARES,
                                   .examples = batch->outputs.count,
                                   .targets = in->device_batch->task.float_labels};
    return task_head_run(k, batch, in, &loss, 0, gradient);
}

static const struct objective_metric metrics[] = {
    {"mean_absolute_error", ABSOLUTE_ERROR, OBJECTIVE_COUNT}, {0}};

const struct objective objective_regress = {
    .metrics = metrics, .unit = "examples", .needs_global_counts = true, .loss = regress_loss};
