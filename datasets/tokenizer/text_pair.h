/* Encodes a text, or a pair of texts, as input for a fine-tuning task.
 *
 * Tokenizers of encoder models have [CLS] and [SEP], or <s> and </s>: tokenizer_encode_pair makes
 * their input. For other tokenizers the input of one text is its ids alone. The input of a pair is
 * the first text, a delimiter and the second text. The delimiter is the end-of-text token, or a
 * newline if the tokenizer has no such token. Nothing is appended, so the last token, which the
 * head reads, is the text's own. The GPT-2 tokenizer of transformers does the same. */
#pragma once

#include "datasets/tokenizer/tokenizer.h"

/* A string with its length; not terminated with NUL. */
struct text {
    const char *bytes;
    size_t count; /* bytes */
};

/* text_pair_encode - append the ids of a text, or of a text and its pair, to *out.
 *
 * There is no pair if pair->bytes is NULL. At most max_tokens ids are appended (0: no limit): the
 * longer text is truncated first, at its end. *first_segment_tokens receives the number of ids
 * before the second text, delimiter included. *truncated receives the number of ids removed.
 *
 * Errors    STATUS_DATA: the text has no tokens; STATUS_USAGE: max_tokens is too small */
status text_pair_encode(const struct tokenizer *t, const struct text *text, const struct text *pair,
                        int64_t max_tokens, struct token_list *out, int64_t *first_segment_tokens,
                        int64_t *truncated);

/* text_pair_has_segment_tokens - return whether texts are enclosed in special tokens, such as
 * [CLS] and [SEP]. */
bool text_pair_has_segment_tokens(const struct tokenizer *t);

/* Marian has one model for sources and another one for targets. */
enum text_side { TEXT_SOURCE, TEXT_TARGET };

/* text_pair_encode_sequence - append the ids of a source or a target of an encoder-decoder: as
 * text_pair_encode if the tokenizer has segment tokens, with the language token if it has such
 * tokens, else with the end token at the end. The prefix precedes the text; NULL: none.
 *
 * Units     language -1: the language of the post-processor
 * Errors    as tokenizer_encode; the tokenizer must have segment tokens or an end token */
status text_pair_encode_sequence(const struct tokenizer *t, const char *prefix,
                                 const struct text *text, enum text_side side, int32_t language,
                                 struct token_list *out);

/* text_pair_enclose - add the special tokens of a source to ids without special tokens: the tokens
 * around a segment, or the end token.
 *
 * Errors    STATUS_UNAVAILABLE: the tokenizer has language tokens, or none of these tokens */
status text_pair_enclose(const struct tokenizer *t, struct token_list *ids);

enum { TEXT_PAIR_WORD_BYTES = 4000 };

/* text_pair_encode_word - append the ids of one word of a pre-split sequence.
 *
 * Byte-level tokenizers encode the word with a space before it. Char tokenizers get a space token
 * between two words. *begin receives the index of the word's first token, which represents
 * the word.
 *
 * Errors    STATUS_DATA: the word is longer than TEXT_PAIR_WORD_BYTES or has no tokens */
status text_pair_encode_word(const struct tokenizer *t, const struct text *word, bool first,
                             struct token_list *out, int64_t *begin);
