/* The watchdog: a thread that ends the job if the main thread stays in one phase for too long.
 *
 * The error names the rank, the phase and the time. Each rank also checks the other ranks of its
 * host, because a stopped process cannot report itself. A rank that waits in a collective is not
 * checked: the wait has a deadline (comm_set_deadline). The time during which the machine is
 * suspended does not count. If the job spans several hosts, limits must be above 15 s. */
#pragma once

#include "comm/comm.h"

/* watchdog_start - start the watchdog thread; the first phase is "init".
 *
 * Units     limit_seconds: limit of phases without a separate limit; > 0
 * Errors    STATUS_INTERNAL if the thread cannot start */
status watchdog_start(struct comm *world, double limit_seconds);

/* watchdog_phase - set the current phase of the main thread and reset its timer.
 *
 * The call is cheap. Phases are, for example, "data", "forward" and "checkpoint".
 *
 * Units     limit_seconds: limit of this phase; 0 for the default */
void watchdog_phase(const char *phase, double limit_seconds);

/* watchdog_stop - stop the watchdog thread; no effect if it is not running. */
void watchdog_stop(void);
