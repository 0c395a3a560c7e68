/* Pauses of a rank that waits: it spins, then yields its core, then sleeps longer each time. */
#pragma once

/* State of a wait. Each call of backoff_wait adds at most one second to waited_seconds. The time
 * during which the machine is suspended or its virtual machine is paused thus does not count. */
struct backoff {
    double last_seconds;
    double waited_seconds;
    double sleep_seconds;
};

/* backoff_begin - start a wait. */
struct backoff backoff_begin(void);

/* backoff_wait - wait for at most max_sleep_seconds. */
void backoff_wait(struct backoff *backoff, double max_sleep_seconds);
