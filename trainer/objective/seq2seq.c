/* Objectives seq2seq and denoise, sequence to sequence: each token of a target is predicted from
 * its source and the tokens before it (teacher forcing).
 *
 *   loss = -sum_i log p(y_i | x, y_0 .. y_{i-1}) / tokens of the targets
 *
 * token_accuracy is the fraction of the tokens to which the model gives the highest probability. It
 * is computed in evaluations only.
 *
 * Source    Vaswani et al. 2017, arXiv:1706.03762; transformers' ...ForConditionalGeneration */
#include "trainer/objective/objective.h"

enum { CORRECT = OBJECTIVE_COUNT + 1, EVALUATED };

static status denoise_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_input *in, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    return objective_clm.loss(k, batch, in, gradient, sums);
}

static status seq2seq_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_input *in, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    const struct objective_scratch *scratch = &in->scratch;
    const int32_t *targets = in->device_batch->targets;
    if (gradient) {
        return objective_clm.loss(k, batch, in, gradient, sums);
    }
    const struct classifier c = objective_lm_classifier(in, false);
    TRY(classifier_run(k, scratch->losses, scratch->argmax, tensor_absent(), tensor_absent(),
                       in->hidden.value, in->lm_head.weight, targets, &c));
    struct loss_rows loss_rows = {scratch->losses, targets, BATCH_IGNORED, scratch->argmax, NULL};
    sums[EVALUATED] += (double)batch->rows; /* each row has a target */
    return objective_loss_stats(k, in, &loss_rows, batch->rows, OBJECTIVE_LOSS);
}

static const struct objective_metric metrics[] = {{"token_accuracy", CORRECT, EVALUATED}, {0}};

const struct objective objective_seq2seq = {.metrics = metrics,
                                            .main_metric = -1,
                                            .unit = "tokens",
                                            .perplexity = true,
                                            .smooths_labels = true,
                                            .loss = seq2seq_loss};

/* Denoising: seq2seq with sources and targets that the loader makes from texts (denoise.h). */
const struct objective objective_denoise = {
    .unit = "tokens", .perplexity = true, .smooths_labels = true, .loss = denoise_loss};
