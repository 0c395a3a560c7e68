/* The time that the threads of this process wait for a core, because another thread uses it.
 *
 * The kernel counts the run time and the wait time of each thread. A thread that sleeps does not
 * wait in this sense. */
#pragma once

#include <stdint.h>

enum { CORE_WAITS_THREADS = 256 };

/* The counters of one thread. */
struct core_waits_thread {
    int id;
    uint64_t run_nanoseconds, wait_nanoseconds;
};

/* The counters of the last call. The first CORE_WAITS_THREADS threads are counted. Zero it before
 * the first call. */
struct core_waits {
    struct core_waits_thread threads[CORE_WAITS_THREADS];
    int count;
};

/* core_waits_measure - return the largest share of its time since the last call for which one of
 * the `threads` busiest threads waited for a core; 0 if the kernel does not count it.
 *
 * The run time of all other threads of this process is subtracted from the wait: they can delay a
 * busy thread by at most this time, as a thread that writes a checkpoint does.
 *
 * Units     share of run time and wait time, 0..1; root: folder that contains proc; "" except
 *           in tests
 * Source    Linux, scheduler/sched-stats (/proc/PID/schedstat) */
double core_waits_measure(struct core_waits *w, const char *root, int threads);
