/* Causal language modelling: each token predicts the next one; the loss is -log p(next), summed. */
#include "trainer/objective/objective.h"

static status clm_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_views *views, bool gradient,
                       double sums[OBJECTIVE_SUMS])
{
    struct classifier c = {
        .vocabulary = views->vocabulary,
        .ignored = BATCH_IGNORED,
        .gradient = gradient,
        .overwrite = views->fresh,
        .parts = views->parts,
    };
    TRY(classifier_run(k, views->losses, NULL, views->hidden_gradient, views->head_gradient,
                       views->hidden, views->head, views->placed->targets, &c));
    struct tally tally = {views->losses, views->placed->targets, BATCH_IGNORED, NULL, NULL};
    return objective_tally(k, views, &tally, batch->rows, sums, OBJECTIVE_LOSS);
}

const struct objective objective_clm = {
    .name = "clm", .counted = "tokens", .perplexity = true, .tallied = 2, .loss = clm_loss};
