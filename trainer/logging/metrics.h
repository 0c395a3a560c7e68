/* metrics.jsonl: the measurements of a run, one JSON object per line.
 *
 * Every line has "event", "step" and "time" (seconds since the epoch). A double is printed with
 * enough digits to be read back exactly; a value that is not finite is printed as null. Each line
 * is one write at the end of the file. If it fails, the partial line is removed. A resumed run
 * drops the lines after its first step, so that the file reads like one uninterrupted run. Only
 * rank 0 uses this module. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "trainer/logging/metric.h"

struct metrics;

/* metrics_open - start a new file (resume_step -1), or continue a file after that step.
 *
 * The lines of later steps move to the end of PATH.old; with -1 this is the whole file, of any
 * size. Continuing also drops the lines of "end", and the lines that a power failure has damaged
 * (the warning W-METRICS has their number). It drops a "spike" line if its field "spikes" exceeds
 * resume_spikes, the number in the resumed state: this rollback to resume_step occurs again.
 *
 * Order     after checkpoint_open, which holds the lock of the run folder
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE */
status metrics_open(const char *path, int64_t resume_step, int64_t resume_spikes,
                    struct metrics **out);

/* metrics_has_evaluation - return whether the file had an "evaluate" line for the resume step. */
bool metrics_has_evaluation(const struct metrics *m);

/* metrics_has_sample - return whether the file had a "sample" line for the resume step. */
bool metrics_has_sample(const struct metrics *m);

/* metrics_add_tensorboard - write also to a TensorBoard event file in this folder.
 *
 * The file gets the numbers of "train" and "evaluate" lines (tensorboard.h). metrics_sync and
 * metrics_close include that file.
 *
 * Order     once, before the first line
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE; m can still be used without it */
status metrics_add_tensorboard(struct metrics *m, const char *folder);

/* metrics_write - write one line.
 *
 * Errors    STATUS_WRITE: the line, or its record in the event file, has not been written;
 *           STATUS_INTERNAL */
status metrics_write(struct metrics *m, const char *event, int64_t step,
                     const struct metric *fields, int count);

/* metrics_sync - sync the file, so that all lines survive a power failure.
 *
 * Errors    STATUS_WRITE */
status metrics_sync(struct metrics *m);

/* metrics_close - sync and close the file; *m may be NULL.
 *
 * Errors    STATUS_WRITE */
status metrics_close(struct metrics **m);
