/* The state of the loop, and the functions that the files of loop.h share. */
#pragma once

#include "trainer/setup/shared_cores.h"
#include "trainer/train/loop.h"
#include "trainer/train/progress.h"
#include "trainer/train/run_report.h"
#include "trainer/train/spike_response.h"
#include "trainer/train/train_line.h"

/* A queued step that is not yet counted and logged. */
struct pending_step {
    bool exists;
    double rate; /* learning rate */
    struct step_result result;
};

struct loop {
    struct job *job;
    struct pending_step pending; /* the previous step, if its results were not read */
    struct train_line_interval interval;
    struct progress progress;
    struct progress_step_times times; /* train.wall_minutes reserves their median */
    double save_seconds;     /* of the longest save so far; train.wall_minutes reserves it */
    double evaluate_seconds; /* of the longest evaluation so far; reserved as well */
    double sample_seconds;   /* of the longest sample so far; reserved as well */
    int64_t evaluated;       /* the last step that was evaluated */
    int64_t sampled;         /* the last step with a sample */
    double save_started_seconds, save_stall_seconds;
    struct run_report report;
    int64_t checked;    /* step of the last comparison of the replicas */
    int64_t last_saved; /* step of the last save, published or in progress */
    struct spike_response spikes;
    struct shared_cores shared_cores;
    double seconds_before;   /* training time of earlier sessions of this run */
    const char *stop_reason; /* not NULL: stop after this step with exit code 75 */
    bool finished;           /* the run ends normally after this step */
    bool evaluating;
    bool stepped;  /* this session has completed a step */
    bool tuned;    /* GEMM algorithms were timed after a step */
    bool improved; /* the last evaluation is the best so far and is not saved yet */
    /* An error of this rank alone, such as a full disk under metrics.jsonl. The next collective
     * step reports it to all ranks, so that none waits for a rank that has left. */
    struct status_note local_error;
};

/* loop_recipe - return the recipe of the run. */
const struct recipe *loop_recipe(const struct loop *loop);

/* loop_train_seconds - return the training time of the run, with earlier sessions. */
double loop_train_seconds(const struct loop *loop);

/* loop_store_local_error - store an error of this rank until the next step. A collective in between
 * would clear the pending note. */
void loop_store_local_error(struct loop *loop, status result);

/* loop_cast_votes - compute the votes of this rank (enum step_vote). `user` is the struct loop. */
void loop_cast_votes(const void *user, double votes[STEP_VOTES]);

/* loop_apply_stop_votes - set loop->stop_reason if the sums of the votes contain one to stop. */
void loop_apply_stop_votes(struct loop *loop, const double votes[STEP_VOTES]);

/* loop_has_compared_evaluations - return whether evaluations are compared with each other. */
bool loop_has_compared_evaluations(const struct loop *loop);

/* loop_evaluate - evaluate and generate a sample, once per step. An evaluation that a stop
 * interrupts is discarded; the next session repeats it.
 *
 * Order     collective
 * Errors    as step_evaluate and the functions of generated_outputs.h; agreed on all ranks */
status loop_evaluate(struct loop *loop);

/* loop_check_replicas - compare the weights of the replicas (parallel.check_every), once per step.
 * If they differ, a running save is still published: its weights were compared before it began.
 *
 * Order     collective
 * Errors    STATUS_DIVERGED; as checkpoint_publish */
status loop_check_replicas(struct loop *loop);

/* loop_publish_checkpoint - wait until a running save is complete, and publish it.
 *
 * Order     collective
 * Errors    as checkpoint_publish */
status loop_publish_checkpoint(struct loop *loop);

/* loop_save_checkpoint - save the current step, once per step.
 *
 * Order     collective
 * Errors    as checkpoint_save and loop_check_replicas */
status loop_save_checkpoint(struct loop *loop);

/* loop_save_best - save the weights of the last evaluation if they are the best so far. The
 * previous best checkpoint may be removed from now on: the new one is the newest, which is never
 * removed.
 *
 * Order     collective
 * Errors    as loop_save_checkpoint */
status loop_save_best(struct loop *loop);

/* loop_write_final - write the final weights of the run.
 *
 * Order     collective
 * Errors    the stored error of this rank, agreed on all ranks; as checkpoint_write_final */
status loop_write_final(struct loop *loop);
