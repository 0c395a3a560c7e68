/* How often each word of a corpus occurs: what a trainer of merges works on. */
#pragma once

#include "datasets/tokenizer/bert_text.h"
#include "datasets/tokenizer/pretokenise.h"
#include "datasets/tokenizer/text_map.h"

struct word_count { /* zero-initialised is empty; values of the map are counts */
    struct text_map map;
    struct text_store store;
};

/* word_count_files - count the words of these files in `workers` threads.
 *
 * Memory    the different words, once for each worker until they are joined; a few MB more
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA naming the file */
status word_count_files(enum pretokenise_pattern pattern, char *const *files, int count,
                        int workers, struct word_count *out);

/* word_count_bert - the same with the words of BERT's clean-up. */
status word_count_bert(const struct bert_text_options *options, char *const *files, int count,
                       int workers, struct word_count *out);
void word_count_free(struct word_count *words);
