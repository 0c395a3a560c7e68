/* One optimizer step: micro-batches, gradient reduction and update of the weights.
 *
 * batch -> model forward -> objective -> model backward -> buckets -> step reduction -> optimizer.
 * A rank with an error stores it, contributes zeros and takes part in all collectives. All ranks
 * stop together at the step reduction.
 *
 * With step_runs_ahead (on a GPU) the host does not wait for the sums of a step. The ranks reduce
 * errors, tokens and votes on the host. The device reduces losses and gradient norm, and updates
 * the weights if both are finite (trainer/optimizer/decision.h). The caller reads these results
 * with step_finish, after it has queued the next step. */
#pragma once

#include "comm/mesh.h"
#include "datasets/loader/loader.h"
#include "trainer/model/model.h"
#include "trainer/objective/objective.h"
#include "trainer/train/step/sharded_optimizer.h"
#include "trainer/train/step/spike.h"

struct step;

struct step_parts {
    struct mesh mesh;
    struct kernels *kernels;
    struct model *model;
    const struct objective *objective;
    struct sharded_optimizer *optimizer; /* NULL: evaluation only */
    struct loader *loader;
    const struct preference_settings *preference; /* NULL: the objective needs none */
    double *reference_logps;                      /* output of objective_dpo_reference; else NULL */
    const struct objective_sink *sink; /* receives the examples of an evaluation; NULL: unused */
    /* the same data again, for the collect pass of a loss over the whole batch; NULL: unused */
    struct loader *collect_loader;
    int64_t batch_size; /* examples of a global batch; 0: the loss is a sum over its examples */
    uint64_t seed;
    double label_smoothing; /* of the labels in training; 0: none */
    int64_t micro_rows;     /* maximum number of rows of a micro-batch */
    bool reproducible;      /* sums have the same bits for any number of data-parallel ranks */
    struct checkpoint_spikes *spikes; /* the averages of spike detection; NULL: unused */
    bool skips_spikes;    /* a spike does not update the weights; values may be not finite */
    bool decides_on_host; /* the host waits for the sums of a step before its update */
    /* called between two micro-batches; true abandons the step on all ranks; NULL: unused */
    bool (*should_stop)(void);
};

/* Votes that the ranks cast at the end of a step. Every rank receives the sums over all ranks. */
enum step_vote {
    STEP_VOTE_STOP = 0, /* to save a checkpoint and end: a signal or an abandoned step */
    STEP_VOTE_TIME_UP,  /* train.max_minutes are over */
    STEP_VOTE_WALL,     /* train.wall_minutes are almost over */
    STEP_VOTE_WRITTEN,  /* this rank has written its part of a checkpoint */
    STEP_VOTES
};

struct step_result {
    double sums[OBJECTIVE_SUMS]; /* of the global batch */
    double loss;                 /* mean over the counted tokens of the global batch */
    double gradient_norm;        /* of the mean loss's gradient, before clipping */
    double votes[STEP_VOTES];
    double data_seconds;  /* time of waits for batches */
    double total_seconds; /* duration of the call; of a queued step, see struct decision_time */
    double ended_seconds; /* the end of the step, as a value of clock_seconds */
    int64_t rows;         /* rows of this rank */
    int64_t tokens;       /* of the global batch */
    struct spike_score spike;
    bool skipped;   /* the weights were not updated, because of a spike */
    bool queued;    /* sums, loss, gradient_norm, spike and the times come from step_finish */
    bool abandoned; /* should_stop ended the step without an update; STEP_VOTE_STOP is set */
};

/* step_create - allocate the working memory of steps.
 *
 * Memory    *parts is copied; the caller owns the objects in it, which must outlive *out
 * Errors    STATUS_INTERNAL out of memory; errors of the device */
status step_create(const struct step_parts *parts, struct step **out);

/* step_destroy - release a step and set *s to NULL. *s may be NULL. */
status step_destroy(struct step **s);

/* step_set_loaders - read the next batches from other loaders, and discard the prefetched one.
 *
 * Memory    collect_loader is NULL if the step has none; the old loaders may be closed before */
void step_set_loaders(struct step *s, struct loader *loader, struct loader *collect_loader);

/* step_train - run one training step.
 *
 * pending_error is an error of this rank since the last step. It ends this step on all ranks. With
 * has_next_step the first batch of the next step is read before the reduction, so that an error in
 * it ends this step.
 *
 * With step_runs_ahead the step is only queued, and out->queued is true. At most two steps may be
 * queued. Call step_finish for all of them before the weights are used for another purpose.
 *
 * Units     step_number counts from 0
 * Order     collective
 * Errors    STATUS_NOT_FINITE, before the weights change, unless spikes are skipped; STATUS_DATA
 *           from the loader; STATUS_DIVERGED if only some ranks found a spike, with skips_spikes;
 *           agreed on all ranks and printed once */
status step_train(struct step *s, int64_t step_number, double learning_rate,
                  const double votes[STEP_VOTES], status pending_error, bool has_next_step,
                  struct step_result *out);

/* step_finish - wait for the results of the oldest queued step.
 *
 * Order     collective
 * Errors    STATUS_NOT_FINITE: neither this step nor a later one has changed weights or moments;
 *           STATUS_DIVERGED as in step_train; agreed on all ranks and printed once. STATUS_HANG */
status step_finish(struct step *s, struct step_result *out);

/* step_runs_ahead - return whether step_train queues a step and does not wait for the device.
 *
 * It is true on a GPU, unless the host decides about the update (step_parts.decides_on_host). */
bool step_runs_ahead(const struct step *s);

/* Casts votes during an evaluation, at each reduction over the ranks. */
struct step_ballot {
    void (*cast)(const void *user, double votes[STEP_VOTES]);
    const void *user;
    double votes[STEP_VOTES]; /* sums of the last reduction */
};

/* step_evaluate - sum the loss over all samples of a limited loader, on all ranks.
 *
 * A vote to stop (STEP_VOTE_STOP, STEP_VOTE_WALL) ends the evaluation after the current global
 * batch; the sums are then incomplete. Without votes, ballot is NULL.
 *
 * Order     collective
 * Errors    STATUS_NOT_FINITE; STATUS_DATA from the loader; agreed on all ranks and printed once */
status step_evaluate(struct step *s, struct loader *loader, struct step_ballot *ballot,
                     double sums[OBJECTIVE_SUMS]);
