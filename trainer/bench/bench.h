/* Repeatable measurements, each with its floor beside it. */
#pragma once

#include "trainer/objective/objective.h"
#include "trainer/setup/session.h"

/* One operation of a step. Its floor is the larger of its arithmetic at the rate of the step's matrix
 * products and its bytes at the rate of a large copy, both measured in the same run. */
struct bench_operation {
    const char *name;
    int64_t calls;
    double seconds, floor_seconds, share; /* a step */
    double flops, bytes;
};

/* What a step's communication would take alone, what of it the rank stood in, and the share that was hidden
 * (comm_hidden_share). */
struct bench_traffic {
    double seconds, exposed_seconds, hidden_share;
};

enum { BENCH_LOSSES = 20 };

struct bench_step {
    int64_t tokens;                    /* of a step, over all ranks */
    double step_seconds;               /* median */
    double floor_seconds;              /* median: the step's matrix products alone, on this rank */
    struct bench_traffic data, tensor; /* of the data-parallel ranks, of those that share a model */
    double copy_bytes_per_second;      /* read and written bytes of a large copy */
    struct bench_operation
        operations[KERNELS_OPERATIONS_MAX]; /* of the median step itself, or ... */
    int operation_count;               /* ... on a GPU of one more, in which each is waited for */
    double listed_seconds;             /* of the step that they are of */
    double first_losses[BENCH_LOSSES]; /* of this rank's micro-batch, which stays the same */
    int first_loss_count;
};

/* bench_step_run - forward, backward, reduction and AdamW on one micro-batch of random tokens, in turn
 * with its floor.
 *
 * Units     repeats of each, after two steps that do not count
 * Order     collective over the session's world */
status bench_step_run(struct session *s, const struct objective *objective, int repeats, bool floor,
                      struct bench_step *out);

/* Operations alone: `share` is the floor's seconds over those taken. */
struct bench_kernels {
    int64_t rows;
    double copy_bytes_per_second;    /* read and written bytes of a large copy */
    double product_flops_per_second; /* of the first layer's product in the feed-forward */
    struct bench_operation operations[KERNELS_OPERATIONS_MAX];
    int operation_count;
};

/* bench_kernels_run - each operation that the device has, on the sizes of the session's model and a
 * micro-batch of its recipe. Not collective.
 *
 * Units     repeats: samples, of which the median counts
 * Errors    STATUS_RECIPE where ranks share the model */
status bench_kernels_run(struct session *s, int repeats, struct bench_kernels *out);

/* bench_median - of values [count], which are sorted. */
double bench_median(double *values, int count);
