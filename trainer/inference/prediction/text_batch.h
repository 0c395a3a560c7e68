/* Texts in one pass of a model, concatenated without padding.
 *
 *     struct text_batch b;
 *     TRY(text_batch_create(session, &b));
 *     text_batch_add(&b, &ids, ids.count);
 *     TRY(text_batch_head_outputs(&b, rows, count, outputs));
 *     text_batch_destroy(&b); */
#pragma once

#include "datasets/tokenizer/tokenizer.h"
#include "trainer/setup/session.h"

enum { TEXT_BATCH_TEXTS = 32 }; /* maximum number of texts in a batch */

struct text_batch {
    const struct session *session;
    int count;                             /* number of texts */
    int32_t cu_rows[TEXT_BATCH_TEXTS + 1]; /* first row of each text, then the number of rows */
    int64_t max_rows;
    int32_t *ids, *positions, *token_type_ids; /* [max_rows] */
};

/* text_batch_create - allocate an empty batch for the rows of a micro-batch of the model.
 *
 * Memory    the session must outlive it; the caller calls text_batch_destroy
 * Errors    STATUS_INTERNAL if memory is exhausted */
status text_batch_create(const struct session *s, struct text_batch *out);

/* text_batch_destroy - free the memory of a batch. Accepts a batch of zeros. */
void text_batch_destroy(struct text_batch *b);

/* text_batch_check - check that a text fits the positions of the model.
 *
 * Errors    STATUS_DATA if there are no ids or too many */
status text_batch_check(const struct text_batch *b, const struct token_list *ids);

/* text_batch_fits - return whether a text of this many tokens fits into the rest of the batch. */
bool text_batch_fits(const struct text_batch *b, int64_t tokens);

/* text_batch_add - append a text that is checked and fits. The first `first` ids form segment 0,
 * the others form segment 1. */
void text_batch_add(struct text_batch *b, const struct token_list *ids, int64_t first);

/* text_batch_set - replace the texts of the batch by one text.
 *
 * Errors    as text_batch_check */
status text_batch_set(struct text_batch *b, const struct token_list *ids, int64_t first);

/* text_batch_clear - remove all texts. */
void text_batch_clear(struct text_batch *b);

/* text_batch_input - return the input of model_forward for the batch. It requests the hidden states
 * of all rows and no head. */
struct model_input text_batch_input(const struct text_batch *b);

/* text_batch_mask_rows - find the rows with the mask token in text `index`.
 *
 * Shapes    rows [max_rows], ascending
 * Returns   the number of rows */
int64_t text_batch_mask_rows(const struct text_batch *b, int index, int32_t *rows);

/* text_batch_head_row - return the row of text `index` that a head for sequences reads. The head of
 * an encoder reads the first row of the text, the head of a causal model reads the last row. */
int32_t text_batch_head_row(const struct text_batch *b, int index);

/* text_batch_head_outputs - compute the outputs of the fine-tuning head for rows of the batch.
 *
 * Shapes    rows [count], ascending;  outputs [count, labels]
 * Errors    as model_forward; STATUS_NOT_FINITE */
status text_batch_head_outputs(const struct text_batch *b, const int32_t *rows, int64_t count,
                               float *outputs);

/* text_batch_vocabulary_rows - compute the hidden states that the vocabulary matrix reads.
 *
 * Shapes    rows [count], ascending;  *hidden [count, C]
 * Memory    *hidden is valid until the next pass of the model
 * Errors    as model_forward */
status text_batch_vocabulary_rows(const struct text_batch *b, const int32_t *rows, int64_t count,
                                  struct tensor *hidden);

/* text_batch_logits - multiply hidden states of text_batch_vocabulary_rows with the vocabulary
 * matrix.
 *
 * Shapes    hidden [N, C];  logits [N, vocabulary], on the device of the model
 * Errors    STATUS_NOT_FINITE */
status text_batch_logits(const struct text_batch *b, struct tensor hidden, float *logits);
