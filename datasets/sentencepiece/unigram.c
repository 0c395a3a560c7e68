#include "datasets/sentencepiece/unigram.h"

#include <math.h>
#include <stdlib.h>

#include "base/utf8.h"

#define UNREACHED UINT32_MAX
#define RESET_SCORE 100000.0 /* sums in f32 beyond it begin again at 0 */

/* Returns the score of a piece. All scores of normal pieces are below 0, so user-defined pieces
 * win; of these, one long piece scores more than several short ones. */
static double get_score(const struct unigram *u, int32_t id, size_t bytes)
{
    if (u->is_user_defined != NULL && u->is_user_defined[id]) {
        return (double)(float)(0.1 * (double)(bytes - 1));
    }
    return u->scores[id];
}

/* Ends text[0, end) with the piece that begins at `begin`, if no better piece ends there. */
static void update_step(const struct unigram *u, struct unigram_step *steps, size_t begin,
                        size_t end, int32_t id, double piece_score)
{
    struct unigram_step *step = &steps[end];
    double score = piece_score + steps[begin].score;
    score = u->has_single_precision ? (double)(float)score : score;
    if (step->begin == UNREACHED || score > step->score) {
        *step = (struct unigram_step){score, (uint32_t)begin, id};
    }
}

/* Extends the best segmentation of text[0, begin) by each piece that begins there. Returns the end
 * of the longest one. */
static size_t extend_path(const struct unigram *u, const char *text, size_t bytes, size_t begin,
                          size_t character_bytes, struct unigram_step *steps)
{
    bool has_character = false;
    uint32_t node = 0;
    size_t last = begin + character_bytes;
    for (size_t end = begin; end < bytes;) {
        node = piece_trie_next(&u->trie, node, (unsigned char)text[end++]);
        if (node == 0) {
            break;
        }
        int32_t id = u->trie.nodes[node].value;
        if (id >= 0) {
            update_step(u, steps, begin, end, id, get_score(u, id, end - begin));
            has_character = has_character || end - begin == character_bytes;
            last = end > last ? end : last;
        }
    }
    if (!has_character) {
        update_step(u, steps, begin, begin + character_bytes, u->unknown, u->unknown_score);
    }
    return last;
}

/* Subtracts the score at `begin` from the scores that later steps need. */
static void reset_scores(struct unigram_step *steps, size_t begin, size_t last)
{
    double offset = steps[begin].score;
    for (size_t i = begin; i <= last; i++) {
        steps[i].score = (double)(float)(steps[i].score - offset);
    }
}

void unigram_find_path(const struct unigram *u, const char *text, size_t bytes,
                       struct unigram_step *steps)
{
    for (size_t i = 0; i <= bytes; i++) {
        steps[i] = (struct unigram_step){.begin = UNREACHED, .id = -1};
    }
    size_t last = 0; /* end of the longest piece so far */
    for (size_t begin = 0; begin < bytes;) {
        if (u->has_single_precision && fabs(steps[begin].score) > RESET_SCORE) {
            reset_scores(steps, begin, last);
        }
        size_t length = utf8_character_bytes(text + begin, bytes - begin);
        size_t end = extend_path(u, text, bytes, begin, length, steps);
        last = end > last ? end : last;
        begin += length;
    }
}

void unigram_free(struct unigram *u)
{
    piece_trie_free(&u->trie);
    free(u->scores);
    free(u->is_user_defined);
}
