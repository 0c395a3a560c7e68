/* Tokenizers of Marian: source.spm, target.spm and vocab.json. */
#pragma once

#include "datasets/tokenizer/tokenizer_impl.h"

/* marian_exists - return whether the folder contains source.spm, target.spm and vocab.json. */
bool marian_exists(const char *folder);

/* marian_open - read source.spm, target.spm and vocab.json; with separate_vocabs: true, also
 * target_vocab.json.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA with the file and the reason */
status marian_open(const char *folder, struct tokenizer **out);

/* marian_save - write source.spm, target.spm and vocab.json. With a vocabulary of targets, also
 * write target_vocab.json, and tokenizer_config.json if the folder has none.
 *
 * Errors    STATUS_WRITE */
status marian_save(const struct tokenizer *t, const char *folder);

/* marian_sha256 - compute the SHA-256 of both models and the vocabulary, in hexadecimal. */
status marian_sha256(const struct tokenizer *t, char sha256[HASH_TEXT_BYTES]);

/* marian_encode - append the ids of a source or a target. A token such as >>es<< at the beginning
 * is one id.
 *
 * Errors    as sentencepiece_model_encode */
status marian_encode(const struct tokenizer *t, const char *text, size_t bytes, bool continued,
                     bool is_target, struct token_list *out);

/* marian_decode - convert ids to text, as tokenizer_decode. */
status marian_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                     bool skip_special, bool continued, char **out, size_t *out_bytes);
