/* Detection of loss spikes from the loss and the gradient norm of each step.
 *
 * Both values are positive and vary by factors, so their logarithm x is observed. Each has two
 * exponential moving averages: the mean of x over about 16 values, and the mean absolute change
 * |x - previous x| over about 64. Value number n has the weight 1 / min(n, 16) or 1 / min(n, 64).
 * The score of a value is
 *
 *     (x - mean) / max(0.8862 change, 0.02, 1 / sqrt(n))
 *
 * 0.8862 = sqrt(pi) / 2 times the mean absolute change of independent normal values is their
 * standard deviation. The changes contain the noise of the loss and not its decrease, which is fast
 * at the start of a run. 0.02 is a deviation of 2 %; it keeps a very even loss from giving large
 * scores. n is the number of predictions in the loss, such as tokens or labelled rows: one row of a
 * small batch can change its mean by 1 / sqrt(n). The loss has heavier tails than its logarithm
 * shows if it is below 1, so its score is at most (loss - exp(mean)) sqrt(n). A step is a spike if
 * a score exceeds 6, or if a value is not finite. The first 64 values have the score 0. Later
 * values are limited to 3 standard deviations from the mean before they enter the averages: one
 * spike hardly moves the averages, but a lasting change does. Values that are not finite or not
 * positive do not enter them.
 *
 * All ranks have the same reduced values, and therefore the same scores. Checkpoints store the
 * averages, so that a resumed run makes the same decisions.
 *
 * Source    as OLMo-core's SkipStepOptimizer: loss and gradient norm, a threshold of 6 standard
 *           deviations, no decision in the first 64 steps. Its means are plain means over 128
 *           steps */
#pragma once

#include <stdbool.h>

#include "trainer/formats/checkpoint/state.h"

/* The scores of a step; INFINITY for a value that is not finite. */
struct spike_score {
    double loss, gradient_norm;
    bool is_spike;
};

/* spike_observe - compute the scores of a step and add its values to the averages. `predictions` is
 * the number of terms of which the loss is the mean. */
struct spike_score spike_observe(struct checkpoint_spikes *spikes, double loss,
                                 double gradient_norm, double predictions);

/* spike_add_skipped - add samples to those that are skipped. Ranges that overlap or touch become
 * one.
 *
 * Returns   false if there is no space for another range */
bool spike_add_skipped(struct checkpoint_spikes *spikes, struct checkpoint_samples samples);
