/* Predictions for single texts: embeddings, masked words, labels and answers. The server and the C
 * library use them. The commands put several texts into a pass and use text_batch.h, top_scores.h
 * and answer_search.h directly. */
#pragma once

#include "trainer/inference/prediction/answer_search.h"
#include "trainer/inference/prediction/text_batch.h"
#include "trainer/inference/prediction/top_scores.h"

enum prediction_kind {
    PREDICTION_EMBEDDING,
    PREDICTION_MASKS,
    PREDICTION_LABELS,  /* of a text or a pair of texts; also numbers */
    PREDICTION_WORDS,   /* labels of words */
    PREDICTION_CHOICES, /* the right one of several choices */
    PREDICTION_ANSWER
};

/* prediction_supports - return whether the model of a session makes this kind of prediction. */
bool prediction_supports(const struct session *s, enum prediction_kind kind);

/* prediction_require_masks - check that a model predicts masked tokens.
 *
 * Errors    STATUS_DATA with the checkpoint and the reason */
status prediction_require_masks(const struct session *s, const char *checkpoint);

/* prediction_require_labels - check that a model predicts labels, numbers or choices.
 *
 * Errors    as prediction_require_masks */
status prediction_require_labels(const struct session *s, const char *checkpoint);

/* prediction_require_answers - check that a model answers questions.
 *
 * Errors    as prediction_require_masks */
status prediction_require_answers(const struct session *s, const char *checkpoint);

enum { PREDICTION_NAME_BYTES = 32 };

/* prediction_label_name - return the name of a label, or its number in `buffer` if it has none. */
const char *prediction_label_name(const struct session *s, int64_t label,
                                  char buffer[PREDICTION_NAME_BYTES]);

/* The best labels or tokens of each row: of the text, of each word or of each mask token. */
struct prediction {
    struct top_score *scores; /* [rows, columns], the most probable first */
    int64_t rows, columns;
};

/* prediction_free - free the scores. Accepts a struct of zeros. */
void prediction_free(struct prediction *p);

/* The functions below do not encode text. `ids` are the tokens of one text. They replace the texts
 * of the batch, so one thread at a time may call the functions.
 *
 * Errors    STATUS_DATA if the ids do not fit the model; STATUS_NOT_FINITE; STATUS_INTERNAL if
 *           memory is exhausted */

/* prediction_embed - compute the embedding of a text (sentence_embedding.h).
 *
 * Shapes    vector [C] */
status prediction_embed(struct text_batch *b, const struct token_list *ids, float *vector);

/* prediction_masks - predict the token at each mask token of a text.
 *
 * Memory    the caller frees *out with prediction_free() */
status prediction_masks(struct text_batch *b, const struct token_list *ids, int64_t top_k,
                        struct prediction *out);

/* prediction_labels - predict the label of a text. The first `first` ids form segment 0.
 *
 * Memory    as prediction_masks */
status prediction_labels(struct text_batch *b, const struct token_list *ids, int64_t first,
                         int64_t top_k, struct prediction *out);

/* prediction_number - predict the number of a text with a model for regression. */
status prediction_number(struct text_batch *b, const struct token_list *ids, int64_t first,
                         double *out);

/* prediction_words - predict the label of each word. begins lists the first tokens of the words.
 *
 * Memory    as prediction_masks */
status prediction_words(struct text_batch *b, const struct token_list *ids,
                        const struct token_list *begins, int64_t top_k, struct prediction *out);

/* prediction_answer - find the answer to a question in a context.
 *
 * Units     max_tokens: maximum length of an answer; *tokens: of all windows; NULL: not counted */
status prediction_answer(struct text_batch *b, const struct text *question,
                         const struct text *context, int64_t max_tokens, struct answer *out,
                         int64_t *tokens);
