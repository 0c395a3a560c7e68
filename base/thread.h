/* Threads beside the main one, which alone handles signals (trainer/stop.h): theirs are all blocked. */
#pragma once

#include <pthread.h>

/* thread_start - pthread_create with every signal blocked in the new thread; 0, or an errno. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *user);
