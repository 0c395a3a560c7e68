/* One optimizer step: the only place that holds both ends of each arrow of the data flow.
 *
 * batch -> model.forward -> objective.loss -> model.backward -> buckets -> one small reduction ->
 * optimizer. A rank that fails on the way notes its error, contributes zeros and keeps its
 * appointments; all stop together at the small reduction. */
#pragma once

#include "comm/mesh.h"
#include "datasets/loader/loader.h"
#include "trainer/model/model.h"
#include "trainer/objective/objective.h"
#include "trainer/train/sharded_optimizer.h"

struct step;

struct step_parts {
    struct mesh mesh;
    struct kernels *kernels;
    struct model *model;
    const struct objective *objective;
    struct update *update; /* NULL: only to evaluate */
    struct loader *loader;
    const struct preference_settings *preference; /* NULL: the objective needs none */
    double *logps;                                /* of objective_dpo_reference */
    const struct objective_sink *sink; /* told of each example of an evaluation; NULL: nobody */
    struct loader *
        survey; /* the same data again, for a loss of the whole batch; NULL: none is trained with */
    int64_t batch_size; /* examples of a global batch; 0: the loss is a sum over them */
    uint64_t seed;
    int64_t micro_rows; /* N at most */
    bool reproducible;  /* sums are the same bits at any number of data-parallel ranks */
};

/* What a rank wants to say to all at the end of a step; the answer is the sum over the world. */
enum step_vote { VOTE_STOP = 0, VOTE_TIME_UP, VOTE_WALL, VOTE_WRITTEN, STEP_VOTES };

struct step_result {
    double sums[OBJECTIVE_SUMS]; /* over the global batch */
    double loss;                 /* mean over the counted tokens of the global batch */
    double gradient_norm;        /* of the mean loss's gradient, before clipping */
    double votes[STEP_VOTES];
    double data_seconds;  /* waiting for batches */
    double total_seconds; /* the whole call */
    int64_t rows;         /* tokens of this rank */
    int64_t tokens;       /* of the global batch */
};

/* step_create - the parts stay the caller's. */
status step_create(const struct step_parts *parts, struct step **out);
status step_destroy(struct step **s);

/* step_train - the step with this number (from 0), at this learning rate. Collective.
 *
 * before: what went wrong on this rank since the last step; it ends this one on all ranks. more: another step
 * follows, whose first batch is fetched before the ranks meet, so that an error in it ends this one.
 * Errors    STATUS_NOT_FINITE before the weights are touched; STATUS_DATA from the loader; agreed on all
 *           ranks, told once */
status step_train(struct step *s, int64_t step, double learning_rate,
                  const double votes[STEP_VOTES], status before, bool more,
                  struct step_result *out);

/* Votes while an evaluation runs: cast at each meeting of the ranks. */
struct step_ballot {
    void (*cast)(const void *user, double votes[STEP_VOTES]);
    const void *user;
    double votes[STEP_VOTES]; /* the last meeting's sums */
};

/* step_evaluate - sums over everything that a limited loader gives, on all ranks. Collective.
 *
 * ballot: a vote to stop (VOTE_STOP, VOTE_WALL) ends it after the global batch that is under way, and the
 * sums are not the whole; NULL: nobody is asked.
 * Errors    STATUS_NOT_FINITE; STATUS_DATA from the loader; agreed on all ranks, told once */
status step_evaluate(struct step *s, struct loader *loader, struct step_ballot *ballot,
                     double sums[OBJECTIVE_SUMS]);
