/* Learns merges of symbols from word counts. merge_train.c describes the algorithm.
 *
 * Order of calls: merge_train_open, merge_train_add_token for the initial alphabet,
 * merge_train_add_symbol and merge_train_end_word for each word, merge_train_learn. */
#pragma once

#include "base/text_map.h"
#include "datasets/tokenizer/tokenizer_impl.h"

/* Zero-initialized is empty. A position is the index of a symbol in the concatenated words. */
struct merge_train {
    int32_t *symbols;  /* [positions] token id; -1: merged into the symbol before it */
    int32_t *previous; /* [positions] neighboring positions in the word; -1: none */
    int32_t *next;
    int32_t *word;        /* [positions] index of the word */
    int64_t *word_counts; /* [words] how often the word occurs */
    int64_t positions, words;

    struct pair *pairs;
    int64_t pair_count;
    int64_t pair_capacity;
    int64_t *slots; /* hash table: pair -> index in pairs; -1: free slot */
    uint64_t slot_mask;

    struct candidate *heap;
    int64_t heap_count;
    int64_t heap_capacity;
    int64_t *grown; /* pairs with a count that grew in this round */
    int64_t grown_count;
    int64_t grown_capacity;
    int32_t round;

    struct text_map tokens; /* bytes -> id */
    struct text_store store;
    const char **token_bytes; /* [token_count] */
    uint32_t *token_lengths;  /* [token_count] bytes */
    int64_t token_count;
    int64_t max_tokens;
    /* prefix of symbols inside a word, such as ##; a merge drops the prefix of its right side */
    size_t prefix_bytes;
    struct merge *merges;
    int64_t merge_count;
    int64_t merge_capacity;
};

/* merge_train_open - allocate memory for the symbols of all distinct words and for max_tokens.
 *
 * Errors    STATUS_DATA: too many symbols; STATUS_INTERNAL (out of memory) */
status merge_train_open(struct merge_train *t, int64_t positions, int64_t words,
                        int64_t max_tokens);

/* merge_train_add_token - find the token with these bytes or add it; *out is its id.
 *
 * Fewer than max_tokens tokens must exist.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status merge_train_add_token(struct merge_train *t, const char *bytes, size_t length, int32_t *out);

/* merge_train_add_symbol - append one symbol to the current word. */
void merge_train_add_symbol(struct merge_train *t, int32_t id, bool begins_word);

/* merge_train_end_word - end the current word, which occurs `count` times. */
void merge_train_end_word(struct merge_train *t, int64_t count);

/* merge_train_learn - merge pairs until there are max_tokens tokens or no pair occurs twice.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status merge_train_learn(struct merge_train *t);

/* merge_train_free - free everything that the struct owns. */
void merge_train_free(struct merge_train *t);
