#include <sched.h>

#include "base/clock.h"
#include "comm/comm_impl.h"

#define SPIN_SECONDS 20e-6   /* a peer that runs on its own core answers within this */
#define YIELD_SECONDS 300e-6 /* one that shares ours needs the core */
#define FIRST_SLEEP_SECONDS 20e-6
#define TURN_SECONDS 1.0

struct patience patience_begin(void)
{
    return (struct patience){.last = clock_seconds(), .sleep_seconds = FIRST_SLEEP_SECONDS};
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void patience_turn(struct patience *patience, double longest_seconds)
{
    double now = clock_seconds();
    double turn = now - patience->last;
    patience->used_seconds += turn < TURN_SECONDS ? turn : TURN_SECONDS;
    patience->last = now;
    if (patience->used_seconds < SPIN_SECONDS) {
        relax();
    } else if (patience->used_seconds < YIELD_SECONDS) {
        sched_yield();
    } else {
        clock_sleep(patience->sleep_seconds);
        double longer = 1.5 * patience->sleep_seconds;
        patience->sleep_seconds = longer < longest_seconds ? longer : longest_seconds;
    }
}
