/* BERT's text clean-up and its words: what WordPiece works on.
 *
 * In this order, each part where its option says so: control characters go and white space becomes a blank
 * (clean); Chinese characters stand alone (chinese); canonical decomposition, and the marks that take no room
 * go (strip_accents); lower case, a character at a time (lowercase). Words end at white space, and each
 * punctuation character is a word.
 *
 * Equal to BertNormalizer and BertPreTokenizer of the Python package `tokenizers` on every code point,
 * whatever the version of utf8proc: that package's classes of characters are those of Unicode 8
 * (bert_classes.c), while decompositions and lower case are of now. Bytes that are no UTF-8 count as U+FFFD.
 *
 * Source    Devlin, Chang, Lee, Toutanova 2018, arXiv:1810.04805, tokenization.py */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct bert_text_options {
    bool clean;
    bool chinese;
    bool strip_accents;
    bool lowercase;
};

enum bert_class { BERT_LETTER, BERT_CONTROL, BERT_MARK, BERT_PUNCTUATION, BERT_BLANK };

/* bert_class_of - a code point's class; BERT_MARK: takes no room (Mn). */
enum bert_class bert_class_of(uint32_t code);

/* bert_order_of - its canonical combining class, as the package has it: 0: none, so that it separates marks. */
int bert_order_of(uint32_t code);

/* A word: cleaned text, valid during the call. */
typedef status bert_text_visit(void *context, const char *word, size_t bytes, size_t characters);

/* bert_text_words - give each word of text[bytes] to visit, in order.
 *
 * Memory    the longest word, and a run of combining marks
 * Errors    those of visit, which ends the work; STATUS_INTERNAL (memory) */
status bert_text_words(const struct bert_text_options *options, const char *text, size_t bytes,
                       bert_text_visit *visit, void *context);
