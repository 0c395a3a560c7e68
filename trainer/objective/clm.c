/* Causal language modelling: each token predicts the next one.
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
    struct classifier c = {
        .vocabulary = in->vocabulary,
        .ignored = BATCH_IGNORED,
        .gradient = gradient,
        .overwrite = in->first_micro_batch,
        .vocabulary_shard = in->vocabulary_shard,
    };
    TRY(classifier_run(k, in->losses, NULL, in->hidden_gradient, in->head_gradient, in->hidden,
                       in->head, in->device_batch->targets, &c));
    struct loss_rows tally = {in->losses, in->device_batch->targets, BATCH_IGNORED, NULL, NULL};
    return objective_loss_stats(k, in, &tally, batch->rows, OBJECTIVE_LOSS);
}

const struct objective objective_clm = {
    .name = "clm", .unit = "tokens", .perplexity = true, .loss = clm_loss};
