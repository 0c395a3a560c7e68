#include "trainer/train/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "trainer/evaluation/report.h"
#include "trainer/optimizer/schedule.h"

static const double half_life_seconds = 60;

/* progress_warn_about_minutes warns if train.max_minutes ends the run before this fraction of its
 * steps. */
static const double minutes_fraction = 0.9;

void progress_add(struct progress *p, const struct progress_interval *interval)
{
    double weight = exp2(-interval->seconds / half_life_seconds);
    p->steps = weight * p->steps + (double)interval->steps;
    p->seconds = weight * p->seconds + interval->seconds;
}

/* Returns the number of evaluations after the current step. The last step is always evaluated. */
static int64_t count_evaluations(const struct job *job)
{
    int64_t every = job->session.recipe.evaluate.every;
    int64_t step = job->state.step, total = job->total_steps;
    if (job->evaluate_samples == 0 || step >= total) {
        return 0;
    }
    return every > 0 ? (total - 1) / every - step / every + 1 : 1;
}

double progress_left_seconds(const struct progress *p, const struct job *job,
                             double evaluate_seconds, double train_seconds)
{
    const struct recipe *r = &job->session.recipe;
    double steps = (double)(job->total_steps - job->state.step);
    double left = steps * p->seconds / fmax(p->steps, 1e-9) +
                  (double)count_evaluations(job) * evaluate_seconds;
    if (r->train.max_minutes > 0) {
        left = fmin(left, 60 * r->train.max_minutes - train_seconds);
    }
    return fmax(left, 0);
}

static void format_speed(double tokens_per_second, char *text, size_t bytes)
{
    double scale = tokens_per_second < 99999.5 ? 1 : tokens_per_second < 99999500 ? 1e3 : 1e6;
    snprintf(text, bytes, "  %.0f %stokens/s", tokens_per_second / scale,
             scale < 1e3   ? ""
             : scale < 1e6 ? "k "
                           : "M ");
}

/* Writes "  NAME VALUE" of the objective's main metric; "" if the step has none. With `brief` the
 * name is its last word. */
static void format_metric(const struct objective *o, const double *sums, bool brief, char *text,
                          size_t bytes)
{
    char number[TEXT_NUMBER_BYTES];
    const struct objective_metric *m =
        objective_metric_count(o) > 0 && o->main_metric >= 0 ? &o->metrics[o->main_metric] : NULL;
    text[0] = '\0';
    if (m != NULL && sums[m->count] > 0) {
        const char *name = m->name, *word;
        while (brief && (word = strpbrk(name, "/_")) != NULL) {
            name = word + 1;
        }
        snprintf(text, bytes, "  %s %s", name, text_from_metric(objective_mean(sums, m), number));
    }
}

void progress_format(const struct job *job, const struct progress_interval *interval,
                     double left_seconds, char *line)
{
    char tail[64], speed[32], left[TEXT_NUMBER_BYTES], metric[96];
    int64_t step = job->state.step, total = job->total_steps;
    snprintf(line, TEXT_LINE_COLUMNS + 1, "step %" PRId64 "/%" PRId64 " (%d%%)  loss %.4f", step,
             total, (int)(100 * (double)step / fmax((double)total, 1)), interval->loss);
    format_speed((double)interval->tokens / fmax(interval->seconds, 1e-9), speed, sizeof speed);
    snprintf(tail, sizeof tail, "%s  left %s", speed, text_from_duration(left_seconds, left));
    for (int brief = 0; brief <= 1; brief++) {
        format_metric(job->objective, interval->sums, brief > 0, metric, sizeof metric);
        if (strlen(line) + strlen(metric) + strlen(tail) <= TEXT_LINE_COLUMNS) {
            (void)text_append_fitting(line, metric);
            break;
        }
    }
    (void)text_append_fitting(line, tail);
}

void progress_add_step_time(struct progress_step_times *times, double seconds)
{
    double sorted[PROGRESS_RECENT_STEPS];
    times->recent[times->count++ % PROGRESS_RECENT_STEPS] = seconds;
    int count = times->count < PROGRESS_RECENT_STEPS ? times->count : PROGRESS_RECENT_STEPS;
    memcpy(sorted, times->recent, sizeof sorted);
    times->median = number_median(sorted, count);
}

void progress_warn_about_minutes(const struct job *job, double train_seconds, double step_seconds)
{
    const struct recipe *r = &job->session.recipe;
    double left = 60 * r->train.max_minutes - train_seconds;
    double end = (double)job->state.step + left / fmax(step_seconds, 1e-9);
    double rate_at_end = schedule_learning_rate(r, (int64_t)end, job->total_steps);
    double lowest = schedule_learning_rate(r, job->total_steps, job->total_steps);
    if (r->train.max_minutes <= 0 || !(end < minutes_fraction * (double)job->total_steps) ||
        rate_at_end <= lowest) {
        return;
    }
    log_warning(
        "SCHEDULE",
        "at this speed train.max_minutes ends the run at about step %.0f of %" PRId64 ", where the "
        "learning rate is %.2g (maximum %.2g); set train.max_steps=%.0f to let the schedule "
        "finish",
        end, job->total_steps, rate_at_end, r->optimizer.learning_rate, end);
}
