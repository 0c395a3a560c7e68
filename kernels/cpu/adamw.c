/* AdamW over a flat slice, in one pass.
 *
 *   g = gradient_scale gradient
 *   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
 *   w -= learning_rate (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w)
 *
 * The pass is limited by memory bandwidth: it reads 16 bytes and writes 12 bytes per element, and 2
 * more for the bf16 copy. The elements are independent, so the result does not depend on the
 * threads. Each thread processes chunks. With stochastic rounding it makes the copy of a chunk
 * after the update, while the weights are in the cache.
 *
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/rounding.h"

enum { CHUNK = 4096 }; /* elements; a whole number of vectors and cache lines */

struct slice {
    float *weights;
    bf16 *copy;
    float *moment1, *moment2;
    const float *gradient;
};

/* The hyperparameters as factors, so that an element needs one square root and one division. */
struct factors {
    struct moment_rate rate1, rate2;
    vector scale, step_size, decay, inverse_correction2, epsilon;
};

static struct factors make_factors(const struct adamw *s)
{
    return (struct factors){
        .rate1 = moment_rate_make(s->beta1),
        .rate2 = moment_rate_make(s->beta2),
        .scale = vector_set(s->gradient_scale),
        .step_size = vector_set((float)((double)s->learning_rate / s->correction1)),
        .decay = vector_set((float)(-(double)s->learning_rate * s->weight_decay)),
        .inverse_correction2 = vector_set((float)(1.0 / s->correction2)),
        .epsilon = vector_set(s->epsilon),
    };
}

/* Prefetches the four streams. The hardware prefetcher is slow to follow four streams across a page
 * boundary. A prefetch beyond the end is harmless. */
static inline void prefetch_streams(const struct slice *s, int64_t i)
{
    enum { AHEAD_BYTES = 2048 };
    const float *streams[] = {s->gradient, s->moment1, s->moment2, s->weights};
    for (size_t j = 0; j < sizeof streams / sizeof streams[0]; j++) {
        __builtin_prefetch((const void *)((uintptr_t)(streams[j] + i) + AHEAD_BYTES));
    }
}

static inline __attribute__((always_inline)) void
update_vector(const struct slice *s, int64_t i, int64_t count, const struct factors *f)
{
    vector g = f->scale * vector_get(s->gradient, DTYPE_F32, i, count);
    vector m = vector_get(s->moment1, DTYPE_F32, i, count);
    vector v = vector_get(s->moment2, DTYPE_F32, i, count);
    vector w = vector_get(s->weights, DTYPE_F32, i, count);
    m = moment_update(&f->rate1, m, g);
    v = moment_update(&f->rate2, v, g * g);
    vector step = f->step_size * m / (vector_sqrt(v * f->inverse_correction2) + f->epsilon);
    w += vector_fma(f->decay, w, -step);
    vector_put(s->moment1, DTYPE_F32, i, m, count);
    vector_put(s->moment2, DTYPE_F32, i, v, count);
    vector_put(s->weights, DTYPE_F32, i, w, count);
    if (s->copy != NULL) {
        vector_put(s->copy, DTYPE_BF16, i, w, count);
    }
}

static void update_chunk(const struct slice *s, int64_t first, int64_t last,
                         const struct factors *f)
{
    int64_t i = first;
    for (; i + VECTOR_LANES <= last; i += VECTOR_LANES) {
        prefetch_streams(s, i);
        update_vector(s, i, VECTOR_LANES, f);
    }
    if (i < last) {
        update_vector(s, i, last - i, f);
    }
}

status CPU(adamw_update)(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                         float *moment2, const float *gradient, int64_t count,
                         const struct adamw *settings)
{
    const struct rounding *rounding = &settings->rounding;
    bool is_stochastic = copy != NULL && rounding->stochastic;
    struct slice slice = {weights, is_stochastic ? NULL : copy, moment1, moment2, gradient};
    struct factors factors = make_factors(settings);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > CHUNK)
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t last = first + CHUNK < count ? first + CHUNK : count;
        update_chunk(&slice, first, last, &factors);
        if (is_stochastic) {
            rounding_apply(copy, weights, first, last, rounding);
        }
    }
    return STATUS_OK;
}
