/* The division of operations that are limited by the memory bandwidth. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/number.h"

/* division_is_uneven - return whether the threads are idle for more than a tenth of their time. All
 * units are equal, and the numbers of units of two threads differ by at most one. */
static inline bool division_is_uneven(int64_t units, int threads)
{
    int64_t rounds = number_divide_up(units, threads);
    return 10 * units < 9 * rounds * threads;
}

/* division_columns - return the columns of a unit: `most`, or fewer if otherwise many threads would
 * be idle, but at least `least`. */
static inline int64_t division_columns(int64_t columns, int64_t most, int64_t least, int threads)
{
    int64_t size = most;
    while (size > least && division_is_uneven(number_divide_up(columns, size), threads)) {
        size /= 2;
    }
    return size;
}

/* The rows of a norm are divided into at most DIVISION_NORM_BLOCKS blocks. Each block has a partial
 * sum for the gradients of gamma and beta. */
enum { DIVISION_NORM_BLOCKS = 64, DIVISION_NORM_ROWS = 8, DIVISION_NORM_COLUMNS = 64 };

/* division_norm_rows - return the rows of a block. They depend on the number of rows only. */
static inline int64_t division_norm_rows(int64_t rows)
{
    int64_t even = number_divide_up(rows, DIVISION_NORM_BLOCKS);
    return number_max(even, DIVISION_NORM_ROWS);
}

/* division_splits_norm - return whether there are few blocks for the threads. The partial sums are
 * then computed by blocks and columns, and the gradients of the input by rows. */
static inline bool division_splits_norm(int64_t rows, int threads)
{
    int64_t size = division_norm_rows(rows);
    return division_is_uneven(number_divide_up(rows, size), threads);
}

/* Column sums add blocks of DIVISION_SUM_ROWS rows. If threads split the blocks too, a unit has
 * DIVISION_SUM_UNIT columns of a block, one cache line of f32. The scratch memory has
 * DIVISION_SUM_FLOATS floats, which hold one row of sums and one more for each block of a round. */
enum { DIVISION_SUM_ROWS = 64, DIVISION_SUM_UNIT = 16, DIVISION_SUM_FLOATS = 65536 };

/* division_sum_stride - return the row stride of the sums: the columns, rounded up to a unit. */
static inline int64_t division_sum_stride(int64_t columns)
{
    return number_round_up(columns, DIVISION_SUM_UNIT);
}

/* division_sum_blocks - return the blocks of a round; less than 1 if there are too many columns. */
static inline int64_t division_sum_blocks(int64_t columns)
{
    return DIVISION_SUM_FLOATS / division_sum_stride(columns) - 1;
}

/* division_splits_sums - return whether the threads split the blocks of rows, because units of
 * `unit` columns of all rows are uneven. */
static inline bool division_splits_sums(int64_t rows, int64_t columns, int64_t unit, int threads)
{
    return rows > DIVISION_SUM_ROWS && division_sum_blocks(columns) >= 1 &&
           division_is_uneven(number_divide_up(columns, unit), threads);
}
