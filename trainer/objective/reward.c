/* Reward modelling: the chosen response of a pair gets a higher reward than the rejected one.
 *
 *   loss = sum_pairs ( -log s(c - r) + center (c + r)^2 ) / pairs
 *
 * c and r are the rewards of the chosen and the rejected response, and s is the logistic function.
 * A reward is one output of the head at the last token of prompt and response. This is the
 * Bradley-Terry model. Names and definitions are those of TRL's RewardTrainer; center is TRL's
 * center_rewards_coefficient.
 *
 * Source    Bradley, Terry 1952; Ouyang et al. 2022, arXiv:2203.02155; center: Eisenstein et al.
 *           2023, arXiv:2312.09244 */
#include <inttypes.h>
#include <math.h>

#include "trainer/objective/task_head.h"

enum reward_sum {
    REWARD_CORRECT = OBJECTIVE_COUNT + 1,
    REWARD_MARGIN,
    REWARD_TOTAL,
    REWARD_RESPONSES,
};

static const struct objective_metric metrics[] = {
    {"accuracy", REWARD_CORRECT, OBJECTIVE_COUNT},
    {"margin", REWARD_MARGIN, OBJECTIVE_COUNT},
    {"mean_reward", REWARD_TOTAL, REWARD_RESPONSES},
    {0},
};

/* Returns -log s(d); *gradient is its derivative. */
static double compute_logistic_loss(double d, double *gradient)
{
    double exponential = exp(-fabs(d));
    *gradient = -(d > 0 ? exponential : 1) / (1 + exponential);
    return log1p(exponential) + (d < 0 ? -d : 0);
}

static status reward_loss(struct kernels *k, const struct batch *batch,
                          const struct objective_input *in, bool gradient,
                          double sums[OBJECTIVE_SUMS])
{
    const float *rewards = NULL;
    float *gradients = NULL;
    TRY(task_head_check(batch, in, BATCH_PREFERENCE_PAIRS));
    REQUIRE(in->label_head.weight.rows == 1 &&
                batch->outputs.count == RESPONSES * batch->sequences && in->preference != NULL,
            STATUS_INTERNAL,
            "objective reward needs a head of 1 output and 2 rows for each pair; there are %" PRId64
            " outputs and %" PRId64 " rows for %" PRId64 " pairs",
            in->label_head.weight.rows, batch->outputs.count, batch->sequences);
    TRY(task_head_forward(k, in, &rewards, &gradients));
    double center = in->preference->center_rewards;
    for (int64_t i = 0; i < batch->outputs.count; i += RESPONSES) {
        double chosen = (double)rewards[i + CHOSEN], rejected = (double)rewards[i + REJECTED];
        double total = chosen + rejected, pair_gradient = 0;
        sums[OBJECTIVE_LOSS] +=
            compute_logistic_loss(chosen - rejected, &pair_gradient) + center * total * total;
        sums[OBJECTIVE_COUNT] += 1;
        sums[REWARD_CORRECT] += chosen > rejected;
        sums[REWARD_MARGIN] += chosen - rejected;
        sums[REWARD_TOTAL] += total;
        sums[REWARD_RESPONSES] += RESPONSES;
        gradients[i + CHOSEN] = (float)(pair_gradient + 2 * center * total);
        gradients[i + REJECTED] = (float)(-pair_gradient + 2 * center * total);
    }
    TRY(task_head_report(batch, in, rewards, 1, 0));
    return gradient ? task_head_backward(k, in) : STATUS_OK;
}

const struct objective objective_reward = {
    .name = "reward",
    .metrics = metrics,
    .unit = "pairs",
    .loss = reward_loss,
};
