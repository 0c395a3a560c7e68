/* Metrics of generated texts against references: BLEU and chrF as in sacreBLEU, ROUGE as in
 * rouge-score (rouge.h), and exact match. There is one reference for each text.
 *
 * The state is an array of sums, so that the states of several ranks can be added. The sums are
 * exact, in any order:
 *   bleu         of all texts: the geometric mean of the precisions of 1- to 4-grams, times the
 *                brevity penalty min(1, exp(1 - reference length / length)); smoothing "exp"
 *   chrf         of all texts: F2 of the mean precision and recall of 1- to 6-grams of characters,
 *                without white space
 *   rouge*, exact_match   the mean over the texts
 *
 * Source    Papineni et al. 2002, "BLEU"; Popovic 2015, "chrF"; Post 2018, arXiv:1804.08771 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "trainer/evaluation/bleu_tokenizer.h"

enum text_metric {
    TEXT_BLEU,
    TEXT_CHRF,
    TEXT_ROUGE1,
    TEXT_ROUGE2,
    TEXT_ROUGEL,
    TEXT_ROUGELSUM,
    TEXT_EXACT_MATCH,
    TEXT_METRICS
};

enum { TEXT_SIGNATURE_BYTES = 128 };

struct text_scores;

/* text_scores_name - return the name of a metric: "bleu", "chrf", "rouge1", ... */
const char *text_scores_name(enum text_metric metric);

/* text_scores_parse - read a list of metrics, "bleu,chrf", as bits 1 << metric.
 *
 * Errors    STATUS_USAGE: an unknown name, with the names that exist */
status text_scores_parse(const char *list, unsigned *metrics);

/* text_scores_create - create empty sums; metrics: bits 1 << metric. */
status text_scores_create(unsigned metrics, enum bleu_tokenizer tokenizer,
                          struct text_scores **out);

/* text_scores_add - add a text and its reference.
 *
 * Errors    STATUS_DATA: a text is too long for rougeL; STATUS_INTERNAL (out of memory) */
status text_scores_add(struct text_scores *s, const char *text, size_t bytes, const char *reference,
                       size_t reference_bytes);

/* text_scores_sums - return the sums, which may be added over the ranks.
 *
 * Shapes    [*count]
 * Memory    owned by s */
double *text_scores_sums(struct text_scores *s, int64_t *count);

/* text_scores_value - compute a metric.
 *
 * Units     bleu and chrf 0 to 100, the others 0 to 1, as in the packages; 0 without texts */
double text_scores_value(const struct text_scores *s, enum text_metric metric);

/* text_scores_signature - write the signature of bleu or chrf as sacreBLEU does, with the version
 * of Bireme: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:bireme-1.0". */
void text_scores_signature(const struct text_scores *s, enum text_metric metric,
                           const char *version, char out[TEXT_SIGNATURE_BYTES]);

/* text_scores_destroy - free the scores and set *s to NULL; NULL is allowed. */
void text_scores_destroy(struct text_scores **s);
