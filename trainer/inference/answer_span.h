/* The best span of a window's tokens, from how well an answer begins and ends at each (objective answer).
 *
 * Source    transformers' run_qa: the largest sum of begin and end, of spans that are not too long */
#pragma once

#include <stdint.h>

struct span {
    int64_t first, last; /* tokens */
    double score;        /* begin + end */
    double probability;  /* the product of both shares among all tokens */
};

enum { SPAN_TOKENS = 30 }; /* of an answer at most, as transformers has it */

/* span_best - within tokens [first, first + count), of at most `most` tokens. count is 1 at least.
 *
 * Shapes    outputs [tokens, 2]: begin, end */
struct span span_best(const float *outputs, int64_t tokens, int64_t first, int64_t count,
                      int64_t most);

/* span_none - how well it fits that there is no answer: begin and end at the first token. */
struct span span_none(const float *outputs, int64_t tokens);
