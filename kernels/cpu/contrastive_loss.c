/* The contrastive loss of text pairs. This file is compiled once, so that its results do not depend
 * on the instruction set. */
#include <string.h>

#include "kernels/contrastive_terms.h"
#include "kernels/cpu/cpu.h"

static void pool_text(const struct contrastive_pairs *b, const struct contrastive_text *text,
                      const float *rows)
{
    double *unit = b->units + text->index * b->width, squares = 0;
    for (int64_t c = 0; c < b->width; c++) {
        double sum = 0;
        for (int64_t i = 0; i < text->rows; i++) {
            sum += (double)rows[(text->first + i) * b->width + c];
        }
        unit[c] = sum / (double)text->rows;
        squares += unit[c] * unit[c];
    }
    double length = contrastive_length(squares);
    for (int64_t c = 0; c < b->width; c++) {
        unit[c] /= length;
    }
    b->lengths[text->index] = length;
}

status cpu_contrastive_loss_pool(struct kernels *k, const struct contrastive_pairs *batch,
                                 struct tensor rows, const struct contrastive_texts *texts)
{
    (void)k;
    for (int64_t i = 0; i < TEXTS_PER_PAIR * texts->pairs; i++) {
        const struct contrastive_text text = contrastive_get_text(batch, texts, i);
        pool_text(batch, &text, rows.data);
    }
    return STATUS_OK;
}

static double compute_dot(const double *a, const double *b, int64_t width)
{
    double sum = 0;
    for (int64_t c = 0; c < width; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

static void add_scaled(double *to, const double *from, double weight, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        to[c] += weight * from[c];
    }
}

/* Computes the loss of first text i against all second texts, and adds its gradients. Scores are
 * computed twice, so that they need no memory. */
static void add_text_loss(const struct contrastive_pairs *b, int64_t i, int64_t count)
{
    int64_t pair = TEXTS_PER_PAIR * b->width;
    const double *text = b->units + i * pair;
    struct contrastive_scores s = contrastive_begin();
    for (int64_t j = 0; j < count; j++) {
        double dot = compute_dot(text, b->units + j * pair + b->width, b->width);
        contrastive_add(&s, contrastive_score(dot), j, j == i);
    }
    b->results[CONTRASTIVE_RESULTS * i + CONTRASTIVE_LOSS] = contrastive_loss(&s);
    b->results[CONTRASTIVE_RESULTS * i + CONTRASTIVE_CORRECT] = s.best == i;
    for (int64_t j = 0; j < count; j++) {
        const double *other = b->units + j * pair + b->width;
        double score = contrastive_score(compute_dot(text, other, b->width));
        double gradient = contrastive_gradient(&s, score, j == i);
        add_scaled(b->gradients + i * pair, other, gradient, b->width);
        add_scaled(b->gradients + j * pair + b->width, text, gradient, b->width);
    }
}

status cpu_contrastive_loss_run(struct kernels *k, const struct contrastive_pairs *batch,
                                int64_t count)
{
    (void)k;
    memset(batch->gradients, 0,
           (size_t)(TEXTS_PER_PAIR * count * batch->width) * sizeof *batch->gradients);
    for (int64_t i = 0; i < count; i++) {
        add_text_loss(batch, i, count);
    }
    return STATUS_OK;
}

/* Computes the gradients of a text's rows. Normalization removes the component along the unit
 * vector. */
static void unpool_text(const struct contrastive_pairs *b, const struct contrastive_text *text,
                        float *rows)
{
    const double *unit = b->units + text->index * b->width;
    const double *gradient = b->gradients + text->index * b->width;
    double projection = compute_dot(unit, gradient, b->width);
    double scale = 1 / (b->lengths[text->index] * (double)text->rows);
    for (int64_t i = 0; i < text->rows; i++) {
        for (int64_t c = 0; c < b->width; c++) {
            rows[(text->first + i) * b->width + c] =
                contrastive_row_gradient(unit[c], gradient[c], projection, scale);
        }
    }
}

status cpu_contrastive_loss_sum(struct kernels *k, double *sums,
                                const struct contrastive_pairs *batch, int64_t first, int64_t count)
{
    (void)k;
    memset(sums, 0, CONTRASTIVE_SUMS * sizeof *sums);
    sums[CONTRASTIVE_SUM_PAIRS] = (double)count;
    for (int64_t i = first; i < first + count; i++) {
        const double *result = batch->results + CONTRASTIVE_RESULTS * (i % batch->size);
        sums[CONTRASTIVE_SUM_LOSS] += result[CONTRASTIVE_LOSS];
        sums[CONTRASTIVE_SUM_CORRECT] += result[CONTRASTIVE_CORRECT];
    }
    return STATUS_OK;
}

status cpu_contrastive_loss_backward(struct kernels *k, struct tensor gradients,
                                     const struct contrastive_pairs *batch,
                                     const struct contrastive_texts *texts)
{
    (void)k;
    for (int64_t i = 0; i < TEXTS_PER_PAIR * texts->pairs; i++) {
        const struct contrastive_text text = contrastive_get_text(batch, texts, i);
        unpool_text(batch, &text, gradients.data);
    }
    return STATUS_OK;
}
