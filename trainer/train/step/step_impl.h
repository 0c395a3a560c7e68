/* The fields and the statistics of a step, and the functions that the files of step.h share. */
#pragma once

#include "base/exact.h"
#include "datasets/loader/batch_upload.h"
#include "trainer/optimizer/decision.h"
#include "trainer/train/step/loss_readback.h"
#include "trainer/train/step/micro_batch.h"
#include "trainer/train/step/step.h"

/* A queued step; its results have not been read. */
struct queued_step {
    int64_t number;
    struct step_result result; /* the fields that are known when the step is queued */
};

struct step {
    struct step_parts parts;
    struct workspace *workspace;
    struct micro_batch_context context;
    struct loss_readback *readbacks[DECISION_STEPS]; /* for steps with even and odd numbers */
    struct loss_readback *readback;                  /* of the current step */
    struct decision *decision; /* NULL: the host reads the sums before the update */
    struct queued_step queued[DECISION_STEPS];
    int queued_count;
    struct batch_upload *upload, *evaluation_upload;
    int64_t collected;                /* micro-batches that the collect pass has run */
    struct tensor hidden;             /* hidden states of the last collected micro-batch */
    struct batch_counts *rank_counts; /* [data-parallel ranks] */
    int64_t first_row, first_output;  /* this rank's first rows in the packed global batch */
    double example_weight;
    struct batch batch; /* prefetched; its error is reported by the previous step */
    bool has_batch;
    bool is_last;      /* the batch is the last one of this rank in its step */
    status read_error; /* of the prefetch */
    bool abandoned;    /* should_stop has ended the micro-batches of this rank */
    struct exact_sum sums[OBJECTIVE_SUMS], squares; /* of this rank, since the last reduction */
};

/* Layout of the statistics that the ranks reduce once per step. The loss sums and tokens are
 * summed over the data-parallel group. The statistics from STAT_SQUARES on are summed over both
 * groups. With a decision, the device reduces loss sums and squares, and they are 0 here. */
enum step_stat {
    STAT_TOKENS = OBJECTIVE_SUMS,
    STAT_SQUARES,
    STAT_ERRORS,
    STAT_ABANDONED,
    STAT_VOTES,
    STEP_STATS = STAT_VOTES + STEP_VOTES
};

/* step_set_phase - name the current phase for the watchdog and for profilers. */
void step_set_phase(const struct step *s, const char *name);

/* step_get_micro_batch - return a micro-batch of this rank with its position in the global batch.
 *
 * Memory    refers to both batches; device_batch is the uploaded copy of batch */
struct micro_batch step_get_micro_batch(const struct step *s, const struct batch *batch,
                                        const struct batch *device_batch);

/* step_run_micro_batch - run a micro-batch. Its sums go to a new slot of the readback.
 *
 * Order     queues kernels
 * Errors    as micro_batch_run */
status step_run_micro_batch(struct step *s, struct micro_batch *m);

/* step_upload - upload a batch that was not prefetched.
 *
 * Memory    *device_batch is valid until the next call
 * Errors    as batch_upload_begin */
status step_upload(struct step *s, const struct batch *batch, struct batch *device_batch);

/* step_add_sums - add the sums of a micro-batch to sums.
 *
 * Numerics  with parallel.reproducible the result does not depend on the order of the additions */
void step_add_sums(struct step *s, const double micro_batch_sums[OBJECTIVE_SUMS],
                   double sums[OBJECTIVE_SUMS]);

/* step_reduce_stats - sum the statistics of a step over all ranks.
 *
 * Order     collective
 * Errors    as comm_sum_doubles */
status step_reduce_stats(struct step *s, double stats[STEP_STATS]);

/* step_agree_on_batch - set *all_ready to true if all ranks of the tensor-parallel group can run a
 * micro-batch. They run it together or not at all.
 *
 * Order     collective in the tensor-parallel group
 * Returns   read_error. If *all_ready is false and the result is STATUS_OK, the step is abandoned,
 *           or another rank has no batch and reports its error at the step reduction */
status step_agree_on_batch(const struct step *s, status read_error, bool *all_ready);

/* step_abort_if_tensor_parallel - end the job after an error if the tensor-parallel group has
 * several ranks. They wait for each other within a micro-batch, so one of them cannot leave alone.
 * A loss that is not finite is the same on all of them.
 *
 * Returns   result */
status step_abort_if_tensor_parallel(const struct step *s, status result);

/* step_collect - compute the loss gradients of all pairs of the global batch, before the first
 * backward. *all_ready: no rank has failed.
 *
 * Order     collective; every rank calls it, also with a pending error
 * Errors    pending_error, or the error of this rank */
status step_collect(struct step *s, int64_t step_number, status pending_error, bool *all_ready);
