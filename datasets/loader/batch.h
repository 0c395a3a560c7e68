/* A micro-batch: a view of the loader's memory that is valid until the next call of loader_next.
 *
 * Rows are the tokens of all sequences, without padding. A segment is a range of rows that
 * attention must not leave: cu_rows contains the first row of each segment.
 *
 *   kind                    segments                               rows
 *   BATCH_TEXT              documents of windows; examples of      N = B T of windows; N <= B T of
 *                           packs, each without its last token     packs
 *   BATCH_SENTENCE_PAIRS    examples                               N <= B T
 *   BATCH_TASK              texts of the examples                  N <= B T texts
 *   BATCH_PREFERENCE_PAIRS  one per response, or one per pair      N <= 2 B T
 *                           with a shared prompt
 *   BATCH_SEQ2SEQ           targets of the examples. Segment i of  N <= B T of targets; the sources
 *                           `source` is the source of target i     have rows of their own
 *
 * Letters in shapes: N rows, B sequences, T tokens of a sequence, M outputs. */
#pragma once

#include <stdint.h>

enum batch_kind {
    BATCH_TEXT,             /* windows of text, or packs of SFT examples */
    BATCH_SENTENCE_PAIRS,   /* masked language modeling */
    BATCH_TASK,             /* examples for a fine-tuning head */
    BATCH_PREFERENCE_PAIRS, /* objectives dpo and reward */
    BATCH_SEQ2SEQ           /* sources and targets */
};

/* The counts of all micro-batches of one rank in a step. */
struct batch_counts {
    int64_t rows, outputs, examples;
};

/* The rows that the masked language model head or a fine-tuning head reads. */
struct batch_outputs {
    int64_t count;               /* M, at least 1; 0: there is no such head */
    const int32_t *rows;         /* [M] increasing */
    const int32_t *targets;      /* [M] ids to predict, or BATCH_IGNORED; NULL: no masked tokens */
    const int32_t *example_rows; /* [B + 1] first output of each example, and the end; NULL: none */
    int64_t first;               /* tasks: index of output 0, as first_row for row 0; else 0 */
};

struct batch_sentence_pairs {
    const int32_t *next_sentence; /* [B] 0: the second text follows the first, 1: it is random, or
                                   * the first one follows it */
};

/* An array that the task does not use is NULL. */
struct batch_task {
    /* classify, classify_tokens: [M]; choose: [B]; answer: [B, 2] first and last token */
    const int32_t *labels;
    const float *float_labels;   /* regress: [B] */
    int64_t label_count;         /* elements of labels or float_labels */
    const int32_t *token_flags;  /* answer: [N] flags of the tokens (example.h) */
    const int32_t *dataset_rows; /* answer: [B] the dataset row that each window belongs to */
};

/* Without a shared prompt, prompt and chosen response of pair i are segment 2 i, and prompt and
 * rejected response are segment 2 i + 1.
 *
 * With a shared prompt, pair i is segment i: the prompt without its last token, the chosen branch
 * and the rejected branch. Each branch starts with the last token of the prompt, which predicts the
 * first token of the response. The rejected branch does not attend to the chosen branch.
 *
 * For a task head, the outputs are the last rows of the responses, two per pair. */
struct batch_preference_pairs {
    /* [2 B] first row of both branches in the segment, chosen first; NULL: no shared prompt */
    const int32_t *shared_prefix_offsets;
    /* [2 B] log-probabilities of both responses by the reference model; NULL: unknown */
    const double *reference_logps;
    /* The R rows of the batch that have a target, in the order of the responses. The language model
     * head uses them; NULL: a task head. batch_list_targets writes the arrays. */
    const int32_t *first_targets; /* [2 B + 1] index of the first target of each response; then R */
    const int32_t *target_rows;   /* [R] row of each target in the batch */
    const int32_t *target_ids;    /* [R] token id to predict at this row */
};

/* The sources of the targets: the inputs of the encoder. */
struct batch_source {
    int64_t rows;             /* S */
    const int32_t *inputs;    /* [S] token ids */
    const int32_t *positions; /* [S] position of each row in its source */
    const int32_t *cu_rows;   /* [segments + 1] first row of each source */
    int64_t longest;          /* rows of the longest source */
    int64_t first_row;        /* global index of row 0, for dropout; numbered like rows of packs */
};

struct batch {
    int64_t sequences;     /* B of this micro-batch; the last one of a step may be smaller */
    int64_t tokens;        /* T */
    int64_t rows;          /* N */
    const int32_t *inputs; /* [N] token ids */
    /* [N] id to predict at each row, or BATCH_IGNORED; NULL: tasks. Preference pairs: the tokens of
     * the responses. Sentence pairs: the ids at the masked rows. */
    const int32_t *targets;
    const int32_t *positions;      /* [N] position of each row in its document or sequence */
    const int32_t *token_type_ids; /* [N] 0 or 1; NULL: text and preference pairs */
    int64_t segments;
    const int32_t *cu_rows; /* [segments + 1] first row of each segment (cu_q of attention) */
    int64_t longest;        /* rows of the longest segment */
    /* Global index of row 0, for dropout:
     *
     *   windows           (first sample of the step + offset) T
     *   preference pairs  2 samples[0] T
     *   packs, targets    the rows of a step are numbered consecutively over all ranks, from
     *                     (first sample of the step) T
     *   sentence pairs,   the number of rows of this rank's shard of the step before row 0. The
     *   tasks             caller adds the rows of the lower ranks, which gives the index of row 0
     *                     in the packed global batch. With interleave_micro_batches, first_row is
     *                     this index already */
    int64_t first_row;
    /* Tokens of the samples: N, or more if last tokens are only predicted, prompts are shared, or
     * the samples have sources. */
    int64_t tokens_seen;
    const int64_t *samples;       /* [B] consecutive global sample numbers; NULL: random batches */
    struct batch_outputs outputs; /* zeros: text, and preference pairs without a task head */
    struct batch_counts rank_counts; /* sentence pairs and tasks, set with count_global_batch */

    enum batch_kind kind; /* selects the member of the union; text has none */
    union {
        struct batch_sentence_pairs sentence_pairs;
        struct batch_task task;
        struct batch_preference_pairs preference_pairs;
        struct batch_source source;
    };
};

enum { BATCH_IGNORED = -100 };

/* batch_list_targets - list the rows of preference pairs that have a target.
 *
 * Shapes    first int32 [2 B + 1];  rows, ids int32 [R], R <= N, as in struct
 *           batch_preference_pairs. Prompt rows that a pair does not share have no target */
void batch_list_targets(const struct batch *b, int32_t *first, int32_t *rows, int32_t *ids);
