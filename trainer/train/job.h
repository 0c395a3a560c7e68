/* A training job: its parts in the order in which they are made, from a recipe to the first step.
 *
 * Setting up alternates between what each rank does alone and what all do together; before each common
 * part the ranks agree that nobody has failed, so that none waits for one that has left. */
#pragma once

#include "datasets/loader/loader.h"
#include "trainer/evaluation/early_stopping.h"
#include "trainer/evaluation/evaluator.h"
#include "trainer/logging/metric.h"
#include "trainer/objective/objective.h"
#include "trainer/train/reference_logprobs.h"
#include "trainer/setup/session.h"
#include "trainer/train/step.h"

enum job_resume { RESUME_AUTO, RESUME_NEVER, RESUME_PATH };

struct job_options {
    const char *recipe_path;
    char *const *overrides;
    int override_count;
    enum job_resume resume;
    const char *resume_path;
};

struct job {
    struct comm *world;
    struct session session;
    const struct objective *objective;
    struct update *update;
    struct reference reference;            /* of objectives that have one */
    struct preference_settings preference; /* likewise */
    struct loader *loader,
        *survey;             /* the second for losses of a whole batch: the same again; else NULL */
    struct grading *grading; /* NULL: the objective has no such metrics */
    struct step *step;
    struct checkpoint *checkpoint;
    struct metrics *metrics; /* rank 0's; NULL on others */
    struct checkpoint_state state;
    struct best_rule best_rule;
    struct best best;          /* of the evaluations so far */
    struct family families[2]; /* weights; moments */
    char *recipe_text;
    char *labels; /* names that the head has, as a JSON array; NULL: none */
    char labels_sha256[HASH_TEXT_BYTES];
    char data_fingerprint[HASH_TEXT_BYTES];
    int64_t total_steps;
    int64_t evaluate_samples; /* of one evaluation; 0: none */
    bool begun;               /* the weights are those that a fresh run begins with */
    bool carried;             /* they hold adapters of another run */
    bool resumed;
    bool finished;  /* by an earlier session, final weights included: nothing is left to do */
    double started; /* clock_seconds at the beginning of the process's job */
};

/* job_start - everything up to the first step; of a finished job no more than it takes to know that.
 * Collective; errors are agreed on. */
status job_start(const struct job_options *options, struct comm *world, struct job *out);
status job_stop(struct job *job);

/* job_reached_end - whether the recipe's steps, minutes or patience are used up. */
bool job_reached_end(const struct job *job);

/* job_long_phase - what may take minutes begins (start-up, files); NULL: it is over. The watchdog and every
 * wait between ranks allow it its time. */
void job_long_phase(const struct job *job, const char *phase);

/* job_evaluate - sums over the held-out part; a vote to stop ends it early (step_evaluate). Collective. */
status job_evaluate(struct job *job, struct step_ballot *ballot, double sums[OBJECTIVE_SUMS]);
