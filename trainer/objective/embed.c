/* Vectors of texts, alike for texts that belong together: the mean of a text's rows, made a unit vector. Among all pairs of
 * the global batch a text's own second text is to be the nearest (whole_vectors.h); the loss is a mean over the pairs.
 *
 * Where the step says nothing of the whole batch, the pairs of this micro-batch alone are each other's wrong ones.
 *
 * Source    sentence-transformers: mean pooling, MultipleNegativesRankingLoss with scale 20 */
#include <math.h>
#include <stdlib.h>

#include "trainer/objective/task_head.h"
#include "trainer/objective/contrastive_loss.h"

enum { RIGHT = OBJECTIVE_COUNT + 1 };

/* One text of the batch: its rows and its mean's length. */
struct text {
    int64_t first, rows;
    double length;
};

static struct text text_of(const struct batch *batch, int64_t segment)
{
    return (struct text){batch->cu_rows[segment],
                         batch->cu_rows[segment + 1] - batch->cu_rows[segment], 0};
}

/* The unit vector of a text from its rows. */
static void pool(struct text *text, const float *rows, int64_t width, double *unit)
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
    text->length = fmax(sqrt(squares), 1e-12); /* as torch.nn.functional.normalize */
    for (int64_t c = 0; c < width; c++) {
        unit[c] /= text->length;
    }
}

/* Back to its rows: what is along the unit vector is lost. */
static void spread(const struct text *text, const double *unit, const double *slope, int64_t width,
                   float *rows)
{
    double along = 0;
    for (int64_t c = 0; c < width; c++) {
        along += unit[c] * slope[c];
    }
    double each = 1 / (text->length * (double)text->rows);
    for (int64_t i = 0; i < text->rows; i++) {
        for (int64_t c = 0; c < width; c++) {
            rows[(text->first + i) * width + c] = (float)(each * (slope[c] - along * unit[c]));
        }
    }
}

static status tell(const struct batch *batch, const struct objective_views *views, int64_t i,
                   const double *units, int64_t width)
{
    if (views->sink == NULL) {
        return STATUS_OK;
    }
    float *values = malloc((size_t)(VECTORS * width) * sizeof *values);
    REQUIRE(values != NULL, STATUS_INTERNAL, "out of memory for two vectors");
    for (int64_t c = 0; c < VECTORS * width; c++) {
        values[c] = (float)units[c];
    }
    struct objective_example e = {
        .sample = batch->samples[i], .rows = VECTORS, .columns = width, .outputs = values};
    status result = views->sink->take(views->sink->user, &e);
    free(values);
    return result;
}

/* A pair's two unit vectors into the place that it has; its losses, and, with slopes, the way back. */
struct pass {
    const struct batch *batch;
    const struct objective_views *views;
    const float *rows;
    float *slopes;
    int64_t width;
};

static status pool_pairs(const struct pass *p, const struct whole_vectors *to, bool told)
{
    int64_t pair = VECTORS * p->width;
    for (int64_t i = 0; i < p->batch->sequences; i++) {
        int64_t place = told ? p->batch->samples[i] % to->size : i;
        for (int64_t t = 0; t < VECTORS; t++) {
            struct text text = text_of(p->batch, VECTORS * i + t);
            pool(&text, p->rows, p->width, to->units + place * pair + t * p->width);
        }
        TRY(tell(p->batch, p->views, i, to->units + place * pair, p->width));
    }
    return STATUS_OK;
}

/* The rows' slopes from those of the vectors. */
static void spread_pairs(const struct pass *p, const struct whole_vectors *from, bool told,
                         double *unit)
{
    int64_t pair = VECTORS * p->width;
    for (int64_t i = 0; i < p->batch->sequences; i++) {
        int64_t place = told ? p->batch->samples[i] % from->size : i;
        for (int64_t t = 0; t < VECTORS; t++) {
            struct text text = text_of(p->batch, VECTORS * i + t);
            pool(&text, p->rows, p->width, unit);
            spread(&text, unit, from->slopes + place * pair + t * p->width, p->width, p->slopes);
        }
    }
}

static void add_losses(const struct pass *p, const struct whole_vectors *from, bool told,
                       double sums[OBJECTIVE_SUMS])
{
    for (int64_t i = 0; i < p->batch->sequences; i++) {
        int64_t place = told ? p->batch->samples[i] % from->size : i;
        sums[OBJECTIVE_LOSS] += from->losses[place];
        sums[RIGHT] += from->right[place];
    }
}

static status learn(struct kernels *k, const struct pass *p, const struct whole_vectors *from,
                    bool told, bool gradient, double sums[OBJECTIVE_SUMS])
{
    add_losses(p, from, told, sums);
    if (!gradient) {
        return STATUS_OK;
    }
    double *unit = malloc((size_t)p->width * sizeof *unit);
    REQUIRE(unit != NULL, STATUS_INTERNAL, "out of memory for a vector");
    spread_pairs(p, from, told, unit);
    free(unit);
    return head_backward(k, p->views);
}

/* Pairs of this micro-batch alone. */
static status learn_alone(struct kernels *k, const struct pass *p, bool gradient,
                          double sums[OBJECTIVE_SUMS])
{
    struct whole_vectors own;
    TRY(whole_vectors_create(p->batch->sequences, p->width, &own));
    status result = pool_pairs(p, &own, false);
    if (result == STATUS_OK) {
        whole_vectors_slopes(&own, p->batch->sequences);
        result = learn(k, p, &own, false, gradient, sums);
    }
    whole_vectors_destroy(&own);
    return result;
}

static status embed_loss(struct kernels *k, const struct batch *batch,
                         const struct objective_views *views, bool gradient,
                         double sums[OBJECTIVE_SUMS])
{
    struct pass p = {.batch = batch, .views = views, .width = views->hidden.columns};
    TRY(head_check(batch, views));
    REQUIRE(batch->segments == VECTORS * batch->sequences && batch->masked == batch->rows,
            STATUS_INTERNAL, "embed without pairs of texts");
    TRY(head_forward(k, views, &p.rows, &p.slopes));
    sums[OBJECTIVE_COUNT] += (double)batch->sequences;
    if (views->vectors == NULL) {
        return learn_alone(k, &p, gradient, sums);
    }
    return views->vectors_known ? learn(k, &p, views->vectors, true, gradient, sums)
                                : pool_pairs(&p, views->vectors, true);
}

static const struct objective_metric metrics[] = {{"accuracy", RIGHT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_embed = {.name = "embed",
                                          .metrics = metrics,
                                          .counted = "pairs",
                                          .looks_ahead = true,
                                          .loss = embed_loss};
