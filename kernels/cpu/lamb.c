/* LAMB over a tensor or a slice of it, in two passes.
 *
 *   g = gradient_scale gradient
 *   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
 *   u = m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w
 *   w -= learning_rate u, where learning_rate includes the tensor's trust ratio |w| / |u|
 *
 * Both passes are limited by memory bandwidth: 24 and 16 bytes per element, or 16 and 12 with bf16
 * moments, and 2 for the bf16 copy. bf16 moments are updated in f32, rounded stochastically, and
 * then used. Both passes compute u, because computing it is cheaper than storing and reading it.
 * The first pass also sums the squares of w and u, over tiles of u that stay in the cache. The
 * blocks of a sum depend on the length only (reduce.h), so the threads do not change its bits.
 *
 * Source    You et al. 2019, arXiv:1904.00962 */
#include "base/number.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/rounding.h"

enum { TILE = 1024 }; /* elements; a whole number of vectors */

struct factors {
    struct moment_rate rate1, rate2;
    vector scale, inverse_correction1, inverse_correction2, epsilon, decay, rate;
};

static struct factors make_factors(const struct adamw *s)
{
    return (struct factors){
        .rate1 = moment_rate_make(s->beta1),
        .rate2 = moment_rate_make(s->beta2),
        .scale = vector_set(moment_get_scale(s)),
        .inverse_correction1 = vector_set((float)(1.0 / s->correction1)),
        .inverse_correction2 = vector_set((float)(1.0 / s->correction2)),
        .epsilon = vector_set(s->epsilon),
        .decay = vector_set(s->weight_decay),
        .rate = vector_set(s->trust_ratio == NULL ? s->learning_rate
                                                  : (float)(s->base_rate * *s->trust_ratio)),
    };
}

static inline vector compute_direction(vector w, vector m, vector v, const struct factors *f)
{
    vector adam =
        f->inverse_correction1 * m / (vector_sqrt(v * f->inverse_correction2) + f->epsilon);
    return vector_fma(f->decay, w, adam);
}

struct slice {
    const float *weights, *gradient;
    void *moment1, *moment2;
    const struct adamw *settings;
};

/* Updates the moments of a tile in f32 and writes them to the arrays. They may be the arrays that
 * were read. */
CPU_INLINE void update_moments(const struct slice *s, int64_t first, int64_t count, float *moment1,
                               float *moment2, const struct factors *f, enum dtype dtype)
{
    for (int64_t i = 0; i < count; i += VECTOR_LANES) {
        int64_t position = first + i, remaining = count - i;
        vector g = f->scale * vector_get(s->gradient, DTYPE_F32, position, remaining);
        vector m = vector_get(s->moment1, dtype, position, remaining);
        vector v = vector_get(s->moment2, dtype, position, remaining);
        vector_put(moment1, DTYPE_F32, i, moment_update(&f->rate1, m, g), remaining);
        vector_put(moment2, DTYPE_F32, i, moment_update(&f->rate2, v, g * g), remaining);
    }
}

static void update_moments_tile(const struct slice *s, int64_t first, int64_t count,
                                const struct factors *f)
{
    if (s->settings->moment_dtype == DTYPE_F32) {
        update_moments(s, first, count, (float *)s->moment1 + first, (float *)s->moment2 + first, f,
                       DTYPE_F32);
        return;
    }
    float moment1[TILE], moment2[TILE];
    update_moments(s, first, count, moment1, moment2, f, DTYPE_BF16);
    moment_round((bf16 *)s->moment1 + first, moment1, first, count, 0, s->settings);
    moment_round((bf16 *)s->moment2 + first, moment2, first, count, 1, s->settings);
}

/* Writes u of the elements of a tile to `update`. */
static void compute_update_tile(const struct slice *s, int64_t first, int64_t count, float *update,
                                const struct factors *f)
{
    for (int64_t i = 0; i < count; i += VECTOR_LANES) {
        int64_t position = first + i, remaining = count - i;
        vector m = vector_get(s->moment1, s->settings->moment_dtype, position, remaining);
        vector v = vector_get(s->moment2, s->settings->moment_dtype, position, remaining);
        vector w = vector_get(s->weights, DTYPE_F32, position, remaining);
        vector_put(update, DTYPE_F32, i, compute_direction(w, m, v, f), remaining);
    }
}

struct squares {
    double weights, update;
};

static struct squares update_moments_block(const struct slice *s, int64_t first, int64_t last,
                                           const struct factors *f)
{
    struct squares sums = {0};
    float update[TILE];
    for (int64_t position = first; position < last; position += TILE) {
        int64_t count = number_min(last - position, TILE);
        update_moments_tile(s, position, count, f);
        compute_update_tile(s, position, count, update, f);
        sums.weights += reduce_block(s->weights + position, count, REDUCE_SQUARES);
        sums.update += reduce_block(update, count, REDUCE_SQUARES);
    }
    return sums;
}

status CPU(lamb_moments)(struct kernels *k, double *sums, const float *weights, void *moment1,
                         void *moment2, const float *gradient, int64_t count,
                         const struct adamw *settings)
{
    struct slice slice = {weights, gradient, moment1, moment2, settings};
    struct factors factors = make_factors(settings);
    struct squares block_sums[REDUCE_BLOCKS_MAX];
    int64_t size = reduce_block_elems(count), blocks = number_divide_up(count, size);
    blocks = moment_is_skipped(settings) ? 0 : blocks;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t end = (i + 1) * size;
        block_sums[i] = update_moments_block(&slice, i * size, number_min(end, count), &factors);
    }
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < blocks; i++) {
        sums[0] += block_sums[i].weights;
        sums[1] += block_sums[i].update;
    }
    return STATUS_OK;
}

/* Updates the weights of a tile. copy: rounded to nearest; NULL: not written here. */
static void update_weights_tile(float *weights, bf16 *copy, const void *moment1,
                                const void *moment2, int64_t first, int64_t last,
                                const struct factors *f, enum dtype dtype)
{
    for (int64_t i = first; i < last; i += VECTOR_LANES) {
        vector m = vector_get(moment1, dtype, i, last - i);
        vector v = vector_get(moment2, dtype, i, last - i);
        vector w = vector_get(weights, DTYPE_F32, i, last - i);
        w -= f->rate * compute_direction(w, m, v, f);
        vector_put(weights, DTYPE_F32, i, w, last - i);
        if (copy != NULL) {
            vector_put(copy, DTYPE_BF16, i, w, last - i);
        }
    }
}

status CPU(lamb_apply)(struct kernels *k, float *weights, bf16 *copy, const void *moment1,
                       const void *moment2, int64_t count, const struct adamw *settings)
{
    const struct rounding *rounding = &settings->rounding;
    bool is_stochastic = copy != NULL && rounding->stochastic;
    if (moment_is_skipped(settings)) {
        return STATUS_OK;
    }
    struct factors f = make_factors(settings);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > TILE)
    for (int64_t first = 0; first < count; first += TILE) {
        int64_t last = number_min(first + TILE, count);
        update_weights_tile(weights, is_stochastic ? NULL : copy, moment1, moment2, first, last, &f,
                            settings->moment_dtype);
        if (is_stochastic) {
            rounding_apply(copy, weights, first, last, rounding);
        }
    }
    return STATUS_OK;
}

status CPU(lamb_parts_moments)(struct kernels *k, double *sums, const float *weights,
                               float *moment1, float *moment2, const float *gradient,
                               const struct adamw_parts *p, const struct adamw *settings)
{
    for (int64_t i = 0; i < p->part_count; i++) {
        struct moment_part part = moment_get_part(p, i, settings);
        TRY(CPU(lamb_moments)(k, sums + 2 * i, weights + part.first, moment1 + part.moment,
                              moment2 + part.moment, gradient + part.first, part.count,
                              &part.settings));
    }
    return STATUS_OK;
}

status CPU(lamb_parts_apply)(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                             const float *moment2, const double *ratios,
                             const struct adamw_parts *p, const struct adamw *settings)
{
    for (int64_t i = 0; i < p->part_count; i++) {
        struct moment_part part = moment_get_part(p, i, settings);
        part.settings.trust_ratio = ratios + i;
        TRY(CPU(lamb_apply)(k, weights + part.first, copy != NULL ? copy + part.first : NULL,
                            moment1 + part.moment, moment2 + part.moment, part.count,
                            &part.settings));
    }
    return STATUS_OK;
}
