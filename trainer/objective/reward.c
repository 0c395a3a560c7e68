/* Objective reward, reward modeling: the chosen response of a pair gets a higher reward than the
 * rejected one.
 *
 *   loss = sum_pairs ( -log s(c - r) + center (c + r)^2 ) / pairs
 *
 * c and r are the rewards of the chosen and the rejected response, and s is the logistic function.
 * A reward is one output of the head at the last token of prompt and response. This is the
 * Bradley-Terry model. Names and definitions follow TRL's RewardTrainer; center is TRL's
 * center_rewards_coefficient.
 *
 * Source    Bradley, Terry 1952; Ouyang et al. 2022, arXiv:2203.02155; center: Eisenstein et al.
 *           2023, arXiv:2312.09244 */
#include <inttypes.h>

#include "trainer/objective/task_head.h"

enum reward_sum {
    REWARD_CORRECT = OBJECTIVE_LOSS + (int)HEAD_LOSS_CORRECT,
    REWARD_MARGIN = OBJECTIVE_LOSS + (int)HEAD_LOSS_MARGIN,
    REWARD_TOTAL = OBJECTIVE_LOSS + (int)HEAD_LOSS_TOTAL,
    REWARD_RESPONSES = OBJECTIVE_LOSS + (int)HEAD_LOSS_OUTPUTS,
};

_Static_assert((int)CHOSEN == 0 && (int)REJECTED == 1, "the order of HEAD_LOSS_PAIRS");

static const struct objective_metric metrics[] = {
    {"accuracy", REWARD_CORRECT, OBJECTIVE_COUNT},
    {"margin", REWARD_MARGIN, OBJECTIVE_COUNT},
    {"mean_reward", REWARD_TOTAL, REWARD_RESPONSES},
    {0},
};

static status reward_loss(struct kernels *k, const struct batch *batch,
                          const struct objective_input *in, bool gradient,
                          double sums[OBJECTIVE_SUMS])
{
    (void)sums; /* kernels compute all sums */
    TRY(task_head_check(batch, in, BATCH_PREFERENCE_PAIRS));
    REQUIRE(in->label_head.weight.rows == 1 &&
                batch->outputs.count == RESPONSES * batch->sequences && in->preference != NULL,
            STATUS_INTERNAL,
            "objective reward needs a head of 1 output and 2 rows for each pair; there are %" PRId64
            " outputs and %" PRId64 " rows for %" PRId64 " pairs",
            in->label_head.weight.rows, batch->outputs.count, batch->sequences);
    const struct head_loss loss = {.kind = HEAD_LOSS_PAIRS,
                                   .examples = batch->sequences,
                                   .center = in->preference->center_rewards};
    return task_head_run(k, batch, in, &loss, 0, gradient);
}

const struct objective objective_reward = {
    .metrics = metrics,
    .unit = "pairs",
    .loss = reward_loss,
};
