/* Functions that sort doubles and compute their median. */
#pragma once

#include <stdint.h>

/* doubles_compare - compare for qsort: ascending. The elements are doubles, or structs that begin
 * with a double. */
int doubles_compare(const void *a, const void *b);

/* doubles_sort - sort values[count] in ascending order. */
void doubles_sort(double *values, int64_t count);

/* doubles_median - sort values[count] and return the median, the upper of the two middle values if
 * count is even. count > 0. */
double doubles_median(double *values, int64_t count);
