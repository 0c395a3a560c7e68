/* Repeatable measurements, each with its roofline: the time that the hardware needs at least. */
#pragma once

#include "trainer/objective/objective.h"
#include "trainer/setup/session.h"

/* One operation of a step. Its roofline is the larger of two times: its FLOPs at the rate of the
 * step's GEMMs, and its bytes at the rate of a large copy. The same run measures both rates. */
struct bench_operation {
    const char *name;
    int64_t calls;
    double seconds, roofline_seconds; /* per step */
    double share;                     /* of the step; bench_kernels: roofline / measured time */
    double flops, bytes;
    double idle_share; /* of the threads' time in GEMMs, from the sizes of their units; CPU only */
};

/* Communication of a step: its time without computation, the time that the rank waited for it, and
 * the share that computation overlapped (comm_hidden_share). */
struct bench_traffic {
    double seconds, exposed_seconds, hidden_share;
};

enum { BENCH_LOSSES = 20 };

struct bench_step {
    int64_t tokens;                    /* per step, over all ranks */
    double step_seconds;               /* median */
    double roofline_seconds;           /* median: the GEMMs of the step alone, on this rank */
    struct bench_traffic data, tensor; /* in the data-parallel and tensor-parallel groups */
    double copy_bytes_per_second;      /* bytes read and written by a large copy */
    int64_t device_bytes;              /* GPU memory in use after the steps; 0: the CPU */
    /* operations of the median step; on a GPU, of an additional step that waits for each one */
    struct bench_operation operations[KERNELS_OPERATIONS_MAX];
    int operation_count;
    double profiled_seconds;           /* of the step with these operations */
    double first_losses[BENCH_LOSSES]; /* of this rank's micro-batch, the same in every step */
    int first_loss_count;
};

/* bench_step_run - measure training steps on one micro-batch of random tokens.
 *
 * A step is forward, backward, gradient reduction and optimizer update. If `roofline` is true,
 * steps and measurements of the step's GEMMs alternate.
 *
 * Units     repeats: number of steps, after two warm-up steps
 * Order     collective over the session's world */
status bench_step_run(struct session *s, const struct objective *objective, int repeats,
                      bool roofline, struct bench_step *out);

struct bench_kernels {
    int64_t rows;
    double copy_bytes_per_second; /* bytes read and written by a large copy */
    double gemm_flops_per_second; /* of the first GEMM of the feed-forward block */
    struct bench_operation operations[KERNELS_OPERATIONS_MAX];
    int operation_count;
};

/* bench_kernels_run - measure the main operations of the device, each one separately.
 *
 * The session's model and a micro-batch of its recipe determine the sizes. The classifier and the
 * optimizer use the recipe's label smoothing and type of moments. Not collective.
 *
 * Units     repeats: number of samples; the median is reported
 * Errors    STATUS_RECIPE if parallel.tensor is above 1 */
status bench_kernels_run(struct session *s, int repeats, struct bench_kernels *out);
