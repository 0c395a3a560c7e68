/* The losses of preference pairs, such as DPO. An operation computes sums, and the scales of the
 * rows' gradients, from the log-probabilities of the tokens. It uses double precision.
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
 * differs from a paper. aot, aot_unpaired and sft read all pairs of the global batch; the caller
 * computes their gradients. The other losses read one pair at a time.
 *
 * kernels.h states the conventions of all operations. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

struct kernels;

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

/* The sums over all pairs. A reward is beta times a log-ratio. */
enum preference_sum {
    PREFERENCE_SUM_LOSS,
    PREFERENCE_SUM_PAIRS,
    PREFERENCE_SUM_REWARD_CHOSEN,
    PREFERENCE_SUM_REWARD_REJECTED,
    PREFERENCE_SUM_CORRECT_PAIRS, /* pairs in which the chosen response has the higher reward */
    PREFERENCE_SUM_LOGPS_CHOSEN,
    PREFERENCE_SUM_LOGPS_REJECTED,
    PREFERENCE_SUM_LOGITS_CHOSEN, /* mean logits of the tokens */
    PREFERENCE_SUM_LOGITS_REJECTED,
    PREFERENCE_SUM_TOKENS_CHOSEN,
    PREFERENCE_SUM_TOKENS_REJECTED,
    PREFERENCE_SUM_ENTROPY,
    PREFERENCE_SUM_TOKENS,
    PREFERENCE_SUM_CORRECT_TOKENS, /* chosen responses: tokens with the largest logit of the row */
    PREFERENCE_SUM_MARGIN,         /* reward of the chosen minus reward of the rejected response */
    PREFERENCE_SUMS
};

/* The tokens of the responses of P pairs. Response 2 i is the chosen one of pair i, response 2 i +
 * 1 the rejected one. All arrays are on the device. */
struct preference_rows {
    int64_t pairs, rows;    /* P, M */
    const int32_t *first;   /* int32 [2 P + 1] first row of each response; the last element is M */
    const float *losses;    /* f32 [M] -log p of each token */
    const float *entropies; /* f32 [M] */
    const float *mean_logits;
    const int32_t *argmax, *targets; /* int32 [M] */
    const double *reference;         /* f64 [P, 2] under the reference model; NULL: zeros */
    /* Losses and gradients that the caller has computed for all pairs of a global batch. Pair i of
     * the call has element (gradient_first + i) % gradient_count. NULL: the operation computes the
     * terms. */
    const struct preference_gradient *gradients;
    int64_t gradient_first, gradient_count;
};

/* preference_loss_run - compute the sums of a loss and the scale of the gradient of each row.
 *
 * Shapes    sums f64 [PREFERENCE_SUMS]; NULL: not computed.  row_scales f32 [M]: minus the gradient
 *           of the loss with respect to the log-probability of the row's response; NULL: not
 *           computed.  logps f64 [P, 2]: log-probabilities of the responses; NULL: not stored. All
 *           on the device
 * Numerics  double precision; row_scales are rounded to f32. Tokens of a response and the terms of
 *           each sum are added in their order. On a GPU, exp and log1p may differ from the CPU in
 *           the last bit of a double, and products may be fused with sums
 * Errors    STATUS_INTERNAL if an array is missing, or if a term reads the whole batch and there
 *           are no gradients. first is not checked */
status preference_loss_run(struct kernels *k, double *sums, float *row_scales, double *logps,
                           const struct preference_rows *rows,
                           const struct preference_settings *settings);

#ifdef __cplusplus
}
#endif
