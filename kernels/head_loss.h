/* The loss of a fine-tuning head: sums and gradients are computed from its outputs, in double
 * precision.
 *
 * kernels.h includes this header and states the conventions of all operations. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include "base/tensor.h"

struct kernels;

/* How outputs [N, C] become losses. p is a softmax and s the logistic function. */
enum head_loss_kind {
    /* each row: -log p(label), p over the columns. E = N; labels [N], or `ignored` */
    HEAD_LOSS_ROWS,
    /* each example: the mean over the columns of -log p(label), p over the rows of the example.
     * labels [E, C] */
    HEAD_LOSS_COLUMNS,
    /* each row: (output - target)^2. E = N, C = 1; targets [N] */
    HEAD_LOSS_SQUARES,
    /* two rows c, r: -log s(c - r) + center (c + r)^2. N = 2 E, C = 1 */
    HEAD_LOSS_PAIRS,
};

/* The sums over all examples. A sum that a kind does not have is 0. */
enum head_loss_sum {
    HEAD_LOSS_VALUE,                        /* the losses */
    HEAD_LOSS_COUNT,                        /* examples that are not ignored */
    HEAD_LOSS_CORRECT,                      /* examples in which the label has the largest output */
    HEAD_LOSS_ABSOLUTE = HEAD_LOSS_CORRECT, /* HEAD_LOSS_SQUARES: |output - target| */
    HEAD_LOSS_MARGIN,                       /* HEAD_LOSS_PAIRS: c - r */
    HEAD_LOSS_TOTAL,                        /* HEAD_LOSS_PAIRS: c + r */
    HEAD_LOSS_OUTPUTS,                      /* HEAD_LOSS_PAIRS: 2 for each pair */
    HEAD_LOSS_SUMS
};

struct head_loss {
    enum head_loss_kind kind;
    int64_t examples;            /* E */
    const int32_t *example_rows; /* HEAD_LOSS_COLUMNS: int32 [E + 1] first row of each example */
    const int32_t *labels;       /* int32, on the device */
    const float *targets;        /* f32, on the device */
    int32_t ignored;             /* HEAD_LOSS_ROWS: the label of rows that are not counted */
    double center;               /* HEAD_LOSS_PAIRS */
};

/* head_loss_run - compute the sums of a loss and the gradients of the outputs.
 *
 * Shapes    out f64 [HEAD_LOSS_SUMS];  gradients, outputs f32 [N, C] without gaps between rows; all
 *           on the device
 * Numerics  double precision; the gradients are rounded to f32. Losses are added in the order of
 *           the rows, and the losses of an example in the order of the columns. On a GPU, exp and
 *           log may differ from the CPU in the last bit of a double. If several outputs are equally
 *           large, the first one counts as the largest
 * Errors    STATUS_INTERNAL for other shapes. Labels and example_rows are not checked */
status head_loss_run(struct kernels *k, double *out, struct tensor gradients, struct tensor outputs,
                     const struct head_loss *h);

#ifdef __cplusplus
}
#endif
