/* Reward models: one number for an answer behind its prompt, read at its last token; of two answers the chosen one's is to
 * be the higher (Bradley, Terry 1952).
 *
 *   loss = -log s(c - r) + center (c + r)^2      c, r: the two answers' rewards, s the logistic function
 *
 * Names and definitions are those of TRL's RewardTrainer.
 *
 * Source    Ouyang et al. 2022, arXiv:2203.02155; center: Eisenstein et al. 2023, arXiv:2312.09244 */
#include <math.h>

#include "trainer/objective/task_head.h"

enum reward_sum {
    REWARD_ACCURATE = OBJECTIVE_COUNT + 1,
    REWARD_MARGIN,
    REWARD_TOTAL,
    REWARD_ANSWERS,
};

static const struct objective_metric metrics[] = {
    {"accuracy", REWARD_ACCURATE, OBJECTIVE_COUNT},
    {"margin", REWARD_MARGIN, OBJECTIVE_COUNT},
    {"mean_reward", REWARD_TOTAL, REWARD_ANSWERS},
    {0},
};

/* -log s(d), and its slope by d. */
static double logistic_loss(double d, double *slope)
{
    double small = exp(-fabs(d));
    *slope = -(d > 0 ? small : 1) / (1 + small);
    return log1p(small) + (d < 0 ? -d : 0);
}

static status reward_loss(struct kernels *k, const struct batch *batch,
                          const struct objective_views *views, bool gradient,
                          double sums[OBJECTIVE_SUMS])
{
    const float *rewards = NULL;
    float *slopes = NULL;
    TRY(head_check(batch, views));
    REQUIRE(views->labels.rows == 1 && batch->masked == ANSWERS * batch->sequences &&
                views->preference != NULL,
            STATUS_INTERNAL, "a reward of %lld outputs, %lld rows for %lld pairs",
            (long long)views->labels.rows, (long long)batch->masked, (long long)batch->sequences);
    TRY(head_forward(k, views, &rewards, &slopes));
    double center = views->preference->center_rewards;
    for (int64_t i = 0; i < batch->masked; i += ANSWERS) {
        double chosen = (double)rewards[i + CHOSEN], rejected = (double)rewards[i + REJECTED];
        double both = chosen + rejected, slope = 0;
        sums[OBJECTIVE_LOSS] += logistic_loss(chosen - rejected, &slope) + center * both * both;
        sums[OBJECTIVE_COUNT] += 1;
        sums[REWARD_ACCURATE] += chosen > rejected;
        sums[REWARD_MARGIN] += chosen - rejected;
        sums[REWARD_TOTAL] += both;
        sums[REWARD_ANSWERS] += ANSWERS;
        slopes[i + CHOSEN] = (float)(slope + 2 * center * both);
        slopes[i + REJECTED] = (float)(-slope + 2 * center * both);
    }
    TRY(head_tell(batch, views, rewards, 1, 0));
    return gradient ? head_backward(k, views) : STATUS_OK;
}

const struct objective objective_reward = {
    .name = "reward",
    .metrics = metrics,
    .counted = "pairs",
    .loss = reward_loss,
};
