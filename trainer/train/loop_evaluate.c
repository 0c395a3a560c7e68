/* Evaluations and samples of a run. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/watchdog/watchdog.h"
#include "trainer/evaluation/report.h"
#include "trainer/evaluation/text_scores.h"
#include "trainer/logging/tensorboard.h"
#include "trainer/setup/session.h"
#include "trainer/setup/stop_signal.h"
#include "trainer/train/generated_outputs.h"
#include "trainer/train/loop_impl.h"

enum { EVALUATE_FIELDS = EVALUATION_REPORT_FIELDS + TEXT_METRICS + TASK_SET_FIELDS + 1 };

_Static_assert((int)EVALUATE_FIELDS <= (int)TENSORBOARD_SCALARS_MAX,
               "an evaluation can be written to TensorBoard");

bool loop_has_compared_evaluations(const struct loop *loop)
{
    const struct recipe *r = loop_recipe(loop);
    return r->evaluate.patience > 0 || r->checkpoint.keep_best;
}

/* Compares an evaluation with the best one. All ranks use the value of rank 0, which is the one in
 * metrics.jsonl that a resumed run reads. */
static status update_best(struct loop *loop, double value)
{
    struct job *job = loop->job;
    const struct early_stopping_rule *rule = &job->early_stopping_rule;
    TRY(comm_broadcast(job->world, &value, sizeof value, 0));
    loop->improved = early_stopping_update(rule, &job->early_stopping, job->state.step, value);
    if (loop->improved) {
        log_info("step %" PRId64 ": best %s so far", job->state.step, rule->metric);
    }
    if (early_stopping_should_stop(rule, &job->early_stopping)) {
        log_info("no better %s than %.6g of step %" PRId64 " in %" PRId64
                 " evaluation%s; the run ends here",
                 rule->metric, job->early_stopping.value, job->early_stopping.step,
                 job->early_stopping.patience_counter,
                 text_plural((int)job->early_stopping.patience_counter));
        loop->finished = true;
    }
    return STATUS_OK;
}

static bool has_stop_vote(const struct step_ballot *ballot)
{
    return ballot->votes[STEP_VOTE_STOP] > 0 || ballot->votes[STEP_VOTE_WALL] > 0;
}

/* Votes on a stop between two batches of texts. Collective. */
static status poll_stop(void *user, bool *stop)
{
    struct step_ballot *ballot = user;
    const struct loop *loop = ballot->user;
    double votes[STEP_VOTES] = {0};
    ballot->cast(loop, votes);
    TRY(comm_sum_doubles(loop->job->world, votes, STEP_VOTES));
    memcpy(ballot->votes, votes, sizeof votes);
    *stop = has_stop_vote(ballot);
    return STATUS_OK;
}

/* Restarts the limit of the phase before each token, and returns whether the run must stop. */
static bool is_stop_requested(void)
{
    watchdog_renew();
    return stop_signal_received();
}

/* Generates targets and runs tasks, until a rank votes to stop. */
static status evaluate_texts(struct loop *loop, struct step_ballot *ballot,
                             struct task_field names[TASK_SET_FIELDS], struct metric *fields,
                             int *count)
{
    struct job *job = loop->job;
    const struct stop_poll poll = {poll_stop, ballot, is_stop_requested, watchdog_renew};
    if (!has_stop_vote(ballot)) {
        job_long_phase(job, "generating targets");
        TRY(generated_outputs_score_targets(job, &poll, fields, count));
    }
    if (!has_stop_vote(ballot)) {
        job_long_phase(job, "running the tasks");
        TRY(generated_outputs_run_tasks(job, &poll, names, fields, count));
    }
    job_long_phase(job, NULL);
    return STATUS_OK;
}

/* An evaluation that a stop interrupts is discarded; the next session repeats it. */
static status evaluate_validation(struct loop *loop)
{
    struct job *job = loop->job;
    double sums[OBJECTIVE_SUMS] = {0};
    struct step_ballot ballot = {.cast = loop_cast_votes, .user = loop};
    double start = clock_seconds();
    struct metric fields[EVALUATE_FIELDS];
    struct task_field names[TASK_SET_FIELDS];
    loop->evaluating = true;
    TRY(job_evaluate(job, &ballot, sums));
    int count = evaluation_report_fields(job->objective, sums, job->evaluator, fields);
    TRY(evaluate_texts(loop, &ballot, names, fields, &count));
    loop->evaluating = false;
    double seconds = clock_seconds() - start;
    loop->interval.started_seconds += seconds; /* exclude it from the training speed */
    loop_apply_stop_votes(loop, ballot.votes);
    if (loop->stop_reason != NULL) {
        return STATUS_OK;
    }
    loop->evaluate_seconds = fmax(loop->evaluate_seconds, seconds);
    evaluation_report_log(job->objective, job->early_stopping_rule.metric, job->state.step, fields,
                          count);
    double value = evaluation_report_value(fields, count, job->early_stopping_rule.metric);
    fields[count++] = metric_number("seconds", seconds);
    if (job->metrics != NULL) {
        loop_store_local_error(
            loop, metrics_write(job->metrics, "evaluate", job->state.step, fields, count));
    }
    return loop_has_compared_evaluations(loop) ? update_best(loop, value) : STATUS_OK;
}

static status run_sample(struct loop *loop)
{
    struct job *job = loop->job;
    double start = clock_seconds();
    status written = STATUS_OK;
    if (loop_recipe(loop)->generate.prompt[0] == '\0') {
        return STATUS_OK;
    }
    job_long_phase(job, "generating a sample");
    TRY(generated_outputs_run_prompt(job, &written));
    loop_store_local_error(loop, written);
    job_long_phase(job, NULL);
    double seconds = clock_seconds() - start;
    loop->interval.started_seconds += seconds; /* exclude it from the training speed */
    loop->sample_seconds = fmax(loop->sample_seconds, seconds);
    return STATUS_OK;
}

status loop_evaluate(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->evaluated != job->state.step && job->evaluate_samples > 0) {
        TRY(evaluate_validation(loop));
    }
    if (loop->stop_reason != NULL) {
        return STATUS_OK;
    }
    loop->evaluated = job->state.step;
    if (loop->sampled == job->state.step) {
        return STATUS_OK;
    }
    loop->sampled = job->state.step;
    return run_sample(loop);
}
