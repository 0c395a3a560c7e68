/* AdamW update over flat slices of parameters, in one pass.
 *
 *   g = gradient gradient_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= learning_rate (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w)
 *
 * Traffic   reads 16 bytes and writes 12 bytes for each parameter, and 2 more for its bf16 copy;
 *           with bf16 moments it reads 12 and writes 8
 * Launch    grid ceil(count / 2048); block 256; no shared memory. A thread updates eight elements.
 *           A second launch with scalar accesses updates the last count % 8 elements, or all
 *           elements if an array is not 16-byte aligned
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
#include "kernels/cuda/moments.cuh"

enum { ADAMW_THREADS = 256 };

struct adamw_slices {
    float *weights;
    void *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
};

template <class MOMENT, bool ALIGNED>
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_step(const struct adamw_slices p, const struct adamw s, const struct moment_rates rates)
{
    int64_t first = (static_cast<int64_t>(blockIdx.x) * ADAMW_THREADS + threadIdx.x) * EIGHT;
    int64_t left = p.count - first;
    if (left <= 0 || is_skipped(s)) {
        return;
    }
    const float scale = get_gradient_scale(s);
    MOMENT *moment1 = static_cast<MOMENT *>(p.moment1) + first;
    MOMENT *moment2 = static_cast<MOMENT *>(p.moment2) + first;
    float w[EIGHT], m[EIGHT], v[EIGHT], g[EIGHT];
    load_eight<ALIGNED>(w, p.weights + first, left);
    load_eight<ALIGNED>(m, moment1, left);
    load_eight<ALIGNED>(v, moment2, left);
    load_eight<ALIGNED>(g, p.gradient + first, left);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float scaled = g[i] * scale;
        m[i] = update_moment(rates.first, m[i], scaled);
        v[i] = update_moment(rates.second, v[i], scaled * scaled);
        float step = m[i] / s.correction1 / (sqrtf(v[i] / s.correction2) + s.epsilon);
        w[i] -= s.learning_rate * (step + s.weight_decay * w[i]);
    }
    store_eight<ALIGNED>(p.weights + first, w, left);
    round_moments(m, moment1, s, 0, first);
    round_moments(v, moment2, s, 1, first);
    store_eight<ALIGNED>(moment1, m, left);
    store_eight<ALIGNED>(moment2, v, left);
    if (p.copy != nullptr) {
        round_eight(w, s.rounding, first);
        store_eight<ALIGNED>(p.copy + first, w, left);
    }
}

static bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class MOMENT>
static status launch_step(struct kernels *k, const struct adamw_slices &p, const struct adamw &s,
                          bool aligned)
{
    const struct moment_rates rates = make_moment_rates(&s);
    const unsigned blocks = count_blocks(p.count, ADAMW_THREADS * EIGHT);
    if (p.count > 0 && aligned) {
        LAUNCH(k, (adamw_step<MOMENT, true>), blocks, ADAMW_THREADS, 0, p, s, rates);
    } else if (p.count > 0) {
        LAUNCH(k, (adamw_step<MOMENT, false>), blocks, ADAMW_THREADS, 0, p, s, rates);
    }
    return STATUS_OK;
}

static status launch_for_dtype(struct kernels *k, const struct adamw_slices &p,
                               const struct adamw &s, bool aligned)
{
    return s.moment_dtype == DTYPE_BF16 ? launch_step<bf16>(k, p, s, aligned)
                                        : launch_step<float>(k, p, s, aligned);
}

/* Groups of eight elements use 16-byte accesses; the remaining elements use scalar accesses. */
extern "C" status cuda_adamw_update(struct kernels *k, float *weights, bf16 *copy, void *moment1,
                                    void *moment2, const float *gradient, int64_t count,
                                    const struct adamw *settings)
{
    bool aligned = is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) &&
                   is_aligned(gradient) && is_aligned(copy);
    int64_t vectorized = aligned ? count / EIGHT * EIGHT : 0;
    struct adamw_slices p = {weights, moment1, moment2, gradient, copy, vectorized};
    TRY(launch_for_dtype(k, p, *settings, true));
    p = {weights + vectorized,
         get_moment_address(moment1, settings->moment_dtype, vectorized),
         get_moment_address(moment2, settings->moment_dtype, vectorized),
         gradient + vectorized,
         copy,
         count - vectorized};
    p.copy = copy == NULL ? NULL : copy + vectorized;
    struct adamw rest = *settings;
    rest.rounding.offset += vectorized;
    return launch_for_dtype(k, p, rest, false);
}
