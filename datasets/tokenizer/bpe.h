/* Byte-level BPE: tables, encoding, training, and the scratch memory of encodings. */
#pragma once

#include "datasets/tokenizer/tokenizer_impl.h"

/* bpe_encoder_acquire - take an idle encoder from the pool, or create one.
 *
 * The encoder belongs to the calling thread until bpe_encoder_release.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status bpe_encoder_acquire(const struct tokenizer *t, struct bpe_encoder **out);

/* bpe_encoder_release - return an encoder to the pool. */
void bpe_encoder_release(const struct tokenizer *t, struct bpe_encoder *encoder);

/* bpe_encoder_next - return the next encoder in the pool's list. */
struct bpe_encoder *bpe_encoder_next(const struct bpe_encoder *encoder);

/* bpe_encoder_destroy - free an encoder; NULL is allowed. */
void bpe_encoder_destroy(struct bpe_encoder *encoder);

/* bpe_build - build the pair table and the byte ids from the tokens and merges.
 *
 * Errors    STATUS_DATA: two merges of the same pair; STATUS_INTERNAL (out of memory) */
status bpe_build(struct tokenizer *t);

/* bpe_encode - append the ids of a text without added tokens.
 *
 * Errors    STATUS_DATA: a byte is not in the vocabulary, or a word is longer than 1 GiB */
status bpe_encode(const struct tokenizer *t, struct bpe_encoder *encoder, const char *text,
                  size_t bytes, struct text_place place, struct token_list *out);

/* bpe_encode_word - append the ids of one word.
 *
 * Units     offset: bytes, added to the position in error messages
 * Errors    as bpe_encode */
status bpe_encode_word(const struct tokenizer *t, struct bpe_encoder *encoder, const char *word,
                       size_t bytes, size_t offset, struct token_list *out);

/* bpe_train - train a byte-level BPE tokenizer; see tokenizer_train. */
status bpe_train(int64_t vocab_size, bool roberta, const struct corpus_source *source, int workers,
                 struct tokenizer **out);
