/* Functions that the files of job.h share. */
#pragma once

#include "trainer/setup/data.h"
#include "trainer/train/job.h"

/* job_get_data_setup - return the recipe with the properties that its shards must have. */
struct data_setup job_get_data_setup(const struct job *job);

/* job_restore_best - restore the best evaluation up to the resumed step: rank 0 reads it from
 * metrics.jsonl and broadcasts it.
 *
 * Order     collective
 * Errors    those of early_stopping_restore; the same on all ranks */
status job_restore_best(struct job *job);

/* job_check_finished - set job->finished if the run has done all steps and has its final weights.
 *
 * Order     collective */
status job_check_finished(struct job *job);
