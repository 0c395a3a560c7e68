/* AdamW over a flat slice, in one pass.
 *
 *   g = gradient_scale gradient
 *   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
 *   w -= learning_rate (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w)
 *
 * The pass is limited by memory bandwidth: it reads 16 bytes and writes 12 bytes per element, and 2
 * more for the bf16 copy; with bf16 moments it reads 12 and writes 8. The elements are independent,
 * so the result does not depend on the threads. Each thread processes chunks. With stochastic
 * rounding it makes the copy of a chunk after the update, while the weights are in the cache. bf16
 * moments are updated in f32, in a buffer of one chunk, and then rounded.
 *
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
#include "base/memory.h"
#include "base/number.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/rounding.h"

enum { CHUNK = ADAMW_PARTS_BLOCK }; /* a whole number of vectors and cache lines */

struct slice {
    float *weights;
    bf16 *copy;
    void *moment1, *moment2;
    float *updated1, *updated2; /* f32 moments after the update: of the slice, or of the chunk */
    int64_t updated_first;      /* position of their first element in the slice */
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
        .scale = vector_set(moment_get_scale(s)),
        .step_size = vector_set((float)((double)s->learning_rate / s->correction1)),
        .decay = vector_set((float)(-(double)s->learning_rate * s->weight_decay)),
        .inverse_correction2 = vector_set((float)(1.0 / s->correction2)),
        .epsilon = vector_set(s->epsilon),
    };
}

/* Prefetches the four streams. The hardware prefetcher is slow to follow four streams across a page
 * boundary. A prefetch beyond the end is harmless. */
static inline void prefetch_streams(const struct slice *s, int64_t i, size_t moment_bytes)
{
    enum { AHEAD_BYTES = 2048 };
    const void *streams[] = {s->gradient, s->weights, s->moment1, s->moment2};
    const size_t bytes[] = {sizeof(float), sizeof(float), moment_bytes, moment_bytes};
    for (int j = 0; j < COUNT(streams); j++) {
        __builtin_prefetch(
            (const void *)((uintptr_t)streams[j] + (size_t)i * bytes[j] + AHEAD_BYTES));
    }
}

CPU_INLINE void update_vector(const struct slice *s, int64_t i, int64_t count,
                              const struct factors *f, enum dtype dtype)
{
    vector g = f->scale * vector_get(s->gradient, DTYPE_F32, i, count);
    vector m = vector_get(s->moment1, dtype, i, count);
    vector v = vector_get(s->moment2, dtype, i, count);
    vector w = vector_get(s->weights, DTYPE_F32, i, count);
    m = moment_update(&f->rate1, m, g);
    v = moment_update(&f->rate2, v, g * g);
    vector step = f->step_size * m / (vector_sqrt(v * f->inverse_correction2) + f->epsilon);
    w += vector_fma(f->decay, w, -step);
    vector_put(s->updated1, DTYPE_F32, i - s->updated_first, m, count);
    vector_put(s->updated2, DTYPE_F32, i - s->updated_first, v, count);
    vector_put(s->weights, DTYPE_F32, i, w, count);
    if (s->copy != NULL) {
        vector_put(s->copy, DTYPE_BF16, i, w, count);
    }
}

CPU_INLINE void update_elements(const struct slice *s, int64_t first, int64_t last,
                                const struct factors *f, enum dtype dtype)
{
    int64_t i = first;
    for (; i + VECTOR_LANES <= last; i += VECTOR_LANES) {
        prefetch_streams(s, i, dtype_bytes(dtype));
        update_vector(s, i, VECTOR_LANES, f, dtype);
    }
    if (i < last) {
        update_vector(s, i, last - i, f, dtype);
    }
}

static void update_bf16_chunk(const struct slice *s, int64_t first, int64_t last,
                              const struct factors *f, const struct adamw *settings)
{
    float moment1[CHUNK], moment2[CHUNK];
    struct slice chunk = *s;
    chunk.updated1 = moment1;
    chunk.updated2 = moment2;
    chunk.updated_first = first;
    update_elements(&chunk, first, last, f, DTYPE_BF16);
    moment_round((bf16 *)s->moment1 + first, moment1, first, last - first, 0, settings);
    moment_round((bf16 *)s->moment2 + first, moment2, first, last - first, 1, settings);
}

status CPU(adamw_update)(struct kernels *k, float *weights, bf16 *copy, void *moment1,
                         void *moment2, const float *gradient, int64_t count,
                         const struct adamw *settings)
{
    const struct rounding *rounding = &settings->rounding;
    bool is_stochastic = copy != NULL && rounding->stochastic;
    if (moment_is_skipped(settings)) {
        return STATUS_OK;
    }
    struct slice slice = {.weights = weights,
                          .copy = is_stochastic ? NULL : copy,
                          .moment1 = moment1,
                          .moment2 = moment2,
                          .updated1 = moment1,
                          .updated2 = moment2,
                          .gradient = gradient};
    struct factors factors = make_factors(settings);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > CHUNK)
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t last = number_min(first + CHUNK, count);
        if (settings->moment_dtype == DTYPE_BF16) {
            update_bf16_chunk(&slice, first, last, &factors, settings);
        } else {
            update_elements(&slice, first, last, &factors, DTYPE_F32);
        }
        if (is_stochastic) {
            rounding_apply(copy, weights, first, last, rounding);
        }
    }
    return STATUS_OK;
}

status CPU(adamw_parts_update)(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                               float *moment2, const float *gradient, const struct adamw_parts *p,
                               const struct adamw *settings)
{
    for (int64_t i = 0; i < p->part_count; i++) {
        struct moment_part part = moment_get_part(p, i, settings);
        TRY(CPU(adamw_update)(k, weights + part.first, copy != NULL ? copy + part.first : NULL,
                              moment1 + part.moment, moment2 + part.moment, gradient + part.first,
                              part.count, &part.settings));
    }
    return STATUS_OK;
}
