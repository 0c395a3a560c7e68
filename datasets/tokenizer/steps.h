/* Normalizers, splits and decoders in tokenizer.json. */
#pragma once

#include "datasets/tokenizer/json_reader_impl.h"

/* steps_read_normalizer - read the normalizer of a byte-level or character model.
 *
 * Errors    STATUS_DATA with the unsupported or invalid part */
status steps_read_normalizer(const struct json_reader *r, json_t *json);

/* steps_read_split - read the pre_tokenizer of a character model; the normalizer has been read.
 *
 * Errors    STATUS_DATA with the unsupported or invalid part */
status steps_read_split(const struct json_reader *r, json_t *json);

/* steps_read_digits - read a pre_tokenizer Digits and add it to r->t->split.
 *
 * Errors    STATUS_DATA with the invalid part */
status steps_read_digits(const struct json_reader *r, json_t *json);

/* steps_read_decoder - read the decoder of a character model.
 *
 * Errors    STATUS_DATA with the unsupported or invalid part */
status steps_read_decoder(const struct json_reader *r, json_t *json);

/* steps_normalizer_json - build the normalizer.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *steps_normalizer_json(const struct tokenizer *t);

/* steps_split_json - build the pre_tokenizer: the steps of t->split and then the members of words.
 *
 * Memory    takes the reference of words, which may be NULL
 * Returns   a new reference; NULL: out of memory */
json_t *steps_split_json(const struct tokenizer *t, json_t *words);

/* steps_decoder_json - build the decoder of a character model.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *steps_decoder_json(const struct tokenizer *t);
