#include "trainer/evaluation/text_scores.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/evaluation/ngrams.h"
#include "trainer/evaluation/rouge.h"

enum { BLEU_ORDERS = 4, CHRF_ORDERS = 6, CHRF_BETA = 2, NAME_BYTES = 32 };

/* The scores of ROUGE are rounded to this fraction of 1. Sums of 2^20 texts are then exact, so that
 * they do not depend on the order. */
#define ROUGE_UNITS 0x1p32

/* Places of the sums. */
enum {
    SUM_TEXTS,
    SUM_EXACT,
    SUM_ROUGE,
    SUM_LENGTH = SUM_ROUGE + ROUGE_SCORES, /* tokens of the texts */
    SUM_REFERENCE_LENGTH,                  /* tokens of the references */
    SUM_BLEU_TOTAL,                        /* n-grams of the texts, for each order */
    SUM_BLEU_MATCHES = SUM_BLEU_TOTAL + BLEU_ORDERS,
    SUM_CHRF_TOTAL = SUM_BLEU_MATCHES + BLEU_ORDERS, /* of texts with a reference of this order */
    SUM_CHRF_REFERENCE = SUM_CHRF_TOTAL + CHRF_ORDERS,
    SUM_CHRF_MATCHES = SUM_CHRF_REFERENCE + CHRF_ORDERS,
    SUMS = SUM_CHRF_MATCHES + CHRF_ORDERS
};

struct text_scores {
    unsigned metrics;
    enum bleu_tokenizer tokenizer;
    double sums[SUMS];
    struct ngrams_words words;
    struct ngrams_scratch scratch;
    struct text_buffer tokenized, other; /* of the tokenizer */
    struct token_list ids, reference_ids;
    struct rouge_text rouge, reference_rouge;
};

static const char *const names[TEXT_METRICS] = {
    [TEXT_BLEU] = "bleu",
    [TEXT_CHRF] = "chrf",
    [TEXT_ROUGE1] = "rouge1",
    [TEXT_ROUGE2] = "rouge2",
    [TEXT_ROUGEL] = "rougeL",
    [TEXT_ROUGELSUM] = "rougeLsum",
    [TEXT_EXACT_MATCH] = "exact_match",
};

const char *text_scores_name(enum text_metric metric)
{
    return names[metric];
}

static status parse_name(const char *name, size_t bytes, unsigned *metrics)
{
    for (int i = 0; i < TEXT_METRICS; i++) {
        if (strlen(names[i]) == bytes && memcmp(names[i], name, bytes) == 0) {
            *metrics |= 1U << i;
            return STATUS_OK;
        }
    }
    char word[NAME_BYTES];
    snprintf(word, sizeof word, "%.*s", (int)(bytes < NAME_BYTES ? bytes : NAME_BYTES), name);
    int nearest = text_nearest(word, names, TEXT_METRICS);
    RAISE(STATUS_USAGE,
          "there is no metric '%s'%s%s%s; give some of bleu, chrf, rouge1, rouge2, rougeL, "
          "rougeLsum and exact_match, separated by commas",
          word, nearest >= 0 ? " (did you mean '" : "", nearest >= 0 ? names[nearest] : "",
          nearest >= 0 ? "'?)" : "");
}

status text_scores_parse(const char *list, unsigned *metrics)
{
    *metrics = 0;
    for (bool more = true; more;) {
        size_t bytes = strcspn(list, ",");
        TRY(parse_name(list, bytes, metrics));
        more = list[bytes] == ',';
        list += bytes + more;
    }
    return STATUS_OK;
}

status text_scores_create(unsigned metrics, enum bleu_tokenizer tokenizer, struct text_scores **out)
{
    TRY(ALLOCATE(*out, 1, "the scores of texts"));
    (*out)->metrics = metrics;
    (*out)->tokenizer = tokenizer;
    return STATUS_OK;
}

void text_scores_destroy(struct text_scores **s)
{
    if (*s != NULL) {
        ngrams_free(&(*s)->words, &(*s)->scratch);
        text_buffer_free(&(*s)->tokenized);
        text_buffer_free(&(*s)->other);
        token_list_free(&(*s)->ids);
        token_list_free(&(*s)->reference_ids);
        rouge_text_free(&(*s)->rouge);
        rouge_text_free(&(*s)->reference_rouge);
        free(*s);
        *s = NULL;
    }
}

double *text_scores_sums(struct text_scores *s, int64_t *count)
{
    *count = SUMS;
    return s->sums;
}

/* ---- adding a text ---- */

static bool has_metric(const struct text_scores *s, enum text_metric metric)
{
    return (s->metrics >> metric & 1) != 0;
}

/* Reads the tokens of a text for BLEU. */
static status read_bleu_tokens(struct text_scores *s, const char *text, size_t bytes,
                               struct token_list *out)
{
    out->count = 0;
    TRY(bleu_tokenizer_apply(s->tokenizer, text, bytes, &s->tokenized, &s->other));
    return ngrams_append_words(&s->words, s->tokenized.bytes, s->tokenized.count, out);
}

/* Adds the n-grams of s->ids and s->reference_ids to the sums of each order. */
static status add_bleu(struct text_scores *s)
{
    s->sums[SUM_LENGTH] += (double)s->ids.count;
    s->sums[SUM_REFERENCE_LENGTH] += (double)s->reference_ids.count;
    for (int n = 1; n <= BLEU_ORDERS; n++) {
        int64_t matches;
        TRY(ngrams_count_matches(&s->scratch, &s->ids, &s->reference_ids, n, &matches));
        s->sums[SUM_BLEU_TOTAL + n - 1] += (double)ngrams_total(s->ids.count, n);
        s->sums[SUM_BLEU_MATCHES + n - 1] += (double)matches;
    }
    return STATUS_OK;
}

/* Adds the n-grams of characters to the sums of chrF. If the reference is too short for an order,
 * the n-grams of the text of this order are not counted. */
static status add_chrf(struct text_scores *s)
{
    for (int n = 1; n <= CHRF_ORDERS; n++) {
        int64_t matches, reference = ngrams_total(s->reference_ids.count, n);
        TRY(ngrams_count_matches(&s->scratch, &s->ids, &s->reference_ids, n, &matches));
        s->sums[SUM_CHRF_TOTAL + n - 1] +=
            reference > 0 ? (double)ngrams_total(s->ids.count, n) : 0;
        s->sums[SUM_CHRF_REFERENCE + n - 1] += (double)reference;
        s->sums[SUM_CHRF_MATCHES + n - 1] += (double)matches;
    }
    return STATUS_OK;
}

static status add_rouge(struct text_scores *s, const char *text, size_t bytes,
                        const char *reference, size_t reference_bytes)
{
    double scores[ROUGE_SCORES];
    TRY(rouge_read(&s->words, text, bytes, &s->rouge));
    TRY(rouge_read(&s->words, reference, reference_bytes, &s->reference_rouge));
    TRY(rouge_score(&s->scratch, &s->rouge, &s->reference_rouge, scores));
    for (int i = 0; i < ROUGE_SCORES; i++) {
        s->sums[SUM_ROUGE + i] += rint(scores[i] * ROUGE_UNITS) / ROUGE_UNITS;
    }
    return STATUS_OK;
}

status text_scores_add(struct text_scores *s, const char *text, size_t bytes, const char *reference,
                       size_t reference_bytes)
{
    bool has_rouge = (s->metrics & (1U << TEXT_ROUGE1 | 1U << TEXT_ROUGE2 | 1U << TEXT_ROUGEL |
                                    1U << TEXT_ROUGELSUM)) != 0;
    if (has_metric(s, TEXT_BLEU)) {
        TRY(read_bleu_tokens(s, text, bytes, &s->ids));
        TRY(read_bleu_tokens(s, reference, reference_bytes, &s->reference_ids));
        TRY(add_bleu(s));
    }
    if (has_metric(s, TEXT_CHRF)) {
        s->ids.count = s->reference_ids.count = 0;
        TRY(ngrams_append_characters(text, bytes, &s->ids));
        TRY(ngrams_append_characters(reference, reference_bytes, &s->reference_ids));
        TRY(add_chrf(s));
    }
    TRY(has_rouge ? add_rouge(s, text, bytes, reference, reference_bytes) : STATUS_OK);
    s->sums[SUM_EXACT] += bytes == reference_bytes && memcmp(text, reference, bytes) == 0;
    s->sums[SUM_TEXTS]++;
    return STATUS_OK;
}

/* ---- values ---- */

/* Computes BLEU with the smoothing "exp". The first order without a match has 1/2 matches, and each
 * further one has half as many as the one before. */
static double compute_bleu(const double *sums)
{
    double length = sums[SUM_LENGTH], reference = sums[SUM_REFERENCE_LENGTH];
    double logs = 0, smoothing = 1, all_matches = 0;
    for (int n = 0; n < BLEU_ORDERS; n++) {
        double matches = sums[SUM_BLEU_MATCHES + n], total = sums[SUM_BLEU_TOTAL + n];
        all_matches += matches;
        smoothing *= matches > 0 ? 1 : 2;
        logs += log(100 * (matches > 0 ? matches : 1 / smoothing) / total);
    }
    bool defined = all_matches > 0 && sums[SUM_BLEU_TOTAL + BLEU_ORDERS - 1] > 0;
    double penalty = length < reference ? exp(1 - reference / length) : 1;
    return defined ? penalty * exp(logs / BLEU_ORDERS) : 0;
}

static double compute_chrf(const double *sums)
{
    double precision = 0, recall = 0, beta = CHRF_BETA * CHRF_BETA;
    int orders = 0;
    for (int n = 0; n < CHRF_ORDERS; n++) {
        double total = sums[SUM_CHRF_TOTAL + n], reference = sums[SUM_CHRF_REFERENCE + n];
        if (total > 0 && reference > 0) {
            precision += sums[SUM_CHRF_MATCHES + n] / total;
            recall += sums[SUM_CHRF_MATCHES + n] / reference;
            orders++;
        }
    }
    return precision + recall > 0
               ? 100 * (1 + beta) * precision * recall / (beta * precision + recall) / orders
               : 0;
}

double text_scores_value(const struct text_scores *s, enum text_metric metric)
{
    double texts = s->sums[SUM_TEXTS];
    if (texts == 0) {
        return 0;
    }
    switch (metric) {
    case TEXT_BLEU:
        return compute_bleu(s->sums);
    case TEXT_CHRF:
        return compute_chrf(s->sums);
    case TEXT_EXACT_MATCH:
        return s->sums[SUM_EXACT] / texts;
    default:
        return s->sums[SUM_ROUGE + metric - TEXT_ROUGE1] / texts;
    }
}

void text_scores_signature(const struct text_scores *s, enum text_metric metric,
                           const char *version, char out[TEXT_SIGNATURE_BYTES])
{
    if (metric == TEXT_BLEU) {
        snprintf(out, TEXT_SIGNATURE_BYTES,
                 "nrefs:1|case:mixed|eff:no|tok:%s|smooth:exp|version:bireme-%s",
                 bleu_tokenizer_name(s->tokenizer), version);
    } else {
        snprintf(out, TEXT_SIGNATURE_BYTES,
                 "nrefs:1|case:mixed|eff:yes|nc:%d|nw:0|space:no|version:bireme-%s", CHRF_ORDERS,
                 version);
    }
}
