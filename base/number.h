/* Numbers: the minimum, maximum and rounded division of integers; the order and median of doubles.
 */
#pragma once

#include <stdint.h>

/* number_min - return the smaller of two integers. */
static inline int64_t number_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* number_max - return the larger of two integers. */
static inline int64_t number_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* number_clamp - return the integer in [low, high] that is nearest to value; low <= high. */
static inline int64_t number_clamp(int64_t value, int64_t low, int64_t high)
{
    return value > high ? high : value < low ? low : value;
}

/* number_divide_up - return a / b, rounded up; a >= 0, b > 0. */
static inline int64_t number_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* number_round_up - return the smallest multiple of b that is at least a; a >= 0, b > 0. */
static inline int64_t number_round_up(int64_t a, int64_t b)
{
    return number_divide_up(a, b) * b;
}

/* number_compare - compare for qsort: ascending. The elements are doubles, or structs that begin
 * with a double. */
int number_compare(const void *a, const void *b);

/* number_sort - sort values[count] in ascending order. */
void number_sort(double *values, int64_t count);

/* number_median - sort values[count] and return the median, the upper of the two middle values if
 * count is even. count > 0. */
double number_median(double *values, int64_t count);
