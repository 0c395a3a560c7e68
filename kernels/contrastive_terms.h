/* The formulas of contrastive_loss.h that the host and kernels share. A CUDA file must first
 * include gpu.cuh, and contrastive_loss.h in extern "C". */
#pragma once

#include <math.h>

#include "kernels/contrastive_loss.h"

#ifdef GPU_INLINE
#define CONTRASTIVE_INLINE GPU_INLINE
#define CONTRASTIVE_MULTIPLY(a, b) __dmul_rn((a), (b)) /* never fused with a sum */
#else
#define CONTRASTIVE_INLINE static inline
#define CONTRASTIVE_MULTIPLY(a, b) ((a) * (b))
#endif

/* The scores of one first text so far. sum: of exp(score - largest). */
struct contrastive_scores {
    double largest, sum, own;
    int64_t best; /* second text with the largest score; the first one of several */
};

/* contrastive_score - return the score of two unit vectors with this dot product. */
CONTRASTIVE_INLINE double contrastive_score(double dot)
{
    return CONTRASTIVE_MULTIPLY(20.0, dot);
}

/* contrastive_begin - return the scores before the first one is added. */
CONTRASTIVE_INLINE struct contrastive_scores contrastive_begin(void)
{
    struct contrastive_scores s = {-INFINITY, 0, 0, 0};
    return s;
}

/* contrastive_add - add the score of second text j. is_own: it belongs to the same pair. */
CONTRASTIVE_INLINE void contrastive_add(struct contrastive_scores *s, double score, int64_t j,
                                        bool is_own)
{
    double previous = s->largest;
    s->own = is_own ? score : s->own;
    s->best = score > previous ? j : s->best;
    s->largest = score > previous ? score : previous;
    s->sum = CONTRASTIVE_MULTIPLY(s->sum, exp(previous - s->largest)) + exp(score - s->largest);
}

/* contrastive_loss - return the loss after all scores have been added. */
CONTRASTIVE_INLINE double contrastive_loss(const struct contrastive_scores *s)
{
    return s->largest + log(s->sum) - s->own;
}

/* contrastive_gradient - return the gradient of the loss with respect to one dot product. */
CONTRASTIVE_INLINE double contrastive_gradient(const struct contrastive_scores *s, double score,
                                               bool is_own)
{
    double target = is_own ? 1 : 0;
    return CONTRASTIVE_MULTIPLY(20.0, exp(score - s->largest) / s->sum - target);
}

/* contrastive_row_gradient - return the gradient of an element of a row. unit and gradient: of the
 * same element of the text's vector. projection: unit . gradient; scale: 1 / (|m| rows). */
CONTRASTIVE_INLINE float contrastive_row_gradient(double unit, double gradient, double projection,
                                                  double scale)
{
    return (float)CONTRASTIVE_MULTIPLY(scale, gradient - CONTRASTIVE_MULTIPLY(projection, unit));
}
