/* Requests to stop from outside: SIGUSR1 (which mpirun forwards), SIGTERM, SIGINT, SIGHUP.
 *
 * The signal handler sets a flag and prints one line. The training loop reads the flag between
 * micro-batches and after each step, agrees on it over all ranks, saves, and exits with 75.
 *
 * A second SIGTERM or SIGINT ends the process at once, without saving, if it arrives more than a
 * second after the one before it. Launchers and timeout(1) repeat a signal within a second; such
 * repetitions have no further effect. SIGUSR1 and SIGHUP never end the process. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* stop_signal_watch - install the handler, so that the first of these signals does not kill the
 * process.
 *
 * announces: print a line when it arrives; set on one rank only.
 *
 * Order     from the main thread; the handler runs on a separate stack (see stop_signal.c)
 * Errors    STATUS_INTERNAL */
status stop_signal_watch(bool announces);

/* stop_signal_received - return whether one of the signals has arrived. */
bool stop_signal_received(void);

/* stop_signal_from_launcher - return whether mpirun is ending this process: it sends SIGTERM, and
 * SIGKILL one second later. */
bool stop_signal_from_launcher(void);
