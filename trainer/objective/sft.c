/* Supervised fine-tuning: next-token prediction on the tokens that the loss mask selects.
 *
 *   loss = -sum_{i in mask} log p(x_{i+1} | x_1 .. x_i of the same example) / tokens in mask
 *
 * The loss is that of TRL's SFTTrainer with loss_type "nll". The metrics have TRL's names and are
 * means over the tokens in the mask. mean_token_accuracy is the fraction of tokens to which the
 * model gives the highest probability. entropy is the entropy of the predicted distribution in
 * nats.
 *
 * Source    Ouyang et al. 2022, arXiv:2203.02155; TRL's SFTTrainer */
#include "trainer/objective/objective.h"

enum { CORRECT = 2, ENTROPY };

static status sft_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    struct classifier c = {
        .vocabulary = in->vocabulary,
        .ignored = BATCH_IGNORED,
        .gradient = gradient,
        .overwrite = in->first_micro_batch,
        .entropies = in->entropies,
        .mean_logits = in->mean_logits,
        .vocabulary_shard = in->vocabulary_shard,
    };
    TRY(classifier_run(k, in->losses, in->argmax, in->hidden_gradient, in->head_gradient,
                       in->hidden, in->head, in->device_batch->targets, &c));
    struct loss_rows tally = {in->losses, in->device_batch->targets, BATCH_IGNORED, in->argmax,
                              in->entropies};
    return objective_loss_stats(k, in, &tally, batch->rows, OBJECTIVE_LOSS);
}

static const struct objective_metric metrics[] = {
    {"mean_token_accuracy", CORRECT, OBJECTIVE_COUNT}, {"entropy", ENTROPY, OBJECTIVE_COUNT}, {0}};

const struct objective objective_sft = {
    .name = "sft", .metrics = metrics, .unit = "tokens", .perplexity = true, .loss = sft_loss};
