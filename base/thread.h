/* Worker threads. They block all signals; only the main thread handles signals
 * (trainer/train/stop_signal.h). */
#pragma once

#include <pthread.h>

/* thread_start - create a thread that blocks every signal. Returns 0 or an errno value. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *user);
