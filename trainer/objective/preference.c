#include "trainer/objective/preference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

const char *preference_name(enum preference_loss loss)
{
    return names[loss];
}

enum preference_loss preference_named(const char *name)
{
    int loss = 0;
    while (loss < PREFERENCE_LOSSES && strcmp(names[loss], name) != 0) {
        loss++;
    }
    return (enum preference_loss)loss;
}

/* A value and its derivative. */
struct curve {
    double value, slope;
};

static double logistic(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double log_logistic(double x)
{
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* -log s(x) */
static struct curve soft(double x)
{
    return (struct curve){-log_logistic(x), -logistic(-x)};
}

static struct curve smoothed(double x, double smoothing)
{
    struct curve right = soft(x), wrong = soft(-x);
    return (struct curve){(1 - smoothing) * right.value + smoothing * wrong.value,
                          (1 - smoothing) * right.slope - smoothing * wrong.slope};
}

static struct curve robust(double x, double smoothing)
{
    struct curve right = soft(x), wrong = soft(-x);
    double scale = 1 / (1 - 2 * smoothing);
    return (struct curve){((1 - smoothing) * right.value - smoothing * wrong.value) * scale,
                          ((1 - smoothing) * right.slope + smoothing * wrong.slope) * scale};
}

static struct curve exo(double x, double smoothing)
{
    double q = logistic(x), not_q = logistic(-x);
    double right = log_logistic(x) - log1p(-smoothing), wrong = log_logistic(-x) - log(smoothing);
    return (struct curve){q * right + not_q * wrong, q * not_q * (right - wrong)};
}

static struct curve discopop(double x, double tau)
{
    struct curve logistic_part = soft(x);
    double exponential = exp(-x), blend = logistic(x / tau);
    double turning = blend * logistic(-x / tau) / tau;
    return (struct curve){
        logistic_part.value * (1 - blend) + exponential * blend,
        logistic_part.slope * (1 - blend) - exponential * blend +
            turning * (exponential - logistic_part.value),
    };
}

/* ---- one pair ---- */

struct ratios {
    double chosen, rejected; /* log-ratios c and r */
    double chosen_tokens, rejected_tokens;
};

/* A loss as a function of c and r, and its derivatives. */
struct surface {
    double value, chosen, rejected;
};

/* f(scale_c c - scale_r r) */
static struct surface of_difference(struct curve f, double scale_chosen, double scale_rejected)
{
    return (struct surface){f.value, f.slope * scale_chosen, -f.slope * scale_rejected};
}

static struct surface surface_of(const struct preference_settings *s, enum preference_loss loss,
                                 struct ratios x)
{
    double beta = s->beta, e = s->label_smoothing;
    double c = beta * x.chosen, r = beta * x.rejected, d = c - r;
    double mean = x.chosen / x.chosen_tokens - x.rejected / x.rejected_tokens;
    switch (loss) {
    case PREFERENCE_SIGMOID:
        return of_difference(soft(d), beta, beta);
    case PREFERENCE_HINGE:
        return of_difference((struct curve){fmax(0, 1 - d), d < 1 ? -1 : 0}, beta, beta);
    case PREFERENCE_IPO: {
        double miss = mean - 1 / (2 * beta);
        return of_difference((struct curve){miss * miss, 2 * miss}, 1 / x.chosen_tokens,
                             1 / x.rejected_tokens);
    }
    case PREFERENCE_EXO_PAIR:
        return of_difference(exo(d, e), beta, beta);
    case PREFERENCE_ROBUST:
        return of_difference(robust(d, e), beta, beta);
    case PREFERENCE_DISCOPOP:
        return of_difference(discopop(d, s->discopop_tau), beta, beta);
    case PREFERENCE_SIGMOID_NORM:
        return of_difference(soft(beta * mean), beta / x.chosen_tokens, beta / x.rejected_tokens);
    case PREFERENCE_NCA_PAIR:
        return (struct surface){soft(c).value + soft(-c).value / 2 + soft(-r).value / 2,
                                beta * (soft(c).slope - soft(-c).slope / 2),
                                -beta * soft(-r).slope / 2};
    case PREFERENCE_BCO_PAIR:
        return (struct surface){soft(c).value + soft(-r).value, beta * soft(c).slope,
                                -beta * soft(-r).slope};
    case PREFERENCE_SPPO_HARD: {
        double winner = x.chosen - 0.5 / beta, loser = x.rejected + 0.5 / beta;
        return (struct surface){winner * winner + loser * loser, 2 * winner, 2 * loser};
    }
    case PREFERENCE_APO_ZERO:
        return (struct surface){logistic(-c) + logistic(r), -beta * logistic(c) * logistic(-c),
                                beta * logistic(r) * logistic(-r)};
    case PREFERENCE_APO_DOWN: {
        double turning = beta * logistic(d) * logistic(-d);
        return (struct surface){logistic(c) + logistic(-d),
                                beta * logistic(c) * logistic(-c) - turning, turning};
    }
    case PREFERENCE_AOT:
    case PREFERENCE_AOT_UNPAIRED:
    case PREFERENCE_SFT:
    case PREFERENCE_LOSSES:
        break;
    }
    return (struct surface){0};
}

static void add_pairwise(const struct preference_settings *s, const struct preference_term *term,
                         const struct preference_pair *pairs, int64_t count,
                         struct preference_slope *out)
{
    for (int64_t i = 0; i < count; i++) {
        const struct preference_pair *p = &pairs[i];
        struct surface f = surface_of(s, term->loss,
                                      (struct ratios){
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

/* ---- the whole batch ---- */

/* The batch's loss is the sum over its chosen answers, divided by their tokens. */
static void add_sft(const struct preference_term *term, const struct preference_pair *pairs,
                    int64_t count, struct preference_slope *out)
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

struct ranked {
    double value;
    int64_t pair;
};

/* Equal values in the order of the pairs: the same on every rank. */
static int by_value(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    int order = (x->value > y->value) - (x->value < y->value);
    return order != 0 ? order : (x->pair > y->pair) - (x->pair < y->pair);
}

static void rank_of(const double parts[][ANSWERS], int64_t count, double chosen, double rejected,
                    struct ranked *out)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = (struct ranked){chosen * parts[i][CHOSEN] + rejected * parts[i][REJECTED], i};
    }
    qsort(out, (size_t)count, sizeof *out, by_value);
}

/* high's k-th smallest less low's: policy margins and reference margins, or c and r. */
static void add_sorted(const struct preference_settings *s, const struct preference_term *term,
                       const struct ranked *high, const struct ranked *low, int64_t count,
                       bool margins, struct preference_slope *out)
{
    for (int64_t k = 0; k < count; k++) {
        struct curve f = smoothed(s->beta * (high[k].value - low[k].value), s->label_smoothing);
        double slope = term->weight * s->beta * f.slope;
        out[high[k].pair].loss += term->weight * f.value;
        out[high[k].pair].logps[CHOSEN] += slope;
        out[margins ? high[k].pair : low[k].pair].logps[REJECTED] -= slope;
    }
}

static status add_aot(const struct preference_settings *s, const struct preference_term *term,
                      const struct preference_pair *pairs, int64_t count,
                      struct preference_slope *out)
{
    bool margins = term->loss == PREFERENCE_AOT;
    size_t rows = (size_t)count;
    double(*policy)[ANSWERS] = malloc(2 * rows * sizeof *policy), (*other)[ANSWERS] = policy + rows;
    struct ranked *high = malloc(2 * rows * sizeof *high), *low = high + rows;
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, policy != NULL && high != NULL, STATUS_INTERNAL,
                 "out of memory for %lld pairs", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        for (int a = 0; a < ANSWERS; a++) {
            policy[i][a] = pairs[i].logps[a] - (margins ? 0 : pairs[i].reference[a]);
            other[i][a] = margins ? pairs[i].reference[a] : policy[i][a];
        }
    }
    rank_of((const double(*)[ANSWERS])policy, count, 1, margins ? -1 : 0, high);
    rank_of((const double(*)[ANSWERS])other, count, margins ? 1 : 0, margins ? -1 : 1, low);
    add_sorted(s, term, high, low, count, margins, out);
done:
    free(policy);
    free(high);
    return result;
}

bool preference_whole(const struct preference_settings *s)
{
    for (int i = 0; i < s->terms; i++) {
        enum preference_loss loss = s->term[i].loss;
        if (loss == PREFERENCE_AOT || loss == PREFERENCE_AOT_UNPAIRED || loss == PREFERENCE_SFT) {
            return true;
        }
    }
    return false;
}

status preference_slopes(const struct preference_settings *s, const struct preference_pair *pairs,
                         int64_t count, struct preference_slope *out)
{
    memset(out, 0, (size_t)count * sizeof *out);
    for (int i = 0; i < s->terms && count > 0; i++) {
        const struct preference_term *term = &s->term[i];
        switch (term->loss) {
        case PREFERENCE_AOT:
        case PREFERENCE_AOT_UNPAIRED:
            TRY(add_aot(s, term, pairs, count, out));
            break;
        case PREFERENCE_SFT:
            add_sft(term, pairs, count, out);
            break;
        default:
            add_pairwise(s, term, pairs, count, out);
            break;
        }
    }
    return STATUS_OK;
}
