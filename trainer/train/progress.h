/* The progress line of a training, with a smoothed estimate of the remaining time. */
#pragma once

#include "trainer/train/job.h"

/* Sums over the past steps. The weight of a step halves in 60 s, so that a short change of the
 * speed has little effect on the estimate. The sums are zero before the first step. */
struct progress {
    double steps, seconds;
};

/* The last log interval. */
struct progress_interval {
    int64_t steps, tokens;
    double seconds; /* without evaluations */
    double loss;
    const double *sums; /* [OBJECTIVE_SUMS] of the last step */
};

/* progress_add - add an interval to the sums. */
void progress_add(struct progress *p, const struct progress_interval *interval);

/* progress_left_seconds - estimate the time of the steps and evaluations that remain.
 *
 * Units     evaluate_seconds: of one evaluation; train_seconds: training time of the run so far */
double progress_left_seconds(const struct progress *p, const struct job *job,
                             double evaluate_seconds, double train_seconds);

/* progress_format - write the line: step, percent, loss, main metric of the objective, tokens/s and
 * remaining time. Parts that do not fit are left out.
 *
 * Memory    line[TEXT_LINE_COLUMNS + 1] */
void progress_format(const struct job *job, const struct progress_interval *interval,
                     double left_seconds, char *line);

/* Times of recent steps, in seconds. All fields are zero before the first step. */
enum { PROGRESS_RECENT_STEPS = 16 };
struct progress_step_times {
    double median; /* of the recent steps */
    double recent[PROGRESS_RECENT_STEPS];
    int count; /* of all steps so far */
};

/* progress_add_step_time - add the time of a step and update the median. */
void progress_add_step_time(struct progress_step_times *times, double seconds);

/* progress_warn_about_minutes - warn (W-SCHEDULE) if train.max_minutes will end the run while the
 * learning rate is still high.
 *
 * Units     train_seconds: training time of the run so far; step_seconds: of one step */
void progress_warn_about_minutes(const struct job *job, double train_seconds, double step_seconds);
