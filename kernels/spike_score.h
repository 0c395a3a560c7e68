/* The scores of a training step for the detection of loss spikes, in device memory.
 * trainer/train/step/spike.h defines averages, scores and spikes.
 *
 * kernels.h states the conventions of all operations. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

struct kernels;
struct update_control;

/* Moving averages of the logarithm of a value. */
struct spike_trend {
    double mean;
    double change; /* mean absolute change from one value to the next */
    double last;   /* the last value that entered the averages */
    int64_t count; /* values so far */
};

struct spike_averages {
    struct spike_trend loss, gradient_norm;
};

/* The scores of a step; INFINITY for a value that is not finite. */
struct spike_score {
    double loss, gradient_norm;
    bool is_spike;
};

struct spike_state {
    struct spike_averages averages;
    struct spike_score score; /* of the last step */
};

enum { SPIKE_LOSS_TERMS = 2 };

/* The loss of a step is the sum of `terms` means sums[sum[i]] / sums[count[i]]. A mean without a
 * count is 0. */
struct spike_inputs {
    const double *sums;        /* f64, over all ranks */
    const double *predictions; /* f64 [1] the loss is the mean of this number of terms */
    const double *squares;     /* f64 [1] sum of squares of the summed gradients */
    int terms, sum[SPIKE_LOSS_TERMS], count[SPIKE_LOSS_TERMS];
};

/* spike_score_run - compute the scores of a step, add its values to the averages, and skip the
 * update of a spike.
 *
 * Shapes    control, state [1] and the arrays of in, all on the device
 * Memory    control->skip becomes 1 if the step is a spike, else 0. A step with values that are not
 *           finite is a spike
 * Numerics  double precision. On a GPU, exp and log may differ from the CPU in the last bit, and
 *           products may be fused with sums */
status spike_score_run(struct kernels *k, struct update_control *control, struct spike_state *state,
                       const struct spike_inputs *in);

#ifdef __cplusplus
}
#endif
