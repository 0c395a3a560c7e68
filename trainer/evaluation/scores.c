/* Precision = right / predicted, recall = right / labelled, F1 = 2 right / (predicted + labelled).
 * Pearson's r = sum dx dy / sqrt(sum dx^2 sum dy^2) with deviations from the means.
 *
 * Source    scikit-learn precision_recall_fscore_support; SciPy pearsonr, spearmanr; Rajpurkar et al. 2016,
 *           arXiv:1606.05250 */
#include "trainer/evaluation/scores.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/answer_text.h"

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- classes ---- */

static struct grade_score score_of(int64_t right, int64_t predicted, int64_t labelled)
{
    return (struct grade_score){share((double)right, (double)predicted),
                                share((double)right, (double)labelled),
                                share(2 * (double)right, (double)(predicted + labelled))};
}

static void add_score(struct grade_score *sum, struct grade_score score, double weight)
{
    sum->precision += weight * score.precision;
    sum->recall += weight * score.recall;
    sum->f1 += weight * score.f1;
}

static struct grade_score mean_score(struct grade_score sum, double weight)
{
    return (struct grade_score){share(sum.precision, weight), share(sum.recall, weight),
                                share(sum.f1, weight)};
}

void grade_count(struct grade_class *each, int32_t prediction, int32_t label)
{
    if (label >= 0) {
        each[label].labelled++;
        each[prediction].predicted++;
        each[label].right += prediction == label;
    }
}

void grade_average(struct grade_class *each, int32_t classes, struct grade_classes *out)
{
    int64_t right = 0, present = 0;
    struct grade_score macro = {0}, weighted = {0};
    *out = (struct grade_classes){0};
    for (int32_t c = 0; c < classes; c++) {
        struct grade_class *one = &each[c];
        one->score = score_of(one->right, one->predicted, one->labelled);
        out->count += one->labelled;
        right += one->right;
        present += one->predicted + one->labelled > 0;
        add_score(&macro, one->score, 1);
        add_score(&weighted, one->score, (double)one->labelled);
    }
    out->accuracy = share((double)right, (double)out->count);
    out->micro = score_of(right, out->count, out->count);
    out->macro = mean_score(macro, (double)present);
    out->weighted = mean_score(weighted, (double)out->count);
}

status grade_classes(const int32_t *predictions, const int32_t *labels, int64_t count,
                     int32_t classes, struct grade_class *each, struct grade_classes *out)
{
    memset(each, 0, (size_t)classes * sizeof *each);
    for (int64_t i = 0; i < count; i++) {
        int32_t p = predictions[i], l = labels[i];
        REQUIRE(l < 0 || (p >= 0 && p < classes && l < classes), STATUS_INTERNAL,
                "example %lld: prediction %d and label %d of %d classes", (long long)i, p, l,
                classes);
        grade_count(each, p, l);
    }
    grade_average(each, classes, out);
    return STATUS_OK;
}

/* ---- correlations ---- */

static double mean_of(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i];
    }
    return sum / (double)count;
}

double grade_pearson(const double *x, const double *y, int64_t count)
{
    if (count < 2) {
        return NAN;
    }
    double mean_x = mean_of(x, count), mean_y = mean_of(y, count), xx = 0, yy = 0, xy = 0;
    bool x_varies = false, y_varies = false; /* the mean of equal values may be off by a rounding */
    for (int64_t i = 0; i < count; i++) {
        double dx = x[i] - mean_x, dy = y[i] - mean_y;
        x_varies = x_varies || x[i] != x[0];
        y_varies = y_varies || y[i] != y[0];
        xx += dx * dx;
        yy += dy * dy;
        xy += dx * dy;
    }
    return x_varies && y_varies ? fmax(-1, fmin(1, xy / (sqrt(xx) * sqrt(yy)))) : NAN;
}

struct placed {
    double value;
    int64_t index;
};

static int by_value(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* From 0; equal values get the mean of their ranks. */
static void rank(const double *x, int64_t count, struct placed *order, double *ranks)
{
    for (int64_t i = 0; i < count; i++) {
        order[i] = (struct placed){x[i], i};
    }
    qsort(order, (size_t)count, sizeof *order, by_value);
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && order[end].value == order[first].value; end++) {
        }
        for (int64_t i = first; i < end; i++) {
            ranks[order[i].index] = (double)(first + end - 1) / 2;
        }
    }
}

status grade_spearman(const double *x, const double *y, int64_t count, double *out)
{
    size_t n = (size_t)count + 1;
    struct placed *order = malloc(n * sizeof *order);
    double *ranks = malloc(2 * n * sizeof *ranks);
    bool there = order != NULL && ranks != NULL;
    if (there) {
        rank(x, count, order, ranks);
        rank(y, count, order, ranks + n);
        *out = grade_pearson(ranks, ranks + n, count);
    }
    free(order);
    free(ranks);
    REQUIRE(there, STATUS_INTERNAL, "out of memory for the ranks of %lld examples",
            (long long)count);
    return STATUS_OK;
}

/* ---- answers ---- */

/* The words of a normal form, sorted; they point into it. */
struct words {
    char *text;
    char **words;
    int count;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void words_destroy(struct words *w)
{
    free(w->text);
    free(w->words);
}

/* The normal form has single blanks, so at most every second byte begins a word. */
static status words_create(const char *text, char **normal, struct words *out)
{
    *out = (struct words){0};
    TRY(answer_text_normalise(text, normal));
    out->text = strdup(*normal);
    out->words = calloc(strlen(*normal) / 2 + 1, sizeof *out->words);
    REQUIRE(out->text != NULL && out->words != NULL, STATUS_INTERNAL,
            "out of memory for an answer's words");
    char *rest = NULL;
    for (char *word = strtok_r(out->text, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        out->words[out->count++] = word;
    }
    qsort(out->words, (size_t)out->count, sizeof *out->words, by_text);
    return STATUS_OK;
}

static double f1_of(const struct words *a, const struct words *b)
{
    int same = 0;
    if (a->count == 0 || b->count == 0) {
        return a->count == b->count;
    }
    for (int i = 0, j = 0; i < a->count && j < b->count;) {
        int order = strcmp(a->words[i], b->words[j]);
        same += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return 2 * (double)same / (a->count + b->count);
}

static status compare(const char *prediction, const char *answer, struct grade_answer *best)
{
    struct words p = {0}, a = {0};
    char *p_normal = NULL, *a_normal = NULL;
    status result = words_create(prediction, &p_normal, &p);
    if (result == STATUS_OK) {
        result = words_create(answer, &a_normal, &a);
    }
    if (result == STATUS_OK) {
        best->exact = fmax(best->exact, strcmp(p_normal, a_normal) == 0);
        best->f1 = fmax(best->f1, f1_of(&p, &a));
    }
    words_destroy(&p);
    words_destroy(&a);
    free(p_normal);
    free(a_normal);
    return result;
}

status grade_answer(const char *prediction, const char *const *answers, int count,
                    struct grade_answer *out)
{
    *out = (struct grade_answer){0};
    for (int i = 0; i < count; i++) {
        TRY(compare(prediction, answers[i], out));
    }
    return count == 0 ? compare(prediction, "", out) : STATUS_OK;
}
