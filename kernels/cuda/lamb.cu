/* LAMB over a part of a tensor, in two passes: 24 and 16 bytes for each parameter, 2 more for its bf16 copy.
 *
 *   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  g is the gradient times gradient_scale
 *   u = m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w
 *   w -= learning_rate u, where learning_rate has the tensor's trust ratio |w| / |u| in it
 *
 * u is made twice: storing it would cost 8 bytes. The sums of squares are in double precision, in an order
 * that depends on the length alone.
 *
 * Source    You et al. 2019, arXiv:1904.00962 */
#include "kernels/cuda/rounding.cuh"

enum { LAMB_THREADS = 256 };

struct lamb_slices {
    float *weights, *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
    int64_t slice; /* elements of a block of the first pass */
};

GPU_INLINE float direction(float w, float m, float v, const struct adamw &s)
{
    return m / s.correction1 / (sqrtf(v / s.correction2) + s.epsilon) + s.weight_decay * w;
}

/* Eight elements from `at` on; sums of the squares of their weights and updates. */
template <bool WIDE>
GPU_INLINE void moments_eight(const struct lamb_slices &p, const struct adamw &s, int64_t at,
                              double (&sums)[2])
{
    float w[EIGHT], m[EIGHT], v[EIGHT], g[EIGHT];
    int64_t left = p.count - at;
    load_eight<WIDE>(w, p.weights + at, left);
    load_eight<WIDE>(m, p.moment1 + at, left);
    load_eight<WIDE>(v, p.moment2 + at, left);
    load_eight<WIDE>(g, p.gradient + at, left);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float scaled = g[i] * s.gradient_scale;
        m[i] = s.beta1 * m[i] + (1.0f - s.beta1) * scaled;
        v[i] = s.beta2 * v[i] + (1.0f - s.beta2) * scaled * scaled;
        double weight = static_cast<double>(w[i]);
        double update = i < left ? static_cast<double>(direction(w[i], m[i], v[i], s)) : 0.0;
        sums[0] += weight * weight;
        sums[1] += update * update;
    }
    store_eight<WIDE>(p.moment1 + at, m, left);
    store_eight<WIDE>(p.moment2 + at, v, left);
}

template <bool WIDE>
__global__ void __launch_bounds__(LAMB_THREADS)
    lamb_moments_pass(double *parts, const struct lamb_slices p, const struct adamw s)
{
    GPU_SHARED(double, scratch, LAMB_THREADS);
    int64_t from = static_cast<int64_t>(blockIdx.x) * p.slice;
    int64_t to = from + p.slice < p.count ? from + p.slice : p.count;
    double sums[2] = {};
    for (int64_t at = from + threadIdx.x * EIGHT; at < to; at += LAMB_THREADS * EIGHT) {
        if (WIDE && at + EIGHT <= p.count) {
            moments_eight<true>(p, s, at, sums);
        } else {
            moments_eight<false>(p, s, at, sums);
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

template <bool WIDE>
GPU_INLINE void apply_eight(const struct lamb_slices &p, const struct adamw &s, int64_t at)
{
    float w[EIGHT], m[EIGHT], v[EIGHT];
    int64_t left = p.count - at;
    load_eight<WIDE>(w, p.weights + at, left);
    load_eight<WIDE>(m, p.moment1 + at, left);
    load_eight<WIDE>(v, p.moment2 + at, left);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        w[i] -= s.learning_rate * direction(w[i], m[i], v[i], s);
    }
    store_eight<WIDE>(p.weights + at, w, left);
    if (p.copy != nullptr) {
        rounding_eight(w, s.rounding, at);
        store_eight<WIDE>(p.copy + at, w, left);
    }
}

template <bool WIDE>
__global__ void __launch_bounds__(LAMB_THREADS)
    lamb_apply_pass(const struct lamb_slices p, const struct adamw s)
{
    int64_t at = (static_cast<int64_t>(blockIdx.x) * LAMB_THREADS + threadIdx.x) * EIGHT;
    if (WIDE && at + EIGHT <= p.count) {
        apply_eight<true>(p, s, at);
    } else if (at < p.count) {
        apply_eight<false>(p, s, at);
    }
}

/* ---- host ---- */

static bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

extern "C" status cuda_lamb_moments(struct kernels *k, double *sums, const float *weights,
                                    float *moment1, float *moment2, const float *gradient,
                                    int64_t count, const struct adamw *settings)
{
    struct lamb_slices p = {const_cast<float *>(weights), moment1, moment2, gradient, NULL, count,
                            cuda_reduce_slice(count, 2)};
    unsigned blocks = blocks_for(count, p.slice);
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, 2 * blocks * sizeof(double), &memory));
    arena_release(scratch, mark);
    double *parts = static_cast<double *>(memory);
    if (aligned(weights) && aligned(moment1) && aligned(moment2) && aligned(gradient)) {
        LAUNCH(k, lamb_moments_pass<true>, blocks, LAMB_THREADS, 0, parts, p, *settings);
    } else {
        LAUNCH(k, lamb_moments_pass<false>, blocks, LAMB_THREADS, 0, parts, p, *settings);
    }
    TRY(cuda_doubles_add(k, sums, parts, blocks));
    return cuda_doubles_add(k, sums + 1, parts + blocks, blocks);
}

extern "C" status cuda_lamb_apply(struct kernels *k, float *weights, bf16 *copy,
                                  const float *moment1, const float *moment2, int64_t count,
                                  const struct adamw *settings)
{
    struct lamb_slices p = {
        weights, const_cast<float *>(moment1), const_cast<float *>(moment2), NULL, copy, count, 0};
    unsigned blocks = blocks_for(count, LAMB_THREADS * EIGHT);
    if (aligned(weights) && aligned(moment1) && aligned(moment2) && aligned(copy)) {
        LAUNCH(k, lamb_apply_pass<true>, blocks, LAMB_THREADS, 0, p, *settings);
    } else {
        LAUNCH(k, lamb_apply_pass<false>, blocks, LAMB_THREADS, 0, p, *settings);
    }
    return STATUS_OK;
}
