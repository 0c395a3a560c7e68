/* Multiple choice (objective choose): select the right one of several candidate sequences.
 *
 *   loss = -sum_i log( exp(s_right) / sum_j exp(s_j) ) / examples
 *
 * s_j is the score of candidate j, one output of the head for each candidate.
 *
 * Source    transformers' ...ForMultipleChoice */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_COUNT + 1 };

static status multiple_choice_loss(struct kernels *k, const struct batch *batch,
                                   const struct objective_input *in, bool gradient,
                                   double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *gradients = NULL;
    const int32_t *example_rows = batch->outputs.example_rows;
    TRY(task_head_check(batch, in, BATCH_TASK));
    TRY(task_head_forward(k, in, &outputs, &gradients));
    for (int64_t i = 0; i < batch->sequences; i++) {
        int64_t first = example_rows[i], count = example_rows[i + 1] - first;
        int64_t best = 0, label = batch->task.labels[i];
        REQUIRE(label >= 0 && label < count, STATUS_INTERNAL,
                "choice %" PRId64 " is out of range; the example has %" PRId64 " choices", label,
                count);
        const struct task_head_target target = {count, 1, label, 1};
        sums[OBJECTIVE_LOSS] +=
            task_head_softmax(outputs + first, gradients + first, &target, &best);
        sums[OBJECTIVE_COUNT] += 1;
        sums[CORRECT] += best == label;
    }
    TRY(task_head_report(batch, in, outputs, 1, 1));
    return gradient ? task_head_backward(k, in) : STATUS_OK;
}

static const struct objective_metric metrics[] = {{"accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_multiple_choice = {.name = "choose",
                                                    .metrics = metrics,
                                                    .unit = "examples",
                                                    .needs_global_counts = true,
                                                    .loss = multiple_choice_loss};
