/* Supervised fine-tuning: the next token, where it is to be learned, from what stands before it in its own example.
 *
 * The metrics are TRL's, over the learned tokens: mean_token_accuracy is the share of them that the model finds most
 * probable, entropy the mean of its distributions' in nats. */
#include "trainer/objective/objective.h"

enum { CORRECT = 2, ENTROPY };

static status sft_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_views *views, bool gradient,
                       double sums[OBJECTIVE_SUMS])
{
    struct classifier c = {
        .vocabulary = views->vocabulary,
        .ignored = BATCH_IGNORED,
        .gradient = gradient,
        .overwrite = views->fresh,
        .entropies = views->entropies,
        .mean_logits = views->mean_logits,
        .parts = views->parts,
    };
    TRY(classifier_run(k, views->losses, views->best, views->hidden_gradient, views->head_gradient,
                       views->hidden, views->head, views->placed->targets, &c));
    struct tally tally = {views->losses, views->placed->targets, BATCH_IGNORED, views->best,
                          views->entropies};
    return objective_tally(k, views, &tally, batch->rows, sums, OBJECTIVE_LOSS);
}

static const struct objective_metric metrics[] = {
    {"mean_token_accuracy", CORRECT, OBJECTIVE_COUNT}, {"entropy", ENTROPY, OBJECTIVE_COUNT}, {0}};

const struct objective objective_sft = {.name = "sft",
                                        .metrics = metrics,
                                        .counted = "tokens",
                                        .perplexity = true,
                                        .tallied = 4,
                                        .loss = sft_loss};
