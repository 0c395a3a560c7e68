/* Tokenizers over characters: one id for each character (char.c), or BPE over characters
 * (char_bpe.c). */
#pragma once

#include "datasets/tokenizer/tokenizer_impl.h"

/* char_bpe_create - make t a tokenizer over characters. Its options are then to be set.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status char_bpe_create(struct tokenizer *t);

/* char_bpe_build - build the tables of characters and bytes.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status char_bpe_build(struct tokenizer *t);

/* char_bpe_encode - append the ids of a text without added tokens.
 *
 * Errors    STATUS_DATA: a character is not in the vocabulary, or a word is longer than 1 GiB */
status char_bpe_encode(const struct tokenizer *t, struct bpe_encoder *encoder, const char *text,
                       size_t bytes, struct text_place place, struct token_list *out);

/* char_bpe_append_symbols - append the ids of the characters of a word, before any merge.
 *
 * Errors    STATUS_DATA: a character is not in the vocabulary */
status char_bpe_append_symbols(const struct tokenizer *t, const char *word, size_t bytes,
                               size_t offset, struct token_list *out);

/* char_build - build the table from code points to ids.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status char_build(struct tokenizer *t);

/* char_raise_missing - raise the error that the vocabulary does not contain a character.
 *
 * Units     offset: bytes from the start of the text
 * Returns   STATUS_DATA */
status char_raise_missing(const char *text, size_t length, uint32_t code, size_t offset);

/* char_encode - append the ids of a text without added tokens.
 *
 * Units     offset: bytes, added to the position in error messages
 * Errors    STATUS_DATA: invalid UTF-8, or a character that is not in the vocabulary */
status char_encode(const struct tokenizer *t, const char *text, size_t bytes, size_t offset,
                   struct token_list *out);

/* char_train - create a tokenizer of the characters of these files; see tokenizer_train. */
status char_train(int64_t vocab_size, const struct corpus_source *source, struct tokenizer **out);
