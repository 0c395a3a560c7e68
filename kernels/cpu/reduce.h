/* How sums over flat slices are cut and added, so that their bits do not depend on the threads.
 *
 * A slice is cut into at most REDUCE_BLOCKS_MAX blocks whose size depends on its length alone; each is
 * summed in several lanes, the lanes in order, the blocks in order. A float's square and the sum of 2^64 of
 * them fit into a double, so only NaN and infinity in the slice come out as such. */
#pragma once

#include <stdint.h>

enum { REDUCE_BLOCKS_MAX = 1024, REDUCE_BLOCK_MIN = 16384, REDUCE_LANES = 32 };

enum reduce_kind { REDUCE_PLAIN, REDUCE_SQUARES };

/* reduce_block_elems - of each block but the last. */
static inline int64_t reduce_block_elems(int64_t count)
{
    int64_t even = (count + REDUCE_BLOCKS_MAX - 1) / REDUCE_BLOCKS_MAX;
    return even > REDUCE_BLOCK_MIN ? (even + 1023) / 1024 * 1024 : REDUCE_BLOCK_MIN;
}

/* Ask for the floats that are summed a while later. Processors look ahead by themselves, but not beyond a page of 4 KiB:
 * this far ahead the next page is found early. Asking beyond the end does no harm. */
static inline void reduce_prefetch(const float *x)
{
    enum { AHEAD_BYTES = 8192, LINE_BYTES = 64 };
    uintptr_t from = (uintptr_t)x + AHEAD_BYTES;
    for (uintptr_t i = 0; i < REDUCE_LANES * sizeof *x; i += LINE_BYTES) {
        __builtin_prefetch((const void *)(from + i));
    }
}

static inline __attribute__((always_inline)) double reduce_block(const float *x, int64_t count,
                                                                 enum reduce_kind kind)
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
