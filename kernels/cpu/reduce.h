/* Sums over flat slices with bits that do not depend on the number of threads.
 *
 * A slice is split into at most REDUCE_BLOCKS_MAX blocks. Their size depends on the length of the
 * slice only. A block is summed in REDUCE_LANES lanes; then the lanes are added in order, and the
 * blocks in order. The square of a float, and the sum of 2^64 of them, fit into a double. Therefore
 * the result is NaN or infinite only if the slice contains such an element. */
#pragma once

#include "base/number.h"
#include "kernels/cpu/cpu.h"

enum { REDUCE_BLOCKS_MAX = 1024, REDUCE_BLOCK_MIN = 16384, REDUCE_LANES = 32 };

enum reduce_kind { REDUCE_PLAIN, REDUCE_SQUARES };

/* reduce_block_elems - compute the number of elements of each block; the last one may
 * be shorter. */
static inline int64_t reduce_block_elems(int64_t count)
{
    int64_t even = number_divide_up(count, REDUCE_BLOCKS_MAX);
    return even > REDUCE_BLOCK_MIN ? number_round_up(even, 1024) : REDUCE_BLOCK_MIN;
}

/* reduce_prefetch - prefetch floats that will be summed later.
 *
 * The hardware prefetcher stops at the end of a page of 4 KiB. This distance reaches the next page
 * early. A prefetch beyond the end is harmless. */
static inline void reduce_prefetch(const float *x)
{
    enum { AHEAD_BYTES = 8192, LINE_BYTES = 64 };
    uintptr_t from = (uintptr_t)x + AHEAD_BYTES;
    for (uintptr_t i = 0; i < REDUCE_LANES * sizeof *x; i += LINE_BYTES) {
        __builtin_prefetch((const void *)(from + i));
    }
}

/* reduce_block - compute the sum, or the sum of squares, of one block in double precision. */
CPU_INLINE double reduce_block(const float *x, int64_t count, enum reduce_kind kind)
{
    double lanes[REDUCE_LANES] = {0};
    int64_t whole = count / REDUCE_LANES * REDUCE_LANES;
    for (int64_t i = 0; i < whole; i += REDUCE_LANES) {
        reduce_prefetch(x + i);
        for (int j = 0; j < REDUCE_LANES; j++) {
            double value = x[i + j];
            lanes[j] += kind == REDUCE_SQUARES ? value * value : value;
        }
    }
    for (int64_t i = whole; i < count; i++) {
        double value = x[i];
        lanes[i - whole] += kind == REDUCE_SQUARES ? value * value : value;
    }
    double sum = 0;
    for (int j = 0; j < REDUCE_LANES; j++) {
        sum += lanes[j];
    }
    return sum;
}
