/* The losses are defined in preference.h. */
#include "trainer/objective/preference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static const char *const names[PREFERENCE_LOSSES] = {
    [PREFERENCE_SIGMOID] = "sigmoid",
    [PREFERENCE_HINGE] = "hinge",
    [PREFERENCE_IPO] = "ipo",
    [PREFERENCE_EXO_PAIR] = "exo_pair",
    [PREFERENCE_NCA_PAIR] = "nca_pair",
    [PREFERENCE_ROBUST] = "robust",
    [PREFERENCE_BCO_PAIR] = "bco_pair",
    [PREFERENCE_SPPO_HARD] = "sppo_hard",
    [PREFERENCE_AOT] = "aot",
    [PREFERENCE_AOT_UNPAIRED] = "aot_unpaired",
    [PREFERENCE_APO_ZERO] = "apo_zero",
    [PREFERENCE_APO_DOWN] = "apo_down",
    [PREFERENCE_DISCOPOP] = "discopop",
    [PREFERENCE_SFT] = "sft",
    [PREFERENCE_SIGMOID_NORM] = "sigmoid_norm",
};

enum preference_loss preference_find(const char *name)
{
    int loss = 0;
    while (loss < PREFERENCE_LOSSES && strcmp(names[loss], name) != 0) {
        loss++;
    }
    return (enum preference_loss)loss;
}

/* A loss of one variable and its derivative. */
struct scalar_loss {
    double value, gradient;
};

static double compute_logistic(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double compute_log_logistic(double x)
{
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* Returns -log s(x). */
static struct scalar_loss compute_logistic_loss(double x)
{
    return (struct scalar_loss){-compute_log_logistic(x), -compute_logistic(-x)};
}

static struct scalar_loss compute_smoothed_logistic_loss(double x, double smoothing)
{
    struct scalar_loss correct = compute_logistic_loss(x), wrong = compute_logistic_loss(-x);
    return (struct scalar_loss){(1 - smoothing) * correct.value + smoothing * wrong.value,
                                (1 - smoothing) * correct.gradient - smoothing * wrong.gradient};
}

static struct scalar_loss compute_robust_loss(double x, double smoothing)
{
    struct scalar_loss correct = compute_logistic_loss(x), wrong = compute_logistic_loss(-x);
    double scale = 1 / (1 - 2 * smoothing);
    return (struct scalar_loss){((1 - smoothing) * correct.value - smoothing * wrong.value) * scale,
                                ((1 - smoothing) * correct.gradient + smoothing * wrong.gradient) *
                                    scale};
}

static struct scalar_loss compute_exo_loss(double x, double smoothing)
{
    double q = compute_logistic(x), not_q = compute_logistic(-x);
    double correct = compute_log_logistic(x) - log1p(-smoothing),
           wrong = compute_log_logistic(-x) - log(smoothing);
    return (struct scalar_loss){q * correct + not_q * wrong, q * not_q * (correct - wrong)};
}

static struct scalar_loss compute_discopop_loss(double x, double tau)
{
    struct scalar_loss logistic_part = compute_logistic_loss(x);
    double exponential = exp(-x), blend = compute_logistic(x / tau);
    double blend_gradient = blend * compute_logistic(-x / tau) / tau;
    return (struct scalar_loss){
        logistic_part.value * (1 - blend) + exponential * blend,
        logistic_part.gradient * (1 - blend) - exponential * blend +
            blend_gradient * (exponential - logistic_part.value),
    };
}

/* ---- one pair ---- */

struct log_ratios {
    double chosen, rejected; /* log-ratios c and r */
    double chosen_tokens, rejected_tokens;
};

/* A loss as a function of the log-ratios c and r, and its derivatives. */
struct loss_and_gradient {
    double value, chosen, rejected;
};

/* Applies the chain rule to f(scale_chosen c - scale_rejected r). */
static struct loss_and_gradient differentiate_difference(struct scalar_loss f, double scale_chosen,
                                                         double scale_rejected)
{
    return (struct loss_and_gradient){f.value, f.gradient * scale_chosen,
                                      -f.gradient * scale_rejected};
}

/* Computes a loss that reads one pair at a time (preference.h). */
static struct loss_and_gradient compute_loss(const struct preference_settings *s,
                                             enum preference_loss loss, struct log_ratios x)
{
    double beta = s->beta, e = s->label_smoothing;
    double c = beta * x.chosen, r = beta * x.rejected, d = c - r;
    double mean = x.chosen / x.chosen_tokens - x.rejected / x.rejected_tokens;
    switch (loss) {
    case PREFERENCE_SIGMOID:
        return differentiate_difference(compute_logistic_loss(d), beta, beta);
    case PREFERENCE_HINGE:
        return differentiate_difference((struct scalar_loss){fmax(0, 1 - d), d < 1 ? -1 : 0}, beta,
                                        beta);
    case PREFERENCE_IPO: {
        double miss = mean - 1 / (2 * beta);
        return differentiate_difference((struct scalar_loss){miss * miss, 2 * miss},
                                        1 / x.chosen_tokens, 1 / x.rejected_tokens);
    }
    case PREFERENCE_EXO_PAIR:
        return differentiate_difference(compute_exo_loss(d, e), beta, beta);
    case PREFERENCE_ROBUST:
        return differentiate_difference(compute_robust_loss(d, e), beta, beta);
    case PREFERENCE_DISCOPOP:
        return differentiate_difference(compute_discopop_loss(d, s->discopop_tau), beta, beta);
    case PREFERENCE_SIGMOID_NORM:
        return differentiate_difference(compute_logistic_loss(beta * mean), beta / x.chosen_tokens,
                                        beta / x.rejected_tokens);
    case PREFERENCE_NCA_PAIR:
        return (struct loss_and_gradient){
            compute_logistic_loss(c).value + compute_logistic_loss(-c).value / 2 +
                compute_logistic_loss(-r).value / 2,
            beta * (compute_logistic_loss(c).gradient - compute_logistic_loss(-c).gradient / 2),
            -beta * compute_logistic_loss(-r).gradient / 2};
    case PREFERENCE_BCO_PAIR:
        return (struct loss_and_gradient){
            compute_logistic_loss(c).value + compute_logistic_loss(-r).value,
            beta * compute_logistic_loss(c).gradient, -beta * compute_logistic_loss(-r).gradient};
    case PREFERENCE_SPPO_HARD: {
        double winner = x.chosen - 0.5 / beta, loser = x.rejected + 0.5 / beta;
        return (struct loss_and_gradient){winner * winner + loser * loser, 2 * winner, 2 * loser};
    }
    case PREFERENCE_APO_ZERO:
        return (struct loss_and_gradient){compute_logistic(-c) + compute_logistic(r),
                                          -beta * compute_logistic(c) * compute_logistic(-c),
                                          beta * compute_logistic(r) * compute_logistic(-r)};
    case PREFERENCE_APO_DOWN: {
        double margin_gradient = beta * compute_logistic(d) * compute_logistic(-d);
        return (struct loss_and_gradient){
            compute_logistic(c) + compute_logistic(-d),
            beta * compute_logistic(c) * compute_logistic(-c) - margin_gradient, margin_gradient};
    }
    case PREFERENCE_AOT:
    case PREFERENCE_AOT_UNPAIRED:
    case PREFERENCE_SFT:
    case PREFERENCE_LOSSES:
        break;
    }
    return (struct loss_and_gradient){0};
}

static void add_pairwise_terms(const struct preference_settings *s,
                               const struct preference_term *term,
                               const struct preference_pair *pairs, int64_t count,
                               struct preference_gradient *out)
{
    for (int64_t i = 0; i < count; i++) {
        const struct preference_pair *p = &pairs[i];
        struct loss_and_gradient f = compute_loss(s, term->loss,
                                                  (struct log_ratios){
                                                      p->logps[CHOSEN] - p->reference[CHOSEN],
                                                      p->logps[REJECTED] - p->reference[REJECTED],
                                                      (double)p->tokens[CHOSEN],
                                                      (double)p->tokens[REJECTED],
                                                  });
        out[i].loss += term->weight * f.value;
        out[i].logps[CHOSEN] += term->weight * f.chosen;
        out[i].logps[REJECTED] += term->weight * f.rejected;
    }
}

/* ---- losses of the whole batch ---- */

/* Adds the loss sft: the sum over the chosen responses, divided by their tokens. */
static void add_sft_term(const struct preference_term *term, const struct preference_pair *pairs,
                         int64_t count, struct preference_gradient *out)
{
    double tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += (double)pairs[i].tokens[CHOSEN];
    }
    double scale = -term->weight * (double)count / tokens;
    for (int64_t i = 0; i < count; i++) {
        out[i].loss += scale * pairs[i].logps[CHOSEN];
        out[i].logps[CHOSEN] += scale;
    }
}

struct ranked_pair {
    double value;
    int64_t pair;
};

/* Compares for qsort. Equal values keep the order of the pairs, so that each rank gets the same. */
static int compare_values(const void *a, const void *b)
{
    const struct ranked_pair *x = a, *y = b;
    int order = (x->value > y->value) - (x->value < y->value);
    return order != 0 ? order : (x->pair > y->pair) - (x->pair < y->pair);
}

/* Sorts chosen * values[i][CHOSEN] + rejected * values[i][REJECTED] of all pairs i into out. */
static void sort_pairs(const double values[][RESPONSES], int64_t count, double chosen,
                       double rejected, struct ranked_pair *out)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] =
            (struct ranked_pair){chosen * values[i][CHOSEN] + rejected * values[i][REJECTED], i};
    }
    qsort(out, (size_t)count, sizeof *out, compare_values);
}

/* Adds the loss of the differences high[k] - low[k]. With `margins` these are the sorted margins of
 * the policy and of the reference, else the sorted log-ratios c and r. */
static void add_sorted(const struct preference_settings *s, const struct preference_term *term,
                       const struct ranked_pair *high, const struct ranked_pair *low, int64_t count,
                       bool margins, struct preference_gradient *out)
{
    for (int64_t k = 0; k < count; k++) {
        struct scalar_loss f = compute_smoothed_logistic_loss(
            s->beta * (high[k].value - low[k].value), s->label_smoothing);
        double gradient = term->weight * s->beta * f.gradient;
        out[high[k].pair].loss += term->weight * f.value;
        out[high[k].pair].logps[CHOSEN] += gradient;
        out[margins ? high[k].pair : low[k].pair].logps[REJECTED] -= gradient;
    }
}

/* Adds the loss aot or aot_unpaired. */
static status add_aot_term(const struct preference_settings *s, const struct preference_term *term,
                           const struct preference_pair *pairs, int64_t count,
                           struct preference_gradient *out)
{
    bool margins = term->loss == PREFERENCE_AOT;
    size_t rows = (size_t)count;
    double(*high_values)[RESPONSES] = NULL;
    struct ranked_pair *high = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(high_values, 2 * rows, "pairs"));
    TRY_GOTO(result, done, ALLOCATE(high, 2 * rows, "pairs"));
    double(*low_values)[RESPONSES] = high_values + rows;
    struct ranked_pair *low = high + rows;
    for (int64_t i = 0; i < count; i++) {
        for (int a = 0; a < RESPONSES; a++) {
            high_values[i][a] = pairs[i].logps[a] - (margins ? 0 : pairs[i].reference[a]);
            low_values[i][a] = margins ? pairs[i].reference[a] : high_values[i][a];
        }
    }
    sort_pairs((const double(*)[RESPONSES])high_values, count, 1, margins ? -1 : 0, high);
    sort_pairs((const double(*)[RESPONSES])low_values, count, margins ? 1 : 0, margins ? -1 : 1,
               low);
    add_sorted(s, term, high, low, count, margins, out);
done:
    free(high_values);
    free(high);
    return result;
}

bool preference_needs_whole_batch(const struct preference_settings *s)
{
    for (int i = 0; i < s->terms; i++) {
        enum preference_loss loss = s->term[i].loss;
        if (loss == PREFERENCE_AOT || loss == PREFERENCE_AOT_UNPAIRED || loss == PREFERENCE_SFT) {
            return true;
        }
    }
    return false;
}

status preference_gradients(const struct preference_settings *s,
                            const struct preference_pair *pairs, int64_t count,
                            struct preference_gradient *out)
{
    memset(out, 0, (size_t)count * sizeof *out);
    for (int i = 0; i < s->terms && count > 0; i++) {
        const struct preference_term *term = &s->term[i];
        switch (term->loss) {
        case PREFERENCE_AOT:
        case PREFERENCE_AOT_UNPAIRED:
            TRY(add_aot_term(s, term, pairs, count, out));
            break;
        case PREFERENCE_SFT:
            add_sft_term(term, pairs, count, out);
            break;
        default:
            add_pairwise_terms(s, term, pairs, count, out);
            break;
        }
    }
    return STATUS_OK;
}
