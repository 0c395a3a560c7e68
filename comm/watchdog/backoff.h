/* Pauses of a rank that waits. It first spins, then yields its core, then sleeps longer each time.
 *
 * Calls     backoff_begin, then backoff_wait between the polls of a condition */
#pragma once

/* State of a wait. Each call of backoff_wait adds at most one second to waited_seconds. Time in
 * which the machine is suspended, or its virtual machine is paused, therefore does not count. */
struct backoff {
    double last_seconds;
    double waited_seconds;
    double sleep_seconds;
};

/* backoff_begin - start a wait. */
struct backoff backoff_begin(void);

/* backoff_wait - wait for at most max_sleep_seconds. */
void backoff_wait(struct backoff *backoff, double max_sleep_seconds);
