#include "trainer/inference/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    int64_t vocabulary;
    struct candidate *candidates, *spare; /* [V] each */
    unsigned char *seen;                  /* [V] */
};

status sampler_create(int64_t vocabulary, struct sampler **out)
{
    *out = NULL;
    struct sampler *s = NULL;
    TRY(ALLOCATE(s, 1, "a sampler"));
    s->vocabulary = vocabulary;
    status result = ALLOCATE(s->candidates, vocabulary, "a sampler");
    KEEP_FIRST(result, ALLOCATE(s->spare, vocabulary, "a sampler"));
    KEEP_FIRST(result, ALLOCATE(s->seen, vocabulary, "a sampler"));
    if (result != STATUS_OK) {
        sampler_destroy(&s);
        return result;
    }
    *out = s;
    return STATUS_OK;
}

void sampler_destroy(struct sampler **s)
{
    if (*s != NULL) {
        free((*s)->candidates);
        free((*s)->spare);
        free((*s)->seen);
        free(*s);
        *s = NULL;
    }
}

void sampler_apply_penalty(const struct sampler *s, double repetition_penalty, float *logits,
                           const int32_t *ids, int64_t count)
{
    float penalty = (float)repetition_penalty;
    if (penalty == 1) {
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (!s->seen[ids[i]]) {
            s->seen[ids[i]] = 1;
            float *logit = &logits[ids[i]];
            *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
        }
    }
    for (int64_t i = 0; i < count; i++) {
        s->seen[ids[i]] = 0;
    }
}

/* Returns a key that descends with the logit. +0 and -0 have the same key. */
static uint32_t get_sort_key(float logit)
{
    union {
        float value;
        uint32_t bits;
    } u = {logit + 0.0f};
    return u.bits & 0x80000000u ? u.bits : ~(u.bits | 0x80000000u);
}

/* Sorts the candidates by descending logit; equal logits by ascending id, their order before. This
 * is a radix sort with three digits: it takes a tenth of the time of qsort. */
static void sort_candidates(struct sampler *s)
{
    enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, PASSES = 3 };
    for (int pass = 0; pass < PASSES; pass++) {
        int64_t begins[DIGITS + 1] = {0};
        int shift = pass * DIGIT_BITS;
        for (int64_t i = 0; i < s->vocabulary; i++) {
            begins[(get_sort_key(s->candidates[i].logit) >> shift) % DIGITS + 1]++;
        }
        for (int digit = 1; digit < DIGITS; digit++) {
            begins[digit] += begins[digit - 1];
        }
        for (int64_t i = 0; i < s->vocabulary; i++) {
            uint32_t digit = (get_sort_key(s->candidates[i].logit) >> shift) % DIGITS;
            s->spare[begins[digit]++] = s->candidates[i];
        }
        struct candidate *sorted = s->spare;
        s->spare = s->candidates;
        s->candidates = sorted;
    }
}

static status find_most_probable(const float *logits, int64_t count, int32_t *out)
{
    int64_t best = 0;
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(isfinite(logits[i]), STATUS_NOT_FINITE,
                "the logit of token %" PRId64 " is %g: the weights are damaged", i,
                (double)logits[i]);
        best = logits[i] > logits[best] ? i : best;
    }
    *out = (int32_t)best;
    return STATUS_OK;
}

/* Returns how many of the sorted candidates top-k and top-p keep. Replaces their logits by
 * unnormalized probabilities and sets *total to the sum of the kept ones. */
static int64_t apply_top_k_top_p(const struct sampler *s, const struct sampler_settings *settings,
                                 double *total)
{
    int64_t count = s->vocabulary;
    if (settings->top_k > 0 && settings->top_k < count) {
        count = settings->top_k;
    }
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        s->candidates[i].logit = expf(s->candidates[i].logit);
        sum += s->candidates[i].logit;
    }
    *total = sum;
    if (settings->top_p >= 1) {
        return count;
    }
    double cumulative = 0;
    for (int64_t i = 0; i < count; i++) {
        cumulative += s->candidates[i].logit;
        if (cumulative >= settings->top_p * sum) {
            *total = cumulative;
            return i + 1;
        }
    }
    return count;
}

status sampler_choose(struct sampler *s, const struct sampler_settings *settings,
                      const float *logits, uint64_t sample, uint64_t position, int32_t *out)
{
    int32_t best = 0;
    TRY(find_most_probable(logits, s->vocabulary, &best));
    *out = best;
    if (!(settings->temperature > 0)) {
        return STATUS_OK;
    }
    static const double lowest = -1e30; /* keeps logits within f32 at a tiny temperature */
    double temperature = settings->temperature;
    float top = logits[best];
    for (int64_t i = 0; i < s->vocabulary; i++) {
        double logit = fmax(((double)logits[i] - top) / temperature, lowest);
        s->candidates[i] = (struct candidate){(float)logit, (int32_t)i};
    }
    sort_candidates(s);
    double total = 0, cumulative = 0;
    int64_t count = apply_top_k_top_p(s, settings, &total);
    uint64_t key = random_key(settings->seed, RANDOM_SAMPLING, sample, 0);
    double drawn = random_uniform(key, position) * total;
    for (int64_t i = 0; i < count; i++) {
        cumulative += s->candidates[i].logit;
        *out = s->candidates[i].id;
        if (drawn < cumulative) {
            break;
        }
    }
    return STATUS_OK;
}

status sampler_log_sum(const float *logits, int64_t vocabulary, double *out)
{
    int32_t best = 0;
    TRY(find_most_probable(logits, vocabulary, &best));
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        sum += exp((double)(logits[i] - logits[best]));
    }
    *out = logits[best] + log(sum);
    return STATUS_OK;
}

status sampler_log_softmax(float *logits, int64_t vocabulary)
{
    double sum = 0;
    TRY(sampler_log_sum(logits, vocabulary, &sum));
    for (int64_t i = 0; i < vocabulary; i++) {
        logits[i] = (float)(logits[i] - sum);
    }
    return STATUS_OK;
}
