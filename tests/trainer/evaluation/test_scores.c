/* Compares metrics with scikit-learn, SciPy and SQuAD's script (make_grade_reference.py). */
#include <jansson.h>

#include "datasets/text/answer_text.h"
#include "tests/check.h"
#include "trainer/evaluation/scores.h"

static const double tolerance = 1e-12;

static const json_t *get_value(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    CHECK(value != NULL);
    return value;
}

static double get_number(const json_t *object, const char *key)
{
    return json_number_value(get_value(object, key));
}

static double get_list_number(const json_t *object, const char *key, size_t index)
{
    return json_number_value(json_array_get(get_value(object, key), index));
}

static int32_t *read_integers(const json_t *list)
{
    int32_t *out = calloc(json_array_size(list) + 1, sizeof *out);
    CHECK(out != NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return out;
}

static double *read_numbers(const json_t *list)
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
    CHECK_NEAR(s.precision, get_list_number(c, name, 0), tolerance);
    CHECK_NEAR(s.recall, get_list_number(c, name, 1), tolerance);
    CHECK_NEAR(s.f1, get_list_number(c, name, 2), tolerance);
}

static void check_classes(const json_t *c)
{
    struct scores_class each[16] = {0};
    struct scores_summary all;
    int32_t classes = (int32_t)json_integer_value(get_value(c, "classes"));
    int32_t *labels = read_integers(get_value(c, "labels")),
            *predictions = read_integers(get_value(c, "predictions"));
    int64_t count = (int64_t)json_array_size(get_value(c, "labels"));
    CHECK(classes <= 16);
    for (int64_t i = 0; i < count; i++) {
        scores_count(each, predictions[i], labels[i]);
    }
    scores_average(each, classes, &all);
    CHECK_NEAR(all.accuracy, get_number(c, "accuracy"), tolerance);
    for (int32_t i = 0; i < classes; i++) {
        CHECK_NEAR(each[i].score.precision, get_list_number(c, "precision", (size_t)i), tolerance);
        CHECK_NEAR(each[i].score.recall, get_list_number(c, "recall", (size_t)i), tolerance);
        CHECK_NEAR(each[i].score.f1, get_list_number(c, "f1", (size_t)i), tolerance);
        CHECK_NEAR((double)each[i].support, get_list_number(c, "support", (size_t)i), 0);
    }
    check_score(all.macro, c, "macro");
    check_score(all.micro, c, "micro");
    check_score(all.weighted, c, "weighted");
    free(labels);
    free(predictions);
}

static void check_correlation(const json_t *c)
{
    double *x = read_numbers(get_value(c, "x")), *y = read_numbers(get_value(c, "y")), spearman = 0;
    int64_t count = (int64_t)json_array_size(get_value(c, "x"));
    CHECK_NEAR(scores_pearson(x, y, count), get_number(c, "pearson"), tolerance);
    CHECK_OK(scores_spearman(x, y, count, &spearman));
    CHECK_NEAR(spearman, get_number(c, "spearman"), tolerance);
    free(x);
    free(y);
}

static void check_answer(const json_t *c)
{
    const char *prediction = json_string_value(get_value(c, "prediction")), *answers[8];
    int count = (int)json_array_size(get_value(c, "answers"));
    char *normalized = NULL;
    struct scores_answer score;
    for (int i = 0; i < count; i++) {
        answers[i] = json_string_value(json_array_get(get_value(c, "answers"), (size_t)i));
    }
    CHECK_OK(answer_text_normalize(prediction, &normalized));
    CHECK_TEXT(normalized, json_string_value(get_value(c, "normal")));
    CHECK_OK(scores_compare_answer(prediction, answers, count, &score));
    CHECK_NEAR(score.exact_match, get_number(c, "exact"), 0);
    CHECK_NEAR(score.f1, get_number(c, "f1"), tolerance);
    free(normalized);
}

/* Undefined correlations are NaN, and text that is not UTF-8 is accepted. */
static void check_edges(void)
{
    const double same[] = {0.1, 0.1, 0.1}, rising[] = {1, 2, 3};
    double spearman = 0;
    char *normalized = NULL;
    struct scores_summary all;
    CHECK(isnan(scores_pearson(same, rising, 3)) && isnan(scores_pearson(rising, same, 3)));
    CHECK(isnan(scores_pearson(rising, rising, 1)));
    CHECK_OK(scores_spearman(rising, same, 3, &spearman));
    CHECK(isnan(spearman));
    CHECK_OK(answer_text_normalize("\xff\xfe the \xc3", &normalized));
    CHECK_TEXT(normalized, "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd");
    free(normalized);
    scores_average(&(struct scores_class){0}, 0, &all);
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
    json_array_foreach(get_value(file, "classes"), i, c)
    {
        check_classes(c);
    }
    json_array_foreach(get_value(file, "correlations"), i, c)
    {
        check_correlation(c);
    }
    json_array_foreach(get_value(file, "answers"), i, c)
    {
        check_answer(c);
    }
    check_edges();
    json_decref(file);
    return 0;
}
