#include "base/doubles.h"

#include <stdlib.h>

int doubles_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void doubles_sort(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, doubles_compare);
}

double doubles_median(double *values, int64_t count)
{
    doubles_sort(values, count);
    return values[count / 2];
}
