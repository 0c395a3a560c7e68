/* LAMB over a part of a tensor, in two passes at memory speed: 24 and 16 bytes an element, and 2 for the
 * bf16 copy.
 *
 *   g = scale gradient;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   u = m / c1 / (sqrt(v / c2) + epsilon) + decay w
 *   w -= rate u, where rate has the tensor's trust ratio |w| / |u| in it
 *
 * u is made twice, since making it costs less than storing and reading it. The sums of squares go through
 * tiles of u that stay in the cache. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/rounding.h"

enum { TILE = 1024 }; /* elements; a whole number of vectors */

struct factors {
    vector scale, beta1, rest1, beta2, rest2, inverse1, inverse2, epsilon, decay, rate;
};

static struct factors factors_of(const struct adamw *s)
{
    return (struct factors){
        .scale = vector_set(s->gradient_scale),
        .beta1 = vector_set(s->beta1),
        .rest1 = vector_set((float)(1.0 - (double)s->beta1)),
        .beta2 = vector_set(s->beta2),
        .rest2 = vector_set((float)(1.0 - (double)s->beta2)),
        .inverse1 = vector_set((float)(1.0 / s->correction1)),
        .inverse2 = vector_set((float)(1.0 / s->correction2)),
        .epsilon = vector_set(s->epsilon),
        .decay = vector_set(s->weight_decay),
        .rate = vector_set(s->learning_rate),
    };
}

static inline vector direction(vector w, vector m, vector v, const struct factors *f)
{
    vector adam = f->inverse1 * m / (vector_sqrt(v * f->inverse2) + f->epsilon);
    return vector_fma(f->decay, w, adam);
}

struct slice {
    const float *weights, *gradient;
    float *moment1, *moment2;
};

/* New moments of a tile; its u into `update`. */
static void moments_tile(const struct slice *s, int64_t first, int64_t count, float *update,
                         const struct factors *f)
{
    for (int64_t i = 0; i < count; i += VECTOR_LANES) {
        int64_t at = first + i, left = count - i;
        vector g = f->scale * vector_get(s->gradient, DTYPE_F32, at, left);
        vector m = vector_get(s->moment1, DTYPE_F32, at, left);
        vector v = vector_get(s->moment2, DTYPE_F32, at, left);
        m = vector_fma(f->beta1, m, f->rest1 * g);
        v = vector_fma(f->beta2, v, f->rest2 * g * g);
        vector_put(s->moment1, DTYPE_F32, at, m, left);
        vector_put(s->moment2, DTYPE_F32, at, v, left);
        vector w = vector_get(s->weights, DTYPE_F32, at, left);
        vector_put(update, DTYPE_F32, i, direction(w, m, v, f), left);
    }
}

struct squares {
    double weights, update;
};

static struct squares moments_block(const struct slice *s, int64_t first, int64_t last,
                                    const struct factors *f)
{
    struct squares sums = {0};
    float update[TILE];
    for (int64_t at = first; at < last; at += TILE) {
        int64_t count = last - at < TILE ? last - at : TILE;
        moments_tile(s, at, count, update, f);
        sums.weights += reduce_block(s->weights + at, count, REDUCE_SQUARES);
        sums.update += reduce_block(update, count, REDUCE_SQUARES);
    }
    return sums;
}

status CPU(lamb_moments)(struct kernels *k, double *sums, const float *weights, float *moment1,
                         float *moment2, const float *gradient, int64_t count,
                         const struct adamw *settings)
{
    struct slice slice = {weights, gradient, moment1, moment2};
    struct factors factors = factors_of(settings);
    struct squares parts[REDUCE_BLOCKS_MAX];
    int64_t size = reduce_block_elems(count), blocks = (count + size - 1) / size;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t end = (i + 1) * size;
        parts[i] = moments_block(&slice, i * size, end < count ? end : count, &factors);
    }
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < blocks; i++) {
        sums[0] += parts[i].weights;
        sums[1] += parts[i].update;
    }
    return STATUS_OK;
}

/* New weights of a tile; the copy to nearest, NULL: none here. */
static void apply_tile(float *weights, bf16 *copy, const float *moment1, const float *moment2,
                       int64_t first, int64_t last, const struct factors *f)
{
    for (int64_t i = first; i < last; i += VECTOR_LANES) {
        vector m = vector_get(moment1, DTYPE_F32, i, last - i);
        vector v = vector_get(moment2, DTYPE_F32, i, last - i);
        vector w = vector_get(weights, DTYPE_F32, i, last - i);
        w -= f->rate * direction(w, m, v, f);
        vector_put(weights, DTYPE_F32, i, w, last - i);
        if (copy != NULL) {
            vector_put(copy, DTYPE_BF16, i, w, last - i);
        }
    }
}

status CPU(lamb_apply)(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                       const float *moment2, int64_t count, const struct adamw *settings)
{
    const struct rounding *rounding = &settings->rounding;
    bool draws = copy != NULL && rounding->stochastic;
    struct factors f = factors_of(settings);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > TILE)
    for (int64_t first = 0; first < count; first += TILE) {
        int64_t last = first + TILE < count ? first + TILE : count;
        apply_tile(weights, draws ? NULL : copy, moment1, moment2, first, last, &f);
        if (draws) {
            rounding_run(copy, weights, first, last, rounding);
        }
    }
    return STATUS_OK;
}
