#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, void *(*run)(void *), void *user)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
