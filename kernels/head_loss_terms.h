/* The formulas of kernels/head_loss.h, for the host and for kernels.
 *
 *   softmax of x with label t:  loss = log sum_i exp(x_i - m) + m - x_t,  m = max_i x_i
 *                               gradient_i = w (exp(x_i - m) / sum - [i = t])
 *   square:                     loss = d^2, gradient = 2 d, d = x - target
 *   pair:                       loss = log1p(exp(-|d|)) + max(-d, 0) + center (c + r)^2, d = c - r
 *                               gradients -s(-d) + 2 center (c + r), s(-d) + 2 center (c + r)
 *
 * w is the weight, and s is the logistic function. [i = t] is 1 if i = t, and else 0. c and r are
 * the outputs of the chosen and of the rejected response. */
#pragma once

#include "kernels/head_loss.h"
#include "kernels/host_device.h"

/* The terms of one loss, in the order of enum head_loss_sum. */
struct head_loss_terms {
    double values[HEAD_LOSS_SUMS];
};

/* `count` outputs that are `stride` apart, and their gradients. */
struct head_loss_softmax {
    const float *outputs;
    float *gradients;
    int64_t count, stride, label;
    double weight; /* factor of the gradients */
};

/* head_loss_exponential - return exp(x_i - maximum). */
HOST_DEVICE_INLINE double head_loss_exponential(const struct head_loss_softmax *s, int64_t i,
                                                double maximum)
{
    return exp((double)s->outputs[i * s->stride] - maximum);
}

/* head_loss_set_gradient - write the gradient of output i.
 *
 * Units     sum: of the exponentials of all outputs */
HOST_DEVICE_INLINE void head_loss_set_gradient(const struct head_loss_softmax *s, int64_t i,
                                               double maximum, double sum)
{
    double probability = head_loss_exponential(s, i, maximum) / sum;
    double is_label = i == s->label ? 1.0 : 0.0;
    s->gradients[i * s->stride] = (float)host_device_multiply(s->weight, probability - is_label);
}

/* head_loss_softmax_loss - return -log p(label).
 *
 * Units     sum: of the exponentials of all outputs */
HOST_DEVICE_INLINE double head_loss_softmax_loss(const struct head_loss_softmax *s, double maximum,
                                                 double sum)
{
    return log(sum) + maximum - (double)s->outputs[s->label * s->stride];
}

/* head_loss_square_terms - return the terms of an output of HEAD_LOSS_SQUARES, and write its
 * gradient. */
HOST_DEVICE_INLINE struct head_loss_terms head_loss_square_terms(float *gradient, float output,
                                                                 float target)
{
    double difference = (double)output - (double)target;
    struct head_loss_terms terms = {{0}};
    terms.values[HEAD_LOSS_VALUE] = host_device_multiply(difference, difference);
    terms.values[HEAD_LOSS_COUNT] = 1;
    terms.values[HEAD_LOSS_ABSOLUTE] = fabs(difference);
    *gradient = (float)(2 * difference);
    return terms;
}

/* head_loss_pair_terms - return the terms of a pair of HEAD_LOSS_PAIRS, and write its gradients.
 *
 * Shapes    gradients, outputs f32 [2]: of the chosen and of the rejected response */
HOST_DEVICE_INLINE struct head_loss_terms head_loss_pair_terms(float *gradients,
                                                               const float *outputs, double center)
{
    double chosen = (double)outputs[0], rejected = (double)outputs[1];
    double difference = chosen - rejected, total = chosen + rejected;
    double exponential = exp(-fabs(difference));
    double gradient = -(difference > 0 ? exponential : 1.0) / (1 + exponential);
    double centering = host_device_multiply(host_device_multiply(center, total), total);
    double slope = host_device_multiply(2 * center, total);
    struct head_loss_terms terms;
    terms.values[HEAD_LOSS_VALUE] =
        log1p(exponential) + (difference < 0 ? -difference : 0.0) + centering;
    terms.values[HEAD_LOSS_COUNT] = 1;
    terms.values[HEAD_LOSS_CORRECT] = chosen > rejected ? 1.0 : 0.0;
    terms.values[HEAD_LOSS_MARGIN] = difference;
    terms.values[HEAD_LOSS_TOTAL] = total;
    terms.values[HEAD_LOSS_OUTPUTS] = 2;
    gradients[0] = (float)(gradient + slope);
    gradients[1] = (float)(-gradient + slope);
    return terms;
}
