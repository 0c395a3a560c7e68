/* metrics.jsonl: what a run measured, one JSON object a line, complete or absent.
 *
 * Every line has "event", "step" and "time" (seconds since the epoch). A double is written so that it
 * reads back exactly; one that is not finite is null. A line is one write to the end of the file; where
 * it does not fit, what was written of it is taken back. A resumed run drops the lines after the step
 * that it goes on from, so that the file reads like one uninterrupted run. Rank 0 only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct metrics;

enum metric_kind { METRIC_NUMBER, METRIC_INTEGER, METRIC_TEXT, METRIC_FLAG, METRIC_NULL };

/* A field of a line. A name with a '.' is a field of an object: "rank_bytes.weights". */
struct metric {
    const char *name;
    enum metric_kind kind;
    double number;
    int64_t integer; /* METRIC_FLAG: 0 or 1 */
    const char *text;
};

static inline struct metric metric_number(const char *name, double number)
{
    return (struct metric){.name = name, .kind = METRIC_NUMBER, .number = number};
}

static inline struct metric metric_integer(const char *name, int64_t integer)
{
    return (struct metric){.name = name, .kind = METRIC_INTEGER, .integer = integer};
}

static inline struct metric metric_text(const char *name, const char *text)
{
    return (struct metric){.name = name, .kind = METRIC_TEXT, .text = text};
}

static inline struct metric metric_flag(const char *name, bool flag)
{
    return (struct metric){.name = name, .kind = METRIC_FLAG, .integer = flag};
}

static inline struct metric metric_null(const char *name)
{
    return (struct metric){.name = name, .kind = METRIC_NULL};
}

/* metrics_open - start the file anew (resume_step -1), or go on after that step.
 *
 * Going on drops, atomically, lines of later steps, lines of "end" and lines that a power cut left
 * damaged (a warning W-METRICS tells how many).
 * Order     after checkpoint_open, which holds the run folder's lock
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status metrics_open(const char *path, int64_t resume_step, struct metrics **out);

/* metrics_evaluated - whether the step that a resumed run goes on from has its "evaluate" line already. */
bool metrics_evaluated(const struct metrics *m);

/* metrics_add_tensorboard - from now on the numbers of "train" and "evaluate" lines go to a TensorBoard
 * event file in this folder too (tensorboard.h); metrics_sync and metrics_close take it along.
 *
 * Order     once, before the first line
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; m stays usable without it */
status metrics_add_tensorboard(struct metrics *m, const char *folder);

/* metrics_write - one line.
 *
 * Errors    STATUS_WRITE: the line, or its numbers in the event file, are not there; STATUS_INTERNAL */
status metrics_write(struct metrics *m, const char *event, int64_t step,
                     const struct metric *fields, int count);

/* metrics_sync - until here the lines survive a power cut: called at checkpoints.
 *
 * Errors    STATUS_WRITE */
status metrics_sync(struct metrics *m);

/* metrics_close - sync and close; NULL is fine.  Errors: STATUS_WRITE */
status metrics_close(struct metrics **m);
