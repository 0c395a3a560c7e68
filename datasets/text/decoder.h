/* The decoder of a tokenizer: a list of steps that turn the texts of tokens into text. Hugging Face
 * `tokenizers` has the same steps, with the same results. */
#pragma once

#include <stdbool.h>

#include "base/text_buffer.h"

enum { DECODER_GROWTH = 64 }; /* limits what the steps of a malicious file can make of a text */

enum decoder_kind {
    DECODER_REPLACE,       /* replaces each `from` in a token by `to` */
    DECODER_BYTE_FALLBACK, /* a run of tokens <0x..> becomes their bytes, if these are UTF-8 */
    DECODER_FUSE,          /* joins all tokens to one */
    DECODER_STRIP,         /* removes `from`, one character, at the ends of each token */
    DECODER_METASPACE,     /* `from`, one character, becomes a space */
    DECODER_SUFFIX         /* `from` becomes a space, in the last token nothing (BPEDecoder) */
};

struct decoder_step {
    enum decoder_kind kind;
    char *from, *to;     /* NULL if the kind does not use them */
    int64_t left, right; /* Strip: largest number of characters */
    bool drops_first;    /* Metaspace: removes the characters in the first token */
};

/* A decoder of all zeros joins the tokens. */
struct decoder {
    struct decoder_step *steps;
    int count;
};

/* Texts of tokens, one after another. */
struct decoder_tokens {
    struct text_buffer text;
    size_t *ends; /* [count] offset of the end of each token */
    int64_t count, capacity;
};

/* decoder_add - add a step at the end.
 *
 * Memory    the texts of the step are copied
 * Errors    STATUS_INTERNAL (out of memory) */
status decoder_add(struct decoder *d, const struct decoder_step *step);

/* decoder_append - append a token.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status decoder_append(struct decoder_tokens *tokens, const char *text, size_t bytes);

/* decoder_run - run all steps; the text of the tokens is then the decoded text.
 *
 * continued: the tokens continue a text, so nothing is removed at their beginning.
 *
 * Errors    STATUS_DATA: the text grows more than DECODER_GROWTH times; STATUS_INTERNAL (out
 *           of memory) */
status decoder_run(const struct decoder *d, bool continued, struct decoder_tokens *tokens);

/* decoder_tokens_free - free the texts. */
void decoder_tokens_free(struct decoder_tokens *tokens);

/* decoder_read_byte - return the byte of a token like <0x0A>; -1: another token. */
int decoder_read_byte(const char *text, size_t bytes);

/* decoder_free - free the steps. */
void decoder_free(struct decoder *d);
