/* Tokenizers: conversion between text and token ids.
 *
 * The kinds and their files in a folder are:
 *
 *   bpe             over bytes, as GPT-2, or over characters, as Llama 2
 *   wordpiece       as BERT; also vocab.txt, which is enough to read it
 *   char            one token per character; a model with a vocabulary of single characters
 *   unigram         as T5
 *   sentencepiece   tokenizer.model, as Llama 2, T5 and others
 *   marian          source.spm, target.spm and vocab.json; only text_pair_encode_sequence encodes
 *                   targets
 *
 * The first four are stored as tokenizer.json, in the format of Hugging Face `tokenizers`.
 *
 * The targets of encoder-decoder models can have their own vocabulary. In a folder of the kind
 * `marian` it is target_vocab.json, if tokenizer_config.json has separate_vocabs: true. Any other
 * folder can contain target_tokenizer.json, a second file in the format of tokenizer.json.
 *
 * A tokenizer is immutable after it has been created. Any number of threads may encode and decode
 * with it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "datasets/rows/corpus.h"
#include "datasets/tokenizer/token_list.h"

struct tokenizer;

enum tokenizer_kind {
    TOKENIZER_BPE,
    TOKENIZER_WORDPIECE,
    TOKENIZER_CHAR,
    TOKENIZER_SENTENCEPIECE,
    TOKENIZER_UNIGRAM,
    TOKENIZER_MARIAN
};

/* tokenizer_train - train a tokenizer with at most vocab_size tokens on the texts of a corpus.
 *
 * The ids depend on the kind:
 *
 *   bpe           the 256 bytes, the merges by descending pair count, then the special token
 *                 <|endoftext|>. Ties go to the pair with the smaller ids. Pairs that occur once
 *                 are not merged, so the vocabulary may be smaller than vocab_size
 *   bpe, roberta  <s> <pad> </s> <unk> <mask>, then bytes and merges as above. RoBERTa itself has
 *                 the same ids, except for <mask>, which is its last token
 *   wordpiece     [PAD] [UNK] [CLS] [SEP] [MASK], the characters, then the merged pieces. The text
 *                 is normalized as for bert-base-uncased
 *   unigram       <unk> <s> </s>, the 256 bytes, and pieces by descending probability
 *                 (datasets/sentencepiece/unigram_train.h). The graphic ASCII characters are always
 *                 pieces
 *   char          the characters of the text in code point order, without special tokens.
 *                 vocab_size is only an upper limit; 0 means no limit
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA, for example char: invalid UTF-8, with the byte offset;
 *           STATUS_USAGE: vocab_size is out of range */
status tokenizer_train(enum tokenizer_kind kind, bool roberta, int64_t vocab_size,
                       const struct corpus_source *source, int workers, struct tokenizer **out);

/* tokenizer_exists - return whether the folder contains tokenizer.json, tokenizer.model, vocab.txt,
 * vocab.json with merges.txt, or the tokenizer_config.json of ByT5. */
bool tokenizer_exists(const char *folder);

/* tokenizer_open - read folder/tokenizer.json. If there is none, read folder/tokenizer.model (or
 * spiece.model), folder/vocab.txt, folder/vocab.json with folder/merges.txt (GPT-2 and RoBERTa), or
 * folder/tokenizer_config.json (ByT5). The tokenizer of targets, if any, is opened too.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA with file, location and reason. An unsupported part of the
 *           format is an error that names it; it is never ignored. */
status tokenizer_open(const char *folder, struct tokenizer **out);

/* tokenizer_save - write folder/tokenizer.json, and vocab.txt for wordpiece. A sentencepiece
 * tokenizer is written to folder/tokenizer.model alone.
 *
 * Creates the folder if necessary. Equal tokenizers yield identical files.
 *
 * Errors    STATUS_WRITE; STATUS_INTERNAL (out of memory) */
status tokenizer_save(const struct tokenizer *t, const char *folder);

/* tokenizer_to_text - write the canonical tokenizer.json to memory; not for the kind sentencepiece.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_INTERNAL (out of memory) */
status tokenizer_to_text(const struct tokenizer *t, char **out, size_t *out_bytes);

/* tokenizer_destroy - free a tokenizer and set *t to NULL; does nothing if *t is NULL. */
status tokenizer_destroy(struct tokenizer **t);

/* tokenizer_target - return the tokenizer of targets: t itself if sources and targets have one
 * vocabulary, which is the usual case. NULL if t is NULL. */
const struct tokenizer *tokenizer_target(const struct tokenizer *t);

/* tokenizer_has_target - return whether targets have their own vocabulary; false if t is NULL. */
bool tokenizer_has_target(const struct tokenizer *t);

/* tokenizer_get_kind - return the kind of the model. */
enum tokenizer_kind tokenizer_get_kind(const struct tokenizer *t);

/* tokenizer_vocab_size - return the largest id + 1. */
int64_t tokenizer_vocab_size(const struct tokenizer *t);

/* tokenizer_max_vocab_size - return the larger of the vocabulary sizes of sources and targets. */
int64_t tokenizer_max_vocab_size(const struct tokenizer *t);

/* tokenizer_eos - return the end-of-text token (<|endoftext|>, </s>, ...); -1: none. */
int32_t tokenizer_eos(const struct tokenizer *t);

/* tokenizer_bos - return the beginning-of-text token; -1: none.
 *
 * This is the token that the post-processor puts before each text if it puts none after it, such as
 * Llama 3's <|begin_of_text|>. tokenizer_encode does not add it. */
int32_t tokenizer_bos(const struct tokenizer *t);

/* tokenizer_append_bos - append the beginning-of-text token, if the tokenizer has one.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status tokenizer_append_bos(const struct tokenizer *t, struct token_list *out);

/* tokenizer_keeps_bytes - return whether bytes that are not UTF-8 are encoded as they are: the
 * symbols are bytes, or each byte has a token. */
bool tokenizer_keeps_bytes(const struct tokenizer *t);

/* tokenizer_has_character_words - return whether the model is over characters, such as BPE over
 * characters or Unigram, so that its words follow from spaces alone. */
bool tokenizer_has_character_words(const struct tokenizer *t);

/* tokenizer_sha256 - return the SHA-256 of the canonical tokenizer.json, or of tokenizer.model, in
 * hexadecimal. With a tokenizer of targets it covers both.
 *
 * Shards and checkpoints use it to identify their tokenizer. */
const char *tokenizer_sha256(const struct tokenizer *t);

/* Special tokens of encoder models, under BERT's or RoBERTa's names ([CLS] or <s>, ...); -1: the
 * tokenizer does not have the token. */
struct tokenizer_specials {
    int32_t cls, sep, pad, mask, unknown;
};

/* tokenizer_get_specials - return the ids of the encoder's special tokens. */
struct tokenizer_specials tokenizer_get_specials(const struct tokenizer *t);

/* tokenizer_is_roberta - return whether the post-processor is RoBERTa's: <s> A </s> </s> B </s>. */
bool tokenizer_is_roberta(const struct tokenizer *t);

/* The place of the language token in a text, as in the tokenizers of mBART. */
enum tokenizer_language {
    TOKENIZER_LANGUAGE_NONE,
    TOKENIZER_LANGUAGE_FIRST, /* en_XX A </s>, as in mBART-50 */
    TOKENIZER_LANGUAGE_LAST   /* A </s> en_XX, as in mBART */
};

/* tokenizer_language_place - return where the post-processor adds the language token. */
enum tokenizer_language tokenizer_language_place(const struct tokenizer *t);

/* tokenizer_find_language - find the token of a language. Messages name `option`, the option with
 * the code.
 *
 * Errors    STATUS_USAGE: the tokenizer has no such language token */
status tokenizer_find_language(const struct tokenizer *t, const char *code, const char *option,
                               int32_t *out);

/* tokenizer_is_special - return whether the id is a special token or has no token. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* tokenizer_is_continuation - return whether a token continues the word of the token before it.
 *
 * wordpiece: the token begins with the continuing subword prefix ("##ing"). bpe: the token does not
 * begin with white space. Tokenizers over characters: it does not begin with U+2581. Added tokens
 * are never continuations. */
bool tokenizer_is_continuation(const struct tokenizer *t, int32_t id);

/* tokenizer_find_difference - return the first id that has another token in the other tokenizer;
 * -1: none. Ids that only one of them has, and ids that are special tokens in both, are not
 * compared: a tokenizer with further tokens, or with other names of special ones, is equal. */
int32_t tokenizer_find_difference(const struct tokenizer *a, const struct tokenizer *b);

/* tokenizer_find - return the id of the token with exactly this text; -1: none.
 *
 * Special tokens are found too. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text);

/* tokenizer_add_special - create a tokenizer with further special tokens. New tokens get the ids
 * after the last one; a token that exists keeps its id and becomes special.
 *
 * Errors    STATUS_USAGE: a token is empty or not valid UTF-8; STATUS_DATA: it is too long;
 *           STATUS_INTERNAL (out of memory) */
status tokenizer_add_special(const struct tokenizer *t, char *const *tokens, int count,
                             struct tokenizer **out);

/* tokenizer_encode - append the ids of text[0, bytes) to *out.
 *
 * Special tokens are recognized in the text only if `special` is true. Added tokens that are not
 * special are always recognized, as in transformers.
 *
 * Errors    STATUS_DATA: the text contains a character (char) or a byte (bpe) that is not in the
 *           vocabulary, with its byte offset; *out is then unchanged */
status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                        struct token_list *out);

/* tokenizer_encode_continued - encode text that continues a text before it, without special tokens.
 *
 * As tokenizer_encode, but nothing is put before the text, such as the U+2581 of Llama 2. A text
 * can be encoded in parts if the parts begin where words begin.
 *
 * Errors    as tokenizer_encode */
status tokenizer_encode_continued(const struct tokenizer *t, const char *text, size_t bytes,
                                  struct token_list *out);

/* tokenizer_encode_after_special - encode text after a special token, without special tokens.
 *
 * As tokenizer_encode, but a Metaspace that puts U+2581 only before the first word of a text
 * (Mistral) puts none.
 *
 * Errors    as tokenizer_encode */
status tokenizer_encode_after_special(const struct tokenizer *t, const char *text, size_t bytes,
                                      struct token_list *out);

/* tokenizer_is_added_boundary - return whether a text can be split before text[position] without a
 * change of the added tokens that tokenizer_encode finds.
 *
 * It can return false at a harmless position: the text before it may be the beginning of an
 * added token.
 *
 * Units     0 < position < bytes */
bool tokenizer_is_added_boundary(const struct tokenizer *t, const char *text, size_t bytes,
                                 size_t position);

/* tokenizer_decode - convert ids to text.
 *
 * Special tokens are omitted if skip_special is true. The text is terminated with NUL.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_DATA: an id is not in the vocabulary, with its index */
status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes);

/* tokenizer_decode_continued - convert ids that continue a text to text.
 *
 * As tokenizer_decode, but the space at the beginning remains, which the decoders of Llama 2 and
 * Mistral remove from a whole text.
 *
 * Memory    the caller frees *out with free()
 * Errors    as tokenizer_decode */
status tokenizer_decode_continued(const struct tokenizer *t, const int32_t *ids, int64_t count,
                                  bool skip_special, char **out, size_t *out_bytes);

/* tokenizer_count_final - return how many of these ids have a text that further ids cannot change.
 *
 * The text of byte tokens at the end (<0x0A>) depends on the byte tokens after them. */
int64_t tokenizer_count_final(const struct tokenizer *t, const int32_t *ids, int64_t count);

/* tokenizer_encode_pair - append the input of an encoder model for one or two texts.
 *
 * [CLS] a [SEP], or [CLS] a [SEP] b [SEP] if b is not NULL; RoBERTa: <s> a </s> </s> b </s>. A
 * tokenizer with language tokens encodes one text, as tokenizer_encode_language does. At most
 * max_tokens ids are appended (0: no limit): the longer text is truncated first, at its end.
 * transformers does the same. *first_segment_tokens receives the size of the first segment, which
 * includes [CLS] and the separators before b.
 *
 * Errors    STATUS_DATA: the vocabulary has no [CLS] or [SEP], and as tokenizer_encode;
 *           STATUS_USAGE: max_tokens is less than the number of special tokens */
status tokenizer_encode_pair(const struct tokenizer *t, const char *a, size_t a_bytes,
                             const char *b, size_t b_bytes, bool special, int64_t max_tokens,
                             struct token_list *out, int64_t *first_segment_tokens);

/* tokenizer_encode_language - append the ids of a text with its end token and its language
 * token.
 *
 * Units     language -1: the language of the post-processor; max_tokens 0: no limit, else the text
 *           is truncated at its end
 * Errors    as tokenizer_encode; STATUS_USAGE: max_tokens is below 2 */
status tokenizer_encode_language(const struct tokenizer *t, const char *text, size_t bytes,
                                 bool special, int32_t language, int64_t max_tokens,
                                 struct token_list *out);
