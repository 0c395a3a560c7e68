/* Writes report.html during a run (log.report). */
#pragma once

#include <stdbool.h>

#include "trainer/train/job.h"

/* The state of the writer; zero before the first call. */
struct run_report {
    double duration_seconds; /* of the last write */
    double end_seconds;      /* clock_seconds at its end */
};

/* run_report_write - write report.html on rank 0; a failure is the warning W-REPORT.
 *
 * Before the end of the run (last is false) nothing is written if the reports would take more than
 * 1 % of the time. A run with a long history then does not wait for them. A pending error is
 * kept. */
void run_report_write(struct run_report *r, const struct job *job, bool last);
