/* A number for a text: (output - number)^2, a mean over the texts.
 *
 * Source    transformers' ...ForSequenceClassification with problem_type regression and one label */
#include "trainer/objective/task_head.h"

enum { DISTANCE = OBJECTIVE_COUNT + 1 };

static status regress_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_views *views, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *slopes = NULL;
    TRY(head_check(batch, views));
    REQUIRE(views->labels.rows == 1 && batch->numbers != NULL, STATUS_INTERNAL,
            "regress with %lld outputs", (long long)views->labels.rows);
    TRY(head_forward(k, views, &outputs, &slopes));
    for (int64_t i = 0; i < batch->masked; i++) {
        double difference = (double)outputs[i] - (double)batch->numbers[i];
        sums[OBJECTIVE_LOSS] += difference * difference;
        sums[OBJECTIVE_COUNT] += 1;
        sums[DISTANCE] += difference < 0 ? -difference : difference;
        slopes[i] = (float)(2 * difference);
    }
    TRY(head_tell(batch, views, outputs, 1, 0));
    return gradient ? head_backward(k, views) : STATUS_OK;
}

static const struct objective_metric metrics[] = {
    {"mean_absolute_error", DISTANCE, OBJECTIVE_COUNT}, {0}};

const struct objective objective_regress = {.name = "regress",
                                            .metrics = metrics,
                                            .counted = "examples",
                                            .looks_ahead = true,
                                            .loss = regress_loss};
