/* Normalizes answers for comparison, as SQuAD's evaluation script does.
 *
 * The normalized form is lower case, without ASCII punctuation and without the words "a", "an" and
 * "the". One space separates words; there is none at the ends.
 *
 * The result equals normalize_answer of that script, with one exception: a capital sigma at the end
 * of a word becomes the non-final small sigma. Invalid UTF-8 bytes become U+FFFD.
 *
 * Source    Rajpurkar, Jia, Liang 2018, arXiv:1806.03822, evaluate-v2.0.py */
#pragma once

#include "base/status.h"

/* answer_text_normalize - normalize an answer.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_INTERNAL (out of memory) */
status answer_text_normalize(const char *text, char **out);
