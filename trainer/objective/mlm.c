/* Masked language modelling, and whether the second segment follows the first.
 *
 * Two losses, -log p(token) over the masked rows and -log p(label) over the examples. What is learned from is the
 * sum of their means over the global batch, as in BERT. The step divides all gradients by the number of predictions
 * at the end: an example's gradient is weighted by predictions over examples, which the step knows beforehand.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805, section 3.1 and appendix A.2 */
#include "trainer/objective/objective.h"

enum {
    TOKEN_LOSS = OBJECTIVE_LOSS,
    TOKENS = OBJECTIVE_COUNT,
    TOKENS_RIGHT,
    EXAMPLE_LOSS,
    EXAMPLES,
    EXAMPLES_RIGHT
};

static const struct objective_metric metrics[] = {
    {"mlm_loss", TOKEN_LOSS, TOKENS},
    {"mlm_accuracy", TOKENS_RIGHT, TOKENS},
    {"nsp_loss", EXAMPLE_LOSS, EXAMPLES},
    {"nsp_accuracy", EXAMPLES_RIGHT, EXAMPLES},
    {NULL, 0, 0},
};

static const struct objective_metric losses[] = {
    {"mlm_loss", TOKEN_LOSS, TOKENS},
    {"nsp_loss", EXAMPLE_LOSS, EXAMPLES},
    {NULL, 0, 0},
};

static status add_up(struct kernels *k, const struct objective_views *views, const int32_t *targets,
                     int64_t rows, double *sums, int first)
{
    struct tally tally = {views->losses, targets, BATCH_IGNORED, views->best, NULL};
    return objective_tally(k, views, &tally, rows, sums, first);
}

static status token_loss(struct kernels *k, const struct batch *batch,
                         const struct objective_views *views, bool gradient, double *sums)
{
    struct classifier c = {
        .vocabulary = views->vocabulary,
        .ignored = BATCH_IGNORED,
        .bias = views->head_bias,
        .dbias = views->head_bias_gradient,
        .gradient = gradient,
        .overwrite = views->fresh,
        .parts = views->parts,
    };
    TRY(classifier_run(k, views->losses, views->best, views->hidden_gradient, views->head_gradient,
                       views->hidden, views->head, views->placed->masked_ids, &c));
    return add_up(k, views, views->placed->masked_ids, batch->masked, sums, TOKEN_LOSS);
}

static status example_loss(struct kernels *k, const struct batch *batch,
                           const struct objective_views *views, bool gradient, double *sums)
{
    TRY(objective_scale(views, batch->sequences, views->example_weight));
    struct classifier c = {
        .vocabulary = views->labels.rows,
        .ignored = BATCH_IGNORED,
        .bias = views->labels_bias,
        .dbias = views->labels_bias_gradient,
        .row_scale = views->row_scales,
        .gradient = gradient,
        .overwrite = views->fresh,
    };
    TRY(classifier_run(k, views->losses, views->best, views->pooled_gradient,
                       views->labels_gradient, views->pooled, views->labels,
                       views->placed->next_sentence, &c));
    return add_up(k, views, views->placed->next_sentence, batch->sequences, sums, EXAMPLE_LOSS);
}

static status mlm_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_views *views, bool gradient,
                       double sums[OBJECTIVE_SUMS])
{
    TRY(token_loss(k, batch, views, gradient, sums));
    return views->labels.data != NULL ? example_loss(k, batch, views, gradient, sums) : STATUS_OK;
}

const struct objective objective_mlm = {.name = "mlm",
                                        .metrics = metrics,
                                        .counted = "predictions",
                                        .losses = losses,
                                        .looks_ahead = true,
                                        .tallied = EXAMPLES_RIGHT + 1,
                                        .loss = mlm_loss};
