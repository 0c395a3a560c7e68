/* Detection of other programs on the cores of a training run. */
#pragma once

#include <stdbool.h>

#include "base/thread/core_waits.h"
#include "trainer/setup/session.h"

/* Zero it before the first call. */
struct shared_cores {
    struct core_waits waits;
    double measured_seconds; /* time of the last measurement */
    bool measured;           /* there was a measurement */
    int slow_intervals;      /* in a row */
    bool warned;
};

/* shared_cores_watch - measure how long the compute threads wait for a core, at most every five
 * seconds. Warn once (W-SHARED-CORES) if one waited for a fifth of its time in two measurements in
 * a row. Call it after each step. On a GPU it does nothing. */
void shared_cores_watch(struct shared_cores *s, const struct session *session);

/* shared_cores_check - do the work of shared_cores_watch; for tests.
 *
 * Units     root: as in core_waits_measure; threads: number of compute threads, with one thread the
 *           function does nothing; now_seconds: as from clock_seconds */
void shared_cores_check(struct shared_cores *s, const char *root, int threads, double now_seconds);
