/* Learning merges of symbols from counted words (merge_train.c says how). */
#pragma once

#include "datasets/tokenizer/text_map.h"
#include "datasets/tokenizer/tokenizer_impl.h"

/* Zero-initialised is empty. */
struct merge_train {
    int32_t *symbols; /* -1: joined to the one before */
    int32_t *previous;
    int32_t *next;
    int32_t *word; /* which word a position belongs to */
    int64_t *word_times;
    int64_t positions, words;

    struct pair *pairs;
    int64_t pair_count;
    int64_t pair_room;
    int64_t *slots; /* hash table over pairs; -1: free */
    uint64_t slot_mask;

    struct candidate *heap;
    int64_t heap_count;
    int64_t heap_room;
    int64_t *raised; /* pairs whose count grew in this round */
    int64_t raised_count;
    int64_t raised_room;
    int32_t round;

    struct text_map tokens; /* bytes -> id */
    struct text_store store;
    const char **bytes; /* id -> bytes */
    uint32_t *lengths;
    int64_t token_count;
    int64_t limit;       /* tokens at most */
    size_t prefix_bytes; /* of a symbol that is not the first of its word: goes when it is joined */
    struct merge *merges;
    int64_t merge_count;
    int64_t merge_room;
};

/* merge_train_open - room for the symbols of all different words, and for `limit` tokens. */
status merge_train_open(struct merge_train *t, int64_t positions, int64_t words, int64_t limit);

/* merge_train_token - the id of these bytes, a new token where there was none; below `limit`. */
status merge_train_token(struct merge_train *t, const char *bytes, size_t length, int32_t *out);

/* merge_train_symbol - the next symbol.  merge_train_end_word - how often the word occurs. */
void merge_train_symbol(struct merge_train *t, int32_t id, bool begins_word);
void merge_train_end_word(struct merge_train *t, int64_t times);

/* merge_train_learn - merge until there are `limit` tokens, or no pair occurs twice.
 *
 * Errors    STATUS_INTERNAL (memory) */
status merge_train_learn(struct merge_train *t);
void merge_train_free(struct merge_train *t);
