#include "base/number.h"

#include <stdlib.h>

int number_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void number_sort(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, number_compare);
}

double number_median(double *values, int64_t count)
{
    number_sort(values, count);
    return values[count / 2];
}
