/* Row layout of the attention tests. All sequences are packed into one tensor. The LEAD rows before
 * them and the TRAIL rows after them belong to no sequence. */
#pragma once

#include <stdint.h>

#include "base/number.h"

enum { SEQUENCES_MAX = 4, LEAD = 2, TRAIL = 3 };

/* attention_rows_set_offsets - compute the first row of each sequence and the longest length.
 *
 * It returns the number of rows of the tensor.
 *
 * Shapes    cu [sequences + 1], ends with the end of the last sequence;  lengths [sequences] */
static inline int64_t attention_rows_set_offsets(int32_t *cu, const int64_t *lengths,
                                                 int64_t sequences, int64_t *longest)
{
    cu[0] = LEAD;
    *longest = 0;
    for (int64_t i = 0; i < sequences; i++) {
        cu[i + 1] = cu[i] + (int32_t)lengths[i];
        *longest = number_max(*longest, lengths[i]);
    }
    return cu[sequences] + TRAIL;
}
