/* precision = correct / predicted, recall = correct / support,
 * F1 = 2 correct / (predicted + support).
 * Pearson's r = sum dx dy / sqrt(sum dx^2 sum dy^2), where dx and dy are deviations from the means.
 *
 * Source    scikit-learn precision_recall_fscore_support; SciPy pearsonr, spearmanr;
 *           Rajpurkar et al. 2016, arXiv:1606.05250 */
#include "trainer/evaluation/scores.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/text/answer_text.h"

static double divide_or_zero(double numerator, double denominator)
{
    return denominator > 0 ? numerator / denominator : 0;
}

/* ---- classes ---- */

static struct scores_prf compute_prf(int64_t correct, int64_t predicted, int64_t support)
{
    return (struct scores_prf){divide_or_zero((double)correct, (double)predicted),
                               divide_or_zero((double)correct, (double)support),
                               divide_or_zero(2 * (double)correct, (double)(predicted + support))};
}

static void add_prf(struct scores_prf *sum, struct scores_prf score, double weight)
{
    sum->precision += weight * score.precision;
    sum->recall += weight * score.recall;
    sum->f1 += weight * score.f1;
}

static struct scores_prf divide_prf(struct scores_prf sum, double weight)
{
    return (struct scores_prf){divide_or_zero(sum.precision, weight),
                               divide_or_zero(sum.recall, weight), divide_or_zero(sum.f1, weight)};
}

void scores_count(struct scores_class *each, int32_t prediction, int32_t label)
{
    if (label >= 0) {
        each[label].support++;
        each[prediction].predicted++;
        each[label].correct += prediction == label;
    }
}

void scores_average(struct scores_class *each, int32_t classes, struct scores_summary *out)
{
    int64_t correct = 0, present = 0;
    struct scores_prf macro = {0}, weighted = {0};
    *out = (struct scores_summary){0};
    for (int32_t c = 0; c < classes; c++) {
        struct scores_class *entry = &each[c];
        entry->score = compute_prf(entry->correct, entry->predicted, entry->support);
        out->count += entry->support;
        correct += entry->correct;
        present += entry->predicted + entry->support > 0;
        add_prf(&macro, entry->score, 1);
        add_prf(&weighted, entry->score, (double)entry->support);
    }
    out->accuracy = divide_or_zero((double)correct, (double)out->count);
    out->micro = compute_prf(correct, out->count, out->count);
    out->macro = divide_prf(macro, (double)present);
    out->weighted = divide_prf(weighted, (double)out->count);
}

/* ---- correlations ---- */

static double compute_mean(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i];
    }
    return sum / (double)count;
}

double scores_pearson(const double *x, const double *y, int64_t count)
{
    if (count < 2) {
        return NAN;
    }
    double mean_x = compute_mean(x, count), mean_y = compute_mean(y, count), xx = 0, yy = 0, xy = 0;
    /* The deviations are no test for constant values: the mean may have a rounding error. */
    bool x_varies = false, y_varies = false;
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

struct indexed_value { /* in the order of number_compare */
    double value;
    int64_t index;
};

/* Computes ranks from 0; equal values share the mean of their ranks. */
static void compute_ranks(const double *x, int64_t count, struct indexed_value *order,
                          double *ranks)
{
    for (int64_t i = 0; i < count; i++) {
        order[i] = (struct indexed_value){x[i], i};
    }
    qsort(order, (size_t)count, sizeof *order, number_compare);
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && order[end].value == order[first].value; end++) {
        }
        for (int64_t i = first; i < end; i++) {
            ranks[order[i].index] = (double)(first + end - 1) / 2;
        }
    }
}

status scores_spearman(const double *x, const double *y, int64_t count, double *out)
{
    size_t n = (size_t)count + 1;
    struct indexed_value *order = NULL;
    double *ranks = NULL;
    status result = ALLOCATE(order, n, "the ranks of examples");
    KEEP_FIRST(result, ALLOCATE(ranks, 2 * n, "the ranks of examples"));
    if (result == STATUS_OK) {
        compute_ranks(x, count, order, ranks);
        compute_ranks(y, count, order, ranks + n);
        *out = scores_pearson(ranks, ranks + n, count);
    }
    free(order);
    free(ranks);
    return result;
}

/* ---- answers ---- */

/* The sorted words of a normalized answer; they point into text. */
struct words {
    char *text;
    char **words;
    int count;
};

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_words(struct words *w)
{
    free(w->text);
    free(w->words);
}

/* A normalized answer has single blanks, so at most every second byte begins a word. */
static status split_words(const char *text, char **normalized, struct words *out)
{
    *out = (struct words){0};
    TRY(answer_text_normalize(text, normalized));
    TRY(memory_copy_text(&out->text, *normalized, "the words of an answer"));
    TRY(ALLOCATE(out->words, strlen(*normalized) / 2 + 1, "the words of an answer"));
    char *rest = NULL;
    for (char *word = strtok_r(out->text, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        out->words[out->count++] = word;
    }
    qsort(out->words, (size_t)out->count, sizeof *out->words, compare_words);
    return STATUS_OK;
}

static double compute_f1(const struct words *a, const struct words *b)
{
    int common = 0;
    if (a->count == 0 || b->count == 0) {
        return a->count == b->count;
    }
    for (int i = 0, j = 0; i < a->count && j < b->count;) {
        int order = strcmp(a->words[i], b->words[j]);
        common += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return 2 * (double)common / (a->count + b->count);
}

static status update_best_answer(const char *prediction, const char *answer,
                                 struct scores_answer *best)
{
    struct words p = {0}, a = {0};
    char *p_normalized = NULL, *a_normalized = NULL;
    status result = split_words(prediction, &p_normalized, &p);
    if (result == STATUS_OK) {
        result = split_words(answer, &a_normalized, &a);
    }
    if (result == STATUS_OK) {
        best->exact_match = fmax(best->exact_match, strcmp(p_normalized, a_normalized) == 0);
        best->f1 = fmax(best->f1, compute_f1(&p, &a));
    }
    free_words(&p);
    free_words(&a);
    free(p_normalized);
    free(a_normalized);
    return result;
}

status scores_compare_answer(const char *prediction, const char *const *answers, int count,
                             struct scores_answer *out)
{
    *out = (struct scores_answer){0};
    for (int i = 0; i < count; i++) {
        TRY(update_best_answer(prediction, answers[i], out));
    }
    return count == 0 ? update_best_answer(prediction, "", out) : STATUS_OK;
}
