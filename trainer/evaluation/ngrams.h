/* N-grams of token ids: the number that two texts have in common, and the longest common
 * subsequence of the texts. The metrics of text_scores.h use them. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "base/text_map.h"
#include "base/text_store.h"
#include "datasets/tokenizer/token_list.h"

enum { NGRAMS_ORDER_MAX = 6 };

/* Ids of words. All zeros: no words. */
struct ngrams_words {
    struct text_map map;
    struct text_store store;
};

/* Working memory. All zeros: none. */
struct ngrams_scratch {
    int32_t *memory;
    int64_t capacity; /* values */
};

/* ngrams_append_word - append the id of a word. Equal words have equal ids.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status ngrams_append_word(struct ngrams_words *words, const char *text, size_t bytes,
                          struct token_list *out);

/* ngrams_append_words - append the ids of the words between white space (char_class_is_space). */
status ngrams_append_words(struct ngrams_words *words, const char *text, size_t bytes,
                           struct token_list *out);

/* ngrams_append_characters - append the code points of a text, without white space. */
status ngrams_append_characters(const char *text, size_t bytes, struct token_list *out);

/* ngrams_total - return the number of n-grams of a text with this many tokens. */
int64_t ngrams_total(int64_t tokens, int order);

/* ngrams_count_matches - count the n-grams that occur in both texts. An n-gram that occurs several
 * times counts as often as in the text with fewer of them.
 *
 * Units     order is 1 to NGRAMS_ORDER_MAX
 * Errors    STATUS_INTERNAL (out of memory) */
status ngrams_count_matches(struct ngrams_scratch *scratch, const struct token_list *a,
                            const struct token_list *b, int order, int64_t *out);

/* ngrams_mark_common - mark the tokens of a that are part of the longest common subsequence of a
 * and b, and count them. If several subsequences are longest, the function marks the one that
 * rouge-score finds.
 *
 * Shapes    marks [a.count], which are set to true but not cleared; NULL: only count them
 * Memory    (a.count + 1) (b.count + 1) values of scratch
 * Errors    STATUS_DATA: the texts are too long; STATUS_INTERNAL (out of memory) */
status ngrams_mark_common(struct ngrams_scratch *scratch, const struct token_list *a,
                          const struct token_list *b, bool *marks, int64_t *count);

/* ngrams_free - free the words and the working memory. */
void ngrams_free(struct ngrams_words *words, struct ngrams_scratch *scratch);
