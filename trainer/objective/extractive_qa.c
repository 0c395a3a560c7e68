/* Extractive question answering (objective answer): find the first and last token of an answer.
 *
 *   loss = -sum (log p_start(first) + log p_end(last)) / 2 / windows
 *
 * Each token has a start and an end logit. p_start and p_end are softmax distributions over all
 * tokens of the window, including those of the question. Transformers also includes padding, which
 * does not exist here. If the window has no answer, first and last are its first token.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section 4.2; transformers'
 *           ...ForQuestionAnswering */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_COUNT + 1, SPAN_ENDS = 2 };

static status extractive_qa_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_input *in, bool gradient,
                                 double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *gradients = NULL;
    const int32_t *example_rows = batch->outputs.example_rows;
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(in->label_head.weight.rows == SPAN_ENDS, STATUS_INTERNAL,
            "objective answer needs a head of 2 outputs per token, not %" PRId64,
            in->label_head.weight.rows);
    TRY(task_head_forward(k, in, &outputs, &gradients));
    for (int64_t i = 0; i < batch->sequences; i++) {
        int64_t first = example_rows[i], count = example_rows[i + 1] - first;
        int64_t correct = 0;
        for (int64_t end = 0; end < SPAN_ENDS; end++) {
            int64_t best = 0, label = batch->task.labels[SPAN_ENDS * i + end],
                    offset = SPAN_ENDS * first + end;
            REQUIRE(label >= 0 && label < count, STATUS_INTERNAL,
                    "answer token %" PRId64 " is out of range; the window has %" PRId64 " tokens",
                    label, count);
            const struct task_head_target target = {count, SPAN_ENDS, label, 1.0 / SPAN_ENDS};
            sums[OBJECTIVE_LOSS] +=
                task_head_softmax(outputs + offset, gradients + offset, &target, &best) / SPAN_ENDS;
            correct += best == label;
        }
        sums[OBJECTIVE_COUNT] += 1;
        sums[CORRECT] += correct == SPAN_ENDS;
    }
    TRY(task_head_report(batch, in, outputs, SPAN_ENDS, SPAN_ENDS));
    return gradient ? task_head_backward(k, in) : STATUS_OK;
}

static const struct objective_metric metrics[] = {{"span_accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_extractive_qa = {.name = "answer",
                                                  .metrics = metrics,
                                                  .unit = "examples",
                                                  .needs_global_counts = true,
                                                  .loss = extractive_qa_loss};
