/* BERT's normalizer and pre-tokenizer: splits a text into the words that WordPiece encodes.
 *
 * The normalizer applies these steps in order, each if its option is set:
 *
 *   clean_text            removes control characters and converts white space to spaces
 *   handle_chinese_chars  separates Chinese characters from their neighbors
 *   strip_accents         applies canonical decomposition and removes nonspacing marks
 *   lowercase             converts to lower case, character by character
 *
 * The pre-tokenizer splits at white space; each punctuation character is a word.
 *
 * The result equals BertNormalizer and BertPreTokenizer of Hugging Face `tokenizers` on every code
 * point, with any version of utf8proc. That package classifies characters by Unicode 8 (see
 * bert_classes.c) but uses current decompositions and lower case. Invalid UTF-8 bytes
 * become U+FFFD.
 *
 * Source    Devlin, Chang, Lee, Toutanova 2018, arXiv:1810.04805, tokenization.py */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct bert_text_options {
    bool clean_text;
    bool handle_chinese_chars;
    bool strip_accents;
    bool lowercase;
};

/* Character classes. BERT_MARK: nonspacing marks (general category Mn). */
enum bert_class { BERT_LETTER, BERT_CONTROL, BERT_MARK, BERT_PUNCTUATION, BERT_BLANK };

/* bert_text_class - return the class of a code point. */
enum bert_class bert_text_class(uint32_t code);

/* bert_text_combining_class - return the canonical combining class of a code point, as in
 * Hugging Face `tokenizers`. Class 0 separates runs of marks. */
int bert_text_combining_class(uint32_t code);

/* Called with a normalized word, which is valid only during the call. */
typedef status bert_text_visit(void *context, const char *word, size_t bytes, size_t characters);

/* bert_text_split_words - call visit for each word of text[0, bytes), in order.
 *
 * Memory    the longest word and the longest run of combining marks
 * Errors    an error of visit ends the scan; STATUS_INTERNAL (out of memory) */
status bert_text_split_words(const struct bert_text_options *options, const char *text,
                             size_t bytes, bert_text_visit *visit, void *context);
