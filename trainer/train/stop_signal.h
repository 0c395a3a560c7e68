/* Requests to stop from outside: SIGUSR1 (which mpirun forwards), SIGTERM, SIGINT, SIGHUP.
 *
 * The signal handler sets a flag and returns. A second signal has no further effect. The training
 * loop reads the flag after each step, agrees on it over all ranks, saves, and exits with 75. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* stop_signal_watch - install the handler, so that these signals no longer kill the process.
 *
 * Order     from the main thread; the handler runs on a separate stack (see stop_signal.c)
 * Errors    STATUS_INTERNAL */
status stop_signal_watch(void);

/* stop_signal_received - return whether one of the signals has arrived. */
bool stop_signal_received(void);

/* stop_signal_from_launcher - return whether mpirun is ending this process: it sends SIGTERM, and
 * SIGKILL one second later. */
bool stop_signal_from_launcher(void);
