/* Direct preference optimization: make the chosen response of a pair more likely than the rejected
 * one, relative to a reference model.
 *
 *   loss = -sum_pairs log s(beta ((log p_c - log p_ref,c) - (log p_r - log p_ref,r))) / pairs
 *
 * log p_c and log p_r are the log-probabilities of the chosen and the rejected response, and s is
 * the logistic function. This is TRL's loss_type "sigmoid". preference.h lists the other losses.
 *
 * The classifier runs twice over the rows of the responses. The first run computes the
 * log-probabilities of the tokens. Their sums determine the gradients of the loss. The second run
 * scales the gradient of each row by the gradient of its response. Logits are not stored. Both runs
 * skip the rows of the prompts, which have no target.
 *
 * Source    Rafailov et al. 2023, arXiv:2305.18290; metrics: TRL's DPOTrainer */
#include <string.h>

#include "trainer/objective/objective.h"

enum dpo_sum {
    DPO_REWARD_CHOSEN = OBJECTIVE_COUNT + 1,
    DPO_REWARD_REJECTED,
    DPO_CORRECT_PAIRS,
    DPO_LOGPS_CHOSEN,
    DPO_LOGPS_REJECTED,
    DPO_LOGITS_CHOSEN,
    DPO_LOGITS_REJECTED,
    DPO_TOKENS_CHOSEN,
    DPO_TOKENS_REJECTED,
    DPO_ENTROPY,
    DPO_TOKENS,
    DPO_CORRECT_TOKENS,
    DPO_MARGIN,
    DPO_SUMS
};

_Static_assert((int)DPO_SUMS <= (int)OBJECTIVE_SUMS, "raise OBJECTIVE_SUMS");

static const struct objective_metric dpo_metrics[] = {
    {"rewards/chosen", DPO_REWARD_CHOSEN, OBJECTIVE_COUNT},
    {"rewards/rejected", DPO_REWARD_REJECTED, OBJECTIVE_COUNT},
    {"rewards/accuracies", DPO_CORRECT_PAIRS, OBJECTIVE_COUNT},
    {"rewards/margins", DPO_MARGIN, OBJECTIVE_COUNT},
    {"logps/chosen", DPO_LOGPS_CHOSEN, OBJECTIVE_COUNT},
    {"logps/rejected", DPO_LOGPS_REJECTED, OBJECTIVE_COUNT},
    {"logits/chosen", DPO_LOGITS_CHOSEN, DPO_TOKENS_CHOSEN},
    {"logits/rejected", DPO_LOGITS_REJECTED, DPO_TOKENS_REJECTED},
    {"entropy", DPO_ENTROPY, DPO_TOKENS},
    {"mean_token_accuracy", DPO_CORRECT_TOKENS, DPO_TOKENS_CHOSEN},
    {NULL, 0, 0},
};

/* The pairs of a batch and the rows of their responses that have a target. All memory is on the
 * host. The kernels read index, targets and scale from the row arrays of struct objective_input.
 * Response 2 i is the chosen one of pair i, response 2 i + 1 the rejected one. */
struct response_rows {
    int64_t rows;
    struct preference_pair *pairs;         /* [B] */
    struct preference_gradient *gradients; /* [B] */
    int64_t *first;                        /* [2 B + 1] first row of each response */
    int32_t *index;                        /* [rows] in the batch */
    int32_t *targets;                      /* [rows] */
    float *scale;                          /* [rows] */
};

/* Returns the bytes of the arrays of struct response_rows in host memory. There are at most as many
 * responses as rows, because each response has at least one row. */
static size_t dpo_scratch_bytes(int64_t rows)
{
    size_t pairs = (size_t)rows / RESPONSES + 1;
    return pairs * (sizeof(struct preference_pair) + sizeof(struct preference_gradient)) +
           (RESPONSES * pairs + 1) * sizeof(int64_t);
}

/* Finds the rows of response s of a batch, including prompt rows that the pair does not share.
 * Response 2 i is the chosen one of pair i, response 2 i + 1 the rejected one. */
static void find_response_rows(const struct batch *b, int64_t s, int32_t *first, int32_t *last)
{
    const int32_t *branches = b->preference_pairs.shared_prefix_offsets;
    if (branches == NULL) {
        *first = b->cu_rows[s];
        *last = b->cu_rows[s + 1];
        return;
    }
    int64_t pair = s / RESPONSES;
    bool chosen = s % RESPONSES == CHOSEN;
    *first = b->cu_rows[pair] + branches[s];
    *last = chosen ? b->cu_rows[pair] + branches[s + 1] : b->cu_rows[pair + 1];
}

static status collect_rows(const struct batch *b, const struct objective_input *in,
                           struct response_rows *a)
{
    const struct objective_scratch *scratch = &in->scratch;
    *a = (struct response_rows){.pairs = scratch->host,
                                .index = objective_host_pointer(in, scratch->selected_index),
                                .targets = objective_host_pointer(in, scratch->selected_targets),
                                .scale = objective_host_pointer(in, scratch->row_scales)};
    a->gradients = (struct preference_gradient *)(a->pairs + b->sequences);
    a->first = (int64_t *)(a->gradients + b->sequences);
    int64_t count = RESPONSES * b->sequences;
    for (int64_t s = 0; s < count; s++) {
        int32_t row, last;
        find_response_rows(b, s, &row, &last);
        a->first[s] = a->rows;
        for (; row < last; row++) {
            if (b->targets[row] != BATCH_IGNORED) {
                a->targets[a->rows] = b->targets[row];
                a->index[a->rows++] = row;
            }
        }
    }
    a->first[count] = a->rows;
    TRY(objective_upload(in, scratch->selected_index, (size_t)a->rows * sizeof *a->index));
    return objective_upload(in, scratch->selected_targets, (size_t)a->rows * sizeof *a->targets);
}

/* Results of the first run for each row, on the host. */
struct row_values {
    const float *losses, *entropies, *mean_logits;
    const int32_t *best;
};

static status download_row_values(const struct objective_input *in, int64_t rows,
                                  struct row_values *out)
{
    const struct objective_scratch *scratch = &in->scratch;
    const void *row_values[4] = {scratch->losses, scratch->entropies, scratch->mean_logits,
                                 scratch->argmax};
    TRY(objective_download(in, row_values, 4, (size_t)rows * sizeof(float)));
    *out = (struct row_values){row_values[0], row_values[1], row_values[2], row_values[3]};
    return STATUS_OK;
}

/* First run: computes the log-probabilities of the responses and adds the token metrics to sums. */
static status compute_logps(struct kernels *k, const struct batch *batch,
                            const struct response_rows *a, const struct objective_input *in,
                            double sums[OBJECTIVE_SUMS])
{
    const struct objective_scratch *scratch = &in->scratch;
    const double *reference = batch->preference_pairs.reference_logps;
    struct classifier c = objective_lm_classifier(in, false);
    c.entropies = scratch->entropies;
    c.mean_logits = scratch->mean_logits;
    struct tensor rows = tensor_rows(scratch->selected_rows, 0, a->rows);
    struct row_values row_values;
    TRY(op_gather_rows(k, rows, in->hidden.value, scratch->selected_index));
    TRY(classifier_run(k, scratch->losses, scratch->argmax, tensor_absent(), tensor_absent(), rows,
                       in->lm_head.weight, scratch->selected_targets, &c));
    TRY(download_row_values(in, a->rows, &row_values));
    for (int64_t s = 0; s < RESPONSES * batch->sequences; s++) {
        struct preference_pair *pair = &a->pairs[s / RESPONSES];
        int response = (int)(s % RESPONSES);
        pair->reference[response] = reference != NULL ? reference[s] : 0;
        pair->tokens[response] = a->first[s + 1] - a->first[s];
        pair->logps[response] = 0;
        for (int64_t i = a->first[s]; i < a->first[s + 1]; i++) {
            pair->logps[response] -= (double)row_values.losses[i];
            sums[DPO_ENTROPY] += (double)row_values.entropies[i];
            sums[DPO_LOGITS_CHOSEN + response] += (double)row_values.mean_logits[i];
            sums[DPO_CORRECT_TOKENS] += response == CHOSEN && row_values.best[i] == a->targets[i];
        }
        sums[DPO_TOKENS_CHOSEN + response] += (double)pair->tokens[response];
        sums[DPO_TOKENS] += (double)pair->tokens[response];
    }
    return STATUS_OK;
}

static void add_rewards(const struct preference_settings *settings,
                        const struct preference_pair *pairs, int64_t count,
                        double sums[OBJECTIVE_SUMS])
{
    for (int64_t i = 0; i < count; i++) {
        const struct preference_pair *p = &pairs[i];
        double chosen = settings->beta * (p->logps[CHOSEN] - p->reference[CHOSEN]);
        double rejected = settings->beta * (p->logps[REJECTED] - p->reference[REJECTED]);
        sums[DPO_REWARD_CHOSEN] += chosen;
        sums[DPO_REWARD_REJECTED] += rejected;
        sums[DPO_MARGIN] += chosen - rejected;
        sums[DPO_CORRECT_PAIRS] += chosen > rejected;
        sums[DPO_LOGPS_CHOSEN] += p->logps[CHOSEN];
        sums[DPO_LOGPS_REJECTED] += p->logps[REJECTED];
    }
    sums[OBJECTIVE_COUNT] += (double)count;
}

/* Second run: computes the gradients. The loss of a token is -log p, so the scale of a row is the
 * negative gradient with respect to log p. */
static status compute_gradients(struct kernels *k, const struct batch *batch,
                                const struct response_rows *a, const struct objective_input *in)
{
    const struct objective_scratch *scratch = &in->scratch;
    for (int64_t s = 0; s < RESPONSES * batch->sequences; s++) {
        for (int64_t i = a->first[s]; i < a->first[s + 1]; i++) {
            a->scale[i] = (float)-a->gradients[s / RESPONSES].logps[s % RESPONSES];
        }
    }
    TRY(objective_upload(in, scratch->row_scales, (size_t)a->rows * sizeof *a->scale));
    struct classifier c = objective_lm_classifier(in, true);
    c.row_scale = scratch->row_scales;
    struct tensor rows = tensor_rows(scratch->selected_rows, 0, a->rows);
    struct tensor gradient = tensor_rows(scratch->selected_gradient, 0, a->rows);
    TRY(classifier_run(k, scratch->losses, NULL, gradient, in->lm_head.weight_gradient, rows,
                       in->lm_head.weight, scratch->selected_targets, &c));
    return op_scatter_rows(k, in->hidden.gradient, gradient, scratch->selected_index, true);
}

static status find_pair_gradients(const struct batch *batch, const struct objective_input *in,
                                  struct response_rows *a)
{
    if (in->whole_batch.gradients == NULL) {
        return preference_gradients(in->preference, a->pairs, batch->sequences, a->gradients);
    }
    for (int64_t i = 0; i < batch->sequences; i++) {
        a->gradients[i] = in->whole_batch.gradients[batch->samples[i] % in->whole_batch.size];
    }
    return STATUS_OK;
}

static status dpo_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_input *in, bool gradient, double sums[OBJECTIVE_SUMS])
{
    const struct batch_preference_pairs *pairs = &batch->preference_pairs;
    REQUIRE(in->preference != NULL && batch->kind == BATCH_PREFERENCE_PAIRS &&
                pairs->reference_logps != NULL &&
                batch->segments ==
                    batch->sequences * (pairs->shared_prefix_offsets == NULL ? RESPONSES : 1),
            STATUS_INTERNAL, "objective dpo needs %s",
            in->preference == NULL ? "the settings of its loss"
                                   : "preference pairs and the reference log-probabilities");
    struct response_rows a;
    TRY(collect_rows(batch, in, &a));
    TRY(compute_logps(k, batch, &a, in, sums));
    add_rewards(in->preference, a.pairs, batch->sequences, sums);
    if (in->whole_batch.collected_pairs != NULL) {
        for (int64_t i = 0; i < batch->sequences; i++) {
            in->whole_batch.collected_pairs[batch->samples[i] % in->whole_batch.size] = a.pairs[i];
        }
        return STATUS_OK;
    }
    TRY(find_pair_gradients(batch, in, &a));
    for (int64_t i = 0; i < batch->sequences; i++) {
        sums[OBJECTIVE_LOSS] += a.gradients[i].loss;
    }
    return gradient ? compute_gradients(k, batch, &a, in) : STATUS_OK;
}

/* Stores the log-probabilities of the model, which is the reference here, by sample number. */
static status dpo_reference_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_input *in, bool gradient,
                                 double sums[OBJECTIVE_SUMS])
{
    (void)gradient;
    struct response_rows a;
    double unused[OBJECTIVE_SUMS] = {0};
    TRY(collect_rows(batch, in, &a));
    TRY(compute_logps(k, batch, &a, in, unused));
    for (int64_t i = 0; i < batch->sequences; i++) {
        double *logps = in->reference_logps + RESPONSES * batch->samples[i];
        memcpy(logps, a.pairs[i].logps, sizeof a.pairs[i].logps);
        sums[OBJECTIVE_LOSS] -= logps[CHOSEN] + logps[REJECTED];
    }
    sums[OBJECTIVE_COUNT] += (double)batch->sequences;
    return STATUS_OK;
}

const struct objective objective_dpo_reference = {
    .unit = "pairs",
    .scratch_bytes = dpo_scratch_bytes,
    .loss = dpo_reference_loss,
};

const struct objective objective_dpo = {
    .metrics = dpo_metrics,
    .main_metric = 2, /* rewards/accuracies */
    .unit = "pairs",
    .scratch_bytes = dpo_scratch_bytes,
    .loss = dpo_loss,
};
