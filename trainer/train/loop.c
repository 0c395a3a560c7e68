#include "trainer/train/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/straggler.h"
#include "trainer/evaluation/report.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/planner/plan.h"
#include "trainer/train/stop_signal.h"

enum { RECENT_STEPS = 16 };

/* A run that its minutes end before this share of its steps is warned of. */
static const double minutes_share = 0.9;

static const char wall_reason[] = "train.wall_minutes is nearly over";

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* What the loop remembers between two lines of the log. */
struct interval {
    double started;
    int64_t steps, tokens;
    int64_t rows; /* of this rank */
    double data_seconds, step_seconds;
};

struct loop {
    struct job *job;
    struct interval interval;
    double step_median; /* of recent steps, for the time left and the wall-clock limit */
    double recent[RECENT_STEPS];
    int recent_count;
    double save_seconds;     /* the longest save so far: the wall-clock limit leaves room for it */
    double evaluate_seconds; /* the longest evaluation so far: likewise */
    int64_t evaluated;       /* the newest step that was evaluated */
    double save_started, save_stall;
    int64_t last_saved;      /* step of the newest save, published or under way */
    double seconds_before;   /* of training in earlier sessions of this run */
    const char *stop_reason; /* not NULL: end after this step and exit 75 */
    bool finished;           /* nothing is left to train: a normal end */
    bool evaluating;
    bool stepped;  /* in this session */
    bool tuned;    /* products have been timed, behind the first step */
    bool improved; /* the newest evaluation is the best so far, and is to be kept */
    /* An error of this rank alone (a full disk under the metrics): it rides along with the next step, so
     * that no rank waits for one that has left. */
    struct status_note mine;
};

static const struct recipe *recipe_of(const struct loop *loop)
{
    return &loop->job->session.recipe;
}

/* Peak resident memory of this process. */
static int64_t peak_memory_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

static double train_seconds(const struct loop *loop)
{
    return loop->seconds_before + clock_seconds() - loop->job->started;
}

/* An agreement in between forgets what is pending: the reason waits here. */
static void keep_mine(struct loop *loop, status result)
{
    if (result != STATUS_OK && loop->mine.code == STATUS_OK) {
        status_take(&loop->mine);
    }
    status_clear();
}

/* ---- votes ---- */

static void cast_votes(const void *user, double votes[STEP_VOTES])
{
    const struct loop *loop = user;
    const struct recipe *r = recipe_of(loop);
    bool first = comm_rank(loop->job->world) == 0; /* one clock decides */
    double elapsed = clock_seconds() - loop->job->started;
    double reserve = 2 * loop->step_median + fmax(10, 2 * loop->save_seconds) +
                     (loop->evaluating ? 0 : loop->evaluate_seconds);
    votes[VOTE_STOP] = stop_requested();
    votes[VOTE_TIME_UP] =
        first && r->train.max_minutes > 0 && train_seconds(loop) >= 60 * r->train.max_minutes;
    votes[VOTE_WALL] =
        first && r->train.wall_minutes > 0 && elapsed + reserve >= 60 * r->train.wall_minutes;
    votes[VOTE_WRITTEN] = checkpoint_written(loop->job->checkpoint);
}

static void heed_stop(struct loop *loop, const double votes[STEP_VOTES])
{
    if (votes[VOTE_STOP] > 0) {
        loop->stop_reason = "a signal asked for it"; /* perhaps to another rank */
    } else if (votes[VOTE_WALL] > 0) {
        loop->stop_reason = wall_reason;
    }
}

/* ---- evaluation ---- */

static bool chooses(const struct loop *loop)
{
    const struct recipe *r = recipe_of(loop);
    return r->evaluate.patience > 0 || r->checkpoint.keep_best;
}

/* Rank 0's value counts: it wrote it down, and a resumed run recalls it. */
static status judge(struct loop *loop, double value)
{
    struct job *job = loop->job;
    const struct best_rule *rule = &job->best_rule;
    TRY(comm_broadcast(job->world, &value, sizeof value, 0));
    loop->improved = best_note(rule, &job->best, job->state.step, value);
    if (loop->improved) {
        log_info("step %lld: the best %s so far", (long long)job->state.step, rule->metric);
    }
    if (best_is_over(rule, &job->best)) {
        log_info("no better %s than %.6g of step %lld in %lld evaluation%s: the run ends here",
                 rule->metric, job->best.value, (long long)job->best.step,
                 (long long)job->best.waited, text_plural((int)job->best.waited));
        loop->finished = true;
    }
    return STATUS_OK;
}

/* An evaluation that a stop ended says nothing; the next session owes it. */
static status evaluate(struct loop *loop)
{
    struct job *job = loop->job;
    double sums[OBJECTIVE_SUMS] = {0};
    struct step_ballot ballot = {.cast = cast_votes, .user = loop};
    if (job->evaluate_samples == 0) {
        return STATUS_OK;
    }
    if (loop->evaluated == job->state.step) {
        return STATUS_OK;
    }
    double start = clock_seconds();
    loop->evaluating = true;
    TRY(job_evaluate(job, &ballot, sums));
    loop->evaluating = false;
    double seconds = clock_seconds() - start;
    loop->interval.started += seconds; /* its time is not the training's */
    heed_stop(loop, ballot.votes);
    if (loop->stop_reason != NULL) {
        return STATUS_OK;
    }
    loop->evaluate_seconds = fmax(loop->evaluate_seconds, seconds);
    loop->evaluated = job->state.step;
    struct metric fields[EVALUATION_FIELDS + 1];
    int count = evaluation_fields(job->objective, sums, job->grading, fields);
    evaluation_tell(job->objective, job->state.step, fields, count);
    double value = evaluation_value(fields, count, job->best_rule.metric);
    fields[count++] = metric_number("seconds", seconds);
    if (job->metrics != NULL) {
        keep_mine(loop, metrics_write(job->metrics, "evaluate", job->state.step, fields, count));
    }
    return chooses(loop) ? judge(loop, value) : STATUS_OK;
}

/* ---- checkpoints ---- */

static status tell_saved(struct loop *loop, int64_t step)
{
    double seconds = clock_seconds() - loop->save_started;
    loop->save_seconds = fmax(loop->save_seconds, seconds);
    log_info("saved step %lld (%.1f s after its snapshot)", (long long)step, seconds);
    if (loop->job->metrics == NULL) {
        return STATUS_OK;
    }
    const struct metric fields[] = {
        metric_integer("saved_step", step),
        metric_number("seconds", seconds),
        metric_number("stall_seconds", loop->save_stall),
    };
    return metrics_write(loop->job->metrics, "checkpoint", loop->job->state.step, fields,
                         COUNT(fields));
}

static status publish(struct loop *loop)
{
    int64_t step = -1;
    job_long_phase(loop->job, "publishing a checkpoint");
    TRY(checkpoint_publish(loop->job->checkpoint, &step));
    job_long_phase(loop->job, NULL);
    if (step >= 0) {
        keep_mine(loop, tell_saved(loop, step));
    }
    return STATUS_OK;
}

static status save(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->last_saved == job->state.step) {
        return STATUS_OK;
    }
    TRY(publish(loop)); /* one at a time */
    TRY(update_settle(job->update));
    struct checkpoint_family families[2] = {job->families[0].family, job->families[1].family};
    /* Now: a power cut after the publication must not find a checkpoint that is ahead of its lines. */
    if (job->metrics != NULL) {
        keep_mine(loop, metrics_sync(job->metrics));
    }
    job->state.train_seconds = train_seconds(loop);
    loop->save_started = clock_seconds();
    job_long_phase(job, "checkpoint");
    TRY(checkpoint_save(job->checkpoint, &job->state, families, 2, &loop->save_stall));
    job_long_phase(job, NULL);
    loop->last_saved = job->state.step;
    return recipe_of(loop)->checkpoint.async ? STATUS_OK : publish(loop);
}

/* The newest evaluation's weights where they are the best ones. What was the best is let go only now that the new
 * one is about to be the newest, which is never removed. */
static status save_best(struct loop *loop)
{
    struct job *job = loop->job;
    if (!loop->improved || !recipe_of(loop)->checkpoint.keep_best) {
        return STATUS_OK;
    }
    loop->improved = false;
    TRY(publish(loop));
    checkpoint_keep_besides(job->checkpoint, job->best.step);
    return save(loop);
}

/* ---- what is told ---- */

static void time_left(const struct loop *loop, char *text, size_t bytes)
{
    const struct job *job = loop->job;
    const struct recipe *r = recipe_of(loop);
    double left = (double)(job->total_steps - job->state.step) * loop->step_median;
    if (r->train.max_minutes > 0) {
        left = fmin(left, 60 * r->train.max_minutes - train_seconds(loop));
    }
    left = fmax(left, 0);
    if (left >= 5400) {
        snprintf(text, bytes, "%.1f h", left / 3600);
    } else if (left >= 90) {
        snprintf(text, bytes, "%.0f min", left / 60);
    } else {
        snprintf(text, bytes, "%.0f s", left);
    }
}

/* What was warned of since the last time, as events. */
static status write_warnings(const struct job *job)
{
    status result = STATUS_OK;
    for (struct log_entry *w; (w = log_take_warning()) != NULL; free(w)) {
        const struct metric fields[] = {metric_text("name", w->name), metric_text("text", w->text)};
        if (job->metrics != NULL) {
            KEEP_FIRST(result, metrics_write(job->metrics, "warning", job->state.step, fields,
                                             COUNT(fields)));
        }
    }
    return result;
}

/* Minutes that run out long before the steps leave a learning rate that has not fallen: said once, early. */
static void warn_of_minutes(const struct loop *loop)
{
    const struct job *job = loop->job;
    const struct recipe *r = recipe_of(loop);
    double left = 60 * r->train.max_minutes - train_seconds(loop);
    double end = (double)job->state.step + left / fmax(loop->step_median, 1e-9);
    double there = schedule_rate(r, (int64_t)end, job->total_steps);
    double lowest = schedule_rate(r, job->total_steps, job->total_steps);
    if (r->train.max_minutes <= 0 || !(end < minutes_share * (double)job->total_steps) ||
        there <= lowest) {
        return;
    }
    log_warning(
        "SCHEDULE",
        "at this speed train.max_minutes ends the run at about step %.0f of %lld, where the "
        "learning rate is %.2g of at most %.2g: with train.max_steps=%.0f its schedule comes "
        "to its end",
        end, (long long)job->total_steps, there, r->optimizer.learning_rate, end);
}

/* What an interval's communication cost: of the data-parallel ranks, and of those that share a model. */
struct traffic {
    struct comm_times data, tensor;
};

static struct traffic take_traffic(const struct mesh *mesh)
{
    struct traffic t;
    comm_take_times(mesh->data, &t.data);
    comm_take_times(mesh->tensor, &t.tensor);
    return t;
}

/* Four fields whose names begin with names[]. */
static int traffic_fields(const struct comm_times *t, const char *const names[4],
                          struct metric *fields)
{
    fields[0] = metric_number(names[0], t->alone_seconds);
    fields[1] = metric_number(names[1], t->exposed_seconds);
    fields[2] = metric_number(names[2], comm_hidden_share(t));
    fields[3] = metric_integer(names[3], t->bytes);
    return 4;
}

static status write_train_line(struct loop *loop, const struct step_result *result, double rate,
                               double tokens_per_second, const struct traffic *traffic)
{
    static const char *const data_names[] = {"comm_seconds", "comm_exposed_seconds",
                                             "comm_hidden_share", "comm_bytes"};
    static const char *const tensor_names[] = {"tensor_comm_seconds", "tensor_comm_exposed_seconds",
                                               "tensor_comm_hidden_share", "tensor_comm_bytes"};
    const struct job *job = loop->job;
    const struct interval *i = &loop->interval;
    struct metric fields[21 + EVALUATION_FIELDS] = {
        metric_number("loss", result->loss),
        metric_number("learning_rate", rate),
        metric_number("grad_norm", result->gradient_norm),
        metric_integer("tokens", job->state.tokens),
        metric_number("tokens_per_second", tokens_per_second),
        metric_number("step_seconds", i->step_seconds / (double)i->steps),
        metric_null("mfu"), /* a processor's peak is not known */
        metric_integer("memory_bytes", peak_memory_bytes()),
        metric_number("data_stall_seconds", i->data_seconds),
    };
    int count = 9;
    if (comm_size(job->world) > 1) {
        count += traffic_fields(&traffic->data, data_names, fields + count);
    }
    if (comm_size(job->session.mesh.tensor) > 1) {
        count += traffic_fields(&traffic->tensor, tensor_names, fields + count);
    }
    if (objective_metric_count(job->objective) > 0) {
        fields[count++] = metric_integer("num_tokens", job->state.tokens); /* TRL's name for it */
    }
    count += evaluation_means(job->objective, result->sums, fields + count);
    return metrics_write(job->metrics, "train", job->state.step, fields, count);
}

static status tell_step(struct loop *loop, const struct step_result *result, double rate)
{
    struct job *job = loop->job;
    struct interval *i = &loop->interval;
    struct traffic traffic = take_traffic(&job->session.mesh);
    char left[32];
    double busy = i->step_seconds - i->data_seconds - traffic.data.exposed_seconds -
                  traffic.data.small_seconds - traffic.tensor.exposed_seconds -
                  traffic.tensor.small_seconds;
    TRY(straggler_check(job->world, busy, i->rows));
    double seconds = clock_seconds() - i->started;
    double tokens_per_second = (double)i->tokens / fmax(seconds, 1e-9);
    time_left(loop, left, sizeof left);
    log_progress("step %lld/%lld  loss %.4f  %.0f tokens/s  left %s", (long long)job->state.step,
                 (long long)job->total_steps, result->loss, tokens_per_second, left);
    status told = STATUS_OK;
    if (job->metrics != NULL) {
        told = write_train_line(loop, result, rate, tokens_per_second, &traffic);
    }
    *i = (struct interval){.started = clock_seconds()};
    return told;
}

static status tell_start(const struct loop *loop)
{
    const struct job *job = loop->job;
    const struct recipe *r = recipe_of(loop);
    struct plan plan;
    TRY(plan_make(r, comm_size(job->world), &plan));
    int ranks = comm_size(job->world), threads = kernels_threads(job->session.kernels);
    char trained[64] = "";
    if (plan.trained_parameters < plan.parameters) {
        snprintf(trained, sizeof trained, ", of which %lld are trained",
                 (long long)plan.trained_parameters);
    }
    log_info("%s: %lld parameters%s, %d rank%s x %d thread%s, %s, %s; %lld of %lld steps done",
             r->run_dir, (long long)plan.parameters, trained, ranks, text_plural(ranks), threads,
             text_plural(threads), dtype_name(kernels_dtype(job->session.kernels)),
             kernels_description(job->session.kernels), (long long)job->state.step,
             (long long)job->total_steps);
    if (job->metrics == NULL) {
        return STATUS_OK;
    }
    char names[PLAN_KINDS][32];
    struct metric fields[9 + PLAN_KINDS] = {
        metric_integer("ranks", comm_size(job->world)),
        metric_integer("tensor", r->parallel.tensor),
        metric_integer("data", comm_size(job->session.mesh.data)),
        metric_integer("zero_stage", r->parallel.zero_stage),
        metric_integer("threads", kernels_threads(job->session.kernels)),
        metric_integer("total_steps", job->total_steps),
        metric_integer("parameters", plan.parameters),
        metric_integer("trained_parameters", plan.trained_parameters),
        metric_integer("rank_parameters", plan.rank_parameters),
    };
    for (int kind = 0; kind < PLAN_KINDS; kind++) {
        snprintf(names[kind], sizeof names[kind], "rank_bytes.%s", plan_kind_name(kind));
        fields[9 + kind] = metric_integer(names[kind], plan.bytes[kind]);
    }
    if (job->resumed) {
        TRY(metrics_write(job->metrics, "resume", job->state.step, NULL, 0));
    }
    return metrics_write(job->metrics, "start", job->state.step, fields, COUNT(fields));
}

/* ---- one step of the loop ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the newest steps. */
static void note_step_seconds(struct loop *loop, double seconds)
{
    double sorted[RECENT_STEPS];
    loop->recent[loop->recent_count++ % RECENT_STEPS] = seconds;
    int count = loop->recent_count < RECENT_STEPS ? loop->recent_count : RECENT_STEPS;
    memcpy(sorted, loop->recent, sizeof sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    loop->step_median = sorted[count / 2];
}

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static status after_step(struct loop *loop, const struct step_result *result, double rate)
{
    struct job *job = loop->job;
    const struct recipe *r = recipe_of(loop);
    bool last = loop->finished || loop->stop_reason != NULL || job->state.step == job->total_steps;
    if (due(job->state.step, r->log.every) || job->state.step == 1 || last) {
        keep_mine(loop, tell_step(loop, result, rate));
    }
    if (loop->recent_count == RECENT_STEPS) {
        warn_of_minutes(loop);
    }
    if (result->votes[VOTE_WRITTEN] >= comm_size(job->world)) {
        TRY(publish(loop));
    }
    keep_mine(loop, write_warnings(job));
    if (!last && due(job->state.step, r->evaluate.every)) {
        TRY(evaluate(loop));
        TRY(save_best(loop));
    }
    return due(job->state.step, r->checkpoint.every) ? save(loop) : STATUS_OK;
}

/* What the first step has met is timed behind it, on its operands. */
static status tune(struct loop *loop, bool measure)
{
    if (loop->tuned) {
        return STATUS_OK;
    }
    loop->tuned = measure;
    return session_tune(&loop->job->session, loop->job->world, measure);
}

static status one_step(struct loop *loop)
{
    struct job *job = loop->job;
    const struct recipe *r = recipe_of(loop);
    double votes[STEP_VOTES] = {0};
    struct step_result result;
    double rate = schedule_rate(r, job->state.step, job->total_steps);
    status_at_step(job->state.step + 1);
    cast_votes(loop, votes);
    TRY(tune(loop, false));
    TRY(step_train(job->step, job->state.step, rate, votes, status_restore(&loop->mine),
                   job->state.step + 1 < job->total_steps, &result));
    TRY(tune(loop, true));
    job->state.step++;
    loop->stepped = true;
    job->state.samples += r->batch.global_size;
    job->state.tokens += result.tokens;
    loop->interval.steps++;
    loop->interval.tokens += result.tokens;
    loop->interval.rows += result.rows;
    loop->interval.data_seconds += result.data_seconds;
    loop->interval.step_seconds += result.total_seconds;
    note_step_seconds(loop, result.total_seconds);
    heed_stop(loop, result.votes);
    loop->finished = result.votes[VOTE_TIME_UP] > 0;
    return after_step(loop, &result, rate);
}

/* ---- the run ---- */

/* The best evaluation's weights instead of the last ones, and their state. */
static status take_best(struct loop *loop, struct checkpoint_state *state)
{
    struct job *job = loop->job;
    struct checkpoint_found found = {0};
    char folder[FILE_PATH_BYTES];
    if (!recipe_of(loop)->checkpoint.keep_best || !job->best.known ||
        job->best.step == job->state.step) {
        return STATUS_OK;
    }
    TRY(checkpoint_step_path(job->checkpoint, job->best.step, folder, sizeof folder));
    TRY(comm_agree(job->world, checkpoint_examine(job->world, folder, &found)));
    free(found.recipe_text);
    TRY(checkpoint_load(job->world, folder, &job->families[0].family, 1));
    *state = found.state;
    log_info("the final weights are those of step %lld, with the best %s: %.6g",
             (long long)state->step, job->best_rule.metric, job->best.value);
    return STATUS_OK;
}

static status write_final(struct loop *loop)
{
    struct job *job = loop->job;
    char folder[FILE_PATH_BYTES];
    TRY(publish(loop));
    TRY(update_settle(job->update));
    /* A rank's error now: no final weights, so that the next start makes up for what could not be written. */
    TRY(comm_agree(job->world, status_restore(&loop->mine)));
    TRY(file_join(folder, recipe_of(loop)->run_dir, "final"));
    job_long_phase(job, "final weights");
    struct checkpoint_state state = job->state;
    TRY(take_best(loop, &state));
    return checkpoint_write_final(job->checkpoint, folder, &state, &job->families[0].family, 1);
}

static status write_end(const struct loop *loop, const char *reason)
{
    const struct job *job = loop->job;
    if (job->metrics == NULL) {
        return STATUS_OK;
    }
    TRY(write_warnings(job));
    const struct metric fields[] = {
        metric_text("reason", reason),
        metric_integer("tokens", job->state.tokens),
        metric_number("train_seconds", train_seconds(loop)),
        metric_number("data_stall_seconds", loader_stall_seconds(job->loader)),
        metric_integer("memory_bytes", peak_memory_bytes()),
        metric_integer("best_step", job->best.step),
        metric_number("best_value", job->best.value),
    };
    int count = COUNT(fields) - (chooses(loop) && job->best.known ? 0 : 2);
    return metrics_write(job->metrics, "end", job->state.step, fields, count);
}

static status stop_early(struct loop *loop)
{
    struct job *job = loop->job;
    if (loop->stop_reason == wall_reason && !loop->stepped) {
        log_warning("WALL",
                    "train.wall_minutes, %g, was nearly over before a step was done: a session "
                    "like this one "
                    "gets no further; give it more time",
                    recipe_of(loop)->train.wall_minutes);
    }
    TRY(save(loop));
    TRY(publish(loop));
    keep_mine(loop, write_end(loop, "stopped"));
    TRY(comm_agree(job->world, status_restore(&loop->mine)));
    log_info("stopped after step %lld because %s; everything is saved: start again to go on",
             (long long)job->state.step, loop->stop_reason);
    return STATUS_STOPPED;
}

static status end_normally(struct loop *loop)
{
    struct job *job = loop->job;
    TRY(evaluate(loop));
    if (loop->stop_reason != NULL) {
        return stop_early(loop);
    }
    TRY(save_best(loop));
    if (recipe_of(loop)->checkpoint.every > 0 || recipe_of(loop)->checkpoint.keep_best) {
        TRY(save(loop));
    }
    TRY(write_final(loop));
    const char *reason = job->state.step >= job->total_steps         ? "max_steps"
                         : best_is_over(&job->best_rule, &job->best) ? "patience"
                                                                     : "max_minutes";
    keep_mine(loop, write_end(loop, reason));
    return comm_agree(job->world, status_restore(&loop->mine));
}

/* Before the first step; and what an earlier session owes, which was stopped just before it evaluated. */
static status evaluate_first(struct loop *loop)
{
    const struct job *job = loop->job;
    bool evaluated = false;
    TRY(comm_agree_flag(job->world, job->metrics != NULL && metrics_evaluated(job->metrics),
                        &evaluated));
    loop->evaluated = evaluated ? job->state.step : -1;
    bool owed = job->state.step == 0 || due(job->state.step, recipe_of(loop)->evaluate.every);
    TRY(owed ? evaluate(loop) : STATUS_OK);
    return save_best(loop);
}

static status run(struct loop *loop)
{
    const struct job *job = loop->job;
    keep_mine(loop, tell_start(loop));
    keep_mine(loop, write_warnings(job));
    TRY(evaluate_first(loop));
    loop->interval.started = clock_seconds();
    while (!loop->finished && loop->stop_reason == NULL && job->state.step < job->total_steps) {
        TRY(one_step(loop));
    }
    status_at_step(-1);
    return loop->stop_reason != NULL ? stop_early(loop) : end_normally(loop);
}

status loop_run(struct job *job)
{
    struct loop loop = {
        .job = job,
        .last_saved = job->resumed ? job->state.step : -1,
        .seconds_before = job->state.train_seconds,
        .finished = job_reached_end(job),
    };
    if (job->finished) {
        bool beyond = job->state.step > job->total_steps;
        log_info("%s is finished: %lld steps are done%s", recipe_of(&loop)->run_dir,
                 (long long)job->state.step,
                 beyond ? ", more than the recipe asks for; nothing was trained" : "");
        return STATUS_OK;
    }
    status result = run(&loop);
    KEEP_FIRST(result, write_warnings(job)); /* those of an end with an error too */
    return result;
}
