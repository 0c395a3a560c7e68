/* The formulas of preference_loss.h for the losses that read one pair at a time, for the host and
 * for kernels. A CUDA file must first include gpu.cuh, and preference_loss.h in extern "C". */
#pragma once

#include <math.h>

#include "kernels/preference_loss.h"

#ifdef GPU_INLINE
#define PREFERENCE_INLINE GPU_INLINE
#else
#define PREFERENCE_INLINE static inline
#endif

/* A loss of one variable and its derivative. */
struct scalar_loss {
    double value, gradient;
};

PREFERENCE_INLINE double compute_logistic(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

PREFERENCE_INLINE double compute_log_logistic(double x)
{
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* Returns -log s(x). */
PREFERENCE_INLINE struct scalar_loss compute_logistic_loss(double x)
{
    struct scalar_loss f = {-compute_log_logistic(x), -compute_logistic(-x)};
    return f;
}

PREFERENCE_INLINE struct scalar_loss compute_smoothed_logistic_loss(double x, double smoothing)
{
    struct scalar_loss correct = compute_logistic_loss(x), wrong = compute_logistic_loss(-x);
    struct scalar_loss f = {(1 - smoothing) * correct.value + smoothing * wrong.value,
                            (1 - smoothing) * correct.gradient - smoothing * wrong.gradient};
    return f;
}

PREFERENCE_INLINE struct scalar_loss compute_hinge_loss(double x)
{
    struct scalar_loss f = {fmax(0.0, 1 - x), x < 1 ? -1.0 : 0.0};
    return f;
}

PREFERENCE_INLINE struct scalar_loss compute_robust_loss(double x, double smoothing)
{
    struct scalar_loss correct = compute_logistic_loss(x), wrong = compute_logistic_loss(-x);
    double scale = 1 / (1 - 2 * smoothing);
    struct scalar_loss f = {((1 - smoothing) * correct.value - smoothing * wrong.value) * scale,
                            ((1 - smoothing) * correct.gradient + smoothing * wrong.gradient) *
                                scale};
    return f;
}

PREFERENCE_INLINE struct scalar_loss compute_exo_loss(double x, double smoothing)
{
    double q = compute_logistic(x), not_q = compute_logistic(-x);
    double correct = compute_log_logistic(x) - log1p(-smoothing),
           wrong = compute_log_logistic(-x) - log(smoothing);
    struct scalar_loss f = {q * correct + not_q * wrong, q * not_q * (correct - wrong)};
    return f;
}

PREFERENCE_INLINE struct scalar_loss compute_discopop_loss(double x, double tau)
{
    struct scalar_loss logistic_part = compute_logistic_loss(x);
    double exponential = exp(-x), blend = compute_logistic(x / tau);
    double blend_gradient = blend * compute_logistic(-x / tau) / tau;
    struct scalar_loss f = {logistic_part.value * (1 - blend) + exponential * blend,
                            logistic_part.gradient * (1 - blend) - exponential * blend +
                                blend_gradient * (exponential - logistic_part.value)};
    return f;
}

/* ---- one pair ---- */

/* Applies the chain rule to f(scale_chosen c - scale_rejected r). */
PREFERENCE_INLINE struct preference_gradient
differentiate_difference(struct scalar_loss f, double scale_chosen, double scale_rejected)
{
    struct preference_gradient g = {f.value,
                                    {f.gradient * scale_chosen, -f.gradient * scale_rejected}};
    return g;
}

PREFERENCE_INLINE struct preference_gradient
compute_ipo_loss(double mean, double beta, double chosen_tokens, double rejected_tokens)
{
    double miss = mean - 1 / (2 * beta);
    struct scalar_loss f = {miss * miss, 2 * miss};
    return differentiate_difference(f, 1 / chosen_tokens, 1 / rejected_tokens);
}

PREFERENCE_INLINE struct preference_gradient compute_nca_loss(double beta, double c, double r)
{
    struct scalar_loss plus = compute_logistic_loss(c), minus = compute_logistic_loss(-c),
                       rejected = compute_logistic_loss(-r);
    struct preference_gradient g = {
        plus.value + minus.value / 2 + rejected.value / 2,
        {beta * (plus.gradient - minus.gradient / 2), -beta * rejected.gradient / 2}};
    return g;
}

PREFERENCE_INLINE struct preference_gradient compute_bco_loss(double beta, double c, double r)
{
    struct scalar_loss chosen = compute_logistic_loss(c), rejected = compute_logistic_loss(-r);
    struct preference_gradient g = {chosen.value + rejected.value,
                                    {beta * chosen.gradient, -beta * rejected.gradient}};
    return g;
}

PREFERENCE_INLINE struct preference_gradient compute_sppo_loss(double beta, double chosen,
                                                               double rejected)
{
    double winner = chosen - 0.5 / beta, loser = rejected + 0.5 / beta;
    struct preference_gradient g = {winner * winner + loser * loser, {2 * winner, 2 * loser}};
    return g;
}

PREFERENCE_INLINE struct preference_gradient compute_apo_zero_loss(double beta, double c, double r)
{
    struct preference_gradient g = {compute_logistic(-c) + compute_logistic(r),
                                    {-beta * compute_logistic(c) * compute_logistic(-c),
                                     beta * compute_logistic(r) * compute_logistic(-r)}};
    return g;
}

PREFERENCE_INLINE struct preference_gradient compute_apo_down_loss(double beta, double c, double d)
{
    double margin_gradient = beta * compute_logistic(d) * compute_logistic(-d);
    struct preference_gradient g = {
        compute_logistic(c) + compute_logistic(-d),
        {beta * compute_logistic(c) * compute_logistic(-c) - margin_gradient, margin_gradient}};
    return g;
}

/* Computes a loss that reads one pair at a time. Returns zeros for all other losses. */
PREFERENCE_INLINE struct preference_gradient compute_term(const struct preference_settings *s,
                                                          enum preference_loss loss,
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
        return differentiate_difference(compute_logistic_loss(d), beta, beta);
    case PREFERENCE_HINGE:
        return differentiate_difference(compute_hinge_loss(d), beta, beta);
    case PREFERENCE_IPO:
        return compute_ipo_loss(mean, beta, chosen_tokens, rejected_tokens);
    case PREFERENCE_EXO_PAIR:
        return differentiate_difference(compute_exo_loss(d, s->label_smoothing), beta, beta);
    case PREFERENCE_ROBUST:
        return differentiate_difference(compute_robust_loss(d, s->label_smoothing), beta, beta);
    case PREFERENCE_DISCOPOP:
        return differentiate_difference(compute_discopop_loss(d, s->discopop_tau), beta, beta);
    case PREFERENCE_SIGMOID_NORM:
        return differentiate_difference(compute_logistic_loss(beta * mean), beta / chosen_tokens,
                                        beta / rejected_tokens);
    case PREFERENCE_NCA_PAIR:
        return compute_nca_loss(beta, c, r);
    case PREFERENCE_BCO_PAIR:
        return compute_bco_loss(beta, c, r);
    case PREFERENCE_SPPO_HARD:
        return compute_sppo_loss(beta, chosen, rejected);
    case PREFERENCE_APO_ZERO:
        return compute_apo_zero_loss(beta, c, r);
    case PREFERENCE_APO_DOWN:
        return compute_apo_down_loss(beta, c, d);
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
PREFERENCE_INLINE void preference_add_term(const struct preference_settings *s,
                                           const struct preference_term *term,
                                           const struct preference_pair *pair,
                                           struct preference_gradient *out)
{
    struct preference_gradient g = compute_term(s, term->loss, pair);
    out->loss += term->weight * g.loss;
    out->logps[CHOSEN] += term->weight * g.logps[CHOSEN];
    out->logps[REJECTED] += term->weight * g.logps[REJECTED];
}
