/* The rows of the sequences in an attention test. The sequences are packed; LEAD rows before and
 * TRAIL rows after them belong to no sequence. */
#pragma once

#include <stdint.h>

enum { SEQUENCES_MAX = 4, LEAD = 2, TRAIL = 3 };

/* attention_rows_set_offsets - compute the first row of each sequence, the end of the last one, and
 * the longest length; return the total number of rows. */
static inline int64_t attention_rows_set_offsets(int32_t *cu, const int64_t *lengths,
                                                 int64_t sequences, int64_t *longest)
{
    cu[0] = LEAD;
    *longest = 0;
    for (int64_t i = 0; i < sequences; i++) {
        cu[i + 1] = cu[i] + (int32_t)lengths[i];
        *longest = lengths[i] > *longest ? lengths[i] : *longest;
    }
    return cu[sequences] + TRAIL;
}
