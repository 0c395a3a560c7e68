/* Unigram models of tokenizer.json. */
#pragma once

#include "datasets/tokenizer/json_reader_impl.h"

/* unigram_model_build - build the trie and the other derived members.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status unigram_model_build(struct tokenizer *t);

/* unigram_model_encode - append the ids of a text without added tokens.
 *
 * Errors    STATUS_DATA: a character is not in the vocabulary, or a word is longer than 1 GiB */
status unigram_model_encode(const struct tokenizer *t, const char *text, size_t bytes,
                            struct text_place place, struct token_list *out);

/* unigram_model_train - train a Unigram tokenizer; see tokenizer_train. */
status unigram_model_train(int64_t vocab_size, const struct corpus_source *source, int workers,
                           struct tokenizer **out);

/* unigram_model_free - free a model; NULL is allowed. */
void unigram_model_free(struct unigram_model *u);

/* unigram_model_read - read a file with a Unigram model into r->t.
 *
 * Errors    STATUS_DATA with the unsupported or invalid part */
status unigram_model_read(struct json_reader *r, json_t *root);

/* unigram_model_to_json - build the model of a Unigram tokenizer.
 *
 * Returns   a new reference; NULL: out of memory */
json_t *unigram_model_to_json(const struct tokenizer *t);
