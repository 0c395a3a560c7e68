/* Objectives classify and classify_tokens: one label for a sequence, or for each word of it.
 *
 *   loss = -sum log p(label) / count,   p = softmax(W h + b)
 *
 * The count is the number of sequences, or of words that have a label.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section 4; transformers'
 *           ...ForSequenceClassification with problem_type single_label_classification,
 *           ...ForTokenClassification */
#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_LOSS + (int)HEAD_LOSS_CORRECT };

static status classify_loss(struct kernels *k, const struct batch *batch,
                            const struct objective_input *in, bool gradient,
                            double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    TRY(task_head_check(batch, in, BATCH_TASK));
    TRY(task_head_check_labels(batch->task.labels, batch->outputs.count, in->label_head.weight.rows,
                               true));
    const struct head_loss loss = {.kind = HEAD_LOSS_ROWS,
                                   .examples = batch->outputs.count,
                                   .labels = in->device_batch->task.labels,
                                   .ignored = BATCH_IGNORED};
    return task_head_run(k, batch, in, &loss, 0, gradient);
}

static const struct objective_metric metrics[] = {{"accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_classify = {
    .metrics = metrics, .unit = "examples", .needs_global_counts = true, .loss = classify_loss};

const struct objective objective_classify_tokens = {
    .metrics = metrics, .unit = "words", .needs_global_counts = true, .loss = classify_loss};
