/* Scores of a whole validation set, computed from all predictions and labels: classification
 * scores, correlation coefficients and SQuAD answer scores.
 *
 * Source    scikit-learn for classes (0 where a quotient is undefined), SciPy for correlations,
 *           SQuAD's evaluation script for answers */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct scores_prf {
    double precision, recall, f1;
};

struct scores_class {
    int64_t correct, predicted, support; /* support: examples with this label */
    struct scores_prf score;
};

/* Averages over classes. `macro` and `weighted` average the classes that are predicted or labeled
 * at least once, as in scikit-learn; `weighted` uses the support as weight. `micro` is computed
 * from the sum of all counts. It equals the accuracy if each example has one label. */
struct scores_summary {
    int64_t count; /* labeled examples */
    double accuracy;
    struct scores_prf macro, micro, weighted;
};

/* scores_count - count one example; examples with a negative label are skipped.
 *
 * Shapes    each [classes], zero before the first example; prediction, label < classes */
void scores_count(struct scores_class *each, int32_t prediction, int32_t label);

/* scores_average - compute the score of each class and the averages from the counts.
 *
 * Shapes    each [classes] */
void scores_average(struct scores_class *each, int32_t classes, struct scores_summary *out);

/* scores_pearson - compute Pearson's r; NaN if x or y is constant or count < 2.
 *
 * Shapes    x, y [count] */
double scores_pearson(const double *x, const double *y, int64_t count);

/* scores_spearman - compute Spearman's rho; equal values share the mean of their ranks.
 *
 * Shapes    x, y [count]
 * Errors    STATUS_INTERNAL if memory runs out */
status scores_spearman(const double *x, const double *y, int64_t count, double *out);

struct scores_answer {
    double exact_match; /* 0 or 1 */
    double f1;          /* of the words of prediction and reference answer */
};

/* scores_compare_answer - compare a prediction with several reference answers.
 *
 * Each score is the maximum over the references. Without references only the empty prediction is
 * correct.
 *
 * Errors    STATUS_INTERNAL if memory runs out */
status scores_compare_answer(const char *prediction, const char *const *answers, int count,
                             struct scores_answer *out);
