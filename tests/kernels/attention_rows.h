/* Where the sequences of an attention test lie: one behind the other, with rows of nobody before and behind. */
#pragma once

#include <stdint.h>

enum { SEQUENCES_MAX = 4, LEAD = 2, TRAIL = 3 };

/* The first row of each sequence and the end of the last one, and the longest length; returns the rows of all. */
static inline int64_t attention_rows_lay_out(int32_t *cu, const int64_t *lengths, int64_t sequences,
                                             int64_t *longest)
{
    cu[0] = LEAD;
    *longest = 0;
    for (int64_t i = 0; i < sequences; i++) {
        cu[i + 1] = cu[i] + (int32_t)lengths[i];
        *longest = lengths[i] > *longest ? lengths[i] : *longest;
    }
    return cu[sequences] + TRAIL;
}
