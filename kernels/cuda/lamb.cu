/* LAMB update over a slice of a tensor, in two passes.
 *
 *   g = gradient gradient_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   u = m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w
 *   w -= learning_rate u;  learning_rate includes the trust ratio |w| / |u| of the tensor
 *
 * Traffic   24 bytes (first pass) and 16 bytes (second pass) for each parameter, or 16 and 12 with
 *           bf16 moments, and 2 more for its bf16 copy. Both passes compute u: storing it would
 *           cost 8 bytes
 * Launch    block 256; a thread handles eight elements at a time. First pass: a block for each
 *           slice of cuda_reduce_slice(count, 2) elements, 2 KiB of shared memory. Second pass:
 *           grid ceil(count / 2048)
 * Numerics  sums of squares are in double precision, in an order that depends on the length alone
 * Source    You et al. 2019, arXiv:1904.00962 */
#include "kernels/cuda/moments.cuh"

enum { LAMB_THREADS = 256, APART = LAMB_THREADS * FOUR };

struct lamb_slices {
    float *weights;
    void *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
    int64_t slice; /* elements of each block in the first pass */
};

/* Computes u for eight elements. */
GPU_INLINE void compute_updates(float (&u)[EIGHT], const float (&w)[EIGHT], const float (&m)[EIGHT],
                                const float (&v)[EIGHT], const struct adamw &s,
                                const struct moment_rates &rates)
{
#pragma unroll
    for (int j = 0; j < EIGHT; j += FOUR) {
        compute_steps(u + j, m + j, v + j, rates, s.epsilon);
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        u[i] += s.weight_decay * w[i];
    }
}

/* Updates the moments of eight elements from `first` on, and adds the squares of their weights and
 * updates to sums. */
template <class MOMENT, bool ALIGNED>
GPU_INLINE void update_moments_eight(const struct lamb_slices &p, const struct adamw &s,
                                     const struct moment_rates &rates, float scale, int64_t first,
                                     double (&sums)[2])
{
    float w[EIGHT], m[EIGHT], v[EIGHT], g[EIGHT], u[EIGHT];
    int64_t left = p.count - first;
    MOMENT *moment1 = static_cast<MOMENT *>(p.moment1) + first;
    MOMENT *moment2 = static_cast<MOMENT *>(p.moment2) + first;
    load_eight<ALIGNED>(w, p.weights + first, left);
    load_eight<ALIGNED>(m, moment1, left);
    load_eight<ALIGNED>(v, moment2, left);
    load_eight<ALIGNED>(g, p.gradient + first, left);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float scaled = g[i] * scale;
        m[i] = update_moment(rates.first, m[i], scaled);
        v[i] = update_moment(rates.second, v[i], scaled * scaled);
    }
    round_moments(m, moment1, s, 0, first);
    round_moments(v, moment2, s, 1, first);
    compute_updates(u, w, m, v, s, rates);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        double weight = static_cast<double>(w[i]);
        double update = i < left ? static_cast<double>(u[i]) : 0.0;
        sums[0] += weight * weight;
        sums[1] += update * update;
    }
    store_eight<ALIGNED>(moment1, m, left);
    store_eight<ALIGNED>(moment2, v, left);
}

template <class MOMENT, bool ALIGNED>
__global__ void __launch_bounds__(LAMB_THREADS, 4)
    lamb_moments_pass(double *parts, const struct lamb_slices p, const struct adamw s,
                      const struct moment_rates rates)
{
    GPU_SHARED(double, scratch, LAMB_THREADS);
    int64_t from = static_cast<int64_t>(blockIdx.x) * p.slice;
    int64_t to = from + p.slice < p.count ? from + p.slice : p.count;
    to = is_skipped(s) ? from : to;
    const float scale = get_gradient_scale(s);
    double sums[2] = {};
    for (int64_t first = from + threadIdx.x * EIGHT; first < to; first += LAMB_THREADS * EIGHT) {
        if (ALIGNED && first + EIGHT <= p.count) {
            update_moments_eight<MOMENT, true>(p, s, rates, scale, first, sums);
        } else {
            update_moments_eight<MOMENT, false>(p, s, rates, scale, first, sums);
        }
    }
    for (int i = 0; i < 2; i++) {
        double sum = block_sum<LAMB_THREADS>(sums[i], scratch);
        if (threadIdx.x == 0) {
            parts[i * gridDim.x + blockIdx.x] = sum;
        }
        __syncthreads();
    }
}

/* Updates the weights of two groups of four elements that begin DISTANCE apart (moments.cuh). */
template <class MOMENT, bool ALIGNED, int DISTANCE>
GPU_INLINE void apply_updates(const struct lamb_slices &p, const struct adamw &s,
                              const struct moment_rates &rates, float rate, int64_t first)
{
    float w[EIGHT], m[EIGHT], v[EIGHT], u[EIGHT];
    int64_t left = p.count - first;
    load_groups<ALIGNED, DISTANCE>(w, p.weights + first, left);
    load_groups<ALIGNED, DISTANCE>(m, static_cast<const MOMENT *>(p.moment1) + first, left);
    load_groups<ALIGNED, DISTANCE>(v, static_cast<const MOMENT *>(p.moment2) + first, left);
    compute_updates(u, w, m, v, s, rates);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        w[i] -= rate * u[i];
    }
    store_groups<ALIGNED, DISTANCE>(p.weights + first, w, left);
    if (p.copy != nullptr) {
        if (DISTANCE == FOUR) {
            round_eight(w, s.rounding, first);
        }
        store_groups<ALIGNED, DISTANCE>(p.copy + first, w, left);
    }
}

template <class MOMENT, bool ALIGNED, int DISTANCE>
__global__ void __launch_bounds__(LAMB_THREADS)
    lamb_apply_pass(const struct lamb_slices p, const struct adamw s,
                    const struct moment_rates rates)
{
    int64_t from = static_cast<int64_t>(blockIdx.x) * LAMB_THREADS * EIGHT;
    int64_t first = from + threadIdx.x * (DISTANCE == FOUR ? 2 * FOUR : FOUR);
    if (is_skipped(s)) {
        return;
    }
    const float rate = s.trust_ratio == nullptr ? s.learning_rate
                                                : static_cast<float>(s.base_rate * *s.trust_ratio);
    if (ALIGNED && from + LAMB_THREADS * EIGHT <= p.count) {
        apply_updates<MOMENT, true, DISTANCE>(p, s, rates, rate, first);
    } else if (first < p.count) {
        apply_updates<MOMENT, false, DISTANCE>(p, s, rates, rate, first);
    }
}

/* ---- host ---- */

static bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class MOMENT>
static status launch_moments(struct kernels *k, double *parts, const struct lamb_slices &p,
                             unsigned blocks, const struct adamw *settings)
{
    const struct moment_rates rates = make_moment_rates(settings);
    if (is_aligned(p.weights) && is_aligned(p.moment1) && is_aligned(p.moment2) &&
        is_aligned(p.gradient)) {
        LAUNCH(k, (lamb_moments_pass<MOMENT, true>), blocks, LAMB_THREADS, 0, parts, p, *settings,
               rates);
    } else {
        LAUNCH(k, (lamb_moments_pass<MOMENT, false>), blocks, LAMB_THREADS, 0, parts, p, *settings,
               rates);
    }
    return STATUS_OK;
}

extern "C" status cuda_lamb_moments(struct kernels *k, double *sums, const float *weights,
                                    void *moment1, void *moment2, const float *gradient,
                                    int64_t count, const struct adamw *settings)
{
    struct lamb_slices p = {const_cast<float *>(weights), moment1, moment2, gradient, NULL, count,
                            cuda_reduce_slice(count, 2)};
    unsigned blocks = count_blocks(count, p.slice);
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, 2 * blocks * sizeof(double), &memory));
    arena_release(scratch, mark);
    double *parts = static_cast<double *>(memory);
    TRY(settings->moment_dtype == DTYPE_BF16
            ? launch_moments<bf16>(k, parts, p, blocks, settings)
            : launch_moments<float>(k, parts, p, blocks, settings));
    TRY(cuda_reduce_doubles(k, sums, parts, blocks));
    return cuda_reduce_doubles(k, sums + 1, parts + blocks, blocks);
}

template <class MOMENT, int DISTANCE>
static status launch_apply(struct kernels *k, const struct lamb_slices &p,
                           const struct adamw *settings)
{
    const struct moment_rates rates = make_moment_rates(settings);
    unsigned blocks = count_blocks(p.count, LAMB_THREADS * EIGHT);
    if (is_aligned(p.weights) && is_aligned(p.moment1) && is_aligned(p.moment2) &&
        is_aligned(p.copy)) {
        LAUNCH(k, (lamb_apply_pass<MOMENT, true, DISTANCE>), blocks, LAMB_THREADS, 0, p, *settings,
               rates);
    } else {
        LAUNCH(k, (lamb_apply_pass<MOMENT, false, DISTANCE>), blocks, LAMB_THREADS, 0, p, *settings,
               rates);
    }
    return STATUS_OK;
}

extern "C" status cuda_lamb_apply(struct kernels *k, float *weights, bf16 *copy,
                                  const void *moment1, const void *moment2, int64_t count,
                                  const struct adamw *settings)
{
    struct lamb_slices p = {
        weights, const_cast<void *>(moment1), const_cast<void *>(moment2), NULL, copy, count, 0};
    if (settings->moment_dtype == DTYPE_BF16) {
        return launch_apply<bf16, FOUR>(k, p, settings);
    }
    return settings->rounding.stochastic ? launch_apply<float, FOUR>(k, p, settings)
                                         : launch_apply<float, APART>(k, p, settings);
}
