#include "trainer/train/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/watchdog/straggler.h"
#include "comm/watchdog/watchdog.h"
#include "trainer/evaluation/report.h"
#include "trainer/evaluation/text_scores.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/logging/tensorboard.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/setup/session.h"
#include "trainer/setup/shared_cores.h"
#include "trainer/setup/stop_signal.h"
#include "trainer/train/progress.h"
#include "trainer/train/run_report.h"
#include "trainer/train/sample.h"
#include "trainer/train/spike_response.h"
#include "trainer/train/train_line.h"

static const char wall_reason[] = "train.wall_minutes is nearly over";

enum { EVALUATE_FIELDS = EVALUATION_REPORT_FIELDS + TEXT_METRICS + TASK_SET_FIELDS + 1 };

_Static_assert((int)EVALUATE_FIELDS <= (int)TENSORBOARD_SCALARS_MAX,
               "an evaluation can be written to TensorBoard");

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

static const struct recipe *get_recipe(const struct loop *loop)
{
    return &loop->job->session.recipe;
}

static double get_train_seconds(const struct loop *loop)
{
    return loop->seconds_before + clock_seconds() - loop->job->started_seconds;
}

/* Stores an error of this rank until the next step. A collective in between would clear the pending
 * note. */
static void store_local_error(struct loop *loop, status result)
{
    if (result != STATUS_OK && loop->local_error.code == STATUS_OK) {
        status_take(&loop->local_error);
    }
    status_clear();
}

/* ---- votes ---- */

static void cast_votes(const void *user, double votes[STEP_VOTES])
{
    const struct loop *loop = user;
    const struct recipe *r = get_recipe(loop);
    bool is_root = comm_rank(loop->job->world) == 0; /* one clock decides for all ranks */
    double elapsed = clock_seconds() - loop->job->started_seconds;
    int steps = step_runs_ahead(loop->job->step) ? 3 : 2; /* the queued steps and the next one */
    double reserve = steps * loop->times.median + fmax(10, 2 * loop->save_seconds) +
                     (loop->evaluating ? 0 : loop->evaluate_seconds) + loop->sample_seconds;
    votes[STEP_VOTE_STOP] = stop_signal_received();
    votes[STEP_VOTE_TIME_UP] =
        is_root && r->train.max_minutes > 0 && get_train_seconds(loop) >= 60 * r->train.max_minutes;
    votes[STEP_VOTE_WALL] =
        is_root && r->train.wall_minutes > 0 && elapsed + reserve >= 60 * r->train.wall_minutes;
    votes[STEP_VOTE_WRITTEN] = checkpoint_is_written(loop->job->checkpoint);
}

static void apply_stop_votes(struct loop *loop, const double votes[STEP_VOTES])
{
    if (votes[STEP_VOTE_STOP] > 0) {
        loop->stop_reason = comm_size(loop->job->world) == 1 ? "the program received a stop signal"
                                                             : "a rank received a stop signal";
    } else if (votes[STEP_VOTE_WALL] > 0) {
        loop->stop_reason = wall_reason;
    }
}

/* ---- evaluation ---- */

/* Returns whether evaluations are compared with each other. */
static bool has_compared_evaluations(const struct loop *loop)
{
    const struct recipe *r = get_recipe(loop);
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

/* Called before each token: the limit of a long phase applies to a token, not to all texts. */
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
        TRY(sample_score_targets(job, &poll, fields, count));
    }
    if (!has_stop_vote(ballot)) {
        job_long_phase(job, "running the tasks");
        TRY(sample_run_tasks(job, &poll, names, fields, count));
    }
    job_long_phase(job, NULL);
    return STATUS_OK;
}

/* An evaluation that a stop interrupts is discarded; the next session repeats it. */
static status evaluate_validation(struct loop *loop)
{
    struct job *job = loop->job;
    double sums[OBJECTIVE_SUMS] = {0};
    struct step_ballot ballot = {.cast = cast_votes, .user = loop};
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
    apply_stop_votes(loop, ballot.votes);
    if (loop->stop_reason != NULL) {
        return STATUS_OK;
    }
    loop->evaluate_seconds = fmax(loop->evaluate_seconds, seconds);
    evaluation_report_log(job->objective, job->early_stopping_rule.metric, job->state.step, fields,
                          count);
    double value = evaluation_report_value(fields, count, job->early_stopping_rule.metric);
    fields[count++] = metric_number("seconds", seconds);
    if (job->metrics != NULL) {
        store_local_error(loop,
                          metrics_write(job->metrics, "evaluate", job->state.step, fields, count));
    }
    return has_compared_evaluations(loop) ? update_best(loop, value) : STATUS_OK;
}

static status run_sample(struct loop *loop)
{
    struct job *job = loop->job;
    double start = clock_seconds();
    status written = STATUS_OK;
    if (get_recipe(loop)->generate.prompt[0] == '\0') {
        return STATUS_OK;
    }
    job_long_phase(job, "generating a sample");
    TRY(sample_run(job, &written));
    store_local_error(loop, written);
    job_long_phase(job, NULL);
    double seconds = clock_seconds() - start;
    loop->interval.started_seconds += seconds; /* exclude it from the training speed */
    loop->sample_seconds = fmax(loop->sample_seconds, seconds);
    return STATUS_OK;
}

/* Evaluates and generates a sample, once per step. */
static status run_evaluation(struct loop *loop)
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

/* ---- checkpoints ---- */

static status log_save(struct loop *loop, int64_t step)
{
    double seconds = clock_seconds() - loop->save_started_seconds;
    loop->save_seconds = fmax(loop->save_seconds, seconds);
    char folder[FILE_PATH_BYTES];
    TRY(checkpoint_step_path(loop->job->checkpoint, step, folder, sizeof folder));
    log_info("saved step %" PRId64 " in %s", step, folder);
    if (loop->job->metrics == NULL) {
        return STATUS_OK;
    }
    const struct metric fields[] = {
        metric_integer("saved_step", step),
        metric_number("seconds", seconds),
        metric_number("stall_seconds", loop->save_stall_seconds),
    };
    return metrics_write(loop->job->metrics, "checkpoint", loop->job->state.step, fields,
                         COUNT(fields));
}

static status publish_checkpoint(struct loop *loop)
{
    int64_t step = -1;
    job_long_phase(loop->job, "publishing a checkpoint");
    TRY(checkpoint_publish(loop->job->checkpoint, &step));
    job_long_phase(loop->job, NULL);
    if (step >= 0) {
        store_local_error(loop, log_save(loop, step));
        run_report_write(&loop->report, loop->job, false);
    }
    return STATUS_OK;
}

/* Compares the weights of the replicas (parallel.check_every), once per step. If they differ, a
 * running save is still published: its weights were compared before it began. */
static status check_replicas(struct loop *loop)
{
    struct job *job = loop->job;
    if (job->replica_check == NULL || loop->checked == job->state.step) {
        return STATUS_OK;
    }
    loop->checked = job->state.step;
    watchdog_phase("comparison of replicas", 0);
    TRY(sharded_optimizer_wait_all(job->optimizer));
    status result = replica_check_run(job->replica_check);
    if (result == STATUS_DIVERGED) {
        KEEP_FIRST(result, publish_checkpoint(loop));
    }
    return result;
}

static status save_checkpoint(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->last_saved == job->state.step) {
        return STATUS_OK;
    }
    double started = clock_seconds();
    TRY(check_replicas(loop));
    TRY(spike_response_copy(&loop->spikes, job));
    TRY(publish_checkpoint(loop)); /* one save at a time */
    TRY(sharded_optimizer_wait_all(job->optimizer));
    struct checkpoint_tensor_set tensor_sets[JOB_TENSOR_SETS];
    int count = job_tensor_sets(job, tensor_sets);
    /* Sync the metrics first: after a power failure the checkpoint must not be newer than they
     * are. */
    if (job->metrics != NULL) {
        store_local_error(loop, metrics_sync(job->metrics));
    }
    job->state.train_seconds = get_train_seconds(loop);
    loop->save_started_seconds = clock_seconds();
    job_long_phase(job, "checkpoint");
    TRY(checkpoint_save(job->checkpoint, &job->state, tensor_sets, count, NULL));
    loop->save_stall_seconds = clock_seconds() - started;
    job_long_phase(job, NULL);
    loop->last_saved = job->state.step;
    return get_recipe(loop)->checkpoint.async ? STATUS_OK : publish_checkpoint(loop);
}

/* Saves the weights of the last evaluation if they are the best so far. The previous best
 * checkpoint may be removed from now on: the new one is the newest, which is never removed. */
static status save_best(struct loop *loop)
{
    struct job *job = loop->job;
    if (!loop->improved || !get_recipe(loop)->checkpoint.keep_best) {
        return STATUS_OK;
    }
    loop->improved = false;
    TRY(publish_checkpoint(loop));
    checkpoint_pin_step(job->checkpoint, job->early_stopping.step);
    return save_checkpoint(loop);
}

/* ---- logging ---- */

static status log_step(struct loop *loop, const struct step_result *result, double rate)
{
    struct job *job = loop->job;
    struct train_line_interval *i = &loop->interval;
    struct train_line_traffic traffic = train_line_take_traffic(&job->session.mesh);
    char line[TEXT_LINE_COLUMNS + 1];
    double busy = i->step_seconds - i->data_seconds - traffic.data.exposed_seconds -
                  traffic.data.small_seconds - traffic.tensor.exposed_seconds -
                  traffic.tensor.small_seconds;
    TRY(straggler_check(job->world, busy, i->rows));
    double seconds = result->ended_seconds - i->started_seconds;
    double tokens_per_second = (double)i->tokens / fmax(seconds, 1e-9);
    struct utilization u =
        utilization_measure(job->session.device, &job->flops,
                            tokens_per_second / comm_size(job->world), train_line_peak_tflops(job));
    struct progress_interval last = {i->steps, i->tokens, seconds, result->loss, result->sums};
    progress_add(&loop->progress, &last);
    progress_format(job, &last,
                    progress_left_seconds(&loop->progress, job, loop->evaluate_seconds,
                                          get_train_seconds(loop)),
                    line);
    log_progress("%s", line);
    status write_result = STATUS_OK;
    if (job->metrics != NULL) {
        write_result = train_line_write(job, i, result, rate, tokens_per_second, &u, &traffic);
    }
    *i = (struct train_line_interval){.started_seconds = result->ended_seconds};
    return write_result;
}

/* ---- one step of the loop ---- */

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static status finish_step(struct loop *loop, const struct step_result *result, double rate)
{
    struct job *job = loop->job;
    const struct recipe *r = get_recipe(loop);
    bool last = loop->finished || loop->stop_reason != NULL || job->state.step == job->total_steps;
    if (is_due(job->state.step, r->log.every) || job->state.step == 1 || last) {
        store_local_error(loop, log_step(loop, result, rate));
    }
    if (loop->times.count == PROGRESS_RECENT_STEPS) {
        progress_warn_about_minutes(job, get_train_seconds(loop), loop->times.median);
    }
    if (result->votes[STEP_VOTE_WRITTEN] >= comm_size(job->world)) {
        TRY(publish_checkpoint(loop));
    }
    store_local_error(loop, train_line_write_warnings(job));
    if (is_due(job->state.step, r->parallel.check_every)) {
        TRY(check_replicas(loop));
    }
    if (!last && is_due(job->state.step, r->evaluate.every)) {
        TRY(run_evaluation(loop));
        TRY(save_best(loop));
    }
    return is_due(job->state.step, r->checkpoint.every) ? save_checkpoint(loop) : STATUS_OK;
}

/* Before the first step, uses known GEMM algorithms. After it, measures the GEMMs of the step. With
 * FP8 it measures them after the second step, which is the first one with FP8 operands. */
static status tune_gemm(struct loop *loop, bool measure)
{
    bool is_early = measure && get_recipe(loop)->train.precision == PRECISION_FP8 && !loop->stepped;
    if (loop->tuned || is_early) {
        return STATUS_OK;
    }
    loop->tuned = measure;
    return session_tune(&loop->job->session, loop->job->world, measure);
}

/* Responds to a spike. After a rollback, the steps since the copy are done again. */
static status respond_to_spike(struct loop *loop, const struct step_result *result, bool *rewound)
{
    struct spike_event event;
    TRY(spike_response_apply(&loop->spikes, loop->job, result, &event));
    *rewound = event.action != NULL && result->skipped && loop->job->rollback != NULL;
    if (*rewound) {
        int64_t step = loop->job->state.step;
        loop->evaluated = loop->evaluated < step ? loop->evaluated : step;
        loop->sampled = loop->sampled < step ? loop->sampled : step;
        loop->checked = loop->checked < step ? loop->checked : step;
        loop->last_saved = -1; /* the checkpoint of this step does not contain the rollback */
    }
    store_local_error(loop, spike_response_write(loop->job, &event));
    return STATUS_OK;
}

static void count_step(struct loop *loop, const struct step_result *result)
{
    struct checkpoint_state *state = &loop->job->state;
    state->step++;
    state->samples += get_recipe(loop)->batch.global_size;
    state->tokens += result->tokens;
    state->spikes.updated_step = result->skipped ? state->spikes.updated_step : state->step;
    loop->stepped = true;
}

/* Counts and logs a step after its results have arrived. */
static status complete_step(struct loop *loop, const struct step_result *result, double rate)
{
    struct job *job = loop->job;
    bool rewound = false;
    double start = clock_seconds();
    TRY(tune_gemm(loop, true));
    double tuning_seconds = clock_seconds() - start;
    shared_cores_watch(&loop->shared_cores, &job->session);
    TRY(respond_to_spike(loop, result, &rewound));
    loop->interval.steps++;
    loop->interval.tokens += result->tokens;
    loop->interval.rows += result->rows;
    loop->interval.data_seconds += result->data_seconds;
    loop->interval.step_seconds += result->total_seconds;
    loop->finished = result->votes[STEP_VOTE_TIME_UP] > 0;
    if (rewound) {
        return STATUS_OK;
    }
    progress_add_step_time(&loop->times, result->total_seconds);
    count_step(loop, result);
    TRY(finish_step(loop, result, rate));
    loop->interval.started_seconds += tuning_seconds; /* exclude it from the training speed */
    return STATUS_OK;
}

/* Waits for the results of the pending step and completes it. */
static status complete_pending(struct loop *loop)
{
    struct pending_step pending = loop->pending;
    loop->pending.exists = false;
    status_set_step(loop->job->state.step + 1);
    TRY(step_finish(loop->job->step, &pending.result));
    return complete_step(loop, &pending.result, pending.rate);
}

/* Returns whether the results of a queued step are needed before the next step is queued, because
 * more than a log line follows it. step: its number, from 1. */
static bool must_complete(const struct loop *loop, const struct step_result *result, int64_t step)
{
    const struct recipe *r = get_recipe(loop);
    return !loop->tuned || loop->stop_reason != NULL || result->votes[STEP_VOTE_TIME_UP] > 0 ||
           step == loop->job->total_steps || is_due(step, r->evaluate.every) ||
           is_due(step, r->checkpoint.every) || is_due(step, r->parallel.check_every);
}

/* Queues a step, and completes the previous one while the device computes the new one. */
static status run_step(struct loop *loop)
{
    struct job *job = loop->job;
    int64_t number = job->state.step + loop->pending.exists; /* from 0 */
    double votes[STEP_VOTES] = {0};
    struct pending_step next = {
        .exists = true, .rate = schedule_learning_rate(get_recipe(loop), number, job->total_steps)};
    status_set_step(number + 1);
    cast_votes(loop, votes);
    TRY(tune_gemm(loop, false));
    TRY(step_train(job->step, number, next.rate, votes, status_restore(&loop->local_error),
                   number + 1 < job->total_steps, &next.result));
    TRY(loop->pending.exists ? complete_pending(loop) : STATUS_OK);
    apply_stop_votes(loop, next.result.votes);
    if (next.result.abandoned) {
        return STATUS_OK;
    }
    if (!next.result.queued) {
        return complete_step(loop, &next.result, next.rate);
    }
    loop->pending = next;
    return must_complete(loop, &next.result, number + 1) ? complete_pending(loop) : STATUS_OK;
}

/* ---- the run ---- */

/* Loads the weights and the state of the best evaluation (checkpoint.keep_best). */
static status load_best(struct loop *loop, struct checkpoint_state *state)
{
    struct job *job = loop->job;
    struct checkpoint_info found = {0};
    char folder[FILE_PATH_BYTES];
    if (!get_recipe(loop)->checkpoint.keep_best || !job->early_stopping.has_value ||
        job->early_stopping.step == job->state.step) {
        return STATUS_OK;
    }
    TRY(checkpoint_step_path(job->checkpoint, job->early_stopping.step, folder, sizeof folder));
    TRY(comm_agree(job->world, checkpoint_verify_folder(job->world, folder, &found)));
    free(found.recipe_text);
    TRY(checkpoint_load(job->world, folder, &job->state_dicts[0].tensor_set, 1));
    *state = found.state;
    log_info("final weights: step %" PRId64 ", with the best %s: %.6g", state->step,
             job->early_stopping_rule.metric, job->early_stopping.value);
    return STATUS_OK;
}

static status write_final(struct loop *loop)
{
    struct job *job = loop->job;
    char folder[FILE_PATH_BYTES];
    TRY(check_replicas(loop));
    TRY(publish_checkpoint(loop));
    TRY(sharded_optimizer_wait_all(job->optimizer));
    /* Final weights mean that the run is finished: after a power failure no line may be missing. */
    if (job->metrics != NULL) {
        store_local_error(loop, metrics_sync(job->metrics));
    }
    /* After an error no final weights are written, so that the next start repeats the missing
     * work. */
    TRY(comm_agree(job->world, status_restore(&loop->local_error)));
    TRY(file_join(folder, get_recipe(loop)->run_dir, "final"));
    job_long_phase(job, "final weights");
    struct checkpoint_state state = job->state;
    TRY(load_best(loop, &state));
    return checkpoint_write_final(job->checkpoint, folder, &state, &job->state_dicts[0].tensor_set,
                                  1);
}

static status write_end(const struct loop *loop, const char *reason)
{
    const struct job *job = loop->job;
    if (job->metrics == NULL) {
        return STATUS_OK;
    }
    TRY(train_line_write_warnings(job));
    const struct metric fields[] = {
        metric_text("reason", reason),
        metric_integer("tokens", job->state.tokens),
        metric_number("train_seconds", get_train_seconds(loop)),
        metric_number("data_stall_seconds", loader_stall_seconds(job->loader)),
        metric_integer("memory_bytes", train_line_peak_memory_bytes()),
        metric_integer("best_step", job->early_stopping.step),
        metric_number("best_value", job->early_stopping.value),
    };
    int count =
        COUNT(fields) - (has_compared_evaluations(loop) && job->early_stopping.has_value ? 0 : 2);
    return metrics_write(job->metrics, "end", job->state.step, fields, count);
}

static status stop_early(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->stop_reason == wall_reason && !loop->stepped) {
        log_warning("WALL",
                    "train.wall_minutes, %g, was nearly over before a step was done; sessions of "
                    "this length make no progress. Increase it",
                    get_recipe(loop)->train.wall_minutes);
    }
    TRY(save_checkpoint(loop));
    TRY(publish_checkpoint(loop));
    store_local_error(loop, write_end(loop, "stopped"));
    TRY(comm_agree(job->world, status_restore(&loop->local_error)));
    log_info("stopped after step %" PRId64 " because %s; everything is saved", job->state.step,
             loop->stop_reason);
    return STATUS_STOPPED;
}

static status end_normally(struct loop *loop)
{
    struct job *job = loop->job;
    TRY(run_evaluation(loop));
    if (loop->stop_reason != NULL) {
        return stop_early(loop);
    }
    TRY(save_best(loop));
    TRY(save_checkpoint(loop));
    TRY(write_final(loop));
    store_local_error(loop, write_end(loop, job_end_reason(job)));
    return comm_agree(job->world, status_restore(&loop->local_error));
}

/* Evaluates before the first step, or repeats an evaluation or a sample that a stop interrupted in
 * the last session. */
static status evaluate_at_start(struct loop *loop)
{
    const struct job *job = loop->job;
    bool evaluated = false, sampled = false;
    TRY(comm_agree_flag(job->world, job->metrics != NULL && metrics_has_evaluation(job->metrics),
                        &evaluated));
    TRY(comm_agree_flag(job->world, job->metrics != NULL && metrics_has_sample(job->metrics),
                        &sampled));
    loop->evaluated = evaluated ? job->state.step : -1;
    loop->sampled = sampled ? job->state.step : -1;
    bool missing =
        job->state.step == 0 || is_due(job->state.step, get_recipe(loop)->evaluate.every);
    TRY(missing ? run_evaluation(loop) : STATUS_OK);
    return save_best(loop);
}

static status run_steps(struct loop *loop)
{
    const struct job *job = loop->job;
    store_local_error(loop, train_line_write_warnings(job));
    TRY(spike_response_copy(&loop->spikes, loop->job));
    TRY(evaluate_at_start(loop));
    loop->interval.started_seconds = clock_seconds();
    while (!loop->finished && loop->stop_reason == NULL && job->state.step < job->total_steps) {
        TRY(run_step(loop));
    }
    status_set_step(-1);
    return loop->stop_reason != NULL ? stop_early(loop) : end_normally(loop);
}

status loop_run(struct job *job)
{
    struct loop loop = {
        .job = job,
        .last_saved = job->resumed ? job->state.step : -1,
        .checked = -1,
        .spikes = {.copy = job->state},
        .seconds_before = job->state.train_seconds,
        .finished = job_reached_end(job),
    };
    if (job->finished) {
        job_log_finished(job);
        return STATUS_OK;
    }
    struct status_note first; /* the error of the steps remains the only one */
    status result = run_steps(&loop);
    status_take(&first);
    if (result == STATUS_NOT_FINITE) { /* on all ranks; a running save has earlier weights */
        (void)publish_checkpoint(&loop);
    }
    status written = train_line_write_warnings(job);
    if (result == STATUS_OK || result == STATUS_STOPPED) {
        run_report_write(&loop.report, job, true);
    }
    if (result == STATUS_OK) {
        return written;
    }
    status_clear();
    (void)status_restore(&first);
    return result;
}
