/* Compares metrics of texts with sacreBLEU and rouge-score (make_metric_reference.py). */
#include <jansson.h>
#include <string.h>

#include "datasets/rows/jsonl.h"
#include "tests/check.h"
#include "trainer/evaluation/text_scores.h"

enum { ROWS = 2000 };

static const double tolerance = 1e-9;
static const char version[] = "2.6.0";

static json_t *rows[ROWS];
static int row_count;

static status keep_row(void *user, struct jsonl_row *row)
{
    (void)user;
    CHECK(row_count < ROWS);
    rows[row_count++] = row->value;
    row->value = NULL;
    return STATUS_OK;
}

static void add_rows(struct text_scores *s, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        const char *prediction, *reference;
        size_t bytes, reference_bytes;
        CHECK_OK(jsonl_get_string(rows[i], "prediction", &prediction, &bytes));
        CHECK_OK(jsonl_get_string(rows[i], "reference", &reference, &reference_bytes));
        CHECK_OK(text_scores_add(s, prediction, bytes, reference, reference_bytes));
    }
}

/* Checks that the signature is the same as in sacreBLEU, with the prefix of this program. */
static void check_signature(const struct text_scores *s, enum text_metric metric,
                            const json_t *expected)
{
    char signature[TEXT_SIGNATURE_BYTES], both[TEXT_SIGNATURE_BYTES];
    const char *text = json_string_value(expected), *prefix = "version:";
    text_scores_signature(s, metric, version, signature);
    const char *found = strstr(text, prefix);
    CHECK(found != NULL);
    snprintf(both, sizeof both, "%.*s%sbireme-%s", (int)(found - text), text, prefix,
             found + strlen(prefix));
    CHECK_TEXT(signature, both);
}

static void check_case(const json_t *c)
{
    int first = (int)json_integer_value(json_object_get(c, "first"));
    int count = (int)json_integer_value(json_object_get(c, "rows"));
    unsigned all = (1U << TEXT_METRICS) - 1;
    struct text_scores *s;
    for (int kind = 0; kind < BLEU_TOKENIZERS; kind++) {
        const json_t *bleu = json_object_get(json_object_get(c, "bleu"), bleu_tokenizer_name(kind));
        CHECK(json_is_real(bleu));
        CHECK_OK(text_scores_create(kind == BLEU_NONE ? all : 1U << TEXT_BLEU, kind, &s));
        add_rows(s, first, count);
        CHECK_NEAR(text_scores_value(s, TEXT_BLEU), json_real_value(bleu), tolerance);
        for (int metric = TEXT_CHRF; kind == BLEU_NONE && metric < TEXT_METRICS; metric++) {
            CHECK_NEAR(text_scores_value(s, metric),
                       json_number_value(json_object_get(c, text_scores_name(metric))), tolerance);
        }
        if (kind == BLEU_NONE) {
            check_signature(s, TEXT_BLEU, json_object_get(c, "bleu_signature"));
            check_signature(s, TEXT_CHRF, json_object_get(c, "chrf_signature"));
        }
        text_scores_destroy(&s);
    }
}

/* The sums of two parts equal the sums of all texts. */
static void test_sums(void)
{
    unsigned metrics = (1U << TEXT_METRICS) - 1;
    struct text_scores *parts[2], *all;
    int64_t count;
    CHECK_OK(text_scores_create(metrics, BLEU_13A, &all));
    add_rows(all, 0, 60);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(text_scores_create(metrics, BLEU_13A, &parts[i]));
        add_rows(parts[i], 20 * i, 20 + 20 * i);
    }
    double *sums = text_scores_sums(parts[0], &count);
    const double *more = text_scores_sums(parts[1], &count);
    for (int64_t i = 0; i < count; i++) {
        sums[i] += more[i];
    }
    for (int metric = 0; metric < TEXT_METRICS; metric++) {
        CHECK_NEAR(text_scores_value(parts[0], metric), text_scores_value(all, metric), tolerance);
    }
    text_scores_destroy(&parts[0]);
    text_scores_destroy(&parts[1]);
    text_scores_destroy(&all);
}

/* ROUGE has no words in a text without ASCII letters and digits. The other metrics do. */
static void test_no_words(void)
{
    static const char text[] = "日本語。\n中文";
    struct text_scores *s;
    CHECK_OK(text_scores_create((1U << TEXT_METRICS) - 1, BLEU_CHAR, &s));
    CHECK_OK(text_scores_add(s, text, sizeof text - 1, text, sizeof text - 1));
    CHECK_NEAR(text_scores_value(s, TEXT_BLEU), 100, tolerance);
    CHECK_NEAR(text_scores_value(s, TEXT_ROUGELSUM), 0, tolerance);
    CHECK_NEAR(text_scores_value(s, TEXT_EXACT_MATCH), 1, tolerance);
    text_scores_destroy(&s);
}

static void test_names(void)
{
    unsigned metrics;
    CHECK_OK(text_scores_parse("rougeL,bleu", &metrics));
    CHECK(metrics == (1U << TEXT_ROUGEL | 1U << TEXT_BLEU));
    CHECK_FAILS(text_scores_parse("bleu,rouge3", &metrics), STATUS_USAGE,
                "no metric 'rouge3' (did you mean 'rouge1'?)");
    CHECK_FAILS(text_scores_parse("", &metrics), STATUS_USAGE, "no metric ''");
}

int main(void)
{
    char rows_path[4096], cases_path[4096];
    const char *source = getenv("BIREME_SOURCE_DIR");
    snprintf(rows_path, sizeof rows_path, "%s/tests/reference/text_metrics.jsonl.xz", source);
    snprintf(cases_path, sizeof cases_path, "%s/tests/reference/text_metrics.json", source);
    struct jsonl_bad_rows bad = {0};
    int64_t bytes = 0;
    json_error_t error;
    CHECK_OK(jsonl_read(rows_path, &bad, &bytes, keep_row, NULL));
    CHECK_EQUAL(row_count, ROWS);
    json_t *cases = json_load_file(cases_path, 0, &error);
    CHECK(json_array_size(cases) > 5);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        check_case(json_array_get(cases, i));
    }
    test_sums();
    test_no_words();
    test_names();
    for (int i = 0; i < ROWS; i++) {
        json_decref(rows[i]);
    }
    json_decref(cases);
    return 0;
}
