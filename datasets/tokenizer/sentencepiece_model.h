/* Tokenizers in the files tokenizer.model and spiece.model of SentencePiece. */
#pragma once

#include "datasets/tokenizer/tokenizer_impl.h"

/* sentencepiece_model_exists - return whether the folder contains tokenizer.model or spiece.model.
 */
bool sentencepiece_model_exists(const char *folder);

/* sentencepiece_model_open - read a tokenizer from tokenizer.model or spiece.model, and its
 * settings from tokenizer_config.json, if there is one.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA with the file and the reason */
status sentencepiece_model_open(const char *folder, struct tokenizer **out);

/* sentencepiece_model_save - write folder/tokenizer.model.
 *
 * Errors    STATUS_WRITE */
status sentencepiece_model_save(const struct tokenizer *t, const char *folder);

/* sentencepiece_model_sha256 - compute the SHA-256 of tokenizer.model, in hexadecimal. */
status sentencepiece_model_sha256(const struct tokenizer *t, char sha256[HASH_TEXT_BYTES]);

/* sentencepiece_model_add_special - create a tokenizer with further special tokens, as
 * tokenizer_add_special does. New tokens are control pieces. */
status sentencepiece_model_add_special(const struct tokenizer *t, char *const *tokens, int count,
                                       struct tokenizer **out);

/* sentencepiece_model_encode - append the ids of a text without added tokens. continued: the text
 * continues another one, so no space is put before it.
 *
 * Errors    STATUS_DATA: the normalized text is longer than 2 GiB; STATUS_INTERNAL (out of memory)
 */
status sentencepiece_model_encode(const struct tokenizer *t, const char *text, size_t bytes,
                                  bool continued, struct token_list *out);
