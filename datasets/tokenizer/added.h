/* Added tokens: text that is found before the model splits the rest. */
#pragma once

#include "datasets/tokenizer/tokenizer_impl.h"

/* added_build - build the two sets of added tokens.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status added_build(struct tokenizer *t);

/* added_get_text - return the text of an added token after normalization, which is decoded. */
const char *added_get_text(const struct tokenizer *t, int32_t id, uint32_t *length);

/* added_find_next - find the first added token of a set after *match in text[0, bytes).
 *
 * The search begins at match->next: a token of white space is found even in the white space that
 * the token before it absorbs, as in Hugging Face `tokenizers`. Special tokens are found only if
 * `special` is true. Otherwise their text is skipped as a whole, as with encode_special_tokens. */
void added_find_next(const struct tokenizer *t, bool normalized, bool special, const char *text,
                     size_t bytes, struct added_match *match);

/* added_is_at_start - return whether a text begins with an added token that is not special. */
bool added_is_at_start(const struct tokenizer *t, const char *text, size_t bytes);
