/* The Unigram model: the most probable segmentation of a text.
 *
 *     score(text) = max over pieces p that end the text: score(text without p) + score(p)
 *
 * A character that is not a piece is unknown. Its score is lower than the score of every piece.
 * Among equal segmentations, the one that was found first wins. The rounding of sums decides
 * between segmentations of almost equal scores. Sums are therefore rounded as in SentencePiece
 * 0.2.3 or in Hugging Face `tokenizers`.
 *
 * Source    Kudo 2018, arXiv:1804.10959; Viterbi 1967 */
#pragma once

#include <stdbool.h>

#include "datasets/sentencepiece/piece_trie.h"

#define UNIGRAM_UNKNOWN_PENALTY 10.0 /* an unknown character scores this much below each piece */

struct unigram {
    struct piece_trie trie;    /* values: ids */
    double *scores;            /* [id] */
    bool *is_user_defined;     /* [id] the score follows from the length; NULL: none */
    double unknown_score;      /* of an unknown character */
    int32_t unknown;           /* id of unknown characters */
    bool has_single_precision; /* sums have f32, as in SentencePiece; otherwise f64 */
};

/* The last piece of the best segmentation of text[0, end). */
struct unigram_step {
    double score;
    uint32_t begin;
    int32_t id;
};

/* unigram_find_path - write the best last piece of each prefix of a text. The pieces of the whole
 * text are at steps[bytes], steps[steps[bytes].begin], ... up to begin 0.
 *
 * Shapes    steps [bytes + 1]
 * Units     bytes <= INT32_MAX */
void unigram_find_path(const struct unigram *u, const char *text, size_t bytes,
                       struct unigram_step *steps);

/* unigram_free - free the tables. */
void unigram_free(struct unigram *u);
