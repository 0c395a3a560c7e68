/* The formulas of kernels/preference_loss.h for the losses that read one pair at a time, for the
 * host and for kernels. */
#pragma once

#include <stddef.h>

#include "kernels/host_device.h"
#include "kernels/preference_loss.h"

/* A loss of one variable and its derivative. */
struct preference_scalar {
    double value, gradient;
};

/* preference_logistic - return s(x) = 1 / (1 + exp(-x)). */
HOST_DEVICE_INLINE double preference_logistic(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* preference_log_logistic - return log s(x). */
HOST_DEVICE_INLINE double preference_log_logistic(double x)
{
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* preference_logistic_loss - return -log s(x). */
HOST_DEVICE_INLINE struct preference_scalar preference_logistic_loss(double x)
{
    struct preference_scalar f = {-preference_log_logistic(x), -preference_logistic(-x)};
    return f;
}

/* preference_smoothed_loss - return the smoothed sigmoid of x: the loss of aot and aot_unpaired. */
HOST_DEVICE_INLINE struct preference_scalar preference_smoothed_loss(double x, double smoothing)
{
    struct preference_scalar correct = preference_logistic_loss(x),
                             wrong = preference_logistic_loss(-x);
    struct preference_scalar f = {(1 - smoothing) * correct.value + smoothing * wrong.value,
                                  (1 - smoothing) * correct.gradient - smoothing * wrong.gradient};
    return f;
}

/* preference_hinge_loss - return the loss hinge of x = beta d. */
HOST_DEVICE_INLINE struct preference_scalar preference_hinge_loss(double x)
{
    struct preference_scalar f = {fmax(0.0, 1 - x), x < 1 ? -1.0 : 0.0};
    return f;
}

/* preference_robust_loss - return the loss robust of x = beta d. */
HOST_DEVICE_INLINE struct preference_scalar preference_robust_loss(double x, double smoothing)
{
    struct preference_scalar correct = preference_logistic_loss(x),
                             wrong = preference_logistic_loss(-x);
    double scale = 1 / (1 - 2 * smoothing);
    struct preference_scalar f = {
        ((1 - smoothing) * correct.value - smoothing * wrong.value) * scale,
        ((1 - smoothing) * correct.gradient + smoothing * wrong.gradient) * scale};
    return f;
}

/* preference_exo_loss - return the loss exo_pair of x = beta d. */
HOST_DEVICE_INLINE struct preference_scalar preference_exo_loss(double x, double smoothing)
{
    double q = preference_logistic(x), not_q = preference_logistic(-x);
    double correct = preference_log_logistic(x) - log1p(-smoothing),
           wrong = preference_log_logistic(-x) - log(smoothing);
    struct preference_scalar f = {q * correct + not_q * wrong, q * not_q * (correct - wrong)};
    return f;
}

/* preference_discopop_loss - return the loss discopop of x = beta d. */
HOST_DEVICE_INLINE struct preference_scalar preference_discopop_loss(double x, double tau)
{
    struct preference_scalar logistic_part = preference_logistic_loss(x);
    double exponential = exp(-x), blend = preference_logistic(x / tau);
    double blend_gradient = blend * preference_logistic(-x / tau) / tau;
    struct preference_scalar f = {logistic_part.value * (1 - blend) + exponential * blend,
                                  logistic_part.gradient * (1 - blend) - exponential * blend +
                                      blend_gradient * (exponential - logistic_part.value)};
    return f;
}

/* ---- one pair ---- */

/* preference_differentiate - apply the chain rule to f(scale_chosen c - scale_rejected r). */
HOST_DEVICE_INLINE struct preference_gradient
preference_differentiate(struct preference_scalar f, double scale_chosen, double scale_rejected)
{
    struct preference_gradient g = {f.value,
                                    {f.gradient * scale_chosen, -f.gradient * scale_rejected}};
    return g;
}

/* preference_ipo_loss - return the loss ipo.
 *
 * Units     mean: c / n_c - r / n_r */
HOST_DEVICE_INLINE struct preference_gradient
preference_ipo_loss(double mean, double beta, double chosen_tokens, double rejected_tokens)
{
    double miss = mean - 1 / (2 * beta);
    struct preference_scalar f = {miss * miss, 2 * miss};
    return preference_differentiate(f, 1 / chosen_tokens, 1 / rejected_tokens);
}

/* preference_nca_loss - return the loss nca_pair.
 *
 * Units     c, r: log-ratios times beta */
HOST_DEVICE_INLINE struct preference_gradient preference_nca_loss(double beta, double c, double r)
{
    struct preference_scalar plus = preference_logistic_loss(c),
                             minus = preference_logistic_loss(-c),
                             rejected = preference_logistic_loss(-r);
    struct preference_gradient g = {
        plus.value + minus.value / 2 + rejected.value / 2,
        {beta * (plus.gradient - minus.gradient / 2), -beta * rejected.gradient / 2}};
    return g;
}

/* preference_bco_loss - return the loss bco_pair.
 *
 * Units     c, r: log-ratios times beta */
HOST_DEVICE_INLINE struct preference_gradient preference_bco_loss(double beta, double c, double r)
{
    struct preference_scalar chosen = preference_logistic_loss(c),
                             rejected = preference_logistic_loss(-r);
    struct preference_gradient g = {chosen.value + rejected.value,
                                    {beta * chosen.gradient, -beta * rejected.gradient}};
    return g;
}

/* preference_sppo_loss - return the loss sppo_hard.
 *
 * Units     chosen, rejected: log-ratios */
HOST_DEVICE_INLINE struct preference_gradient preference_sppo_loss(double beta, double chosen,
                                                                   double rejected)
{
    double winner = chosen - 0.5 / beta, loser = rejected + 0.5 / beta;
    struct preference_gradient g = {winner * winner + loser * loser, {2 * winner, 2 * loser}};
    return g;
}

/* preference_apo_zero_loss - return the loss apo_zero.
 *
 * Units     c, r: log-ratios times beta */
HOST_DEVICE_INLINE struct preference_gradient preference_apo_zero_loss(double beta, double c,
                                                                       double r)
{
    struct preference_gradient g = {preference_logistic(-c) + preference_logistic(r),
                                    {-beta * preference_logistic(c) * preference_logistic(-c),
                                     beta * preference_logistic(r) * preference_logistic(-r)}};
    return g;
}

/* preference_apo_down_loss - return the loss apo_down.
 *
 * Units     c, d: the chosen log-ratio and the difference d, times beta */
HOST_DEVICE_INLINE struct preference_gradient preference_apo_down_loss(double beta, double c,
                                                                       double d)
{
    double margin_gradient = beta * preference_logistic(d) * preference_logistic(-d);
    struct preference_gradient g = {
        preference_logistic(c) + preference_logistic(-d),
        {beta * preference_logistic(c) * preference_logistic(-c) - margin_gradient,
         margin_gradient}};
    return g;
}

/* preference_get_term - return a loss that reads one pair at a time, or zeros for other losses. */
HOST_DEVICE_INLINE struct preference_gradient
preference_get_term(const struct preference_settings *s, enum preference_loss loss,
                    const struct preference_pair *pair)
{
    double beta = s->beta, chosen = pair->logps[CHOSEN] - pair->reference[CHOSEN];
    double rejected = pair->logps[REJECTED] - pair->reference[REJECTED];
    double chosen_tokens = (double)pair->tokens[CHOSEN];
    double rejected_tokens = (double)pair->tokens[REJECTED];
    double c = beta * chosen, r = beta * rejected, d = c - r;
    double mean = chosen / chosen_tokens - rejected / rejected_tokens;
    struct preference_gradient none = {0, {0, 0}};
    switch (loss) {
    case PREFERENCE_SIGMOID:
        return preference_differentiate(preference_logistic_loss(d), beta, beta);
    case PREFERENCE_HINGE:
        return preference_differentiate(preference_hinge_loss(d), beta, beta);
    case PREFERENCE_IPO:
        return preference_ipo_loss(mean, beta, chosen_tokens, rejected_tokens);
    case PREFERENCE_EXO_PAIR:
        return preference_differentiate(preference_exo_loss(d, s->label_smoothing), beta, beta);
    case PREFERENCE_ROBUST:
        return preference_differentiate(preference_robust_loss(d, s->label_smoothing), beta, beta);
    case PREFERENCE_DISCOPOP:
        return preference_differentiate(preference_discopop_loss(d, s->discopop_tau), beta, beta);
    case PREFERENCE_SIGMOID_NORM:
        return preference_differentiate(preference_logistic_loss(beta * mean), beta / chosen_tokens,
                                        beta / rejected_tokens);
    case PREFERENCE_NCA_PAIR:
        return preference_nca_loss(beta, c, r);
    case PREFERENCE_BCO_PAIR:
        return preference_bco_loss(beta, c, r);
    case PREFERENCE_SPPO_HARD:
        return preference_sppo_loss(beta, chosen, rejected);
    case PREFERENCE_APO_ZERO:
        return preference_apo_zero_loss(beta, c, r);
    case PREFERENCE_APO_DOWN:
        return preference_apo_down_loss(beta, c, d);
    case PREFERENCE_AOT:
    case PREFERENCE_AOT_UNPAIRED:
    case PREFERENCE_SFT:
    case PREFERENCE_LOSSES:
        break;
    }
    return none;
}

/* preference_add_term - add the weighted loss of one pair and its gradients to *out. A loss of the
 * whole batch adds zeros. */
HOST_DEVICE_INLINE void preference_add_term(const struct preference_settings *s,
                                            const struct preference_term *term,
                                            const struct preference_pair *pair,
                                            struct preference_gradient *out)
{
    struct preference_gradient g = preference_get_term(s, term->loss, pair);
    out->loss += term->weight * g.loss;
    out->logps[CHOSEN] += term->weight * g.logps[CHOSEN];
    out->logps[REJECTED] += term->weight * g.logps[REJECTED];
}

/* ---- operation ---- */

/* preference_set_response - set one response of pair i of the call.
 *
 * Units     response: CHOSEN or REJECTED; logps: its log-probability under the policy */
HOST_DEVICE_INLINE void preference_set_response(struct preference_pair *pair,
                                                const struct preference_rows *r, int64_t i,
                                                int response, double logps)
{
    int64_t s = RESPONSES * i + response;
    pair->logps[response] = logps;
    pair->reference[response] = r->reference != NULL ? r->reference[s] : 0.0;
    pair->tokens[response] = r->first[s + 1] - r->first[s];
}

/* preference_get_gradient - return the loss and the gradients of pair i of the call. */
HOST_DEVICE_INLINE struct preference_gradient
preference_get_gradient(const struct preference_rows *r, const struct preference_settings *settings,
                        const struct preference_pair *pair, int64_t i)
{
    struct preference_gradient g = {0, {0, 0}};
    if (r->gradients != NULL) {
        return r->gradients[(r->gradient_first + i) % r->gradient_count];
    }
    for (int t = 0; t < settings->terms; t++) {
        preference_add_term(settings, &settings->term[t], pair, &g);
    }
    return g;
}

/* The terms that a pair adds to the sums. preference_pair_sum returns the sum for each term. */
enum { PREFERENCE_PAIR_TERMS = 7 };

struct preference_pair_terms {
    double values[PREFERENCE_PAIR_TERMS];
};

/* preference_pair_sum - return the sum (enum preference_sum) to which a term is added. */
HOST_DEVICE_INLINE int preference_pair_sum(int term)
{
    static const int sums[PREFERENCE_PAIR_TERMS] = {
        PREFERENCE_SUM_LOSS,          PREFERENCE_SUM_REWARD_CHOSEN, PREFERENCE_SUM_REWARD_REJECTED,
        PREFERENCE_SUM_CORRECT_PAIRS, PREFERENCE_SUM_LOGPS_CHOSEN,  PREFERENCE_SUM_LOGPS_REJECTED,
        PREFERENCE_SUM_MARGIN,
    };
    return sums[term];
}

/* preference_get_pair_terms - return the terms of a pair in the sums.
 *
 * Units     loss: of the pair */
HOST_DEVICE_INLINE struct preference_pair_terms
preference_get_pair_terms(const struct preference_pair *p, double beta, double loss)
{
    double chosen = beta * (p->logps[CHOSEN] - p->reference[CHOSEN]);
    double rejected = beta * (p->logps[REJECTED] - p->reference[REJECTED]);
    struct preference_pair_terms terms = {{
        loss,
        chosen,
        rejected,
        chosen > rejected ? 1.0 : 0.0,
        p->logps[CHOSEN],
        p->logps[REJECTED],
        chosen - rejected,
    }};
    return terms;
}
