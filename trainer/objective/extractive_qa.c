/* Objective answer, extractive question answering: find the first and last token of an answer.
 *
 *   loss = -sum (log p_start(first) + log p_end(last)) / 2 / windows
 *
 * Each token has a start and an end logit. p_start and p_end are softmax distributions over all
 * tokens of the window, including the tokens of the question. Transformers also includes padding,
 * which does not exist here. If the window has no answer, first and last are its first token.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section 4.2; transformers'
 *           ...ForQuestionAnswering */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_LOSS + (int)HEAD_LOSS_CORRECT, SPAN_ENDS = 2 };

static status extractive_qa_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_input *in, bool gradient,
                                 double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    const int32_t *example_rows = batch->outputs.example_rows;
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(in->label_head.weight.rows == SPAN_ENDS, STATUS_INTERNAL,
            "objective answer needs a head of 2 outputs per token, not %" PRId64,
            in->label_head.weight.rows);
    for (int64_t i = 0; i < batch->sequences; i++) { /* a label is a token of the window */
        TRY(task_head_check_labels(batch->task.labels + SPAN_ENDS * i, SPAN_ENDS,
                                   example_rows[i + 1] - example_rows[i], false));
    }
    const struct head_loss loss = {.kind = HEAD_LOSS_COLUMNS,
                                   .examples = batch->sequences,
                                   .example_rows = in->device_batch->outputs.example_rows,
                                   .labels = in->device_batch->task.labels};
    return task_head_run(k, batch, in, &loss, SPAN_ENDS, gradient);
}

static const struct objective_metric metrics[] = {{"span_accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_extractive_qa = {.metrics = metrics,
                                                  .unit = "examples",
                                                  .needs_global_counts = true,
                                                  .loss = extractive_qa_loss};
