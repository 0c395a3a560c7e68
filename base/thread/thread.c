#include "base/thread/thread.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int thread_start(pthread_t *thread, void *(*run)(void *), void *user)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* A thread of thread_run_each. */
struct worker {
    pthread_t thread;
    bool started;
    void (*run)(void *item);
    void *item;
};

static void *run_worker(void *user)
{
    struct worker *worker = user;
    worker->run(worker->item);
    return NULL;
}

void thread_run_each(void (*run)(void *item), void *items, size_t item_bytes, int count)
{
    struct worker *workers = count > 1 ? calloc((size_t)count, sizeof *workers) : NULL;
    for (int i = 1; i < count && workers != NULL; i++) {
        workers[i].run = run;
        workers[i].item = (char *)items + (size_t)i * item_bytes;
        workers[i].started = thread_start(&workers[i].thread, run_worker, &workers[i]) == 0;
    }
    for (int i = 0; i < count; i++) {
        if (workers != NULL && workers[i].started) {
            pthread_join(workers[i].thread, NULL);
        } else {
            run((char *)items + (size_t)i * item_bytes);
        }
    }
    free(workers);
}

/* Waits until thread_check_count unlocks the mutex. */
static void *wait_for_unlock(void *user)
{
    pthread_mutex_t *lock = user;
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

status thread_check_count(int count)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    REQUIRE(threads != NULL, STATUS_INTERNAL, "out of memory for the handles of %d threads", count);
    int started = 0, failed = 0;
    pthread_mutex_lock(&lock);
    while (started < count && failed == 0) {
        failed = thread_start(&threads[started], wait_for_unlock, &lock);
        started += failed == 0;
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    free(threads);
    REQUIRE(failed == 0, STATUS_INTERNAL,
            "cannot start thread %d of %d: %s; lower parallel.threads, or raise the limits of "
            "processes (ulimit -u) and of the address space (ulimit -v)",
            started + 1, count, strerror(failed));
    return STATUS_OK;
}
