#include "trainer/inference/answer_span.h"

#include <math.h>

/* The logarithm of the sum of exponentials of one of the two columns. */
static double log_sum(const float *outputs, int64_t tokens, int column)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t t = 0; t < tokens; t++) {
        largest = fmax(largest, (double)outputs[2 * t + column]);
    }
    for (int64_t t = 0; t < tokens; t++) {
        sum += exp((double)outputs[2 * t + column] - largest);
    }
    return largest + log(sum);
}

static struct span finish(const float *outputs, int64_t tokens, int64_t first, int64_t last)
{
    double score = (double)outputs[2 * first] + (double)outputs[2 * last + 1];
    double all = log_sum(outputs, tokens, 0) + log_sum(outputs, tokens, 1);
    return (struct span){first, last, score, exp(score - all)};
}

struct span span_best(const float *outputs, int64_t tokens, int64_t first, int64_t count,
                      int64_t most)
{
    int64_t best_first = first, best_last = first;
    double best = -INFINITY;
    for (int64_t b = first; b < first + count; b++) {
        for (int64_t e = b; e < first + count && e < b + most; e++) {
            double score = (double)outputs[2 * b] + (double)outputs[2 * e + 1];
            if (score > best) {
                best = score;
                best_first = b;
                best_last = e;
            }
        }
    }
    return finish(outputs, tokens, best_first, best_last);
}

struct span span_none(const float *outputs, int64_t tokens)
{
    return finish(outputs, tokens, 0, 0);
}
