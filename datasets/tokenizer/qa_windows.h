/* A question and the text that may answer it, as windows of tokens whose places in the text are known.
 *
 * A long text becomes several windows that overlap, each with the whole question: [CLS] question [SEP] window [SEP] of
 * encoders, question, delimiter and window of others (texts.h). Places are counted in Unicode code points, as SQuAD counts
 * them, so that the answer's text can be given back.
 *
 * Byte-level tokens stand where their bytes do, without the blanks that they begin with. WordPiece cleans its text: there
 * places are exact where a word's pieces have as many code points as the word, else they are the whole word's. */
#pragma once

#include "datasets/tokenizer/text_pair.h"

enum { ANSWERS_STRIDE = 128 }; /* tokens that neighbouring windows have in common */

struct answers {
    struct token_list question, context; /* ids */
    struct token_list begin, end; /* of each of the context's tokens: code points [begin, end) */
    int32_t before[4], between[8], behind[4];
    int before_count, between_count, behind_count;
    int first_of_between; /* how many of those belong to the first segment */
    int64_t room, step;   /* context tokens of a window; from one to the next */
    int64_t windows;
};

struct answers_window {
    int64_t first;         /* tokens of the first segment */
    int64_t context;       /* the window's token with which the context begins, ... */
    int64_t token, tokens; /* ... which of the context's it is, and how many there are */
};

/* answers_encode - cut for windows of at most `most` tokens. *out is the caller's, for answers_free, also after an error.
 *
 * Errors    STATUS_DATA: a question or a context without a token, or no room for the context beside the question */
status answers_encode(const struct tokenizer *t, const struct text *question,
                      const struct text *context, int64_t most, struct answers *out);
void answers_free(struct answers *a);

/* answers_window - append a window's ids to *ids. */
status answers_window(const struct answers *a, int64_t window, struct token_list *ids,
                      struct answers_window *out);

/* answers_find - the first and the last of the context's tokens that share a code point with [begin, end); false: none. */
bool answers_find(const struct answers *a, int64_t begin, int64_t end, int64_t *first,
                  int64_t *last);

/* answers_token - bytes of the text that a token stands for, for free(); the marks of a piece that goes on in a word are
 * none. */
status answers_token(const struct tokenizer *t, int32_t id, char **out, size_t *count);

/* answers_points - code points of the text; answers_byte - where code point number `point` begins. */
int64_t answers_points(const struct text *text);
size_t answers_byte(const struct text *text, int64_t point);
