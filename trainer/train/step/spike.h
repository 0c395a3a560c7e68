/* Detection of loss spikes: steps with a loss or a gradient norm far above its recent values.
 *
 * Averages  The loss and the gradient norm are positive and vary by factors. The averages therefore
 *           use x, the logarithm of a value. The loss and the gradient norm each have two
 *           exponential moving averages:
 *             mean    of x, over about 16 values; value number i has the weight 1 / min(i, 16)
 *             change  of |x - previous x|, over about 64 values, with the weights 1 / min(i, 64)
 * Score     (x - mean) / deviation, where
 *             deviation = max(0.8862 change, 0.02, 1 / sqrt(predictions))
 *           0.8862 change estimates the standard deviation of x. For independent normal values,
 *           this deviation is sqrt(pi) / 2 times the mean absolute change. The changes contain the
 *           noise of the loss. They do not contain its decrease, which is fast at first.
 *           0.02 is a deviation of 2 %. It prevents large scores if the loss is very even.
 *           The loss is the mean of `predictions` terms, such as tokens or labeled rows. One row of
 *           a small batch can change the mean by 1 / sqrt(predictions).
 *           A loss below 1 has heavier tails than its logarithm shows. The score of the loss is
 *           therefore at most (loss - exp(mean)) sqrt(predictions).
 * Spike     a step is a spike if a score exceeds 6, or if a value is not finite. The first 64
 *           values have the score 0.
 * Outliers  later values are limited to 3 deviations from the mean before they enter the averages.
 *           One spike hardly moves the averages, but a lasting change does. Values that are not
 *           finite or not positive do not enter them.
 * Device    with train.on_spike: skip, a GPU computes the scores and skips the update of a spike
 *           (kernels/spike_score.h). The host reads scores and averages one step later. If the
 *           ranks have GPUs of different models, the hosts compute the scores
 * Ranks     all ranks have the same reduced values, and therefore the same scores. Only different C
 *           libraries or GPUs could change the last bit of exp and log. If updates depend on the
 *           scores, the ranks compare their decisions. Checkpoints store the averages, so that a
 *           resumed run makes the same decisions.
 * Source    OLMo-core's SkipStepOptimizer, which also observes loss and gradient norm, has a
 *           threshold of 6 standard deviations and makes no decision in the first 64 steps. Its
 *           means are plain means over 128 steps */
#pragma once

#include "comm/comm.h"
#include "kernels/spike_score.h"
#include "trainer/formats/checkpoint/state.h"

/* spike_observe - compute the scores of a step and add its values to the averages.
 *
 * Units     predictions: the loss is the mean of this number of terms */
struct spike_score spike_observe(struct checkpoint_spikes *spikes, double loss,
                                 double gradient_norm, double predictions);

/* spike_require_same_decision - check that either all ranks or none have found a spike in a step.
 *
 * Order     collective
 * Errors    STATUS_DIVERGED with the ranks; agreed on all ranks and printed once */
status spike_require_same_decision(struct comm *world, bool is_spike);

/* spike_add_skipped - add samples to the skipped ranges. Ranges that overlap or touch become one.
 *
 * Returns   false if there is no space for another range */
bool spike_add_skipped(struct checkpoint_spikes *spikes, struct checkpoint_samples samples);
