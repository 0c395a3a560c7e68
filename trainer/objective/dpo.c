/* Objective dpo, direct preference optimization: make the chosen response of a pair more likely
 * than the rejected one, relative to a reference model.
 *
 *   loss = -sum_pairs log s(beta ((log p_c - log p_ref,c) - (log p_r - log p_ref,r))) / pairs
 *
 * log p_c and log p_r are the log-probabilities of the chosen and the rejected response, and s is
 * the logistic function. This is TRL's loss_type "sigmoid". preference.h lists the other losses.
 *
 * The classifier runs twice over the rows of the responses. The first run computes the
 * log-probabilities of the tokens. preference_loss_run adds them, computes the loss, and sets the
 * scales of the rows. The second run multiplies the gradient of each row by its scale. Logits are
 * not stored. Both runs skip the rows of the prompts, which have no target. The host does not wait
 * for the device. For a loss that reads the whole batch, a first pass collects the pairs.
 *
 * Source    Rafailov et al. 2023, arXiv:2305.18290; metrics: TRL's DPOTrainer */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/objective/objective.h"
#include "trainer/objective/pair_loss.h"

_Static_assert((int)OBJECTIVE_LOSS + (int)PREFERENCE_SUMS <= (int)OBJECTIVE_SUMS &&
                   (int)OBJECTIVE_COUNT == (int)OBJECTIVE_LOSS + (int)PREFERENCE_SUM_PAIRS,
               "the sums of a preference loss are the first sums of an objective");

static const struct objective_metric dpo_metrics[] = {
    {"rewards/chosen", PREFERENCE_SUM_REWARD_CHOSEN, OBJECTIVE_COUNT},
    {"rewards/rejected", PREFERENCE_SUM_REWARD_REJECTED, OBJECTIVE_COUNT},
    {"rewards/accuracies", PREFERENCE_SUM_CORRECT_PAIRS, OBJECTIVE_COUNT},
    {"rewards/margins", PREFERENCE_SUM_MARGIN, OBJECTIVE_COUNT},
    {"logps/chosen", PREFERENCE_SUM_LOGPS_CHOSEN, OBJECTIVE_COUNT},
    {"logps/rejected", PREFERENCE_SUM_LOGPS_REJECTED, OBJECTIVE_COUNT},
    {"logits/chosen", PREFERENCE_SUM_LOGITS_CHOSEN, PREFERENCE_SUM_TOKENS_CHOSEN},
    {"logits/rejected", PREFERENCE_SUM_LOGITS_REJECTED, PREFERENCE_SUM_TOKENS_REJECTED},
    {"entropy", PREFERENCE_SUM_ENTROPY, PREFERENCE_SUM_TOKENS},
    {"mean_token_accuracy", PREFERENCE_SUM_CORRECT_TOKENS, PREFERENCE_SUM_TOKENS_CHOSEN},
    {NULL, 0, 0},
};

/* Returns the arrays of the batch and of the first run, in device memory. check_pairs must have
 * accepted the batch. */
static struct preference_rows get_rows(const struct batch *batch, const struct objective_input *in)
{
    const struct objective_scratch *scratch = &in->scratch;
    const struct batch_preference_pairs *pairs = &in->device_batch->preference_pairs;
    struct preference_rows r = {
        .pairs = batch->sequences,
        .rows = batch->preference_pairs.first_targets[RESPONSES * batch->sequences],
        .first = pairs->first_targets,
        .losses = scratch->losses,
        .entropies = scratch->entropies,
        .mean_logits = scratch->mean_logits,
        .argmax = scratch->argmax,
        .targets = pairs->target_ids,
        .reference = pairs->reference_logps,
        .gradients = in->whole_batch.gradients,
    };
    if (r.gradients != NULL) {
        r.gradient_count = in->whole_batch.size;
        r.gradient_first = batch->samples[0] % in->whole_batch.size;
    }
    return r;
}

/* Runs the classifier to compute the log-probabilities of the tokens. */
static status compute_logps(struct kernels *k, const struct objective_input *in,
                            const struct preference_rows *r)
{
    const struct objective_scratch *scratch = &in->scratch;
    struct classifier c = objective_lm_classifier(in, false);
    c.entropies = scratch->entropies;
    c.mean_logits = scratch->mean_logits;
    struct tensor rows = tensor_rows(scratch->selected_rows, 0, r->rows);
    TRY(op_gather_rows(k, rows, in->hidden.value, in->device_batch->preference_pairs.target_rows));
    return classifier_run(k, scratch->losses, scratch->argmax, tensor_absent(), tensor_absent(),
                          rows, in->lm_head.weight, r->targets, &c);
}

/* Runs the classifier again to compute the gradients. */
static status compute_gradients(struct kernels *k, const struct objective_input *in,
                                const struct preference_rows *r)
{
    const struct objective_scratch *scratch = &in->scratch;
    struct classifier c = objective_lm_classifier(in, true);
    c.row_scale = scratch->row_scales;
    struct tensor rows = tensor_rows(scratch->selected_rows, 0, r->rows);
    struct tensor gradient = tensor_rows(scratch->selected_gradient, 0, r->rows);
    TRY(classifier_run(k, scratch->losses, NULL, gradient, in->lm_head.weight_gradient, rows,
                       in->lm_head.weight, r->targets, &c));
    return op_scatter_rows(k, in->hidden.gradient, gradient,
                           in->device_batch->preference_pairs.target_rows, true);
}

static double *get_device_sums(const struct objective_input *in)
{
    return in->device_sums != NULL ? in->device_sums + OBJECTIVE_LOSS : NULL;
}

/* Computes the log-probabilities of the responses, copies them to the host, and waits for them. */
static status download_logps(struct kernels *k, const struct objective_input *in,
                             const struct preference_rows *r, const double **logps)
{
    const struct preference_settings no_terms = {0};
    const void *array = in->scratch.pair_values;
    TRY(preference_loss_run(k, NULL, NULL, in->scratch.pair_values, r, &no_terms));
    TRY(objective_download(in, &array, 1, (size_t)(RESPONSES * r->pairs) * sizeof **logps));
    *logps = array;
    return STATUS_OK;
}

static void set_pair(const struct batch *batch, const double *logps, int64_t i,
                     struct preference_pair *pair)
{
    const struct batch_preference_pairs *pairs = &batch->preference_pairs;
    for (int a = 0; a < RESPONSES; a++) {
        int64_t s = RESPONSES * i + a;
        pair->logps[a] = logps[s];
        pair->reference[a] = pairs->reference_logps[s];
        pair->tokens[a] = pairs->first_targets[s + 1] - pairs->first_targets[s];
    }
}

/* Runs the first pass of a loss of the whole batch: stores the pairs of this micro-batch. */
static status collect_pairs(struct kernels *k, const struct batch *batch,
                            const struct objective_input *in, const struct preference_rows *r)
{
    const struct preference_settings no_terms = {.beta = in->preference->beta};
    TRY(preference_loss_run(k, get_device_sums(in), NULL, in->scratch.pair_values, r, &no_terms));
    return pair_loss_add(in->whole_batch.collected_pairs, in->scratch.pair_values, r,
                         batch->samples[0]);
}

/* Computes the gradients of a loss of the whole batch from the pairs of this micro-batch alone. */
static status compute_alone(struct kernels *k, const struct batch *batch,
                            const struct objective_input *in, struct preference_rows *r)
{
    const double *logps = NULL;
    struct preference_pair *pairs = NULL;
    void *host = objective_host_pointer(in, in->scratch.pair_values);
    TRY(download_logps(k, in, r, &logps));
    TRY(ALLOCATE(pairs, r->pairs + 1, "pairs"));
    for (int64_t i = 0; i < r->pairs; i++) {
        set_pair(batch, logps, i, &pairs[i]);
    }
    status result = preference_gradients(in->preference, pairs, r->pairs, host);
    free(pairs);
    TRY(result);
    r->gradients = (const struct preference_gradient *)(const void *)in->scratch.pair_values;
    r->gradient_count = r->pairs;
    return objective_upload(in, in->scratch.pair_values, (size_t)r->pairs * sizeof *r->gradients);
}

/* Checks the arrays that both passes read. get_rows needs consecutive samples. */
static status check_pairs(const struct batch *batch, bool needs_samples)
{
    const struct batch_preference_pairs *pairs = &batch->preference_pairs;
    REQUIRE(batch->kind == BATCH_PREFERENCE_PAIRS && pairs->first_targets != NULL &&
                batch->segments ==
                    batch->sequences * (pairs->shared_prefix_offsets == NULL ? RESPONSES : 1),
            STATUS_INTERNAL, "objective dpo needs preference pairs and the lists of their targets");
    return needs_samples ? objective_check_samples(batch, "dpo") : STATUS_OK;
}

static status check_batch(const struct batch *batch, const struct objective_input *in)
{
    const struct objective_whole_batch *whole = &in->whole_batch;
    REQUIRE(in->preference != NULL && batch->preference_pairs.reference_logps != NULL,
            STATUS_INTERNAL, "objective dpo needs %s",
            in->preference == NULL ? "the settings of its loss"
                                   : "the reference log-probabilities");
    return check_pairs(batch, whole->collected_pairs != NULL || whole->gradients != NULL);
}

/* Computes the loss of a micro-batch. The number of selected rows varies, so their launches are in
 * a separate segment of the graph. */
static status dpo_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    TRY(check_batch(batch, in));
    struct preference_rows r = get_rows(batch, in);
    TRY(kernels_graph_end_segment(k));
    TRY(compute_logps(k, in, &r));
    if (in->whole_batch.collected_pairs != NULL) {
        return collect_pairs(k, batch, in, &r);
    }
    if (r.gradients == NULL && preference_needs_whole_batch(in->preference)) {
        TRY(compute_alone(k, batch, in, &r));
    }
    TRY(preference_loss_run(k, get_device_sums(in), gradient ? in->scratch.row_scales : NULL, NULL,
                            &r, in->preference));
    TRY(gradient ? compute_gradients(k, in, &r) : STATUS_OK);
    return kernels_graph_end_segment(k);
}

/* Stores the log-probabilities of the model, which is the reference here, by sample number. */
static status dpo_reference_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_input *in, bool gradient,
                                 double sums[OBJECTIVE_SUMS])
{
    (void)gradient;
    TRY(check_pairs(batch, true));
    const struct preference_rows r = get_rows(batch, in);
    const double *logps = NULL;
    TRY(compute_logps(k, in, &r));
    TRY(download_logps(k, in, &r, &logps));
    for (int64_t i = 0; i < batch->sequences; i++) {
        const double *pair = logps + RESPONSES * i;
        memcpy(in->reference_logps + RESPONSES * batch->samples[i], pair, RESPONSES * sizeof *pair);
        sums[OBJECTIVE_LOSS] -= pair[CHOSEN] + pair[REJECTED];
    }
    sums[OBJECTIVE_COUNT] += (double)batch->sequences;
    return STATUS_OK;
}

const struct objective objective_dpo_reference = {
    .unit = "pairs",
    .selects_rows = true,
    .loss = dpo_reference_loss,
};

const struct objective objective_dpo = {
    .metrics = dpo_metrics,
    .main_metric = 2, /* rewards/accuracies */
    .unit = "pairs",
    .selects_rows = true,
    .loss = dpo_loss,
};
