/* A training job: creates everything from a recipe up to the first step.
 *
 * Set-up alternates between work of each rank and collectives. Before each collective the ranks
 * agree that none has failed, so that no rank waits for one that has left. */
#pragma once

#include "datasets/loader/loader.h"
#include "trainer/evaluation/early_stopping.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/evaluation/tasks/task_set.h"
#include "trainer/formats/weights/state_dict.h"
#include "trainer/inference/generate.h"
#include "trainer/logging/metrics.h"
#include "trainer/logging/utilization.h"
#include "trainer/objective/objective.h"
#include "trainer/setup/session.h"
#include "trainer/train/reference_logprobs.h"
#include "trainer/train/replica_check.h"
#include "trainer/train/rollback.h"
#include "trainer/train/step/step.h"

enum job_resume { JOB_RESUME_AUTO, JOB_RESUME_NEVER, JOB_RESUME_PATH };

/* The tensor sets of a checkpoint, in their order in the checkpoint. */
enum job_tensor_set {
    JOB_WEIGHTS,
    JOB_MOMENTS,     /* of the optimizer */
    JOB_FP8_HISTORY, /* of the largest absolute values; empty without FP8 */
    JOB_TENSOR_SETS
};

struct job_options {
    const char *recipe_path;
    char *const *overrides;
    int override_count;
    enum job_resume resume;
    const char *resume_path;
    /* checks the complete recipe before memory is allocated. All ranks agree on its error */
    status (*check)(const struct recipe *recipe, struct comm *world);
};

struct job {
    struct comm *world;
    struct session session;
    const struct objective *objective;
    struct sharded_optimizer *optimizer;
    struct reference_logprobs reference;   /* for objective dpo */
    struct preference_settings preference; /* for objectives dpo and reward */
    struct loader *loader;
    struct loader *collect_loader; /* the same data, for the collect pass (step.h); NULL: unused */
    struct evaluator *evaluator;   /* NULL: the objective has no task metrics */
    struct task_set tasks;         /* of evaluate.tasks */
    struct generate_options generation;  /* of evaluate.generate */
    struct replica_check *replica_check; /* NULL: parallel.check_every is 0, or one replica */
    struct rollback *rollback;           /* NULL: train.on_spike is not rollback */
    struct step *step;
    struct checkpoint *checkpoint;
    struct metrics *metrics; /* on rank 0; NULL on other ranks */
    struct checkpoint_state state;
    struct early_stopping_rule early_stopping_rule;
    struct early_stopping early_stopping; /* best evaluation so far */
    struct state_dict state_dicts[JOB_TENSOR_SETS];
    char *recipe_text;
    char *labels; /* label names of the head as a JSON array; NULL: none */
    char labels_sha256[HASH_TEXT_BYTES];
    char data_tokenizer_sha256[HASH_TEXT_BYTES]; /* of the training data; "": unknown */
    char data_fingerprint[HASH_TEXT_BYTES];
    int64_t train_samples, total_steps;
    struct utilization_flops flops; /* zeros: unknown */
    int64_t evaluate_samples;       /* of one evaluation; 0: none */
    bool weights_initialized;       /* the weights are the initial weights of the run */
    bool init_adapters;             /* the run started from adapters of another run */
    bool resumed;
    bool made_folder; /* on rank 0: run_dir did not exist before */
    bool finished;    /* an earlier session has finished the run and written its final weights */
    double started_seconds;     /* clock_seconds at job_start */
    double start_limit_seconds; /* the limit that job_read_recipe has set */
};

/* job_tensor_sets - list the tensor sets of a checkpoint.
 *
 * Memory    the sets point into the job
 * Returns   the number of sets */
static inline int job_tensor_sets(const struct job *job,
                                  struct checkpoint_tensor_set sets[JOB_TENSOR_SETS])
{
    for (int i = 0; i < JOB_TENSOR_SETS; i++) {
        sets[i] = job->state_dicts[i].tensor_set;
    }
    bool has_history = sets[JOB_FP8_HISTORY].count > 0;
    return has_history ? JOB_TENSOR_SETS : JOB_FP8_HISTORY; /* or only the sets before it */
}

/* job_read_recipe - read the recipe of a new job, and begin the time limit of its start
 * (parallel.start_seconds).
 *
 * An error of the recipe is not reported here: job_start reads the recipe again, together with the
 * settings of a checkpoint.
 *
 * Order     before comm_world_create
 * Errors    STATUS_INTERNAL if the watchdog cannot start */
status job_read_recipe(const struct job_options *options, struct job *out);

/* job_start - create everything up to the first step. If the run is finished, it sets
 * job->finished and does not continue.
 *
 * A failed start removes a run folder that it has created, with its log.
 *
 * Order     collective, after job_read_recipe
 * Errors    agreed on all ranks */
status job_start(const struct job_options *options, struct comm *world, struct job *job);

/* job_stop - release everything and close the log. */
status job_stop(struct job *job);

/* job_reached_end - return whether the recipe's steps, minutes or patience are exhausted. */
bool job_reached_end(const struct job *job);

/* job_end_reason - return the reason why a run reached its end: "max_steps", "patience" or
 * "max_minutes". */
const char *job_end_reason(const struct job *job);

/* job_log_finished - log that an earlier session has finished the run, so that nothing is left to
 * train, with the reason and how to continue. */
void job_log_finished(const struct job *job);

/* job_log_time_limit - if train.max_minutes ended the run, log this and how to continue. */
void job_log_time_limit(const struct job *job);

/* job_rewind - continue from job->state after a rollback: reopen the training data at its samples,
 * and drop the lines of metrics.jsonl and the evaluations of later steps.
 *
 * Order     collective
 * Errors    agreed on all ranks */
status job_rewind(struct job *job);

/* job_long_phase - begin a phase that may take minutes, such as writing a checkpoint; NULL ends
 * it. It raises the deadlines of the watchdog and of all communication. */
void job_long_phase(const struct job *job, const char *phase);

/* job_evaluate - sum the loss over the validation set. A vote to stop ends it early
 * (step_evaluate).
 *
 * Order     collective */
status job_evaluate(struct job *job, struct step_ballot *ballot, double sums[OBJECTIVE_SUMS]);
