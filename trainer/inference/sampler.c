#include "trainer/inference/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampler_settings settings;
    int64_t vocabulary;
    struct candidate *candidates; /* [V] */
    unsigned char *seen;          /* [V] */
};

status sampler_create(const struct sampler_settings *settings, int64_t vocabulary,
                      struct sampler **out)
{
    *out = NULL;
    struct sampler *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory for a sampler");
    *s = (struct sampler){.settings = *settings, .vocabulary = vocabulary};
    s->candidates = malloc((size_t)vocabulary * sizeof *s->candidates);
    s->seen = calloc((size_t)vocabulary, 1);
    if (s->candidates == NULL || s->seen == NULL) {
        sampler_destroy(&s);
        RAISE(STATUS_INTERNAL, "out of memory for a sampler");
    }
    *out = s;
    return STATUS_OK;
}

void sampler_destroy(struct sampler **s)
{
    if (*s != NULL) {
        free((*s)->candidates);
        free((*s)->seen);
        free(*s);
        *s = NULL;
    }
}

void sampler_apply_penalty(const struct sampler *s, float *logits, const int32_t *ids,
                           int64_t count)
{
    float penalty = (float)s->settings.repetition_penalty;
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

static int compare_logits(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
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
static int64_t apply_top_k_top_p(const struct sampler *s, double *total)
{
    int64_t count = s->vocabulary;
    if (s->settings.top_k > 0 && s->settings.top_k < count) {
        count = s->settings.top_k;
    }
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        s->candidates[i].logit = expf(s->candidates[i].logit);
        sum += s->candidates[i].logit;
    }
    *total = sum;
    if (s->settings.top_p >= 1) {
        return count;
    }
    double cumulative = 0;
    for (int64_t i = 0; i < count; i++) {
        cumulative += s->candidates[i].logit;
        if (cumulative >= s->settings.top_p * sum) {
            *total = cumulative;
            return i + 1;
        }
    }
    return count;
}

status sampler_choose(struct sampler *s, float *logits, uint64_t sample, uint64_t position,
                      int32_t *out)
{
    int32_t best = 0;
    TRY(find_most_probable(logits, s->vocabulary, &best));
    *out = best;
    if (!(s->settings.temperature > 0)) {
        return STATUS_OK;
    }
    static const double lowest = -1e30; /* keeps logits within f32 at a tiny temperature */
    double temperature = s->settings.temperature;
    float top = logits[best];
    for (int64_t i = 0; i < s->vocabulary; i++) {
        double logit = fmax(((double)logits[i] - top) / temperature, lowest);
        s->candidates[i] = (struct candidate){(float)logit, (int32_t)i};
    }
    qsort(s->candidates, (size_t)s->vocabulary, sizeof *s->candidates, compare_logits);
    double total = 0, cumulative = 0;
    int64_t count = apply_top_k_top_p(s, &total);
    uint64_t key = random_key(s->settings.seed, RANDOM_SAMPLING, sample, 0);
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

status sampler_log_softmax(float *logits, int64_t vocabulary)
{
    int32_t best = 0;
    TRY(find_most_probable(logits, vocabulary, &best));
    float top = logits[best];
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        sum += exp((double)(logits[i] - top));
    }
    float shift = top + (float)log(sum);
    for (int64_t i = 0; i < vocabulary; i++) {
        logits[i] -= shift;
    }
    return STATUS_OK;
}
