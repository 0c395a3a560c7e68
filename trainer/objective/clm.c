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
    double loss = 0;
    TRY(sum_of_floats(k, &loss, views->losses, batch->rows));
    int64_t counted = 0;
    for (int64_t i = 0; i < batch->rows; i++) {
        counted += batch->targets[i] != BATCH_IGNORED;
    }
    sums[OBJECTIVE_LOSS] += loss;
    sums[OBJECTIVE_COUNT] += (double)counted;
    return STATUS_OK;
}

const struct objective objective_clm = {
    .name = "clm", .counted = "tokens", .perplexity = true, .loss = clm_loss};
