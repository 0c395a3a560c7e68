/* Objective clm, causal language modeling: each token predicts the next one.
 *
 *   loss = -sum_i log p(x_{i+1} | x_1 .. x_i) / tokens
 *
 * A token counts if its target is not BATCH_IGNORED.
 *
 * Source    Radford et al. 2019; transformers' ...ForCausalLM */
#include "trainer/objective/objective.h"

static status clm_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    const struct classifier c = objective_lm_classifier(in, gradient);
    const int32_t *targets = in->device_batch->targets;
    TRY(classifier_run(k, in->scratch.losses, NULL, in->hidden.gradient,
                       in->lm_head.weight_gradient, in->hidden.value, in->lm_head.weight, targets,
                       &c));
    struct loss_rows loss_rows = {in->scratch.losses, targets, BATCH_IGNORED, NULL, NULL};
    return objective_loss_stats(k, in, &loss_rows, batch->rows, OBJECTIVE_LOSS);
}

const struct objective objective_clm = {
    .unit = "tokens", .perplexity = true, .smooths_labels = true, .loss = clm_loss};
