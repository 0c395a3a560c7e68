/* How good predictions are: figures of a whole held-out part, from all predictions and labels together.
 *
 * Classes as scikit-learn has them (0 where it would divide by 0), correlations as SciPy, answers as SQuAD's script. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct grade_score {
    double precision, recall, f1;
};

struct grade_class {
    int64_t right, predicted, labelled; /* labelled: its support */
    struct grade_score score;
};

/* Averages over classes. macro, weighted: of those that are predicted or labelled at least once, as in
 * scikit-learn; weighted by their support. micro: of all counts together, which is the accuracy where each
 * example has one label. */
struct grade_classes {
    int64_t count; /* labelled examples */
    double accuracy;
    struct grade_score macro, micro, weighted;
};

/* grade_count - one more example; with a negative label it is left out. grade_average - of all that were counted; fills
 * in each score.
 *
 * Shapes    each [classes], zero before the first example; prediction and label below classes */
void grade_count(struct grade_class *each, int32_t prediction, int32_t label);
void grade_average(struct grade_class *each, int32_t classes, struct grade_classes *out);

/* grade_classes - both, for examples in arrays; examples with a negative label are left out.
 *
 * Shapes    predictions, labels [count]; each [classes]
 * Errors    STATUS_INTERNAL where a prediction or label is no class */
status grade_classes(const int32_t *predictions, const int32_t *labels, int64_t count,
                     int32_t classes, struct grade_class *each, struct grade_classes *out);

/* grade_pearson - the correlation coefficient; NaN where x or y is constant or count < 2. */
double grade_pearson(const double *x, const double *y, int64_t count);

/* grade_spearman - the same of ranks; equal values share the mean of their ranks.
 *
 * Errors    STATUS_INTERNAL (memory) */
status grade_spearman(const double *x, const double *y, int64_t count, double *out);

struct grade_answer {
    double exact; /* 0 or 1 */
    double f1;    /* of the words that prediction and answer share */
};

/* grade_answer - the best over several right answers, each figure for itself. No answer at all: only the empty
 * prediction is right.
 *
 * Errors    STATUS_INTERNAL (memory) */
status grade_answer(const char *prediction, const char *const *answers, int count,
                    struct grade_answer *out);
