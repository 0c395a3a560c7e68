/* The messages at the end of a training. */
#pragma once

#include "trainer/train/job.h"

/* summary_log - log steps, tokens, time and a table of the first, best and last evaluation. It also
 * logs the folder of the weights, and the commands that use them or resume the run. Only rank 0
 * logs. The evaluations and the time come from metrics.jsonl; missing values are left out.
 *
 * If `stopped` is true, the run stopped before its end; the command that continues it is logged.
 *
 * Order     after the last checkpoint, before job_stop */
void summary_log(const struct job *job, const struct job_options *options, bool stopped);
