/* Direct preference optimisation: of two answers to a prompt the chosen one becomes more likely, measured against a
 * reference.
 *
 * Two sweeps of the classifier over the answers' rows: the first gives the tokens' log-probabilities, whose sums decide
 * the slopes of the loss (preference.h); in the second every row's gradient is weighed with its answer's slope. Logits
 * are never kept. Rows of prompts predict nothing and are left out of both.
 *
 * Source    Rafailov et al. 2023, arXiv:2305.18290 */
#include <string.h>

#include "trainer/objective/objective.h"

enum dpo_sum {
    DPO_REWARD_CHOSEN = OBJECTIVE_COUNT + 1,
    DPO_REWARD_REJECTED,
    DPO_ACCURATE,
    DPO_LOGPS_CHOSEN,
    DPO_LOGPS_REJECTED,
    DPO_LOGITS_CHOSEN,
    DPO_LOGITS_REJECTED,
    DPO_TOKENS_CHOSEN,
    DPO_TOKENS_REJECTED,
    DPO_ENTROPY,
    DPO_TOKENS,
    DPO_CORRECT,
    DPO_MARGIN,
    DPO_SUMS
};

_Static_assert((int)DPO_SUMS <= (int)OBJECTIVE_SUMS, "raise OBJECTIVE_SUMS");

static const struct objective_metric dpo_metrics[] = {
    {"rewards/chosen", DPO_REWARD_CHOSEN, OBJECTIVE_COUNT},
    {"rewards/rejected", DPO_REWARD_REJECTED, OBJECTIVE_COUNT},
    {"rewards/accuracies", DPO_ACCURATE, OBJECTIVE_COUNT},
    {"rewards/margins", DPO_MARGIN, OBJECTIVE_COUNT},
    {"logps/chosen", DPO_LOGPS_CHOSEN, OBJECTIVE_COUNT},
    {"logps/rejected", DPO_LOGPS_REJECTED, OBJECTIVE_COUNT},
    {"logits/chosen", DPO_LOGITS_CHOSEN, DPO_TOKENS_CHOSEN},
    {"logits/rejected", DPO_LOGITS_REJECTED, DPO_TOKENS_REJECTED},
    {"entropy", DPO_ENTROPY, DPO_TOKENS},
    {"mean_token_accuracy", DPO_CORRECT, DPO_TOKENS_CHOSEN},
    {NULL, 0, 0},
};

/* The answers' rows among all: first[2 i] .. of the chosen answer of pair i, first[2 i + 1] .. of the rejected one; and
 * the pairs. All of it is the host's; kernels have index, targets and scale in the views' arrays. */
struct answers {
    int64_t rows;
    struct preference_pair *pairs;   /* [B] */
    struct preference_slope *slopes; /* [B] */
    int64_t *first;                  /* [2 B + 1] */
    int32_t *index;                  /* [rows] in the batch */
    int32_t *targets;                /* [rows] */
    float *scale;                    /* [rows] */
};

/* Every answer has a row at least, so that there are no more of them than rows. */
static size_t dpo_scratch_bytes(int64_t rows)
{
    size_t pairs = (size_t)rows / ANSWERS + 1;
    return pairs * (sizeof(struct preference_pair) + sizeof(struct preference_slope)) +
           (ANSWERS * pairs + 1) * sizeof(int64_t);
}

/* The rows of answer s of a batch, counted chosen and rejected in turn, with the prompt's that are not shared. */
static void answer_rows(const struct batch *b, int64_t s, int32_t *first, int32_t *last)
{
    if (b->branches == NULL) {
        *first = b->cu_rows[s];
        *last = b->cu_rows[s + 1];
        return;
    }
    int64_t pair = s / ANSWERS;
    bool chosen = s % ANSWERS == CHOSEN;
    *first = b->cu_rows[pair] + b->branches[s];
    *last = chosen ? b->cu_rows[pair] + b->branches[s + 1] : b->cu_rows[pair + 1];
}

static status answers_find(const struct batch *b, const struct objective_views *v,
                           struct answers *a)
{
    *a = (struct answers){.pairs = v->scratch,
                          .index = objective_host(v, v->some_index),
                          .targets = objective_host(v, v->some_targets),
                          .scale = objective_host(v, v->row_scales)};
    a->slopes = (struct preference_slope *)(a->pairs + b->sequences);
    a->first = (int64_t *)(a->slopes + b->sequences);
    int64_t count = ANSWERS * b->sequences;
    for (int64_t s = 0; s < count; s++) {
        int32_t row, last;
        answer_rows(b, s, &row, &last);
        a->first[s] = a->rows;
        for (; row < last; row++) {
            if (b->targets[row] != BATCH_IGNORED) {
                a->targets[a->rows] = b->targets[row];
                a->index[a->rows++] = row;
            }
        }
    }
    a->first[count] = a->rows;
    TRY(objective_place(v, v->some_index, (size_t)a->rows * sizeof *a->index));
    return objective_place(v, v->some_targets, (size_t)a->rows * sizeof *a->targets);
}

static struct classifier classifier_of(const struct objective_views *views)
{
    return (struct classifier){
        .vocabulary = views->vocabulary,
        .ignored = BATCH_IGNORED,
        .overwrite = views->fresh,
        .parts = views->parts,
    };
}

/* What the first sweep has made of each row, on the host. */
struct made {
    const float *losses, *entropies, *mean_logits;
    const int32_t *best;
};

static status read_made(const struct objective_views *v, int64_t rows, struct made *out)
{
    const void *made[4] = {v->losses, v->entropies, v->mean_logits, v->best};
    for (int i = 0; i < 4; i++) {
        TRY(objective_read(v, made[i], (size_t)rows * sizeof(float), &made[i]));
    }
    *out = (struct made){made[0], made[1], made[2], made[3]};
    return STATUS_OK;
}

/* The first sweep, and what is told of it. */
static status measure(struct kernels *k, const struct batch *batch, const struct answers *a,
                      const struct objective_views *v, double sums[OBJECTIVE_SUMS])
{
    struct classifier c = classifier_of(v);
    c.entropies = v->entropies;
    c.mean_logits = v->mean_logits;
    struct tensor rows = tensor_rows(v->some_rows, 0, a->rows);
    struct made made;
    TRY(gather_rows(k, rows, v->hidden, v->some_index));
    TRY(classifier_run(k, v->losses, v->best, tensor_absent(), tensor_absent(), rows, v->head,
                       v->some_targets, &c));
    TRY(read_made(v, a->rows, &made));
    for (int64_t s = 0; s < ANSWERS * batch->sequences; s++) {
        struct preference_pair *pair = &a->pairs[s / ANSWERS];
        int answer = (int)(s % ANSWERS);
        pair->reference[answer] = batch->reference != NULL ? batch->reference[s] : 0;
        pair->tokens[answer] = a->first[s + 1] - a->first[s];
        pair->logps[answer] = 0;
        for (int64_t i = a->first[s]; i < a->first[s + 1]; i++) {
            pair->logps[answer] -= (double)made.losses[i];
            sums[DPO_ENTROPY] += (double)made.entropies[i];
            sums[DPO_LOGITS_CHOSEN + answer] += (double)made.mean_logits[i];
            sums[DPO_CORRECT] += answer == CHOSEN && made.best[i] == a->targets[i];
        }
        sums[DPO_TOKENS_CHOSEN + answer] += (double)pair->tokens[answer];
        sums[DPO_TOKENS] += (double)pair->tokens[answer];
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
        sums[DPO_ACCURATE] += chosen > rejected;
        sums[DPO_LOGPS_CHOSEN] += p->logps[CHOSEN];
        sums[DPO_LOGPS_REJECTED] += p->logps[REJECTED];
    }
    sums[OBJECTIVE_COUNT] += (double)count;
}

/* The second sweep: a token's loss is -log p, so its weight is the slope by log p with the other sign. */
static status differentiate(struct kernels *k, const struct batch *batch, const struct answers *a,
                            const struct objective_views *v)
{
    struct classifier c = classifier_of(v);
    for (int64_t s = 0; s < ANSWERS * batch->sequences; s++) {
        for (int64_t i = a->first[s]; i < a->first[s + 1]; i++) {
            a->scale[i] = (float)-a->slopes[s / ANSWERS].logps[s % ANSWERS];
        }
    }
    TRY(objective_place(v, v->row_scales, (size_t)a->rows * sizeof *a->scale));
    c.row_scale = v->row_scales;
    c.gradient = true;
    struct tensor rows = tensor_rows(v->some_rows, 0, a->rows);
    struct tensor gradient = tensor_rows(v->some_gradient, 0, a->rows);
    TRY(classifier_run(k, v->losses, NULL, gradient, v->head_gradient, rows, v->head,
                       v->some_targets, &c));
    return scatter_rows(k, v->hidden_gradient, gradient, v->some_index, true);
}

static status find_slopes(const struct batch *batch, const struct objective_views *v,
                          struct answers *a)
{
    if (v->batch_slopes == NULL) {
        return preference_slopes(v->preference, a->pairs, batch->sequences, a->slopes);
    }
    for (int64_t i = 0; i < batch->sequences; i++) {
        a->slopes[i] = v->batch_slopes[batch->samples[i] % v->batch_size];
    }
    return STATUS_OK;
}

static status dpo_loss(struct kernels *k, const struct batch *batch,
                       const struct objective_views *views, bool gradient,
                       double sums[OBJECTIVE_SUMS])
{
    REQUIRE(views->preference != NULL && batch->reference != NULL &&
                batch->segments == batch->sequences * (batch->branches == NULL ? ANSWERS : 1),
            STATUS_INTERNAL, "dpo without %s",
            views->preference == NULL ? "settings" : "pairs and their reference");
    struct answers a;
    TRY(answers_find(batch, views, &a));
    TRY(measure(k, batch, &a, views, sums));
    add_rewards(views->preference, a.pairs, batch->sequences, sums);
    if (views->batch_pairs != NULL) {
        for (int64_t i = 0; i < batch->sequences; i++) {
            views->batch_pairs[batch->samples[i] % views->batch_size] = a.pairs[i];
        }
        return STATUS_OK;
    }
    TRY(find_slopes(batch, views, &a));
    for (int64_t i = 0; i < batch->sequences; i++) {
        sums[OBJECTIVE_LOSS] += a.slopes[i].loss;
    }
    return gradient ? differentiate(k, batch, &a, views) : STATUS_OK;
}

/* The model is the reference itself: what it says is kept by the pairs' numbers. */
static status dpo_reference_loss(struct kernels *k, const struct batch *batch,
                                 const struct objective_views *views, bool gradient,
                                 double sums[OBJECTIVE_SUMS])
{
    (void)gradient;
    struct answers a;
    double unused[OBJECTIVE_SUMS] = {0};
    TRY(answers_find(batch, views, &a));
    TRY(measure(k, batch, &a, views, unused));
    for (int64_t i = 0; i < batch->sequences; i++) {
        double *kept = views->logps + ANSWERS * batch->samples[i];
        memcpy(kept, a.pairs[i].logps, sizeof a.pairs[i].logps);
        sums[OBJECTIVE_LOSS] -= kept[CHOSEN] + kept[REJECTED];
    }
    sums[OBJECTIVE_COUNT] += (double)batch->sequences;
    return STATUS_OK;
}

const struct objective objective_dpo_reference = {
    .name = "dpo_reference",
    .counted = "pairs",
    .scratch_bytes = dpo_scratch_bytes,
    .loss = dpo_reference_loss,
};

const struct objective objective_dpo = {
    .name = "dpo",
    .metrics = dpo_metrics,
    .counted = "pairs",
    .scratch_bytes = dpo_scratch_bytes,
    .loss = dpo_loss,
};
