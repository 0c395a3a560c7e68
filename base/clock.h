/* Time: a monotonic clock for durations and deadlines, the wall clock for log lines only. */
#pragma once

/* clock_seconds - seconds since an arbitrary start; never jumps (CLOCK_MONOTONIC). */
double clock_seconds(void);

/* clock_epoch_seconds - seconds since 1970, for people to read. */
double clock_epoch_seconds(void);

/* clock_sleep - wait for that many seconds; signals do not shorten it. */
void clock_sleep(double seconds);
