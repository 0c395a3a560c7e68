/* Encodes texts as inputs of the predictions. */
#pragma once

#include "datasets/tokenizer/text_pair.h"
#include "trainer/setup/session.h"

/* text_input_check - check that a text can be encoded.
 *
 * Errors    STATUS_DATA if it is not valid UTF-8 or contains a NUL byte */
status text_input_check(const struct text *text);

/* text_input_encode_masked - encode a text, or a pair of texts, and convert names of special tokens
 * to their ids. There is no pair if pair->bytes is NULL.
 *
 * Memory    appends to *ids, which the caller frees with token_list_free()
 * Errors    as tokenizer_encode_pair */
status text_input_encode_masked(const struct session *s, const struct text *text,
                                const struct text *pair, struct token_list *ids, int64_t *first);

/* text_input_require_mask - check that the ids contain the mask token.
 *
 * Errors    STATUS_DATA with the name of the token and the text */
status text_input_require_mask(const struct session *s, const struct token_list *ids,
                               const struct text *text);

/* text_input_next_word - return the next word of *rest, and move *rest to the end of this word.
 * White space separates words. At the end of the text the word has no bytes. */
struct text text_input_next_word(struct text *rest);

/* text_input_encode_words - encode the words of a text for labels of words, with [CLS] and [SEP] if
 * the model is an encoder.
 *
 * Memory    appends to both lists; *begins receives the index in *ids of each word's first token
 * Errors    STATUS_DATA if the text has no word; errors of text_pair_encode_word */
status text_input_encode_words(const struct session *s, const struct text *text,
                               struct token_list *ids, struct token_list *begins);
