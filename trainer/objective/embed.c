/* Objective embed, sentence embeddings: similar unit vectors for the two texts of a pair.
 *
 *   m = mean of the text's rows h_i,   u = m / max(|m|, 1e-12)
 *   loss = sum_i loss_i / pairs,       loss_i as in contrastive_loss.h
 *   backward:   dh_i = (du - (u . du) u) / (|m| rows)
 *
 * The negatives of a pair are all other pairs of the global batch. Without
 * in->whole_batch.contrastive they are the other pairs of this micro-batch.
 *
 * Source    Reimers, Gurevych 2019, arXiv:1908.10084; sentence-transformers: mean pooling,
 *           MultipleNegativesRankingLoss with scale 20 */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "trainer/objective/contrastive_loss.h"
#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_COUNT + 1 };

/* One text of the batch: its rows and the length of their mean vector. */
struct text {
    int64_t first, rows;
    double length;
};

static struct text find_text(const struct batch *batch, int64_t segment)
{
    return (struct text){batch->cu_rows[segment],
                         batch->cu_rows[segment + 1] - batch->cu_rows[segment], 0};
}

/* Computes the unit vector of a text from its rows. */
static void pool_text(struct text *text, const float *rows, int64_t width, double *unit)
{
    double squares = 0;
    for (int64_t c = 0; c < width; c++) {
        double sum = 0;
        for (int64_t i = 0; i < text->rows; i++) {
            sum += (double)rows[(text->first + i) * width + c];
        }
        unit[c] = sum / (double)text->rows;
        squares += unit[c] * unit[c];
    }
    text->length = fmax(sqrt(squares), 1e-12); /* as in torch.nn.functional.normalize */
    for (int64_t c = 0; c < width; c++) {
        unit[c] /= text->length;
    }
}

/* Computes the gradients of a text's rows. Normalization removes the component along the unit
 * vector. */
static void unpool_text(const struct text *text, const double *unit, const double *gradient,
                        int64_t width, float *rows)
{
    double projection = 0;
    for (int64_t c = 0; c < width; c++) {
        projection += unit[c] * gradient[c];
    }
    double scale = 1 / (text->length * (double)text->rows);
    for (int64_t i = 0; i < text->rows; i++) {
        for (int64_t c = 0; c < width; c++) {
            rows[(text->first + i) * width + c] =
                (float)(scale * (gradient[c] - projection * unit[c]));
        }
    }
}

static status report_pair(const struct batch *batch, const struct objective_input *in, int64_t i,
                          const double *units, int64_t width)
{
    if (in->sink == NULL) {
        return STATUS_OK;
    }
    float *values = NULL;
    TRY(ALLOCATE(values, TEXTS_PER_PAIR * width, "two vectors"));
    for (int64_t c = 0; c < TEXTS_PER_PAIR * width; c++) {
        values[c] = (float)units[c];
    }
    struct objective_example e = {
        .sample = batch->samples[i], .rows = TEXTS_PER_PAIR, .columns = width, .outputs = values};
    status result = in->sink->consume(in->sink->user, &e);
    free(values);
    return result;
}

/* One call of embed_loss. */
struct embed_pass {
    const struct batch *batch;
    const struct objective_input *in;
    const float *rows;
    float *gradients;
    int64_t width;
};

/* Computes the unit vectors of all pairs. collected: the target holds a whole global batch. */
static status pool_pairs(const struct embed_pass *p, const struct contrastive_batch *target,
                         bool collected)
{
    int64_t pair = TEXTS_PER_PAIR * p->width;
    for (int64_t i = 0; i < p->batch->sequences; i++) {
        int64_t index = collected ? p->batch->samples[i] % target->size : i;
        for (int64_t t = 0; t < TEXTS_PER_PAIR; t++) {
            struct text text = find_text(p->batch, TEXTS_PER_PAIR * i + t);
            pool_text(&text, p->rows, p->width, target->unit_vectors + index * pair + t * p->width);
        }
        TRY(report_pair(p->batch, p->in, i, target->unit_vectors + index * pair, p->width));
    }
    return STATUS_OK;
}

/* Computes the gradients of all rows from the gradients of the unit vectors. */
static void unpool_pairs(const struct embed_pass *p, const struct contrastive_batch *source,
                         bool collected, double *unit)
{
    int64_t pair = TEXTS_PER_PAIR * p->width;
    for (int64_t i = 0; i < p->batch->sequences; i++) {
        int64_t index = collected ? p->batch->samples[i] % source->size : i;
        for (int64_t t = 0; t < TEXTS_PER_PAIR; t++) {
            struct text text = find_text(p->batch, TEXTS_PER_PAIR * i + t);
            pool_text(&text, p->rows, p->width, unit);
            unpool_text(&text, unit, source->gradients + index * pair + t * p->width, p->width,
                        p->gradients);
        }
    }
}

static void add_losses(const struct embed_pass *p, const struct contrastive_batch *source,
                       bool collected, double sums[OBJECTIVE_SUMS])
{
    for (int64_t i = 0; i < p->batch->sequences; i++) {
        int64_t index = collected ? p->batch->samples[i] % source->size : i;
        sums[OBJECTIVE_LOSS] += source->losses[index];
        sums[CORRECT] += source->correct[index];
    }
}

/* Adds the losses of the pairs and runs the backward pass. */
static status finish_pairs(struct kernels *k, const struct embed_pass *p,
                           const struct contrastive_batch *source, bool collected, bool gradient,
                           double sums[OBJECTIVE_SUMS])
{
    add_losses(p, source, collected, sums);
    if (!gradient) {
        return STATUS_OK;
    }
    double *unit = NULL;
    TRY(ALLOCATE(unit, p->width, "a vector"));
    unpool_pairs(p, source, collected, unit);
    free(unit);
    return task_head_backward(k, p->in);
}

/* Computes the loss with the pairs of this micro-batch only. */
static status run_micro_batch_alone(struct kernels *k, const struct embed_pass *p, bool gradient,
                                    double sums[OBJECTIVE_SUMS])
{
    struct contrastive_batch local;
    TRY(contrastive_loss_create(p->batch->sequences, p->width, &local));
    status result = pool_pairs(p, &local, false);
    if (result == STATUS_OK) {
        contrastive_loss_compute(&local, p->batch->sequences);
        result = finish_pairs(k, p, &local, false, gradient, sums);
    }
    contrastive_loss_destroy(&local);
    return result;
}

static status embed_loss(struct kernels *k, const struct batch *batch,
                         const struct objective_input *in, bool gradient,
                         double sums[OBJECTIVE_SUMS])
{
    struct embed_pass p = {.batch = batch, .in = in, .width = in->hidden.value.columns};
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(batch->segments == TEXTS_PER_PAIR * batch->sequences &&
                batch->outputs.count == batch->rows,
            STATUS_INTERNAL, "objective embed needs a batch of text pairs");
    TRY(task_head_forward(k, in, &p.rows, &p.gradients));
    sums[OBJECTIVE_COUNT] += (double)batch->sequences;
    const struct contrastive_batch *whole_batch = in->whole_batch.contrastive;
    if (whole_batch == NULL) {
        return run_micro_batch_alone(k, &p, gradient, sums);
    }
    return in->whole_batch.contrastive_ready
               ? finish_pairs(k, &p, whole_batch, true, gradient, sums)
               : pool_pairs(&p, whole_batch, true);
}

static const struct objective_metric metrics[] = {{"accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_embed = {
    .metrics = metrics, .unit = "pairs", .needs_global_counts = true, .loss = embed_loss};
