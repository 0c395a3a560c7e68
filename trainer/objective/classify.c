/* Classification: one label for a sequence (classify) or for each word of it (classify_tokens).
 *
 *   loss = -sum log p(label) / count,   p = softmax(W h + b)
 *
 * The count is the number of sequences, or of words that have a label.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section 4; transformers'
 *           ...ForSequenceClassification with problem_type single_label_classification,
 *           ...ForTokenClassification */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_COUNT + 1 };

static status classify_loss(struct kernels *k, const struct batch *batch,
                            const struct objective_input *in, bool gradient,
                            double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *gradients = NULL;
    int64_t labels = in->label_head.weight.rows, best = 0;
    TRY(task_head_check(batch, in, BATCH_TASK));
    TRY(task_head_forward(k, in, &outputs, &gradients));
    for (int64_t i = 0; i < batch->outputs.count; i++) {
        int64_t label = batch->task.labels[i];
        if (label == BATCH_IGNORED) {
            memset(gradients + i * labels, 0, (size_t)labels * sizeof *gradients);
            continue;
        }
        REQUIRE(label >= 0 && label < labels, STATUS_INTERNAL,
                "label %" PRId64 " is out of range; the head has %" PRId64 " labels", label,
                labels);
        const struct task_head_target target = {labels, 1, label, 1};
        sums[OBJECTIVE_LOSS] +=
            task_head_softmax(outputs + i * labels, gradients + i * labels, &target, &best);
        sums[OBJECTIVE_COUNT] += 1;
        sums[CORRECT] += best == label;
    }
    TRY(task_head_report(batch, in, outputs, labels, 0));
    return gradient ? task_head_backward(k, in) : STATUS_OK;
}

static const struct objective_metric metrics[] = {{"accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_classify = {.name = "classify",
                                             .metrics = metrics,
                                             .unit = "examples",
                                             .needs_global_counts = true,
                                             .loss = classify_loss};

const struct objective objective_classify_tokens = {.name = "classify_tokens",
                                                    .metrics = metrics,
                                                    .unit = "words",
                                                    .needs_global_counts = true,
                                                    .loss = classify_loss};
