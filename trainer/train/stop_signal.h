/* A wish to stop, from outside: SIGUSR1 (what mpirun passes on), SIGTERM, SIGINT, SIGHUP.
 *
 * The handler notes the wish and returns: it nests nothing, a second signal changes nothing. The
 * training loop asks after each step, agrees over all ranks, saves and ends with code 75. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* stop_watch - from now on these signals ask instead of killing.
 *
 * Order     from the main thread; the handler runs on a stack of its own (stop.c says why: no handler in
 *           this program may do without)
 * Errors    STATUS_INTERNAL */
status stop_watch(void);

bool stop_requested(void);

/* stop_by_launcher - whether mpirun ends this process: its SIGTERM, which SIGKILL follows after a second. */
bool stop_by_launcher(void);
