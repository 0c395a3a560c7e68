/* Checks that a function needs time in proportion to the size of its input. */
#pragma once

#include <time.h>

#include "tests/check.h"

/* check_linear_time - require that measure(4 * count) is clearly below 16 times measure(count). A
 * quadratic algorithm takes 16 times as long. Both times are printed.
 *
 * Units     measure returns seconds of processor time. Only the ratio of the two times counts,
 *           except for times below 0.1 s */
static inline void check_linear_time(const char *name, double (*measure)(int count), int count)
{
    double small = measure(count), large = measure(4 * count);
    fprintf(stderr, "%s: %d: %.3f s, %d: %.3f s\n", name, count, small, 4 * count, large);
    CHECK(large < 9 * small + 0.1);
}

/* linear_time_since - return the processor time since a value of clock(). */
static inline double linear_time_since(clock_t begin)
{
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}
