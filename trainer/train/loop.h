/* The run: steps, and what happens between them: telling, evaluating, saving, stopping. */
#pragma once

#include "trainer/train/job.h"

/* loop_run - from the job's state to the end of the run. Collective.
 *
 * Errors    STATUS_STOPPED after a signal or the wall-clock limit, with everything saved; what a step or
 *           a save meets, agreed on all ranks */
status loop_run(struct job *job);
