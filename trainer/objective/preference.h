/* The losses of preference pairs and their slopes: mathematics alone, in double precision.
 *
 * A pair is two answers to one prompt, the chosen (c) and the rejected (r). Of each the sum of its tokens'
 * log-probabilities is known, under the policy and under the reference; their differences are the log-ratios
 * c and r, and d = c - r. With s the logistic function, e the label smoothing, n the tokens of an answer:
 *
 *   sigmoid       -log s(beta d)                                      Rafailov et al. 2023, arXiv:2305.18290
 *   hinge         max(0, 1 - beta d)                                  Zhao et al. 2023, arXiv:2305.10425
 *   ipo           (c/n_c - r/n_r - 1/(2 beta))^2                      Azar et al. 2023, arXiv:2310.12036
 *   exo_pair      KL((s(beta d), s(-beta d)) || (1 - e, e))           Ji et al. 2024, arXiv:2402.00856, eq. 16
 *   nca_pair      -log s(beta c) - log s(-beta c)/2 - log s(-beta r)/2   Chen et al. 2024, arXiv:2402.05369
 *   robust        (-(1 - e) log s(beta d) + e log s(-beta d)) / (1 - 2 e)   Chowdhury et al. 2024, arXiv:2403.00409
 *   bco_pair      -log s(beta c) - log s(-beta r)                     Jung et al. 2024, arXiv:2404.04656
 *   sppo_hard     (c - 1/(2 beta))^2 + (r + 1/(2 beta))^2             Wu et al. 2024, arXiv:2405.00675
 *   aot           smoothed sigmoid of the k-th smallest policy margin less the k-th smallest reference margin
 *   aot_unpaired  likewise of the k-th smallest c less the k-th smallest r   Melnyk et al. 2024, arXiv:2406.05882
 *   apo_zero      1 - s(beta c) + s(beta r)                           D'Oosterlinck et al. 2024, arXiv:2408.06266
 *   apo_down      s(beta c) + 1 - s(beta d)                           the same
 *   discopop      logistic and exponential loss, blended by s(beta d / tau)   Lu et al. 2024, arXiv:2406.08414, eq. 5
 *   sft           -log p(chosen) / n_c, a mean over the chosen answers' tokens
 *   sigmoid_norm  -log s(beta (c/n_c - r/n_r))
 *
 * These are TRL's definitions where they differ from a paper's. aot and sft look at all pairs of the global batch, so
 * that accumulation and ranks do not change them; all others at one pair. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum preference_loss {
    PREFERENCE_SIGMOID,
    PREFERENCE_HINGE,
    PREFERENCE_IPO,
    PREFERENCE_EXO_PAIR,
    PREFERENCE_NCA_PAIR,
    PREFERENCE_ROBUST,
    PREFERENCE_BCO_PAIR,
    PREFERENCE_SPPO_HARD,
    PREFERENCE_AOT,
    PREFERENCE_AOT_UNPAIRED,
    PREFERENCE_APO_ZERO,
    PREFERENCE_APO_DOWN,
    PREFERENCE_DISCOPOP,
    PREFERENCE_SFT,
    PREFERENCE_SIGMOID_NORM,
    PREFERENCE_LOSSES
};

/* preference_named - PREFERENCE_LOSSES: none has this name.  preference_name - of a loss. */
enum preference_loss preference_named(const char *name);
const char *preference_name(enum preference_loss loss);

struct preference_term {
    enum preference_loss loss;
    double weight;
};

struct preference_settings {
    int terms;
    struct preference_term term[PREFERENCE_LOSSES];
    double beta;            /* > 0 */
    double label_smoothing; /* exo_pair: above 0; robust: not 1/2 */
    double discopop_tau;    /* > 0 */
    double center_rewards;  /* of a reward model */
};

enum { CHOSEN, REJECTED, ANSWERS };

struct preference_pair {
    double logps[ANSWERS];     /* sums over the answer's tokens */
    double reference[ANSWERS]; /* likewise, of the reference */
    int64_t tokens[ANSWERS];   /* > 0 */
};

struct preference_slope {
    double
        loss; /* its share: the sum over all pairs, divided by their number, is the batch's loss */
    double logps[ANSWERS]; /* derivative of that sum by the pair's log-probabilities */
};

/* preference_whole - whether the loss needs all pairs of the global batch at once. */
bool preference_whole(const struct preference_settings *s);

/* preference_slopes - losses and derivatives of `count` pairs; of all of the batch where preference_whole.
 *
 * Numerics  nothing overflows but what is infinite itself (discopop's exponential)
 * Errors    STATUS_INTERNAL: out of memory (for sorting) */
status preference_slopes(const struct preference_settings *s, const struct preference_pair *pairs,
                         int64_t count, struct preference_slope *out);
