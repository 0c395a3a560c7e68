#include "trainer/inference/answer_span.h"

#include <math.h>

/* Computes the logarithm of the sum of exponentials of one column. */
static double log_sum_exp(const float *outputs, int64_t tokens, int column)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t t = 0; t < tokens; t++) {
        double x = (double)outputs[2 * t + column];
        largest = x > largest ? x : largest; /* gcc 12 for arm64 cannot compile fmax here */
    }
    for (int64_t t = 0; t < tokens; t++) {
        sum += exp((double)outputs[2 * t + column] - largest);
    }
    return largest + log(sum);
}

static struct answer_span make_span(const float *outputs, int64_t tokens, int64_t first,
                                    int64_t last)
{
    double score = (double)outputs[2 * first] + (double)outputs[2 * last + 1];
    double normalizer = log_sum_exp(outputs, tokens, 0) + log_sum_exp(outputs, tokens, 1);
    return (struct answer_span){first, last, score, exp(score - normalizer)};
}

struct answer_span answer_span_best(const float *outputs, int64_t tokens, int64_t first,
                                    int64_t count, int64_t max_tokens)
{
    int64_t best_first = first, best_last = first;
    double best = -INFINITY;
    for (int64_t begin = first; begin < first + count; begin++) {
        for (int64_t end = begin; end < first + count && end < begin + max_tokens; end++) {
            double score = (double)outputs[2 * begin] + (double)outputs[2 * end + 1];
            if (score > best) {
                best = score;
                best_first = begin;
                best_last = end;
            }
        }
    }
    return make_span(outputs, tokens, best_first, best_last);
}

struct answer_span answer_span_none(const float *outputs, int64_t tokens)
{
    return make_span(outputs, tokens, 0, 0);
}
