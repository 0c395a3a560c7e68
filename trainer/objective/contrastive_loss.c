#include "trainer/objective/contrastive_loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double scale = 20;

status whole_vectors_create(int64_t size, int64_t width, struct whole_vectors *out)
{
    size_t values = (size_t)(VECTORS * size * width);
    *out = (struct whole_vectors){.size = size, .width = width};
    out->units = calloc(values + 1, sizeof *out->units); /* and whether a rank has failed */
    out->slopes = calloc(values, sizeof *out->slopes);
    out->losses = calloc((size_t)size, sizeof *out->losses);
    out->right = calloc((size_t)size, sizeof *out->right);
    if (out->units == NULL || out->slopes == NULL || out->losses == NULL || out->right == NULL) {
        whole_vectors_destroy(out);
        RAISE(STATUS_INTERNAL, "out of memory for the vectors of %lld pairs", (long long)size);
    }
    return STATUS_OK;
}

void whole_vectors_destroy(struct whole_vectors *w)
{
    free(w->units);
    free(w->slopes);
    free(w->losses);
    free(w->right);
    *w = (struct whole_vectors){0};
}

void whole_vectors_clear(struct whole_vectors *w)
{
    memset(w->units, 0, (size_t)(VECTORS * w->size * w->width) * sizeof *w->units);
    memset(w->losses, 0, (size_t)w->size * sizeof *w->losses);
    memset(w->right, 0, (size_t)w->size * sizeof *w->right);
}

static double product(const double *a, const double *b, int64_t width)
{
    double sum = 0;
    for (int64_t c = 0; c < width; c++) {
        sum += a[c] * b[c];
    }
    return sum;
}

static void add(double *to, const double *from, double weight, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        to[c] += weight * from[c];
    }
}

/* Text number i against all second texts; scores are computed twice rather than kept. */
static void one_text(struct whole_vectors *w, int64_t i, int64_t count)
{
    int64_t pair = VECTORS * w->width;
    const double *text = w->units + i * pair;
    double largest = -INFINITY, sum = 0, own = 0;
    int64_t best = 0;
    for (int64_t j = 0; j < count; j++) {
        double score = scale * product(text, w->units + j * pair + w->width, w->width);
        own = j == i ? score : own;
        best = score > largest ? j : best;
        double before = largest;
        largest = score > largest ? score : largest;
        sum = sum * exp(before - largest) + exp(score - largest);
    }
    w->losses[i] = largest + log(sum) - own;
    w->right[i] = best == i;
    for (int64_t j = 0; j < count; j++) {
        const double *other = w->units + j * pair + w->width;
        double score = scale * product(text, other, w->width);
        double slope = scale * (exp(score - largest) / sum - (double)(j == i));
        add(w->slopes + i * pair, other, slope, w->width);
        add(w->slopes + j * pair + w->width, text, slope, w->width);
    }
}

void whole_vectors_slopes(struct whole_vectors *w, int64_t count)
{
    memset(w->slopes, 0, (size_t)(VECTORS * count * w->width) * sizeof *w->slopes);
    for (int64_t i = 0; i < count; i++) {
        one_text(w, i, count);
    }
}

status whole_vectors_gather(struct comm *data, struct whole_vectors *w, bool known, bool *failed)
{
    int64_t values = VECTORS * w->size * w->width, count = 0;
    w->units[values] = !known;
    TRY(comm_sum_doubles(data, w->units, values + 1)); /* of one rank, and zeros: exact */
    *failed = w->units[values] > 0;
    while (count < w->size && product(w->units + count * VECTORS * w->width,
                                      w->units + count * VECTORS * w->width, w->width) != 0) {
        count++; /* a last batch may be shorter; what is no number is there, and shall be seen */
    }
    if (!*failed) {
        whole_vectors_slopes(w, count);
    }
    return STATUS_OK;
}
