/* Counts how often each word occurs in a corpus. The trainers of merges use the counts. */
#pragma once

#include "base/text_map.h"
#include "datasets/rows/corpus.h"
#include "datasets/text/bert_text.h"
#include "datasets/text/pretokenizer.h"

/* Zero-initialized is empty. */
struct word_count {
    struct text_map map; /* word -> count */
    struct text_store store;
};

/* word_count_files - count the words of these files with a byte-level pattern.
 *
 * Memory    the distinct words, once per worker until the counts are merged, and a few MB
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA with the file */
status word_count_files(enum pretokenizer_pattern pattern, const struct corpus_source *source,
                        int workers, struct word_count *out);

/* word_count_bert - count the words of these files with BERT's normalizer and pre-tokenizer.
 *
 * Memory    as word_count_files
 * Errors    as word_count_files */
status word_count_bert(const struct bert_text_options *options, const struct corpus_source *source,
                       int workers, struct word_count *out);

/* word_count_spaces - count the words of these files that begin at spaces, with U+2581 instead of
 * the space, as Metaspace splits them. A text begins with a space. Control characters, such as the
 * end of a line, and bytes that are not UTF-8 are between words. Words of more than `longest` bytes
 * are omitted.
 *
 * Memory    as word_count_files
 * Errors    as word_count_files */
status word_count_spaces(size_t longest, const struct corpus_source *source, int workers,
                         struct word_count *out);

/* word_count_free - free the words and their counts. */
void word_count_free(struct word_count *words);
