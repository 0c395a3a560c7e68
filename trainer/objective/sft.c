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
    double loss = 0;
    TRY(sum_of_floats(k, &loss, views->losses, batch->rows));
    const void *best = NULL, *entropies = NULL;
    size_t bytes = (size_t)batch->rows * sizeof(float);
    TRY(objective_read(views, views->best, bytes, &best));
    TRY(objective_read(views, views->entropies, bytes, &entropies));
    sums[OBJECTIVE_LOSS] += loss;
    for (int64_t i = 0; i < batch->rows; i++) {
        if (batch->targets[i] != BATCH_IGNORED) {
            sums[OBJECTIVE_COUNT] += 1;
            sums[CORRECT] += ((const int32_t *)best)[i] == batch->targets[i];
            sums[ENTROPY] += (double)((const float *)entropies)[i];
        }
    }
    return STATUS_OK;
}

static const struct objective_metric metrics[] = {
    {"mean_token_accuracy", CORRECT, OBJECTIVE_COUNT}, {"entropy", ENTROPY, OBJECTIVE_COUNT}, {0}};

const struct objective objective_sft = {
    .name = "sft", .metrics = metrics, .counted = "tokens", .perplexity = true, .loss = sft_loss};
