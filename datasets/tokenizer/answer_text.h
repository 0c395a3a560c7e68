/* The normal form in which SQuAD's script compares answers: lower case, without ASCII punctuation and without the
 * words "a", "an" and "the", one blank between words and none around them.
 *
 * Equal to normalize_answer of that script, but for a capital sigma at the end of a word, which becomes the small
 * one of the middle. Bytes that are no UTF-8 count as U+FFFD.
 *
 * Source    Rajpurkar, Jia, Liang 2018, arXiv:1806.03822, evaluate-v2.0.py */
#pragma once

#include "base/status.h"

/* answer_text_normalise - *out is the caller's, for free().
 *
 * Errors    STATUS_INTERNAL (memory) */
status answer_text_normalise(const char *text, char **out);
