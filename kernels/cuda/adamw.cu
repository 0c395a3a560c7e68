/* AdamW over flat slices, one pass: 16 bytes read and 12 written for each parameter, 2 more for its
 * bf16 copy.
 *
 *   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  g is the gradient times gradient_scale
 *   w -= learning_rate (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w)
 *
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
#include "kernels/cuda/rounding.cuh"

enum { ADAMW_THREADS = 256 };

struct slices {
    float *weights, *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
};

template <bool WIDE>
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_step(const struct slices p, const struct adamw s)
{
    int64_t at = (static_cast<int64_t>(blockIdx.x) * ADAMW_THREADS + threadIdx.x) * EIGHT;
    int64_t left = p.count - at;
    if (left <= 0) {
        return;
    }
    float w[EIGHT], m[EIGHT], v[EIGHT], g[EIGHT];
    load_eight<WIDE>(w, p.weights + at, left);
    load_eight<WIDE>(m, p.moment1 + at, left);
    load_eight<WIDE>(v, p.moment2 + at, left);
    load_eight<WIDE>(g, p.gradient + at, left);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float scaled = g[i] * s.gradient_scale;
        m[i] = s.beta1 * m[i] + (1.0f - s.beta1) * scaled;
        v[i] = s.beta2 * v[i] + (1.0f - s.beta2) * scaled * scaled;
        float step = m[i] / s.correction1 / (sqrtf(v[i] / s.correction2) + s.epsilon);
        w[i] -= s.learning_rate * (step + s.weight_decay * w[i]);
    }
    store_eight<WIDE>(p.weights + at, w, left);
    store_eight<WIDE>(p.moment1 + at, m, left);
    store_eight<WIDE>(p.moment2 + at, v, left);
    if (p.copy != nullptr) {
        rounding_eight(w, s.rounding, at);
        store_eight<WIDE>(p.copy + at, w, left);
    }
}

static bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

static status run(struct kernels *k, const struct slices &p, const struct adamw &s, bool wide)
{
    if (p.count > 0 && wide) {
        LAUNCH(k, adamw_step<true>, blocks_for(p.count, ADAMW_THREADS * EIGHT), ADAMW_THREADS, 0, p,
               s);
    } else if (p.count > 0) {
        LAUNCH(k, adamw_step<false>, blocks_for(p.count, ADAMW_THREADS * EIGHT), ADAMW_THREADS, 0,
               p, s);
    }
    return STATUS_OK;
}

/* Eights by 16 bytes, what is left over one by one. */
extern "C" status cuda_adamw_update(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                                    float *moment2, const float *gradient, int64_t count,
                                    const struct adamw *settings)
{
    bool wide = aligned(weights) && aligned(moment1) && aligned(moment2) && aligned(gradient) &&
                aligned(copy);
    int64_t whole = wide ? count / EIGHT * EIGHT : 0;
    struct slices p = {weights, moment1, moment2, gradient, copy, whole};
    TRY(run(k, p, *settings, true));
    p = {weights + whole, moment1 + whole, moment2 + whole, gradient + whole, copy, count - whole};
    p.copy = copy == NULL ? NULL : copy + whole;
    struct adamw rest = *settings;
    rest.rounding.offset += whole;
    return run(k, p, rest, false);
}
