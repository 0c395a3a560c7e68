/* The first line of a run: its size, its layout and its planned memory. */
#pragma once

#include "trainer/train/job.h"

/* start_line_write - log the size and layout of a job that job_start has prepared, and set
 * job->flops.
 *
 * Rank 0 also writes the events "resume" (after a resume) and "start" to metrics.jsonl.
 *
 * Order     collective
 * Errors    as plan_make; STATUS_WRITE if metrics.jsonl cannot be written; the same on all
 *           ranks */
status start_line_write(struct job *job);
