/* Losses of preference pairs and their gradients, in double precision on the host.
 *
 * A pair is two responses to one prompt: the chosen and the rejected one. For each response, the
 * log-probabilities of its tokens are summed under the policy and under the reference model. The
 * difference of the two sums is the log-ratio: c of the chosen and r of the rejected response.
 *
 *   d = c - r,  s = logistic function,  e = label smoothing,  n_c, n_r = tokens of the responses
 *
 * The names are the values of TRL's DPOConfig.loss_type:
 *
 *   sigmoid       -log s(beta d)
 *                 Rafailov et al. 2023, arXiv:2305.18290
 *   hinge         max(0, 1 - beta d)
 *                 Zhao et al. 2023, arXiv:2305.10425
 *   ipo           (c/n_c - r/n_r - 1/(2 beta))^2
 *                 Azar et al. 2023, arXiv:2310.12036
 *   exo_pair      KL((s(beta d), s(-beta d)) || (1 - e, e))
 *                 Ji et al. 2024, arXiv:2402.00856, eq. 16
 *   nca_pair      -log s(beta c) - log s(-beta c)/2 - log s(-beta r)/2
 *                 Chen et al. 2024, arXiv:2402.05369
 *   robust        (-(1 - e) log s(beta d) + e log s(-beta d)) / (1 - 2 e)
 *                 Chowdhury et al. 2024, arXiv:2403.00409
 *   bco_pair      -log s(beta c) - log s(-beta r)
 *                 Jung et al. 2024, arXiv:2404.04656
 *   sppo_hard     (c - 1/(2 beta))^2 + (r + 1/(2 beta))^2
 *                 Wu et al. 2024, arXiv:2405.00675
 *   aot           smoothed sigmoid of beta (k-th smallest policy margin - k-th smallest reference
 *                 margin); a margin is chosen minus rejected
 *                 Melnyk et al. 2024, arXiv:2406.05882
 *   aot_unpaired  smoothed sigmoid of beta (k-th smallest c - k-th smallest r)
 *                 the same paper
 *   apo_zero      1 - s(beta c) + s(beta r)
 *                 D'Oosterlinck et al. 2024, arXiv:2408.06266
 *   apo_down      s(beta c) + 1 - s(beta d)
 *                 the same paper
 *   discopop      logistic and exponential loss, blended by s(beta d / tau)
 *                 Lu et al. 2024, arXiv:2406.08414, eq. 5
 *   sft           -log p(chosen) / n_c, a mean over the tokens of all chosen responses
 *   sigmoid_norm  -log s(beta (c/n_c - r/n_r))
 *
 * The smoothed sigmoid of x is -(1 - e) log s(x) - e log s(-x). Definitions follow TRL where it
 * differs from a paper. aot, aot_unpaired and sft read all pairs of the global batch, so that
 * gradient accumulation and the number of ranks do not change the result. The other losses read one
 * pair at a time. */
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

/* preference_find - find a loss by name; PREFERENCE_LOSSES if there is none. */
enum preference_loss preference_find(const char *name);

struct preference_term {
    enum preference_loss loss;
    double weight;
};

/* The loss is a weighted sum of terms. */
struct preference_settings {
    int terms;
    struct preference_term term[PREFERENCE_LOSSES];
    double beta;            /* > 0 */
    double label_smoothing; /* exo_pair: > 0; robust: not 1/2 */
    double discopop_tau;    /* > 0 */
    double center_rewards;  /* objective reward: weight of the centering term */
};

enum { CHOSEN, REJECTED, RESPONSES };

struct preference_pair {
    double logps[RESPONSES];     /* log-probability of each response under the policy */
    double reference[RESPONSES]; /* the same under the reference model */
    int64_t tokens[RESPONSES];   /* > 0 */
};

struct preference_gradient {
    double loss;             /* of this pair; the mean over all pairs is the loss of the batch */
    double logps[RESPONSES]; /* d(sum of the losses of all pairs) / d(logps of this pair) */
};

/* preference_needs_whole_batch - check whether a loss reads all pairs of the global batch. */
bool preference_needs_whole_batch(const struct preference_settings *s);

/* preference_gradients - compute losses and gradients of `count` pairs.
 *
 * Shapes    pairs, out [count]; all pairs of the global batch if preference_needs_whole_batch
 * Numerics  no overflow of intermediate values; only discopop's exponential can become infinite
 * Errors    STATUS_INTERNAL if memory for sorting is exhausted */
status preference_gradients(const struct preference_settings *s,
                            const struct preference_pair *pairs, int64_t count,
                            struct preference_gradient *out);
