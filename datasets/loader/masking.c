#include "datasets/loader/masking.h"

#include <math.h>

#include "base/number.h"
#include "base/random.h"

/* First index of the replacement draws in the random stream, two for each position. The draws of
 * candidates come before it. */
#define REPLACEMENT_DRAWS (UINT64_C(1) << 40)

void masking_classify_tokens(const struct tokenizer *tokenizer, uint8_t *kinds)
{
    int64_t size = tokenizer_vocab_size(tokenizer);
    for (int64_t id = 0; id < size; id++) {
        int32_t token = (int32_t)id;
        kinds[id] = tokenizer_is_special(tokenizer, token)        ? MASKING_NEVER
                    : tokenizer_is_continuation(tokenizer, token) ? MASKING_CONTINUES
                                                                  : MASKING_BEGINS;
    }
}

/* Writes the first token of each candidate (token or word) to starts, and returns their number. */
static int64_t find_candidates(const struct masking *m, const int32_t *ids, int64_t count,
                               int32_t *starts)
{
    int64_t candidates = 0;
    for (int64_t i = 0; i < count; i++) {
        uint8_t kind = m->token_kinds[ids[i]];
        bool continues = m->whole_words && kind == MASKING_CONTINUES && i > 0 &&
                         m->token_kinds[ids[i - 1]] != MASKING_NEVER;
        if (kind != MASKING_NEVER && !continues) {
            starts[candidates++] = (int32_t)i;
        }
    }
    return candidates;
}

/* Returns the number of tokens of the candidate that begins at `start`. */
static int64_t count_candidate_tokens(const struct masking *m, const int32_t *ids, int64_t count,
                                      int64_t start)
{
    int64_t end = start + 1;
    while (m->whole_words && end < count && m->token_kinds[ids[end]] == MASKING_CONTINUES) {
        end++;
    }
    return end - start;
}

/* Draws the tokens to predict: sets chosen[i] to 1 for these and to 0 for the others. */
static void choose_tokens(const struct masking *m, uint64_t key, const int32_t *ids, int64_t count,
                          int64_t wanted, int32_t *starts, int32_t *chosen)
{
    int64_t candidates = find_candidates(m, ids, count, starts);
    for (int64_t i = 0; i < count; i++) {
        chosen[i] = 0;
    }
    for (int64_t i = 0; i < candidates && wanted > 0; i++) {
        int64_t drawn = i + (int64_t)random_below(key, (uint64_t)i, (uint64_t)(candidates - i));
        int32_t start = starts[drawn];
        starts[drawn] = starts[i];
        int64_t tokens = count_candidate_tokens(m, ids, count, start);
        for (int64_t k = 0; k < tokens && tokens <= wanted; k++) {
            chosen[start + k] = 1;
        }
        wanted -= tokens <= wanted ? tokens : 0;
    }
}

/* Returns the token that replaces token `id`. */
static int32_t draw_replacement(const struct masking *m, uint64_t key, int64_t position, int32_t id)
{
    uint64_t index = REPLACEMENT_DRAWS + 2 * (uint64_t)position;
    float u = random_uniform(key, index);
    if (u < 0.8f) {
        return m->mask_id;
    }
    return u < 0.9f ? id : (int32_t)random_below(key, index + 1, (uint64_t)m->vocab_size);
}

int64_t masking_apply(const struct masking *m, uint64_t seed, int64_t epoch, uint64_t example,
                      int32_t *ids, int64_t count, int32_t *positions, int32_t *labels,
                      int32_t *scratch)
{
    uint64_t key = random_key(seed, RANDOM_MASKING, (uint64_t)epoch, example);
    int64_t wanted = (int64_t)floor((double)count * m->probability + 0.5);
    wanted = number_clamp(wanted, 1, m->max_predictions);
    int32_t *chosen = scratch + count;
    choose_tokens(m, key, ids, count, wanted, scratch, chosen);
    int64_t predictions = 0;
    for (int64_t i = 0; i < count; i++) {
        if (chosen[i] != 0) {
            positions[predictions] = (int32_t)i;
            labels[predictions++] = ids[i];
            ids[i] = draw_replacement(m, key, i, ids[i]);
        }
    }
    return predictions;
}
