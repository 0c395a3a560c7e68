/* Objective mlm: masked language modeling and next-sentence prediction.
 *
 *   loss = -sum_{masked rows} log p(token) / M  -  sum_{examples} log p(is_next) / E
 *
 * M masked rows and E examples are counted over the global batch, as in BERT. The step divides all
 * gradients by M at the end. Therefore the gradient of an example is multiplied by M / E
 * (example_weight), which the step computes before the first gradient. If M is 0, only the second
 * term remains, as in the code of BERT; the loss of transformers is NaN then. RoBERTa has the first
 * term only.
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
    struct loss_rows loss_rows = {in->scratch.losses, targets, BATCH_IGNORED, in->scratch.argmax,
                                  NULL};
    return objective_loss_stats(k, in, &loss_rows, rows, first);
}

static status compute_token_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_input *in, bool gradient)
{
    const struct objective_lm_head *head = &in->lm_head;
    const int32_t *targets = in->device_batch->outputs.targets;
    const struct classifier c = objective_lm_classifier(in, gradient);
    TRY(classifier_run(k, in->scratch.losses, in->scratch.argmax, in->hidden.gradient,
                       head->weight_gradient, in->hidden.value, head->weight, targets, &c));
    return add_stats(k, in, targets, batch->outputs.count, TOKEN_LOSS);
}

/* Sets the row scales to example_weight. The host memory is 1 in every step, because a queued copy
 * of the previous step may still read it. A kernel gets the weight, which differs between steps. */
static status set_row_scales(struct kernels *k, const struct batch *batch,
                             const struct objective_input *in)
{
    TRY(objective_set_row_scale(in, batch->sequences, 1));
    return op_scale(k, tensor_view(in->scratch.row_scales, DTYPE_F32, 1, batch->sequences),
                    (float)in->example_weight);
}

static status compute_example_loss(struct kernels *k, const struct batch *batch,
                                   const struct objective_input *in, bool gradient)
{
    const struct objective_label_head *head = &in->label_head;
    const int32_t *next_sentence = in->device_batch->sentence_pairs.next_sentence;
    TRY(set_row_scales(k, batch, in));
    struct classifier c = {
        .vocabulary = head->weight.rows,
        .ignored = BATCH_IGNORED,
        .bias = head->bias,
        .dbias = head->bias_gradient,
        .row_scale = in->scratch.row_scales,
        .gradient = gradient,
        .overwrite = in->first_micro_batch,
    };
    TRY(classifier_run(k, in->scratch.losses, in->scratch.argmax, head->pooled_gradient,
                       head->weight_gradient, head->pooled, head->weight, next_sentence, &c));
    return add_stats(k, in, next_sentence, batch->sequences, EXAMPLE_LOSS);
}

static status mlm_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    REQUIRE(batch->kind == BATCH_SENTENCE_PAIRS, STATUS_INTERNAL,
            "objective mlm needs a batch of sentence pairs");
    TRY(compute_token_loss(k, batch, in, gradient));
    return in->label_head.weight.data != NULL ? compute_example_loss(k, batch, in, gradient)
                                              : STATUS_OK;
}

const struct objective objective_mlm = {.metrics = metrics,
                                        .main_metric = 1, /* mlm_accuracy */
                                        .unit = "predictions",
                                        .loss_terms = loss_terms,
                                        .smooths_labels = true,
                                        .needs_global_counts = true,
                                        .loss = mlm_loss};
