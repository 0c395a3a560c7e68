/* The formulas of kernels/contrastive_loss.h, for the host and for kernels. */
#pragma once

#include "kernels/contrastive_loss.h"
#include "kernels/host_device.h"

/* CONTRASTIVE_SCALE - the factor of the dot products. */
#define CONTRASTIVE_SCALE 20.0

/* One text of a micro-batch: its rows, and its index in the arrays of the global batch. */
struct contrastive_text {
    int64_t first, rows, index;
};

/* contrastive_get_text - return text i of a micro-batch. */
HOST_DEVICE_INLINE struct contrastive_text contrastive_get_text(const struct contrastive_pairs *b,
                                                                const struct contrastive_texts *t,
                                                                int64_t i)
{
    int64_t pair = (t->first + i / TEXTS_PER_PAIR) % b->size;
    struct contrastive_text text = {t->cu_rows[i], t->cu_rows[i + 1] - t->cu_rows[i],
                                    TEXTS_PER_PAIR * pair + i % TEXTS_PER_PAIR};
    return text;
}

/* contrastive_length - return the length by which a vector is divided, as in
 * torch.nn.functional.normalize. */
HOST_DEVICE_INLINE double contrastive_length(double squares)
{
    return fmax(sqrt(squares), 1e-12);
}

/* A summary of the scores of one first text. sum is the sum of exp(score - largest), and own is the
 * score of the second text of the same pair. */
struct contrastive_scores {
    double largest, sum, own;
    int64_t best; /* second text with the largest score; the first one of several */
};

/* contrastive_score - return the score of two unit vectors with this dot product. */
HOST_DEVICE_INLINE double contrastive_score(double dot)
{
    return host_device_multiply(CONTRASTIVE_SCALE, dot);
}

/* contrastive_begin - return the scores before the first one is added. */
HOST_DEVICE_INLINE struct contrastive_scores contrastive_begin(void)
{
    struct contrastive_scores s = {-INFINITY, 0, 0, 0};
    return s;
}

/* contrastive_add - add the score of second text j. is_own: it belongs to the same pair. */
HOST_DEVICE_INLINE void contrastive_add(struct contrastive_scores *s, double score, int64_t j,
                                        bool is_own)
{
    double previous = s->largest;
    s->own = is_own ? score : s->own;
    s->best = score > previous ? j : s->best;
    s->largest = score > previous ? score : previous;
    s->sum = host_device_multiply(s->sum, exp(previous - s->largest)) + exp(score - s->largest);
}

/* contrastive_loss - return the loss after all scores have been added. */
HOST_DEVICE_INLINE double contrastive_loss(const struct contrastive_scores *s)
{
    return s->largest + log(s->sum) - s->own;
}

/* contrastive_gradient - return the gradient of the loss with respect to one dot product. */
HOST_DEVICE_INLINE double contrastive_gradient(const struct contrastive_scores *s, double score,
                                               bool is_own)
{
    double target = is_own ? 1 : 0;
    return host_device_multiply(CONTRASTIVE_SCALE, exp(score - s->largest) / s->sum - target);
}

/* contrastive_row_gradient - return the gradient of an element of a row.
 *
 * Units     unit, gradient: this element of the text's unit vector and of its gradient; projection:
 *           the dot product of both vectors; scale: 1 / (|m| rows) */
HOST_DEVICE_INLINE float contrastive_row_gradient(double unit, double gradient, double projection,
                                                  double scale)
{
    return (float)host_device_multiply(scale, gradient - host_device_multiply(projection, unit));
}
