/* Threads that block all signals. In jobs and servers only the main thread handles signals
 * (trainer/setup/stop_signal.h). Code that runs without these handlers, such as `bireme tokenizer`,
 * may call pthread_create directly. */
#pragma once

#include <pthread.h>

#include "base/status.h"

/* thread_start - create a thread that blocks every signal. Returns 0 or an errno value. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *user);

/* thread_check_count - start this number of threads, to check that they can run at the same time.
 * OpenMP ends the process if it cannot start a thread, so this is called before its first use.
 *
 * Errors    STATUS_INTERNAL */
status thread_check_count(int count);
