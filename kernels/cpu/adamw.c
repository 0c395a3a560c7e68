/* AdamW over a flat slice, in one pass at memory speed: 16 bytes read and 12 written an element,
 * and 2 for the bf16 copy.
 *
 *   g = scale gradient;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= rate (m / c1 / (sqrt(v / c2) + epsilon) + decay w)
 *
 * Each element is by itself, so threads and the order do not matter. A stochastically rounded copy is made piece by
 * piece behind the update, from weights that are in the cache still. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rounding.h"

enum { PIECE = 4096 }; /* elements; a whole number of vectors and cache lines */

struct slice {
    float *weights;
    bf16 *copy;
    float *moment1, *moment2;
    const float *gradient;
};

/* The settings as factors, so that an element needs one square root and one division. */
struct factors {
    vector scale, beta1, rest1, beta2, rest2, rate, keep, inverse2, epsilon;
};

static struct factors factors_of(const struct adamw *s)
{
    return (struct factors){
        .scale = vector_set(s->gradient_scale),
        .beta1 = vector_set(s->beta1),
        .rest1 = vector_set((float)(1.0 - (double)s->beta1)),
        .beta2 = vector_set(s->beta2),
        .rest2 = vector_set((float)(1.0 - (double)s->beta2)),
        .rate = vector_set((float)((double)s->learning_rate / s->correction1)),
        .keep = vector_set((float)(-(double)s->learning_rate * s->weight_decay)),
        .inverse2 = vector_set((float)(1.0 / s->correction2)),
        .epsilon = vector_set(s->epsilon),
    };
}

/* Four streams at once: each is asked for ahead, as processors follow several of them late behind each page. Asking
 * beyond the end does no harm. */
static inline void prefetch(const struct slice *s, int64_t i)
{
    enum { AHEAD_BYTES = 2048 };
    const float *streams[] = {s->gradient, s->moment1, s->moment2, s->weights};
    for (size_t j = 0; j < sizeof streams / sizeof streams[0]; j++) {
        __builtin_prefetch((const void *)((uintptr_t)(streams[j] + i) + AHEAD_BYTES));
    }
}

static inline __attribute__((always_inline)) void update(const struct slice *s, int64_t i,
                                                         int64_t count, const struct factors *f)
{
    vector g = f->scale * vector_get(s->gradient, DTYPE_F32, i, count);
    vector m = vector_get(s->moment1, DTYPE_F32, i, count);
    vector v = vector_get(s->moment2, DTYPE_F32, i, count);
    vector w = vector_get(s->weights, DTYPE_F32, i, count);
    m = vector_fma(f->beta1, m, f->rest1 * g);
    v = vector_fma(f->beta2, v, f->rest2 * g * g);
    vector step = f->rate * m / (vector_sqrt(v * f->inverse2) + f->epsilon);
    w += vector_fma(f->keep, w, -step);
    vector_put(s->moment1, DTYPE_F32, i, m, count);
    vector_put(s->moment2, DTYPE_F32, i, v, count);
    vector_put(s->weights, DTYPE_F32, i, w, count);
    if (s->copy != NULL) {
        vector_put(s->copy, DTYPE_BF16, i, w, count);
    }
}

static void update_piece(const struct slice *s, int64_t first, int64_t last,
                         const struct factors *f)
{
    int64_t i = first;
    for (; i + VECTOR_LANES <= last; i += VECTOR_LANES) {
        prefetch(s, i);
        update(s, i, VECTOR_LANES, f);
    }
    if (i < last) {
        update(s, i, last - i, f);
    }
}

status CPU(adamw_update)(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                         float *moment2, const float *gradient, int64_t count,
                         const struct adamw *settings)
{
    const struct rounding *rounding = &settings->rounding;
    bool draws = copy != NULL && rounding->stochastic;
    struct slice slice = {weights, draws ? NULL : copy, moment1, moment2, gradient};
    struct factors factors = factors_of(settings);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > PIECE)
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t last = first + PIECE < count ? first + PIECE : count;
        update_piece(&slice, first, last, &factors);
        if (draws) {
            rounding_run(copy, weights, first, last, rounding);
        }
    }
    return STATUS_OK;
}
