/* A micro-batch: a view of the loader's memory that is valid until the next call of loader_next.
 *
 * Rows are the tokens of all sequences, without padding. A segment is a range of rows that
 * attention must not leave: cu_rows contains the first row of each segment. */
#pragma once

#include <stdint.h>

/* The counts of all micro-batches of one rank in a step. */
struct batch_counts {
    int64_t rows, masked, examples; /* masked: predictions */
};

struct batch {
    /* ---- all kinds ---- */
    int64_t sequences;     /* B of this micro-batch; the last one of a step may be smaller */
    int64_t tokens;        /* T, the sequence length */
    int64_t rows;          /* N; B T for windows */
    const int32_t *inputs; /* [N] token ids */
    /* [N] ids to predict; BATCH_IGNORED: no prediction; for answer: flags (example.h) */
    const int32_t *targets;
    const int32_t *positions; /* [N] position of each row in its document or sequence */
    int64_t segments;
    const int32_t *cu_rows; /* [segments + 1] first row of each segment (cu_q of attention) */
    int64_t longest;        /* rows of the longest segment */
    /* Global index of row 0, for dropout: (first sample of the step + offset) * T. For packs, the
     * rows of a step are numbered consecutively over all ranks. The first row of the step has the
     * number (first sample of the step) * T. */
    int64_t first_row;
    /* Tokens of the samples: N, or more if last tokens are only predicted or prompts are shared. */
    int64_t tokens_seen;
    const int64_t *samples; /* [B] global sample numbers, for messages */

    /* ---- sentence pairs ----
     *
     * Rows are packed: N is the sum of the tokens of all examples, at most B T, and each example is
     * one segment. targets contains the ids to predict at the masked rows. first_row is the number
     * of rows of this rank's shard of the step before row 0. Added to the rows of the lower ranks
     * it is the index of row 0 in the packed global batch. With interleave_micro_batches it is that
     * index already. */
    /* [N] 0 or 1; NULL: windows and packs. The rows of packs are packed too: an example of n
     * tokens has n - 1 rows and is one segment. */
    const int32_t *segment_ids;
    /* [B] 0: the second segment follows the first, 1: it is random; for answer: input row */
    const int32_t *next_sentence;
    int64_t masked;                  /* M, the number of predicted rows; at least 1 */
    const int32_t *masked_rows;      /* [M] increasing */
    const int32_t *masked_ids;       /* [M]; BATCH_IGNORED if there is no prediction */
    struct batch_counts rank_counts; /* set with count_global_batch */

    /* ---- tasks ----
     *
     * Rows are packed as for sentence pairs. masked_rows are the rows that the head reads. */
    const int32_t *example_rows; /* [B + 1] first masked row of each example, and the end */
    /* One per masked row (classify, classify_tokens) or per example: one (choose), two (answer:
     * first and last token); NULL: none */
    const int32_t *labels;
    const float *float_labels; /* [B] (regress); NULL: none */
    int64_t first_masked;      /* index of masked row 0, counted as first_row */

    /* ---- preference pairs ----
     *
     * Rows are packed, at most 2 B T. targets contains the tokens of the responses. first_row is
     * 2 samples[0] T. Without a shared prompt, prompt and chosen response of pair i are
     * segment 2 i, and prompt and rejected response are segment 2 i + 1.
     *
     * With a shared prompt, pair i is segment i: the prompt without its last token, the chosen
     * branch and the rejected branch. Each branch starts with the last token of the prompt, which
     * predicts the first token of the response. The rejected branch does not attend to the chosen
     * branch.
     *
     * For a task head, masked_rows are the last rows of the responses, two per pair
     * (example_rows). */
    /* [2 B] first row of both branches in the segment, chosen first; NULL: no shared prompt */
    const int32_t *shared_prefix_offsets;
    /* [2 B] log-probabilities of both responses by the reference model; NULL: unknown */
    const double *reference_logps;
};

enum { BATCH_IGNORED = -100 };
