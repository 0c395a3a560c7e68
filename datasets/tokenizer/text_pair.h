/* A text, or a pair of them, as the model of a fine-tuning task reads it.
 *
 * Encoders' tokenizers (those that have [CLS] and [SEP], or <s> and </s>): as tokenizer_encode_pair has it. Others: the
 * ids of the text alone; of a pair, of both with a delimiter between them, the tokenizer's end token, or a line's end
 * where it has none. Nothing is appended, so that the last token, which the head reads, is the text's own, as
 * transformers' tokenizer for GPT-2 leaves it. */
#pragma once

#include "datasets/tokenizer/tokenizer.h"

struct text {
    const char *bytes;
    size_t count;
};

/* texts_encode - append text, or text and pair, to *out; pair->bytes NULL: there is none.
 *
 * At most `most` ids (0: any number): the longer of the two gives way first, at its end. *first is the number of ids up
 * to the second text, delimiter included; *cut: ids that gave way.
 * Errors    STATUS_DATA: a text without a token; STATUS_USAGE: `most` leaves no room */
status texts_encode(const struct tokenizer *t, const struct text *text, const struct text *pair,
                    int64_t most, struct token_list *out, int64_t *first, int64_t *cut);

enum { TEXTS_WORD_BYTES = 4000 };

/* texts_encode_word - append a word of several that are encoded one by one: byte-level tokenizers have a blank in front
 * of it, those of single characters one between words. *begin: the index of its first token, which stands for it.
 *
 * Errors    STATUS_DATA: longer than TEXTS_WORD_BYTES, or without a token */
status texts_encode_word(const struct tokenizer *t, const struct text *word, bool first,
                         struct token_list *out, int64_t *begin);
