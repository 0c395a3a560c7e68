/* Time: a monotonic clock for durations and deadlines, and the wall clock for log lines only. */
#pragma once

/* clock_seconds - return the seconds since an arbitrary start. The clock never jumps.
 *
 * Source    clock_gettime(2), CLOCK_MONOTONIC */
double clock_seconds(void);

/* clock_epoch_seconds - return the seconds since 1970, for log lines. */
double clock_epoch_seconds(void);

/* clock_sleep - sleep for the given time. Signals do not shorten it. */
void clock_sleep(double seconds);
