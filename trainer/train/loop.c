#include "trainer/train/loop_impl.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "comm/watchdog/straggler.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/model/linear.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"
#include "trainer/setup/stop_signal.h"

static const char wall_reason[] = "train.wall_minutes is nearly over";

const struct recipe *loop_recipe(const struct loop *loop)
{
    return &loop->job->session.recipe;
}

double loop_train_seconds(const struct loop *loop)
{
    return loop->seconds_before + clock_seconds() - loop->job->started_seconds;
}

void loop_store_local_error(struct loop *loop, status result)
{
    if (result != STATUS_OK && loop->local_error.code == STATUS_OK) {
        status_take(&loop->local_error);
    }
    status_clear();
}

/* ---- votes ---- */

void loop_cast_votes(const void *user, double votes[STEP_VOTES])
{
    const struct loop *loop = user;
    const struct recipe *r = loop_recipe(loop);
    bool is_root = comm_rank(loop->job->world) == 0; /* one clock decides for all ranks */
    double elapsed = clock_seconds() - loop->job->started_seconds;
    int steps = step_runs_ahead(loop->job->step) ? 3 : 2; /* the queued steps and the next one */
    double reserve = steps * loop->times.median + fmax(10, 2 * loop->save_seconds) +
                     (loop->evaluating ? 0 : loop->evaluate_seconds) + loop->sample_seconds;
    votes[STEP_VOTE_STOP] = stop_signal_received();
    votes[STEP_VOTE_TIME_UP] = is_root && r->train.max_minutes > 0 &&
                               loop_train_seconds(loop) >= 60 * r->train.max_minutes;
    votes[STEP_VOTE_WALL] =
        is_root && r->train.wall_minutes > 0 && elapsed + reserve >= 60 * r->train.wall_minutes;
    votes[STEP_VOTE_WRITTEN] = checkpoint_is_written(loop->job->checkpoint);
}

void loop_apply_stop_votes(struct loop *loop, const double votes[STEP_VOTES])
{
    if (votes[STEP_VOTE_STOP] > 0) {
        loop->stop_reason = comm_size(loop->job->world) == 1 ? "the program received a stop signal"
                                                             : "a rank received a stop signal";
    } else if (votes[STEP_VOTE_WALL] > 0) {
        loop->stop_reason = wall_reason;
    }
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
                                          loop_train_seconds(loop)),
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
    const struct recipe *r = loop_recipe(loop);
    bool last = loop->finished || loop->stop_reason != NULL || job->state.step == job->total_steps;
    if (is_due(job->state.step, r->log.every) || job->state.step == 1 || last) {
        loop_store_local_error(loop, log_step(loop, result, rate));
    }
    if (loop->times.count == PROGRESS_RECENT_STEPS) {
        progress_warn_about_minutes(job, loop_train_seconds(loop), loop->times.median);
    }
    if (result->votes[STEP_VOTE_WRITTEN] >= comm_size(job->world)) {
        TRY(loop_publish_checkpoint(loop));
    }
    loop_store_local_error(loop, train_line_write_warnings(job));
    if (is_due(job->state.step, r->parallel.check_every)) {
        TRY(loop_check_replicas(loop));
    }
    if (!last && is_due(job->state.step, r->evaluate.every)) {
        TRY(loop_evaluate(loop));
        TRY(loop_save_best(loop));
    }
    return is_due(job->state.step, r->checkpoint.every) ? loop_save_checkpoint(loop) : STATUS_OK;
}

/* Before the first step, uses known GEMM algorithms. After it, measures the GEMMs of the step. With
 * delayed scales it measures them after the second step, the first one with FP8 operands. */
static status tune_gemm(struct loop *loop, bool measure)
{
    bool is_early = measure && derive_has_delayed_scales(loop_recipe(loop)) && !loop->stepped;
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
        loop->evaluated = number_min(loop->evaluated, step);
        loop->sampled = number_min(loop->sampled, step);
        loop->checked = number_min(loop->checked, step);
        loop->last_saved = -1; /* the checkpoint of this step does not contain the rollback */
    }
    loop_store_local_error(loop, spike_response_write(loop->job, &event));
    return STATUS_OK;
}

static void count_step(struct loop *loop, const struct step_result *result)
{
    struct checkpoint_state *state = &loop->job->state;
    state->step++;
    state->samples += loop_recipe(loop)->batch.global_size;
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
    const struct recipe *r = loop_recipe(loop);
    return !loop->tuned || !model_fp8_is_measured(loop->job->session.model) ||
           loop->stop_reason != NULL || result->votes[STEP_VOTE_TIME_UP] > 0 ||
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
        .exists = true,
        .rate = schedule_learning_rate(loop_recipe(loop), number, job->total_steps)};
    status_set_step(number + 1);
    loop_cast_votes(loop, votes);
    TRY(tune_gemm(loop, false));
    TRY(step_train(job->step, number, next.rate, votes, status_restore(&loop->local_error),
                   number + 1 < job->total_steps, &next.result));
    TRY(loop->pending.exists ? complete_pending(loop) : STATUS_OK);
    loop_apply_stop_votes(loop, next.result.votes);
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
        metric_number("train_seconds", loop_train_seconds(loop)),
        metric_number("data_stall_seconds", loader_stall_seconds(job->loader)),
        metric_integer("memory_bytes", train_line_peak_memory_bytes()),
        metric_integer("best_step", job->early_stopping.step),
        metric_number("best_value", job->early_stopping.value),
    };
    int count = COUNT(fields) -
                (loop_has_compared_evaluations(loop) && job->early_stopping.has_value ? 0 : 2);
    return metrics_write(job->metrics, "end", job->state.step, fields, count);
}

static status stop_early(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->stop_reason == wall_reason && !loop->stepped) {
        log_warning("WALL",
                    "train.wall_minutes, %g, was nearly over before a step was done; sessions of "
                    "this length make no progress. Increase it",
                    loop_recipe(loop)->train.wall_minutes);
    }
    TRY(loop_save_checkpoint(loop));
    TRY(loop_publish_checkpoint(loop));
    loop_store_local_error(loop, write_end(loop, "stopped"));
    TRY(comm_agree(job->world, status_restore(&loop->local_error)));
    log_info("stopped after step %" PRId64 " because %s; everything is saved", job->state.step,
             loop->stop_reason);
    return STATUS_STOPPED;
}

static status end_normally(struct loop *loop)
{
    struct job *job = loop->job;
    TRY(loop_evaluate(loop));
    if (loop->stop_reason != NULL) {
        return stop_early(loop);
    }
    TRY(loop_save_best(loop));
    TRY(loop_save_checkpoint(loop));
    TRY(loop_write_final(loop));
    loop_store_local_error(loop, write_end(loop, job_end_reason(job)));
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
        job->state.step == 0 || is_due(job->state.step, loop_recipe(loop)->evaluate.every);
    TRY(missing ? loop_evaluate(loop) : STATUS_OK);
    return loop_save_best(loop);
}

static status run_steps(struct loop *loop)
{
    const struct job *job = loop->job;
    loop_store_local_error(loop, train_line_write_warnings(job));
    TRY(spike_response_copy(&loop->spikes, loop->job));
    TRY(evaluate_at_start(loop));
    loop->interval.started_seconds = clock_seconds();
    while (!loop->finished && loop->stop_reason == NULL && job->state.step < job->total_steps) {
        TRY(run_step(loop));
    }
    status_set_step(-1);
    return loop->stop_reason != NULL ? stop_early(loop) : end_normally(loop);
}

/* Returns whether all ranks have this result: comm_agree clears the note of an error on all ranks.
 * Memory can be exhausted in one tensor-parallel group only. */
static bool is_agreed(status result, const struct status_note *note, int ranks)
{
    bool is_local = result == STATUS_INTERNAL || result == STATUS_LOST || result == STATUS_HANG;
    return result == STATUS_NOT_FINITE || (!is_local && (note->code == STATUS_OK || ranks == 1));
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
    if (is_agreed(result, &first, comm_size(job->world))) { /* a save has earlier weights */
        (void)loop_publish_checkpoint(&loop);
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
