/* One micro-batch: a view into the loader's memory, valid until the next one is asked for. */
#pragma once

#include <stdint.h>

/* What a rank's share of a step adds up to. */
struct batch_share {
    int64_t rows, masked, examples; /* masked: predictions */
};

struct batch {
    int64_t
        sequences;  /* B of this micro-batch; may be smaller than the recipe's for the last one */
    int64_t tokens; /* T: tokens of a sequence */
    int64_t rows;   /* N = B T */
    const int32_t *inputs; /* [N] token ids */
    const int32_t
        *targets; /* [N] ids to predict; BATCH_IGNORED: not counted; of answer: marks (example.h) */
    const int32_t *positions; /* [N] position of each row in its document or sequence */
    int64_t segments;         /* pieces that attention must keep apart */
    const int32_t *cu_rows;   /* [segments + 1] first row of each piece (attention's cu_q) */
    int64_t longest;          /* rows of the longest piece */
    int64_t
        first_row; /* global index of row 0: (step's first sequence + offset) * T; for dropout; of packs:
                      rows of a step are numbered on over all ranks, from (step's first sequence) * T */
    int64_t
        seen; /* tokens of the samples: N, or more where a last token is only predicted or a prompt is shared */
    const int64_t *samples; /* [B] global sample ids, to name them in messages */

    /* Batches of sentence pairs (loader_options.kind); all else is as above, but the rows are packed: N is the sum
     * of the examples' tokens, at most B T, each example is one segment of cu_rows, and no row is padding.
     * first_row counts the rows of this rank's share of the step before row 0: with those of the ranks before, it is
     * the row in the packed global batch (which it is already where the global batch is dealt out). targets has the ids to predict at the masked rows. */
    const int32_t *
        segment_ids; /* [N] 0 or 1; NULL: batches of windows, and of packs of examples, which are packed likewise: an example of n tokens has n - 1 rows and is one segment */
    const int32_t
        *next_sentence; /* [B] 0: the second segment follows the first, 1: it is random; of
                                     answer: which row the window is of */
    int64_t
        masked; /* M: rows whose token is to be predicted, over all examples; where there is none: 1 */
    const int32_t *masked_rows; /* [M] rising */
    const int32_t *masked_ids;  /* [M]; BATCH_IGNORED where there is none */
    struct batch_share share;   /* where the loader looks ahead */

    /* Batches for the head of a task: rows are packed likewise, masked_rows are the rows that the head reads. */
    const int32_t *example_rows; /* [B + 1] example i's among them: from example_rows[i] on */
    const int32_t *
        labels; /* of each of these rows (classify, classify_tokens), or of each example: one (choose), two
                              (answer: first and last token); NULL: none */
    const float *numbers; /* [B] (regress); NULL: none */
    int64_t first_masked; /* as first_row, of masked_rows */

    /* Batches of preference pairs: rows are packed likewise, at most 2 B T; the chosen answer of pair i, with its
     * prompt, is segment 2 i of cu_rows, the rejected one segment 2 i + 1; targets are the answers' tokens. The global
     * index of row 0 is 2 samples[0] T. */
    /* Or both answers are in one segment, i, behind what they have in common: the prompt but for its last token, which
     * predicts each answer's first. Rows from branches[2 i] on, counted in the segment, are the chosen answer's, from
     * branches[2 i + 1] on the rejected one's, which does not see those. */
    /* For a task's head masked_rows are the answers' last rows, two of each pair (example_rows). */
    const int32_t *branches; /* [2 B]; NULL: a segment for each answer */
    const double *
        reference; /* [2 B] log-probabilities of the answers, chosen and rejected in turn; NULL: not known */
};

enum { BATCH_IGNORED = -100 };
