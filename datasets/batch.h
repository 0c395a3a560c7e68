/* One micro-batch: a view into the loader's memory, valid until the next one is asked for. */
#pragma once

#include <stdint.h>

struct batch {
    int64_t
        sequences;  /* B of this micro-batch; may be smaller than the recipe's for the last one */
    int64_t tokens; /* T: tokens of a sequence */
    int64_t rows;   /* N = B T */
    const int32_t *inputs;    /* [N] token ids */
    const int32_t *targets;   /* [N] ids to predict; BATCH_IGNORED: not counted */
    const int32_t *positions; /* [N] position of each row in its document or sequence */
    int64_t segments;         /* pieces that attention must keep apart */
    const int32_t *cu_rows;   /* [segments + 1] first row of each piece (attention's cu_q) */
    int64_t longest;          /* rows of the longest piece */
    int64_t
        first_row; /* global index of row 0: (step's first sequence + offset) * T; for dropout */
    const int64_t *samples; /* [B] global sample ids, to name them in messages */
};

enum { BATCH_IGNORED = -100 };
