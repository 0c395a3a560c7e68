/* The loss is defined in contrastive_loss.h. */
#include "trainer/objective/contrastive_loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static const double score_scale = 20;

status contrastive_loss_create(int64_t size, int64_t width, struct contrastive_batch *out)
{
    int64_t values = TEXTS_PER_PAIR * size * width;
    status result = STATUS_OK;
    *out = (struct contrastive_batch){.size = size, .width = width};
    /* the last value is the number of failed ranks */
    TRY_GOTO(result, failed, ALLOCATE(out->unit_vectors, values + 1, "the vectors of pairs"));
    TRY_GOTO(result, failed, ALLOCATE(out->gradients, values, "the gradients of pairs"));
    TRY_GOTO(result, failed, ALLOCATE(out->losses, size, "the losses of pairs"));
    TRY_GOTO(result, failed, ALLOCATE(out->correct, size, "the scores of pairs"));
    return STATUS_OK;
failed:
    contrastive_loss_destroy(out);
    return result;
}

void contrastive_loss_destroy(struct contrastive_batch *batch)
{
    free(batch->unit_vectors);
    free(batch->gradients);
    free(batch->losses);
    free(batch->correct);
    *batch = (struct contrastive_batch){0};
}

void contrastive_loss_clear(struct contrastive_batch *batch)
{
    memset(batch->unit_vectors, 0,
           (size_t)(TEXTS_PER_PAIR * batch->size * batch->width) * sizeof *batch->unit_vectors);
    memset(batch->losses, 0, (size_t)batch->size * sizeof *batch->losses);
    memset(batch->correct, 0, (size_t)batch->size * sizeof *batch->correct);
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
static void add_text_loss(struct contrastive_batch *batch, int64_t i, int64_t count)
{
    int64_t pair = TEXTS_PER_PAIR * batch->width;
    const double *text = batch->unit_vectors + i * pair;
    double largest = -INFINITY, sum = 0, own_score = 0;
    int64_t best = 0;
    for (int64_t j = 0; j < count; j++) {
        double score =
            score_scale *
            compute_dot(text, batch->unit_vectors + j * pair + batch->width, batch->width);
        own_score = j == i ? score : own_score;
        best = score > largest ? j : best;
        double previous = largest;
        largest = score > largest ? score : largest;
        sum = sum * exp(previous - largest) + exp(score - largest);
    }
    batch->losses[i] = largest + log(sum) - own_score;
    batch->correct[i] = best == i;
    for (int64_t j = 0; j < count; j++) {
        const double *other = batch->unit_vectors + j * pair + batch->width;
        double score = score_scale * compute_dot(text, other, batch->width);
        double gradient = score_scale * (exp(score - largest) / sum - (double)(j == i));
        add_scaled(batch->gradients + i * pair, other, gradient, batch->width);
        add_scaled(batch->gradients + j * pair + batch->width, text, gradient, batch->width);
    }
}

void contrastive_loss_compute(struct contrastive_batch *batch, int64_t count)
{
    memset(batch->gradients, 0,
           (size_t)(TEXTS_PER_PAIR * count * batch->width) * sizeof *batch->gradients);
    for (int64_t i = 0; i < count; i++) {
        add_text_loss(batch, i, count);
    }
}

status contrastive_loss_gather(struct comm *data, struct contrastive_batch *batch, bool complete,
                               bool *failed)
{
    int64_t values = TEXTS_PER_PAIR * batch->size * batch->width, count = 0;
    batch->unit_vectors[values] = !complete;
    TRY(comm_sum_doubles(data, batch->unit_vectors, values + 1)); /* zeros on other ranks: exact */
    *failed = batch->unit_vectors[values] > 0;
    while (count < batch->size &&
           compute_dot(batch->unit_vectors + count * TEXTS_PER_PAIR * batch->width,
                       batch->unit_vectors + count * TEXTS_PER_PAIR * batch->width,
                       batch->width) != 0) {
        count++; /* the last batch may be shorter; a NaN vector counts as a pair */
    }
    if (!*failed) {
        contrastive_loss_compute(batch, count);
    }
    return STATUS_OK;
}
