/* Masked language modelling and next-sentence prediction.
 *
 *   loss = -sum_{masked rows} log p(token) / M  -  sum_{examples} log p(is_next) / E
 *
 * M masked rows and E examples are counted over the global batch, as in BERT. The step divides all
 * gradients by M at the end. So the gradient of an example is multiplied by M / E
 * (example_weight), which the step computes before the first gradient. RoBERTa has the first term
 * only.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section 3.1 and appendix A.2 */
#include "trainer/objective/objective.h"

enum {
    TOKEN_LOSS = OBJECTIVE_LOSS,
    TOKENS = OBJECTIVE_COUNT,
    TOKENS_CORRECT,
    EXAMPLE_LOSS,
    EXAMPLES,
    EXAMPLES_CORRECT
};

static const struct objective_metric metrics[] = {
    {"mlm_loss", TOKEN_LOSS, TOKENS},
    {"mlm_accuracy", TOKENS_CORRECT, TOKENS},
    {"nsp_loss", EXAMPLE_LOSS, EXAMPLES},
    {"nsp_accuracy", EXAMPLES_CORRECT, EXAMPLES},
    {NULL, 0, 0},
};

static const struct objective_metric loss_terms[] = {
    {"mlm_loss", TOKEN_LOSS, TOKENS},
    {"nsp_loss", EXAMPLE_LOSS, EXAMPLES},
    {NULL, 0, 0},
};

static status add_stats(struct kernels *k, const struct objective_input *in, const int32_t *targets,
                        int64_t rows, int first)
{
    struct loss_rows tally = {in->losses, targets, BATCH_IGNORED, in->argmax, NULL};
    return objective_loss_stats(k, in, &tally, rows, first);
}

static status compute_token_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_input *in, bool gradient)
{
    struct classifier c = {
        .vocabulary = in->vocabulary,
        .ignored = BATCH_IGNORED,
        .bias = in->head_bias,
        .dbias = in->head_bias_gradient,
        .gradient = gradient,
        .overwrite = in->first_micro_batch,
        .vocabulary_shard = in->vocabulary_shard,
    };
    TRY(classifier_run(k, in->losses, in->argmax, in->hidden_gradient, in->head_gradient,
                       in->hidden, in->head, in->device_batch->masked_ids, &c));
    return add_stats(k, in, in->device_batch->masked_ids, batch->masked, TOKEN_LOSS);
}

static status compute_example_loss(struct kernels *k, const struct batch *batch,
                                   const struct objective_input *in, bool gradient)
{
    TRY(objective_set_row_scale(in, batch->sequences, in->example_weight));
    struct classifier c = {
        .vocabulary = in->label_weight.rows,
        .ignored = BATCH_IGNORED,
        .bias = in->label_bias,
        .dbias = in->label_bias_gradient,
        .row_scale = in->row_scales,
        .gradient = gradient,
        .overwrite = in->first_micro_batch,
    };
    TRY(classifier_run(k, in->losses, in->argmax, in->pooled_gradient, in->label_weight_gradient,
                       in->pooled, in->label_weight, in->device_batch->next_sentence, &c));
    return add_stats(k, in, in->device_batch->next_sentence, batch->sequences, EXAMPLE_LOSS);
}

static status mlm_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    TRY(compute_token_loss(k, batch, in, gradient));
    return in->label_weight.data != NULL ? compute_example_loss(k, batch, in, gradient) : STATUS_OK;
}

const struct objective objective_mlm = {.name = "mlm",
                                        .metrics = metrics,
                                        .unit = "predictions",
                                        .loss_terms = loss_terms,
                                        .needs_global_counts = true,
                                        .loss = mlm_loss};
