/* Selects an answer span from the outputs of a question-answering head (objective answer).
 *
 * The head scores each token as the first and as the last token of the answer.
 * Source    transformers' run_qa: largest sum of both scores among spans that are not too long */
#pragma once

#include <stdint.h>

struct answer_span {
    int64_t first, last; /* token indices, inclusive */
    double score;        /* begin score of `first` plus end score of `last` */
    double probability;  /* product of the softmax probabilities of `first` and `last` */
};

/* Maximum answer length in tokens; the default of transformers. */
enum { ANSWER_SPAN_TOKENS_MAX = 30 };

/* answer_span_best - find the span with the largest score within tokens [first, first + count).
 *
 * Shapes    outputs [tokens, 2]: begin score, end score; count >= 1
 * Units     max_tokens: maximum length of the span */
struct answer_span answer_span_best(const float *outputs, int64_t tokens, int64_t first,
                                    int64_t count, int64_t max_tokens);

/* answer_span_none - score the prediction "no answer", which is the span of token 0 alone.
 *
 * Shapes    outputs [tokens, 2]: begin score, end score */
struct answer_span answer_span_none(const float *outputs, int64_t tokens);
