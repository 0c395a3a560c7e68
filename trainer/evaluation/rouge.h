/* ROUGE: the overlap of a text with a reference, equal to the package rouge-score without stemmer.
 *
 * The text is converted to lower case. Words are the longest runs of ASCII letters and digits. The
 * score is F1 = 2 P R / (P + R), from the precision P and the recall R of
 *   rouge1, rouge2   words and pairs of words
 *   rougeL           the longest common subsequence
 *   rougeLsum        the union of the longest common subsequences of each line of the reference
 *                    with the lines of the text
 *
 * Source    Lin 2004, "ROUGE: a package for automatic evaluation of summaries" */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "trainer/evaluation/ngrams.h"

enum { ROUGE_1, ROUGE_2, ROUGE_L, ROUGE_LSUM, ROUGE_SCORES };

/* The lines of a text, and their words. */
struct rouge_text {
    struct token_list words; /* of all lines */
    struct token_list ends;  /* [lines] number of words up to the end of each line */
};

/* rouge_read - read the words of a text. Lines that contain no character are left out.
 *
 * Memory    replaces the content of *out; the caller frees it with rouge_text_free
 * Errors    STATUS_INTERNAL (out of memory) */
status rouge_read(struct ngrams_words *words, const char *text, size_t bytes,
                  struct rouge_text *out);

/* rouge_score - compute the scores of a text.
 *
 * Units     0 to 1
 * Errors    as ngrams_mark_common */
status rouge_score(struct ngrams_scratch *scratch, const struct rouge_text *text,
                   const struct rouge_text *reference, double out[ROUGE_SCORES]);

/* rouge_text_free - free the lists and make them empty. */
void rouge_text_free(struct rouge_text *text);
