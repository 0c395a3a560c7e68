#include "datasets/loader/masking.h"

#include <math.h>

#include "base/random.h"

#define FATES (UINT64_C(1) << 40) /* the stream: draws of candidates, then two numbers a position */

void masking_kinds(const struct tokenizer *tokenizer, uint8_t *kinds)
{
    int64_t size = tokenizer_vocab_size(tokenizer);
    for (int64_t id = 0; id < size; id++) {
        int32_t token = (int32_t)id;
        kinds[id] = tokenizer_is_special(tokenizer, token)  ? MASKING_NEVER
                    : tokenizer_continues(tokenizer, token) ? MASKING_CONTINUES
                                                            : MASKING_BEGINS;
    }
}

/* Where the candidates begin, in order; starts[candidates] is not set. */
static int64_t find_candidates(const struct masking *m, const int32_t *ids, int64_t count,
                               int32_t *starts)
{
    int64_t candidates = 0;
    for (int64_t i = 0; i < count; i++) {
        uint8_t kind = m->kinds[ids[i]];
        bool goes_on = m->whole_words && kind == MASKING_CONTINUES && i > 0 &&
                       m->kinds[ids[i - 1]] != MASKING_NEVER;
        if (kind != MASKING_NEVER && !goes_on) {
            starts[candidates++] = (int32_t)i;
        }
    }
    return candidates;
}

/* Tokens of the candidate that begins at `start`. */
static int64_t candidate_tokens(const struct masking *m, const int32_t *ids, int64_t count,
                                int64_t start)
{
    int64_t end = start + 1;
    while (m->whole_words && end < count && m->kinds[ids[end]] == MASKING_CONTINUES) {
        end++;
    }
    return end - start;
}

/* Mark the tokens to be predicted: chosen[i] is 1. */
static void choose(const struct masking *m, uint64_t key, const int32_t *ids, int64_t count,
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
        int64_t tokens = candidate_tokens(m, ids, count, start);
        for (int64_t k = 0; k < tokens && tokens <= wanted; k++) {
            chosen[start + k] = 1;
        }
        wanted -= tokens <= wanted ? tokens : 0;
    }
}

static int32_t replacement(const struct masking *m, uint64_t key, int64_t position, int32_t id)
{
    uint64_t at = FATES + 2 * (uint64_t)position;
    float fate = random_uniform(key, at);
    if (fate < 0.8f) {
        return m->mask_id;
    }
    return fate < 0.9f ? id : (int32_t)random_below(key, at + 1, (uint64_t)m->vocab_size);
}

int64_t masking_apply(const struct masking *m, uint64_t seed, int64_t epoch, uint64_t example,
                      int32_t *ids, int64_t count, int32_t *positions, int32_t *labels,
                      int32_t *scratch)
{
    uint64_t key = random_key(seed, RANDOM_MASKING, (uint64_t)epoch, example);
    int64_t wanted = (int64_t)floor((double)count * m->probability + 0.5);
    wanted = wanted < 1 ? 1 : wanted > m->most ? m->most : wanted;
    int32_t *chosen = scratch + count;
    choose(m, key, ids, count, wanted, scratch, chosen);
    int64_t predictions = 0;
    for (int64_t i = 0; i < count; i++) {
        if (chosen[i] != 0) {
            positions[predictions] = (int32_t)i;
            labels[predictions++] = ids[i];
            ids[i] = replacement(m, key, i, ids[i]);
        }
    }
    return predictions;
}
