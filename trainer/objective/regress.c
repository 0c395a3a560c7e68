/* Regression: one number for a sequence.
 *
 *   loss = sum (output - target)^2 / sequences,   output = w h + b
 *
 * Source    transformers' ...ForSequenceClassification with problem_type regression and one label
 *           */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { ABSOLUTE_ERROR = OBJECTIVE_COUNT + 1 };

static status regress_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_input *in, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *gradients = NULL;
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(in->label_head.weight.rows == 1 && batch->task.float_labels != NULL, STATUS_INTERNAL,
            "objective regress needs target values and a head of 1 output, not %" PRId64,
            in->label_head.weight.rows);
    TRY(task_head_forward(k, in, &outputs, &gradients));
    for (int64_t i = 0; i < batch->outputs.count; i++) {
        double difference = (double)outputs[i] - (double)batch->task.float_labels[i];
        sums[OBJECTIVE_LOSS] += difference * difference;
        sums[OBJECTIVE_COUNT] += 1;
        sums[ABSOLUTE_ERROR] += difference < 0 ? -difference : difference;
        gradients[i] = (float)(2 * difference);
    }
    TRY(task_head_report(batch, in, outputs, 1, 0));
    return gradient ? task_head_backward(k, in) : STATUS_OK;
}

static const struct objective_metric metrics[] = {
    {"mean_absolute_error", ABSOLUTE_ERROR, OBJECTIVE_COUNT}, {0}};

const struct objective objective_regress = {.name = "regress",
                                            .metrics = metrics,
                                            .unit = "examples",
                                            .needs_global_counts = true,
                                            .loss = regress_loss};
