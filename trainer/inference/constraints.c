#include "trainer/inference/constraints.h"

#include <float.h>
#include <string.h>

bool constraints_are_active(const struct constraints *c, int64_t tokenizer_ids, int64_t vocabulary)
{
    return tokenizer_ids < vocabulary || c->min_new_tokens > 0 || c->no_repeat_ngram_size > 0 ||
           c->has_first || c->has_last || c->bad_words > 0;
}

static void exclude_token(float *logits, int64_t vocabulary, int32_t id)
{
    if (id >= 0 && id < vocabulary) {
        logits[id] = -FLT_MAX;
    }
}

/* Excludes the tokens that would complete an n-gram for the second time. */
static void exclude_ngrams(const struct constraints_sequence *s, int64_t size, float *logits,
                           int64_t vocabulary)
{
    const int32_t *last = s->ids + s->count - (size - 1);
    for (int64_t i = 0; i + size <= s->count; i++) {
        if (memcmp(s->ids + i, last, (size_t)(size - 1) * sizeof *last) == 0) {
            exclude_token(logits, vocabulary, s->ids[i + size - 1]);
        }
    }
}

/* Excludes the last token of each bad word with its other tokens at the end of the sequence. */
static void exclude_bad_words(const struct constraints *c, const struct constraints_sequence *s,
                              float *logits, int64_t vocabulary)
{
    const int32_t *word = c->bad_tokens;
    for (int i = 0; i < c->bad_words; i++) {
        int64_t before = c->bad_lengths[i] - 1;
        if (before <= s->count &&
            memcmp(s->ids + s->count - before, word, (size_t)before * sizeof *word) == 0) {
            exclude_token(logits, vocabulary, word[before]);
        }
        word += before + 1;
    }
}

static void force_token(float *logits, int64_t vocabulary, int32_t id)
{
    for (int64_t i = 0; i < vocabulary; i++) {
        logits[i] = i == id ? 0 : -FLT_MAX;
    }
}

void constraints_apply(const struct constraints *c, const struct constraints_sequence *s,
                       float *logits, int64_t vocabulary)
{
    int64_t new_tokens = s->count - s->prompt_tokens;
    for (int64_t id = s->tokenizer_ids; id < vocabulary; id++) {
        exclude_token(logits, vocabulary, (int32_t)id);
    }
    if (c->has_last && s->count == s->limit - 1) {
        force_token(logits, vocabulary, c->last_token);
    } else if (c->has_first && new_tokens == 0) {
        force_token(logits, vocabulary, c->first_token);
    } else {
        if (c->no_repeat_ngram_size > 0 && s->count >= c->no_repeat_ngram_size) {
            exclude_ngrams(s, c->no_repeat_ngram_size, logits, vocabulary);
        }
        exclude_bad_words(c, s, logits, vocabulary);
        if (new_tokens < c->min_new_tokens) {
            exclude_token(logits, vocabulary, s->end_token);
        }
    }
}
