/* Training of a Unigram model: pieces and their log probabilities from words and their counts.
 *
 * The trainer begins with all characters and with the repeated strings of the words. It then
 * repeats two steps until the vocabulary has the wanted size:
 *
 *   1. Expectation maximization, twice: the expected count of each piece over all segmentations of
 *      the words gives new probabilities. A piece that is expected less than half a time
 *      is dropped.
 *   2. The pieces that matter the least to the likelihood of the best segmentations are dropped, at
 *      most a quarter. Characters always remain.
 *
 * The result does not depend on the number of workers: expected counts are sums of integers.
 *
 * Source    Kudo 2018, arXiv:1804.10959, section 3.2; unigram_model_trainer.cc of SentencePiece.
 *           Repeated strings are weighted with the counts of their words here, and the best
 *           alternative of a piece excludes the piece itself. */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum {
    UNIGRAM_PIECE_CHARACTERS = 16, /* longest piece that is learned */
    UNIGRAM_WORD_BYTES = 4096      /* longest word */
};

/* A word, or a part of one, without characters that the vocabulary lacks. */
struct unigram_word {
    const char *text;
    uint32_t bytes; /* 1 to UNIGRAM_WORD_BYTES, valid UTF-8 */
    int64_t count;  /* > 0 */
};

struct unigram_piece {
    const char *text; /* within a word */
    uint32_t bytes;
    double score; /* natural logarithm of the probability */
};

/* unigram_find_seeds - find all characters of the words, and the strings of 2 to 16 characters that
 * occur several times. The first *characters pieces are the characters.
 *
 * Units     limit: largest number of strings; the strings with the largest product of characters
 *           and count are kept
 * Memory    the caller frees *out; 24 bytes for each byte of the words while it runs
 * Errors    STATUS_INTERNAL (out of memory) */
status unigram_find_seeds(const struct unigram_word *words, int64_t count, int64_t limit,
                          struct unigram_piece **out, int64_t *pieces, int64_t *characters);

/* unigram_train - train at most `wanted` pieces. They are sorted by descending score.
 *
 * Units     wanted: at least the number of different characters
 * Memory    the caller frees *out; the texts of the pieces point into the words
 * Errors    STATUS_INTERNAL (out of memory) */
status unigram_train(const struct unigram_word *words, int64_t count, int64_t wanted, int workers,
                     struct unigram_piece **out, int64_t *pieces);
