/* Threads that block all signals. In jobs and servers only the main thread handles signals
 * (trainer/setup/stop_signal.h). */
#pragma once

#include <pthread.h>

#include "base/status.h"

/* thread_start - create a thread that blocks every signal. Returns 0 or an errno value. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *user);

/* thread_run_each - call run once for each of `count` items, each in its own thread, and wait until
 * all calls have returned.
 *
 * The calling thread runs the first item, and each item for which no thread can be started.
 *
 * Units     item_bytes: size of an item in the array `items` */
void thread_run_each(void (*run)(void *item), void *items, size_t item_bytes, int count);

/* thread_check_count - start this number of threads, to check that they can run at the same time.
 * OpenMP ends the process if it cannot start a thread, so this is called before its first use.
 *
 * Errors    STATUS_INTERNAL */
status thread_check_count(int count);
