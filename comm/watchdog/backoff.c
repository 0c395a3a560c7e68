#include "comm/watchdog/backoff.h"

#include <sched.h>

#include "base/clock.h"
#include "base/deadlines.h"

#define SPIN_SECONDS 20e-6   /* a peer on its own core answers within this time */
#define YIELD_SECONDS 300e-6 /* until then, yield to a peer on the same core */
#define FIRST_SLEEP_SECONDS 20e-6

struct backoff backoff_begin(void)
{
    return (struct backoff){.last_seconds = clock_seconds(), .sleep_seconds = FIRST_SLEEP_SECONDS};
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void backoff_wait(struct backoff *backoff, double max_sleep_seconds)
{
    double now = clock_seconds();
    double elapsed_seconds = now - backoff->last_seconds;
    backoff->waited_seconds += elapsed_seconds < DEADLINE_MAX_COUNTED_SECONDS
                                   ? elapsed_seconds
                                   : DEADLINE_MAX_COUNTED_SECONDS;
    backoff->last_seconds = now;
    if (backoff->waited_seconds < SPIN_SECONDS) {
        pause_cpu();
    } else if (backoff->waited_seconds < YIELD_SECONDS) {
        sched_yield();
    } else {
        clock_sleep(backoff->sleep_seconds);
        double next_seconds = 1.5 * backoff->sleep_seconds;
        backoff->sleep_seconds =
            next_seconds < max_sleep_seconds ? next_seconds : max_sleep_seconds;
    }
}
