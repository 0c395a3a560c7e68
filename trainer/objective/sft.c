/* Objective sft, supervised fine-tuning: next-token prediction on the tokens that the loss mask
 * selects.
 *
 *   loss = -sum_{i in mask} log p(x_{i+1} | x_1 .. x_i of the same example) / tokens in mask
 *
 * The loss is the same as in TRL's SFTTrainer with loss_type "nll". The metrics have TRL's names
 * and are means over the tokens in the mask. mean_token_accuracy is the fraction of tokens to which
 * the model gives the highest probability. entropy is the entropy of the predicted distribution in
 * nats.
 *
 * Source    Ouyang et al. 2022, arXiv:2203.02155; TRL's SFTTrainer */
#include "trainer/objective/objective.h"

enum { CORRECT = 2, ENTROPY };

static status sft_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    const struct objective_scratch *scratch = &in->scratch;
    const int32_t *targets = in->device_batch->targets;
    struct classifier c = objective_lm_classifier(in, gradient);
    c.entropies = scratch->entropies;
    c.mean_logits = scratch->mean_logits;
    TRY(classifier_run(k, scratch->losses, scratch->argmax, in->hidden.gradient,
                       in->lm_head.weight_gradient, in->hidden.value, in->lm_head.weight, targets,
                       &c));
    struct loss_rows loss_rows = {scratch->losses, targets, BATCH_IGNORED, scratch->argmax,
                                  scratch->entropies};
    return objective_loss_stats(k, in, &loss_rows, batch->rows, OBJECTIVE_LOSS);
}

static const struct objective_metric metrics[] = {
    {"mean_token_accuracy", CORRECT, OBJECTIVE_COUNT}, {"entropy", ENTROPY, OBJECTIVE_COUNT}, {0}};

const struct objective objective_sft = {.metrics = metrics,
                                        .unit = "tokens",
                                        .perplexity = true,
                                        .smooths_labels = true,
                                        .loss = sft_loss};
