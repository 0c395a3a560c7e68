/* Metrics against scikit-learn, SciPy and SQuAD's script (scripts/make_grade_reference.py). */
#include <jansson.h>

#include "datasets/tokenizer/answer_text.h"
#include "tests/check.h"
#include "trainer/evaluation/scores.h"

static const double tolerance = 1e-12;

static const json_t *at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    CHECK(value != NULL);
    return value;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(at(object, key));
}

static double entry(const json_t *object, const char *key, size_t index)
{
    return json_number_value(json_array_get(at(object, key), index));
}

static int32_t *integers(const json_t *list)
{
    int32_t *out = calloc(json_array_size(list) + 1, sizeof *out);
    CHECK(out != NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return out;
}

static double *numbers(const json_t *list)
{
    double *out = calloc(json_array_size(list) + 1, sizeof *out);
    CHECK(out != NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        out[i] = json_number_value(json_array_get(list, i));
    }
    return out;
}

static void check_score(struct scores_prf s, const json_t *c, const char *name)
{
    CHECK_NEAR(s.precision, entry(c, name, 0), tolerance);
    CHECK_NEAR(s.recall, entry(c, name, 1), tolerance);
    CHECK_NEAR(s.f1, entry(c, name, 2), tolerance);
}

static void check_classes(const json_t *c)
{
    struct scores_class each[16];
    struct scores_summary all;
    int32_t classes = (int32_t)json_integer_value(at(c, "classes"));
    int32_t *labels = integers(at(c, "labels")), *predictions = integers(at(c, "predictions"));
    int64_t count = (int64_t)json_array_size(at(c, "labels"));
    CHECK(classes <= 16);
    CHECK_OK(scores_compute_classes(predictions, labels, count, classes, each, &all));
    CHECK_NEAR(all.accuracy, number(c, "accuracy"), tolerance);
    for (int32_t i = 0; i < classes; i++) {
        CHECK_NEAR(each[i].score.precision, entry(c, "precision", (size_t)i), tolerance);
        CHECK_NEAR(each[i].score.recall, entry(c, "recall", (size_t)i), tolerance);
        CHECK_NEAR(each[i].score.f1, entry(c, "f1", (size_t)i), tolerance);
        CHECK_NEAR((double)each[i].support, entry(c, "support", (size_t)i), 0);
    }
    check_score(all.macro, c, "macro");
    check_score(all.micro, c, "micro");
    check_score(all.weighted, c, "weighted");
    predictions[0] = classes;
    labels[0] = 0;
    CHECK_FAILS(scores_compute_classes(predictions, labels, count, classes, each, &all),
                STATUS_INTERNAL, "example 0");
    free(labels);
    free(predictions);
}

static void check_correlation(const json_t *c)
{
    double *x = numbers(at(c, "x")), *y = numbers(at(c, "y")), spearman = 0;
    int64_t count = (int64_t)json_array_size(at(c, "x"));
    CHECK_NEAR(scores_pearson(x, y, count), number(c, "pearson"), tolerance);
    CHECK_OK(scores_spearman(x, y, count, &spearman));
    CHECK_NEAR(spearman, number(c, "spearman"), tolerance);
    free(x);
    free(y);
}

static void check_answer(const json_t *c)
{
    const char *prediction = json_string_value(at(c, "prediction")), *answers[8];
    int count = (int)json_array_size(at(c, "answers"));
    char *normal = NULL;
    struct scores_answer grade;
    for (int i = 0; i < count; i++) {
        answers[i] = json_string_value(json_array_get(at(c, "answers"), (size_t)i));
    }
    CHECK_OK(answer_text_normalize(prediction, &normal));
    CHECK(strcmp(normal, json_string_value(at(c, "normal"))) == 0);
    CHECK_OK(scores_compare_answer(prediction, answers, count, &grade));
    CHECK_NEAR(grade.exact_match, number(c, "exact"), 0);
    CHECK_NEAR(grade.f1, number(c, "f1"), tolerance);
    free(normal);
}

/* What cannot be said is no number, and broken text is no crash. */
static void check_edges(void)
{
    const double same[] = {0.1, 0.1, 0.1}, rising[] = {1, 2, 3};
    double spearman = 0;
    char *normal = NULL;
    struct scores_summary all;
    CHECK(isnan(scores_pearson(same, rising, 3)) && isnan(scores_pearson(rising, same, 3)));
    CHECK(isnan(scores_pearson(rising, rising, 1)));
    CHECK_OK(scores_spearman(rising, same, 3, &spearman));
    CHECK(isnan(spearman));
    CHECK_OK(answer_text_normalize("\xff\xfe the \xc3", &normal));
    CHECK(strcmp(normal, "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd") == 0);
    free(normal);
    CHECK_OK(scores_compute_classes(NULL, NULL, 0, 0, &(struct scores_class){0}, &all));
    CHECK(all.count == 0 && all.accuracy == 0 && all.macro.f1 == 0);
}

int main(void)
{
    char path[4096];
    json_error_t error;
    size_t i;
    const json_t *c;
    snprintf(path, sizeof path, "%s/tests/reference/grade.json", getenv("BIREME_SOURCE_DIR"));
    json_t *file = json_load_file(path, 0, &error);
    CHECK(file != NULL);
    json_array_foreach(at(file, "classes"), i, c)
    {
        check_classes(c);
    }
    json_array_foreach(at(file, "correlations"), i, c)
    {
        check_correlation(c);
    }
    json_array_foreach(at(file, "answers"), i, c)
    {
        check_answer(c);
    }
    check_edges();
    json_decref(file);
    return 0;
}
