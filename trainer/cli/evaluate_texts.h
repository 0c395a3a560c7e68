/* `bireme evaluate --predictions FILE --references FILE`: metrics of texts without a model. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

struct evaluate_texts {
    const char *predictions, *references; /* files with one text per line, or JSON Lines */
    const char *metrics;                  /* "bleu,chrf" */
    const char *tokenizer;                /* of BLEU: a name of bleu_tokenizer.h */
    bool json;
};

/* evaluate_texts_run - compute the metrics and print them.
 *
 * Memory    both files
 * Errors    STATUS_USAGE: an unknown metric; errors of text_lines_read; STATUS_DATA: the files have
 *           no texts or different numbers of texts, or a text is not UTF-8 */
status evaluate_texts_run(const struct evaluate_texts *q);
