/* The training loop: steps, and between them logging, evaluation, checkpoints and stopping. */
#pragma once

#include "trainer/train/job.h"

/* loop_run - train from the job's state to the end of the run.
 *
 * Order     collective
 * Errors    STATUS_STOPPED after a signal or train.wall_minutes, when everything is saved; errors
 *           of a step or a save, agreed on all ranks */
status loop_run(struct job *job);
