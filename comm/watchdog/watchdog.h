/* The watchdog: a thread that ends the job if the main thread stays in one phase for too long.
 *
 * A phase is a named part of the work, such as "data" or "forward". The error names the rank, the
 * phase and the time. Each rank also checks the other ranks of its host, because a stopped process
 * cannot report itself. A rank that waits in a collective is not checked: the wait has a deadline
 * (comm_set_deadline). Time in which the machine is suspended does not count. If the job spans
 * several hosts, limits must be above 15 s.
 *
 * Calls     watchdog_set_startup_limit before comm_world_create, watchdog_start after it,
 *           watchdog_end_startup before the first step, watchdog_set_phase at the start of each
 *           phase, watchdog_stop at the end */
#pragma once

#include "comm/comm.h"

/* watchdog_start - start the watchdog thread; the first phase is "init".
 *
 * Units     limit_seconds: limit of phases without a separate limit; > 0
 * Errors    STATUS_INTERNAL if the thread cannot start */
status watchdog_start(struct comm *world, double limit_seconds);

/* watchdog_set_startup_limit - limit the whole start of a job, over all its phases, until
 * watchdog_end_startup.
 *
 * Starts the watchdog thread if it is not running. A repeated call changes the limit, and the time
 * continues. comm_world_create then uses this limit for MPI_Init too. After the limit the job ends
 * with STATUS_HANG. The error names the ranks of this host that do not wait for others.
 *
 * Units     limit_seconds > 0
 * Errors    STATUS_INTERNAL if the thread cannot start */
status watchdog_set_startup_limit(double limit_seconds);

/* watchdog_pause_startup - pause (true) or continue (false) the clock of the start-up limit.
 *
 * For work that takes longer for more data, and that reports its own phases. */
void watchdog_pause_startup(bool paused);

/* watchdog_startup_limit - return the start-up limit in seconds; 0 outside the start. */
double watchdog_startup_limit(void);

/* watchdog_end_startup - remove the start-up limit. */
void watchdog_end_startup(void);

/* watchdog_set_phase - set the current phase of the main thread and reset its timer.
 *
 * The call is cheap. Phases are, for example, "data", "forward" and "checkpoint".
 *
 * Units     limit_seconds: limit of this phase; 0 for the default */
void watchdog_set_phase(const char *phase, double limit_seconds);

/* watchdog_renew - reset the timer of the current phase.
 *
 * For a phase that consists of many short parts: its limit then applies to each part. */
void watchdog_renew(void);

/* watchdog_stop - stop the watchdog thread; no effect if it is not running. */
void watchdog_stop(void);
