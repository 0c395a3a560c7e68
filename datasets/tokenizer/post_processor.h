/* The special tokens around a text and a pair of texts. */
#pragma once

#include "datasets/tokenizer/json_reader_impl.h"

/* post_processor_encode_input - append the input of an encoder with a language token, as
 * tokenizer_encode_language does.
 *
 * Errors    as tokenizer_encode_language; STATUS_UNAVAILABLE: the input is a pair of texts */
status post_processor_encode_input(const struct tokenizer *t, const char *text, size_t bytes,
                                   bool is_pair, bool special, int64_t max_tokens,
                                   struct token_list *out);

/* post_processor_read - read the post_processor of a tokenizer other than WordPiece.
 *
 * The tokens must have been read before.
 *
 * Errors    STATUS_DATA: the post-processor is not supported */
status post_processor_read(const struct json_reader *r, json_t *post);

/* post_processor_to_json - build the post_processor of a tokenizer other than WordPiece.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *post_processor_to_json(const struct tokenizer *t);

/* post_processor_eos_json - build the template of one token after each text. second_type is the
 * type_id of the second text.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *post_processor_eos_json(const char *text, int32_t id, int second_type);
