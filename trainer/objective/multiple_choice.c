/* Objective choose, multiple choice: select the right one of several candidate sequences.
 *
 *   loss = -sum_i log( exp(s_right) / sum_j exp(s_j) ) / examples
 *
 * s_j is the score of candidate j, one output of the head for each candidate.
 *
 * Source    transformers' ...ForMultipleChoice */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_LOSS + (int)HEAD_LOSS_CORRECT };

static status multiple_choice_loss(struct kernels *k, const struct batch *batch,
                                   const struct objective_input *in, bool gradient,
                                   double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    const int32_t *example_rows = batch->outputs.example_rows;
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(in->label_head.weight.rows == 1, STATUS_INTERNAL,
            "objective choose needs a head of 1 output, not %" PRId64, in->label_head.weight.rows);
    for (int64_t i = 0; i < batch->sequences; i++) { /* a label is a choice of the example */
        TRY(task_head_check_labels(batch->task.labels + i, 1, example_rows[i + 1] - example_rows[i],
                                   false));
    }
    const struct head_loss loss = {.kind = HEAD_LOSS_COLUMNS,
                                   .examples = batch->sequences,
                                   .example_rows = in->device_batch->outputs.example_rows,
                                   .labels = in->device_batch->task.labels};
    return task_head_run(k, batch, in, &loss, 1, gradient);
}

static const struct objective_metric metrics[] = {{"accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_multiple_choice = {.metrics = metrics,
                                                    .unit = "examples",
                                                    .needs_global_counts = true,
                                                    .loss = multiple_choice_loss};
