/* The text of a token, for output. */
#pragma once

#include "base/status.h"
#include "datasets/tokenizer/tokenizer.h"

/* token_text_describe - return the text of a token. A token that is not valid UTF-8 becomes <0xNN>
 * for each byte.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_DATA: the id is not in the vocabulary */
status token_text_describe(const struct tokenizer *t, int32_t id, char **out);

/* token_text_quote - return the text of a token as a JSON string, which has no line breaks and
 * shows spaces.
 *
 * Memory    the caller frees *out with free()
 * Errors    as token_text_describe */
status token_text_quote(const struct tokenizer *t, int32_t id, char **out);
